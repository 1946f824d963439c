"""What contrastive methods share: which rows share how many labels, a projection onto the sphere, and cosines on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import normalize

from probmcl import overlap
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.losses import positives
from probmcl.methods import collapse
from probmcl.methods.base import Method, Step
from probmcl.runtime import distributed
from probmcl.runtime.precision import full_precision

Overlap = Literal["jaccard", "cosine", "cosine_literal"]

ALIKE = 0.5
"""Share of labels from which on two images count as alike in the signs of collapse, whatever a loss takes for one."""


class ProjectionHead(nn.Module):
    """From a feature to a point on the unit sphere, where cosines are taken.

    Linear layers of the given sizes with ReLU between them and none after the last, then division by the length.
    Without sizes the feature itself is divided by its length.

    Reference: Khosla et al., Supervised Contrastive Learning, section 3.1.

    Args:
        in_features: size D of the feature.
        sizes: of the layers; the last one is the size of what is compared.

    >>> head = ProjectionHead(8, (16, 4))
    >>> head(torch.ones(2, 8)).shape, bool(head(torch.ones(2, 8)).norm(dim=1).allclose(torch.ones(2)))
    (torch.Size([2, 4]), True)
    """

    def __init__(self, in_features: int, sizes: Sequence[int]) -> None:
        super().__init__()
        linear = [nn.Linear(*ends) for ends in pairwise((in_features, *sizes))]
        self.layers = nn.Sequential(*[layer for each in linear for layer in (each, nn.ReLU())][:-1])

    @full_precision
    def forward(self, features: Float[Tensor, "M D"]) -> Float[Tensor, "M d"]:
        """The point of each row."""
        return normalize(self.layers(features), dim=1)


class ProjectedContrast(Method, ABC):
    """Two views of each image, projected onto a sphere, and a loss on their cosines.

    Its kinds differ in `contrast` alone. The settings of each have `projection`, the sizes of the projection's layers.
    The projection is needed for training only: what predicts is the encoder with a linear probe. Where several
    processes have a part of the batch each, P rows in all, each of them compares its own M rows with those of all
    processes.
    """

    n_views = 2

    def __init__(self, encoder: Encoder | PrecomputedFeatures, label_space: LabelSpace, config: Any = None) -> None:
        super().__init__()
        self.config = config or self.presets["default"]
        self.encoder = encoder
        self.projection = ProjectionHead(encoder.features, self.config.projection)

    def forward(
        self,
        views: Float[Tensor, "V N *image"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"] | None = None,
    ) -> Step:
        """The contrast over all views, and the signs of collapse."""
        features = self.encoder(views.flatten(0, 1))  # (M, D)
        projected = self.projection(features)  # (M, d)
        similarity = _products(projected, distributed.gather(projected))  # (M, P)
        loss = self.contrast(similarity, labels, known, len(views))
        own = similarity[:, distributed.local_rows(len(similarity))]  # each process watches its own rows
        return Step(loss, {"contrastive": loss, **_watched(features, own, labels, known, len(views))})

    @abstractmethod
    def contrast(
        self,
        similarity: Float[Tensor, "M P"],
        labels: Float[Tensor, "N C"],
        known: Bool[Tensor, "N C"] | None,
        n_views: int,
    ) -> Float[Tensor, ""]:
        """The loss of this process's rows, whose mean over processes is that of all rows, as a mean over rows is.

        Args:
            similarity: cosines of the own rows, in the order v·N + i, with the rows of all processes. `own_columns`
                says which of the columns are the rows themselves.
            labels: of the own images. `shared_labels` compares them with those of all processes, `of_all_rows` has
                them for every column.
            known: labels that take part; None means all.
            n_views: V, so that M = V·N.
        """


def shared_labels(
    labels: Float[Tensor, "N C"], known: Bool[Tensor, "N C"] | None, *, n_views: int, kind: Overlap = "jaccard"
) -> Float[Tensor, "M P"]:
    """How much the own rows share with the rows of all processes, both in the order v·N + i in each process.

    >>> shared_labels(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), None, n_views=1)
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    known_b = None if known is None else distributed.gather(known)
    shared = _between_images(labels, distributed.gather(labels), known, known_b, kind)
    # Deviation (decision 0001, point 26): views of one image are positives whatever is known of its labels.
    shared[:, distributed.local_rows(len(labels))].fill_diagonal_(1)
    by_process = shared.reshape(len(labels), distributed.world_size(), len(labels))  # the columns of each are v·N + i
    return by_process.repeat(n_views, 1, n_views).flatten(1)


def of_all_rows(of_images: Shaped[Tensor, "N C"], *, n_views: int) -> Shaped[Tensor, "P C"]:
    """Something that each image has, for the rows of all processes, in the order of their columns.

    >>> of_all_rows(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), n_views=2)[:, 0]
    tensor([1., 0., 1., 0.])
    """
    return distributed.gather(of_images.repeat(n_views, 1))


def own_columns(similarity: Float[Tensor, "M P"]) -> Int[Tensor, "M"]:
    """Which column is the row itself, for each of the own rows.

    >>> own_columns(torch.zeros(2, 2))
    tensor([0, 1])
    """
    own = distributed.local_rows(len(similarity))
    return torch.arange(own.start, own.stop, device=similarity.device)


def check_ranges(*, temperature: float, threshold: float = ALIKE) -> None:
    """Refuse settings of a contrast that have no meaning."""
    if temperature <= 0 or not 0 <= threshold <= 1:
        raise ValueError(
            f"temperature={temperature}, threshold={threshold}: the first is above 0, the second from 0 to 1"
        )


def _between_images(
    a: Tensor, b: Tensor, known_a: Tensor | None, known_b: Tensor | None, kind: Overlap
) -> Float[Tensor, "N Q"]:
    if kind == "jaccard":
        return overlap.jaccard(a, b, known_a=known_a, known_b=known_b)
    return overlap.cosine(a, b, known_a=known_a, known_b=known_b, literal=kind == "cosine_literal")


@full_precision
def _products(a: Float[Tensor, "M d"], b: Float[Tensor, "P d"]) -> Float[Tensor, "M P"]:
    return a @ b.T


def _watched(
    features: Float[Tensor, "M D"],
    similarity: Float[Tensor, "M M"],
    labels: Float[Tensor, "N C"],
    known: Bool[Tensor, "N C"] | None,
    n_views: int,
) -> dict[str, Tensor]:
    shared = _between_images(labels, labels, known, known, "jaccard").fill_diagonal_(1)
    positive = positives(shared.repeat(n_views, n_views), threshold=ALIKE)
    return collapse.collapse_statistics(features, None, similarity, positive, n_views=n_views)
