"""Measures of an embedding: do images with similar labels lie close together, and do images use all directions?"""

from collections.abc import Sequence
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
    neighbor_metrics = retrieval(features, labels, known, k=NEIGHBORS)
    squared = squared_distances(features)
    is_pair = torch.ones_like(squared, dtype=torch.bool).triu(1)  # each pair of images once
    is_positive_pair = is_pair & (jaccard(labels, known_a=known) >= POSITIVE_OVERLAP)

    alignment = None
    if is_positive_pair.any():
        alignment = squared[is_positive_pair].double().mean().item()
    potential = torch.exp(-2 * squared[is_pair].double())
    uniformity = potential.mean().log().item()
    return Topology(neighbor_metrics[f"jaccard_at_{NEIGHBORS}"], alignment, uniformity)


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
    # `checked` validates labels together with scores. There are no scores here, so the labels stand in for them.
    _, all_labels, all_known = checked(labels, labels, known)
    all_points = embedding.detach().cpu()
    has_labels = all_known.any(1)
    _refuse_embedding(all_points, has_labels)
    points = all_points[has_labels]
    point_labels = all_labels[has_labels]
    point_known = all_known[has_labels]

    mean_overlaps: list[float] = []
    average_precisions: list[float] = []
    for query_rows in _query_blocks(len(points), queries, seed):
        cosine, overlap = _compare(points, point_labels, point_known, query_rows)  # each (queries, points)
        is_other = torch.ones_like(cosine, dtype=torch.bool)
        is_other.scatter_(1, query_rows[:, None], False)  # a query is not its own neighbor
        mean_overlaps += _overlap_of_nearest(cosine, overlap, is_other, k).tolist()
        is_relevant = (overlap >= threshold) & is_other
        average_precisions += _average_precisions(cosine, is_relevant, is_other)
    return {f"jaccard_at_{k}": _mean_or_none(mean_overlaps), "mAP": _mean_or_none(average_precisions)}


def _average_precisions(
    cosine: Float32[Tensor, "Q N"], is_relevant: Bool[Tensor, "Q N"], is_other: Bool[Tensor, "Q N"]
) -> list[float]:
    """Return the average precision of each query that has a relevant image, for ranking the other images by cosine."""
    averages = []
    for scores, relevant, others in zip(cosine.numpy(), is_relevant.numpy(), is_other.numpy(), strict=True):
        if relevant.any():
            precision = precision_at_positives(scores, relevant, others)
            averages.append(float(precision.mean()))
    return averages


def _refuse_embedding(embedding: Float[Tensor, "M D"], has_labels: Bool[Tensor, " N"]) -> None:
    """Raise `ValueError` unless there is one row for each image, and all rows of images with labels are finite."""
    if len(embedding) != len(has_labels):
        rows = counted(len(embedding), "row")
        raise ValueError(f"embedding has {rows}, but labels has {len(has_labels)}; expected one per image")
    invalid = has_labels & ~embedding.isfinite().all(1)
    if invalid.any():
        raise ValueError(f"embedding: row {int(invalid.nonzero()[0])} is not finite; leave that image out")


def _query_blocks(points: int, queries: int | None, seed: int) -> Sequence[Int[Tensor, " _"]]:
    """Return the rows of at most `queries` random points in ascending order, in blocks; None means all points.

    A single point has no neighbors, so it is not a query.
    """
    if points <= 1:
        return ()
    order = np.random.default_rng(seed).permutation(points)
    chosen = np.sort(order[:queries])
    return torch.split(torch.from_numpy(chosen), QUERY_BLOCK)


def _mean_or_none(values: Sequence[float]) -> float | None:
    """Return the mean, or None without values."""
    return float(np.mean(values)) if values else None


def _compare(
    points: Float[Tensor, "N D"], labels: Float[Tensor, "N C"], known: Bool[Tensor, "N C"], queries: Int[Tensor, " Q"]
) -> tuple[Float32[Tensor, "Q N"], Float32[Tensor, "Q N"]]:
    """Return the cosines and the Jaccard indices of the queries with all images, computed in blocks.

    `queries` are the rows of the images that are compared with all images.
    """
    directions = _directions(points[queries])
    query_labels = labels[queries]
    query_known = known[queries]
    cosine = torch.empty(len(queries), len(points))
    overlap = torch.empty(len(queries), len(points))
    width = max(points.shape[1], labels.shape[1])
    for columns in blocks(len(points), width):
        # Rounding to float32 gives equal images equal cosines, regardless of the order of summation.
        cosine[:, columns] = (directions @ _directions(points[columns]).T).float()
        overlap[:, columns] = jaccard(query_labels, labels[columns], known_a=query_known, known_b=known[columns])
    return cosine, overlap


def _directions(points: Float[Tensor, "M D"]) -> Float64[Tensor, "M D"]:
    """Return the points divided by their lengths, in double precision. A zero vector stays zero."""
    exact = points.double()
    largest = exact.abs().amax(1, keepdim=True)
    scaled = exact / largest.where(largest > 0, 1)  # the squares of unscaled numbers could overflow
    length = scaled.norm(dim=1, keepdim=True)
    return torch.div(scaled, length.where(length > 0, 1))


def _overlap_of_nearest(
    cosine: Float32[Tensor, "Q N"], overlap: Float32[Tensor, "Q N"], others: Bool[Tensor, "Q N"], k: int
) -> Float64[Tensor, " Q"]:
    """Return the mean overlap with the k nearest images; images tied for the last rank share the remaining ranks."""
    ranks = min(k, cosine.shape[1] - 1)
    ranked = cosine.where(others, -torch.inf)
    lowest = ranked.topk(ranks).values[:, -1:]  # (Q, 1): the cosine of the last rank
    is_above = ranked > lowest
    is_tied = ranked == lowest
    ranks_for_tied = ranks - is_above.sum(1)
    exact = overlap.double()
    overlap_above = (exact * is_above).sum(1)
    overlap_tied = ranks_for_tied * (exact * is_tied).sum(1) / is_tied.sum(1)
    return (overlap_above + overlap_tied) / ranks
