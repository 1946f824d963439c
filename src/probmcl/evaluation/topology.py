"""Measures of an embedding: do images with the same labels lie close together, and do the images use all directions?"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float32
from torch import Tensor
from torch.nn.functional import normalize

from probmcl.evaluation.retrieval import retrieval
from probmcl.overlap import jaccard

NEIGHBORS = 10
"""Nearest neighbors whose labels are compared with those of an image."""

POSITIVE_OVERLAP = 0.5
"""Two images are a positive pair if the Jaccard index of their labels is at least this large."""


class Topology(NamedTuple):
    """Measures of an embedding; None if they are undefined.

    Attributes:
        label_agreement: mean Jaccard index of an image's labels with those of its ten nearest neighbors.
        alignment: mean squared distance of positive pairs on the unit sphere; lower is closer.
        uniformity: log of the mean of exp(−2 · squared distance) over all pairs; lower is more uniform.
    """

    label_agreement: float | None
    alignment: float | None
    uniformity: float | None


def topology(features: Float[Tensor, "N D"], labels: Float[Tensor, "N C"], known: Bool[Tensor, "N C"]) -> Topology:
    """Measure how the labels are arranged in an embedding.

        alignment  = mean over positive pairs of ‖f(x) − f(y)‖²
        uniformity = log mean over all pairs of exp(−2 ‖f(x) − f(y)‖²)

    where f(x) is the feature of an image, divided by its length.

    Reference: Wang and Isola, Understanding contrastive representation learning through alignment and uniformity on
    the hypersphere, 2020. There, a positive pair consists of two views of one image.

    >>> labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> measures = topology(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), labels, labels > -1)
    >>> measures.alignment, round(measures.uniformity, 3)
    (0.0, -1.063)
    """
    if len(features) < 2:
        return Topology(None, None, None)
    agreement = retrieval(features, labels, known, k=NEIGHBORS)[f"jaccard_at_{NEIGHBORS}"]
    squared = squared_distances(features)
    overlap = jaccard(labels, known_a=known)
    pairs = torch.ones_like(squared, dtype=torch.bool).triu(1)
    positive = pairs & (overlap >= POSITIVE_OVERLAP)
    alignment = squared[positive].double().mean().item() if positive.any() else None
    uniformity = squared[pairs].double().mul(-2).exp().mean().log().item()
    return Topology(agreement, alignment, uniformity)


def squared_distances(features: Float[Tensor, "N D"]) -> Float32[Tensor, "N N"]:
    """Return the squared distances of unit vectors, 2 − 2 cos, which are never negative."""
    unit = normalize(features.float(), dim=1)
    return (2 - 2 * unit @ unit.T).clamp(min=0)
