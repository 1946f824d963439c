"""Batches of precomputed features or activations, which are computed once and used in every epoch."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray
from torch import Tensor, nn

from probmcl.data.labels import sample_labels
from probmcl.data.loader import Batch, Order
from probmcl.runtime.distributed import rank, shard, unshard, world_size

ROWS_AT_ONCE = 64
"""Views per batch outside training."""


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
    features = []
    for batch in batches:
        rows = encoder(batch.views.flatten(0, 1).to(device)).float().cpu()
        features.append(rows.reshape(len(batch.views), -1, rows.shape[1]).transpose(0, 1))  # (n, V, D)
        if done is not None:
            done(len(batch.labels))
    return unshard(features).transpose(0, 1).contiguous()


class FeatureBatches:
    """Training batches of stored views (features or activations): each image once per epoch, with `n_views` views.

    The seed and the epoch determine the order and the views; an image's views in one step are all different. With
    `weights`, images occur in proportion to their weights (see `Order`). `rows` are the rows of the images in the
    records (default: 0, 1, …).
    """

    def __init__(
        self,
        features: Shaped[Tensor, "V N *feature"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"],
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        n_views: int = 1,
        images: int | None = None,
        weights: Float[ndarray, "N"] | None = None,
        rows: Int[ndarray, "N"] | None = None,
    ) -> None:
        if n_views > len(features):
            raise ValueError(f"views per image: {n_views} required, but only {len(features)} stored")
        self.features, self.labels, self.known, self.seed, self.n_views = features, labels, known, seed, n_views
        self.rows = torch.arange(features.shape[1]) if rows is None else torch.from_numpy(rows)
        self.order = Order(
            np.arange(features.shape[1]),
            batch_size=batch_size,
            epochs=epochs,
            seed=seed,
            share=(rank(), world_size()),
            images=images,
            weights=weights,
        )
        self.steps_per_epoch = self.order.steps_per_epoch

    def __len__(self) -> int:
        return len(self.order)

    def starting(self, step: int) -> Iterator[Batch]:
        """Yield the batches, skipping the first `step` batches."""
        epoch, views, labels = -1, np.empty(0, dtype=int), self.labels
        for batch in self.order.starting(step):
            if batch[0][0] != epoch:
                epoch = batch[0][0]
                keys = np.random.default_rng((self.seed, epoch, 1)).random(self.features.shape[:2])
                views = keys.argsort(0)[: self.n_views]  # (n_views, N): the views of each image in this epoch
                # A label between 0 and 1 is a probability; a new 0 or 1 is drawn in each epoch.
                labels = torch.from_numpy(sample_labels(self.labels.numpy(), self.seed, epoch, 2))
            rows = torch.tensor([row for _, row in batch])
            chosen = torch.from_numpy(views[:, rows.numpy()])
            yield Batch(self.features[chosen, rows].float(), labels[rows], self.known[rows], self.rows[rows])


class StoredViews:
    """Batches of all stored views of each image, in the stored order, for the shard of this process."""

    def __init__(
        self,
        features: Shaped[Tensor, "V N *feature"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"],
        rows: Int[ndarray, "N"],
    ) -> None:
        self.features, self.labels, self.known, self.rows = features, labels, known, torch.from_numpy(rows)
        images = max(1, ROWS_AT_ONCE // len(features))
        self.parts = shard([slice(start, start + images) for start in range(0, len(rows), images)])

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Batch]:
        for part in self.parts:
            yield Batch(self.features[:, part].float(), self.labels[part], self.known[part], self.rows[part])
