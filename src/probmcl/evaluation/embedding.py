"""Measures of an embedding: do images with similar labels lie close together, and do images use all directions?"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int
from torch import Tensor
from torch.nn.functional import normalize

from probmcl.errors import counted
from probmcl.evaluation.metrics import precision_at_positives
from probmcl.evaluation.scores import blocks, checked
from probmcl.overlap import jaccard
from probmcl.store.evaluation import Retrieval

NEIGHBORS = 10
"""Nearest neighbors whose labels are compared with those of an image."""

POSITIVE_OVERLAP = 0.5
"""Two images are a positive pair if the Jaccard index of their labels is at least this large."""

QUERY_BLOCK = 256
"""Queries per block; for 40,000 images a block takes a few hundred megabytes."""


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


def retrieval_at_10(
    embedding: Float[Tensor, "M D"], labels: Float[Tensor, "N C"], known: Bool[Tensor, "N C"] | None = None
) -> Retrieval:
    """Return the metrics of `retrieval` for ten neighbors, as stored in retrieval.json."""
    found = retrieval(embedding, labels, known, k=10)
    return Retrieval(jaccard_at_10=found["jaccard_at_10"], mAP=found["mAP"])


def retrieval(
    embedding: Float[Tensor, "M D"],
    labels: Float[Tensor, "N C"],
    known: Bool[Tensor, "N C"] | None = None,
    *,
    k: int = 10,
    threshold: float = 0.5,
    queries: int | None = 2000,
    seed: int = 0,
) -> dict[str, float | None]:
    """Compare each image's labels with those of its nearest neighbors, by cosine similarity of the embeddings.

    - jaccard_at_10 (for k = 10): mean `jaccard` of an image with its k nearest neighbors, or with all other images if
      there are fewer than k
    - mAP: mean average precision of ranking all other images by cosine, where images with jaccard ≥ `threshold` are
      relevant; queries without a relevant image are left out

    At most `queries` random images are queries; each is compared with all other images. A metric is None if no query
    has a value. A vector of zeros has cosine 0 with every other vector. Images with equal cosines are tied:
    jaccard_at_k is the mean over all orders of ties, and average precision treats ties as one point. An image without
    a known label is never a query or a result, since its relevance is unknown.

    >>> labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> retrieval(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), labels, k=1)  # the third finds the second
    {'jaccard_at_1': 0.6666666666666666, 'mAP': 1.0}
    """
    if k < 1 or (queries is not None and queries < 1):
        problem = f"k={k} and queries={queries} must be at least 1"
        raise ValueError(f"{problem}; queries=None makes every image a query")
    entries = checked(labels, labels, known)
    kept = entries.known.any(1)
    _refuse_embedding(embedding := embedding.detach().cpu(), kept)
    points = embedding[kept]
    queried = torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(len(points))[:queries]))
    overlaps: list[float] = []
    precisions: list[float] = []
    for block in torch.split(queried, QUERY_BLOCK) if len(points) > 1 else ():
        cosine, overlap = _compare(points, entries.labels[kept], entries.known[kept], block)
        others = torch.ones_like(cosine, dtype=torch.bool).scatter_(1, block[:, None], False)
        overlaps += _overlap_of_nearest(cosine, overlap, others, k).tolist()
        relevant = (overlap >= threshold) & others
        rows = zip(cosine.numpy(), relevant.numpy(), others.numpy(), strict=True)
        precisions += [float(precision_at_positives(*row).mean()) for row in rows if row[1].any()]
    metrics = {f"jaccard_at_{k}": overlaps, "mAP": precisions}
    return {name: float(np.mean(values)) if values else None for name, values in metrics.items()}


def _refuse_embedding(embedding: Float[Tensor, "M D"], kept: Bool[Tensor, " N"]) -> None:
    if len(embedding) != len(kept):
        raise ValueError(
            f"embedding has {counted(len(embedding), 'row')}, but labels has {len(kept)}; expected one per image"
        )
    invalid = kept & ~embedding.isfinite().all(1)
    if invalid.any():
        raise ValueError(f"embedding: row {int(invalid.nonzero()[0])} is not finite; leave that image out")


def _compare(
    points: Float[Tensor, "N D"], labels: Float[Tensor, "N C"], known: Bool[Tensor, "N C"], queries: Int[Tensor, " Q"]
) -> tuple[Float32[Tensor, "Q N"], Float32[Tensor, "Q N"]]:
    """Return the cosines and Jaccard indices of the queries with all images, computed in blocks."""
    directions = _directions(points[queries])
    cosine, overlap = torch.empty(2, len(queries), len(points)).unbind()
    for columns in blocks(len(points), max(points.shape[1], labels.shape[1])):
        # Rounding to float32 gives equal images equal cosines, regardless of the order of summation.
        cosine[:, columns] = (directions @ _directions(points[columns]).T).float()
        overlap[:, columns] = jaccard(labels[queries], labels[columns], known_a=known[queries], known_b=known[columns])
    return cosine, overlap


def _directions(points: Float[Tensor, "M D"]) -> Float64[Tensor, "M D"]:
    exact = points.double()
    largest = exact.abs().amax(1, keepdim=True)
    scaled = exact / largest.where(largest > 0, 1)  # squares could overflow
    length = scaled.norm(dim=1, keepdim=True)
    return torch.div(scaled, length.where(length > 0, 1))  # unit length, except for zero vectors


def _overlap_of_nearest(
    cosine: Float32[Tensor, "Q N"], overlap: Float32[Tensor, "Q N"], others: Bool[Tensor, "Q N"], k: int
) -> Float64[Tensor, " Q"]:
    """Return the mean overlap with the k nearest images; images tied for the last rank share the remaining ranks."""
    k = min(k, cosine.shape[1] - 1)
    ranked = cosine.where(others, -torch.inf)
    lowest = ranked.topk(k).values[:, -1:]  # (Q, 1)
    above, tied = ranked > lowest, ranked == lowest
    remaining = k - above.sum(1)
    overlap = overlap.double()
    return ((overlap * above).sum(1) + remaining * (overlap * tied).sum(1) / tied.sum(1)) / k
