"""Batches of precomputed features or activations, which are computed once and used in every epoch."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray
from torch import Tensor, nn

from probmcl.data.labels import sample_labels
from probmcl.data.loader import Batch, Order
from probmcl.data.records import LabelSpace
from probmcl.runtime.distributed import rank, shard, unshard, world_size

ROWS_AT_ONCE = 64
"""Views per batch outside training."""

VIEWS_STREAM = 1
LABELS_STREAM = 2
"""Last parts of the seeds of an epoch, which make its random views and its random labels independent."""


@torch.inference_mode()
def extract(
    encoder: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device | str = "cpu",
    done: Callable[[int], None] | None = None,
) -> Float[Tensor, "V N D"]:
    """Return the features of every view of every image, in the order of the batches.

    With several processes, each computes its shard of the batches, and all of them receive the features of all images.

    Args:
        encoder: the encoder, which is moved to the device and set to eval mode.
        batches: batches of this process.
        device: device to compute on.
        done: callback that receives the number of images in each finished batch.
    """
    encoder.to(device).eval()
    image_features = []  # one tensor per batch, with images first, because `unshard` puts images in order
    for batch in batches:
        rows = encoder(batch.views.flatten(0, 1).to(device)).float().cpu()  # (V·n, D)
        view_features = rows.reshape(len(batch.views), -1, rows.shape[1])  # (V, n, D)
        image_features.append(view_features.transpose(0, 1))
        if done is not None:
            done(len(batch.labels))
    all_images = unshard(image_features)  # (N, V, D)
    return all_images.transpose(0, 1).contiguous()


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """Stored views of images (features or activations), with labels.

    Attributes:
        features: V views of N images.
        labels: labels of the images; a label between 0 and 1 is a probability.
        known: mask of the known labels.
        rows: rows of the images in the records; None means 0, 1, …
        weights: sampling weights; None means that all images occur equally often.
    """

    features: Shaped[Tensor, "V N *feature"]
    labels: Float[Tensor, "N C"]
    known: Bool[Tensor, "N C"]
    rows: Int[ndarray, "N"] | None = None
    weights: Float[ndarray, "N"] | None = None


class LabeledFeatures(NamedTuple):
    """Features of V views of N images, with the labels of the images.

    Attributes:
        features: the features of every view of every image.
        labels: one column for each class of the label space.
        known: mask of the known labels.
        label_space: the classes of the labels.
        weights: for training, the sampling weights of the images; None if all images have the same weight.
    """

    features: Float[Tensor, "V N D"]
    labels: Float[Tensor, "N C"]
    known: Bool[Tensor, "N C"]
    label_space: LabelSpace
    weights: Float[ndarray, "N"] | None = None


class FeatureBatches:
    """Training batches of stored views: each image once per epoch, with `n_views` views.

    The seed and the epoch determine the order and the views; an image's views in one step are all different. With
    sampling weights, images occur in proportion to their weights (see `Order`). `images` limits the total number of
    images; None means no limit.
    """

    def __init__(
        self,
        stored: StoredFeatures,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        n_views: int = 1,
        images: int | None = None,
    ) -> None:
        n_stored_views, n_images = stored.features.shape[:2]
        if n_views > n_stored_views:
            raise ValueError(f"views per image: {n_views} required, but only {n_stored_views} stored")
        self.stored = stored
        self.seed = seed
        self.n_views = n_views
        self.rows = torch.arange(n_images) if stored.rows is None else torch.from_numpy(stored.rows)
        self.order = Order(
            np.arange(n_images),
            batch_size=batch_size,
            epochs=epochs,
            seed=seed,
            share=(rank(), world_size()),
            images=images,
            weights=stored.weights,
        )
        self.steps_per_epoch = self.order.steps_per_epoch

    def __len__(self) -> int:
        return len(self.order)

    def starting(self, step: int) -> Iterator[Batch]:
        """Yield the batches, skipping the first `step` batches.

        In every epoch, the stored views that an image is shown in are drawn again, and labels that are probabilities
        become 0 or 1 again.
        """
        current_epoch: int | None = None
        for batch in self.order.starting(step):
            epoch, _ = batch[0]  # all images of a batch have the same epoch
            if epoch != current_epoch:
                current_epoch = epoch
                views = self._draw_views(epoch)  # (n_views, N), the numbers of stored views
                labels = self._draw_labels(epoch)
            images = torch.tensor([image for _, image in batch])
            views_of_images = torch.from_numpy(views[:, images.numpy()])  # (n_views, n)
            features = self.stored.features[views_of_images, images].float()  # (n_views, n, *feature)
            yield Batch(features, labels[images], self.stored.known[images], self.rows[images])

    def _draw_views(self, epoch: int) -> Int[ndarray, "v N"]:
        """Return `n_views` different stored views of each image, drawn at random for an epoch."""
        generator = np.random.default_rng((self.seed, epoch, VIEWS_STREAM))
        random_keys = generator.random(self.stored.features.shape[:2])  # (V, N)
        shuffled_views = random_keys.argsort(0)
        return shuffled_views[: self.n_views]

    def _draw_labels(self, epoch: int) -> Float[Tensor, "N C"]:
        """Return the labels of an epoch: for each label that is a probability, 0 or 1 drawn at random."""
        return torch.from_numpy(sample_labels(self.stored.labels.numpy(), self.seed, epoch, LABELS_STREAM))


class StoredViews:
    """Batches of all stored views of each image, in the stored order, for the shard of this process."""

    def __init__(
        self,
        features: Shaped[Tensor, "V N *feature"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"],
        rows: Int[ndarray, "N"],
    ) -> None:
        self.features = features
        self.labels = labels
        self.known = known
        self.rows = torch.from_numpy(rows)
        images_at_once = max(1, ROWS_AT_ONCE // len(features))
        parts = [slice(start, start + images_at_once) for start in range(0, len(rows), images_at_once)]
        self.parts = shard(parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Batch]:
        for part in self.parts:
            yield Batch(self.features[:, part].float(), self.labels[part], self.known[part], self.rows[part])
