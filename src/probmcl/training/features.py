"""Features that are computed once and learned from many times."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probmcl.data.loader import Batch, ImageBatches, Order


@torch.inference_mode()
def extract(
    encoder: nn.Module,
    batches: ImageBatches,
    *,
    device: torch.device | str = "cpu",
    done: Callable[[int], None] | None = None,
) -> Float[Tensor, "V N D"]:
    """The encoder's features of every view of every image, in the order of the batches; `done` hears of each batch."""
    encoder.to(device).eval()
    features = []
    for batch in batches:
        rows = encoder(batch.views.flatten(0, 1).to(device)).float().cpu()
        features.append(rows.reshape(len(batch.views), -1, rows.shape[1]))
        if done is not None:
            done(len(batch.labels))
    return torch.cat(features, dim=1)


class FeatureBatches:
    """Batches of extracted features: every image once in an epoch, in one of its views; order and views are drawn."""

    def __init__(
        self,
        features: Float[Tensor, "V N D"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"],
        *,
        batch_size: int,
        epochs: int,
        seed: int,
    ) -> None:
        self.features, self.labels, self.known, self.seed = features, labels, known, seed
        self.order = Order(np.arange(features.shape[1]), batch_size=batch_size, epochs=epochs, seed=seed)
        self.steps_per_epoch = self.order.steps_per_epoch

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        rng = np.random.default_rng(self.seed)
        for batch in self.order:
            rows = torch.tensor([row for _, row in batch])
            views = torch.from_numpy(rng.integers(len(self.features), size=len(rows)))
            yield Batch(self.features[views, rows][None], self.labels[rows], self.known[rows], rows)
