"""Retrieval scores: whether the nearest neighbors of an image have similar labels."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int
from torch import Tensor

from probmcl.evaluation.entries import blocks, checked
from probmcl.evaluation.metrics import precision_at_positives
from probmcl.overlap import jaccard

QUERY_BLOCK = 256
"""Queries processed at once: for 40,000 images a few hundred megabytes."""


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
    """Compare the labels of an image with those of its neighbors, by the cosine of their embeddings.

    - jaccard_at_10 (for k = 10): mean `jaccard` of an image and its k nearest others, or all others if there are fewer;
    - mAP: mean average precision of ranking all others by cosine, where those with jaccard ≥ `threshold` are relevant;
      images without a relevant other are left out.

    At most `queries` images are queries, drawn by the seed; all are searched. None if nothing could be averaged. An
    image is never its own neighbor. A vector of zeros has cosine 0 to everything. Images at equal cosine share their
    ranks: jaccard_at_k is the mean over all orders of them, and average precision counts them at one point.

    An image without a known label is neither a query nor retrieved, since its relevance is unknown.

    >>> labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> retrieval(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), labels, k=1)  # the third finds the second
    {'jaccard_at_1': 0.6666666666666666, 'mAP': 1.0}
    """
    if k < 1 or (queries is not None and queries < 1):
        problem = f"k={k}, queries={queries}: give whole numbers from 1 up"
        raise ValueError(f"{problem}; queries=None searches with every image")
    entries = checked(labels, labels, known)
    kept = entries.known.any(1)
    _refuse_embedding(embedding := embedding.detach().cpu(), kept)
    points = embedding[kept]
    queried = torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(len(points))[:queries]))
    near: list[float] = []
    precision: list[float] = []
    for own in torch.split(queried, QUERY_BLOCK) if len(points) > 1 else ():
        cosine, overlap = _compared(points, entries.labels[kept], entries.known[kept], own)
        others = torch.ones_like(cosine, dtype=torch.bool).scatter_(1, own[:, None], False)
        near += _overlap_of_nearest(cosine, overlap, others, k).tolist()
        relevant = (overlap >= threshold) & others
        rows = zip(cosine.numpy(), relevant.numpy(), others.numpy(), strict=True)
        precision += [float(precision_at_positives(*row).mean()) for row in rows if row[1].any()]
    means = {f"jaccard_at_{k}": near, "mAP": precision}
    return {name: float(np.mean(values)) if values else None for name, values in means.items()}


def _refuse_embedding(embedding: Float[Tensor, "M D"], kept: Bool[Tensor, " N"]) -> None:
    if len(embedding) != len(kept):
        raise ValueError(f"embedding has {len(embedding)} rows, labels {len(kept)}: give one of each for every image")
    wrong = kept & ~embedding.isfinite().all(1)
    if wrong.any():
        raise ValueError(f"embedding: row {int(wrong.nonzero()[0])} is not finite; leave that image out")


def _compared(
    points: Float[Tensor, "N D"], labels: Float[Tensor, "N C"], known: Bool[Tensor, "N C"], own: Int[Tensor, " Q"]
) -> tuple[Float32[Tensor, "Q N"], Float32[Tensor, "Q N"]]:
    """Cosine and Jaccard of the images `own` and all others, which come in blocks."""
    directions = _directions(points[own])
    cosine, overlap = torch.empty(2, len(own), len(points)).unbind()
    for columns in blocks(len(points), max(points.shape[1], labels.shape[1])):
        # Rounded to float32, two equal images are equally far, in whatever order their products were added up.
        cosine[:, columns] = (directions @ _directions(points[columns]).T).float()
        overlap[:, columns] = jaccard(labels[own], labels[columns], known_a=known[own], known_b=known[columns])
    return cosine, overlap


def _directions(points: Float[Tensor, "M D"]) -> Float64[Tensor, "M D"]:
    exact = points.double()
    largest = exact.abs().amax(1, keepdim=True)
    scaled = exact / largest.where(largest > 0, 1)  # the square of a number may overflow
    length = scaled.norm(dim=1, keepdim=True)
    return torch.div(scaled, length.where(length > 0, 1))  # of length 1; zeros stay


def _overlap_of_nearest(
    cosine: Float32[Tensor, "Q N"], overlap: Float32[Tensor, "Q N"], others: Bool[Tensor, "Q N"], k: int
) -> Float64[Tensor, " Q"]:
    """Mean overlap of the k nearest; those as far as the last of them share the remaining ranks."""
    k = min(k, cosine.shape[1] - 1)
    ranked = cosine.where(others, -torch.inf)
    last = ranked.topk(k).values[:, -1:]  # (Q, 1)
    above, level = ranked > last, ranked == last
    ranks_left = k - above.sum(1)
    overlap = overlap.double()
    return ((overlap * above).sum(1) + ranks_left * (overlap * level).sum(1) / level.sum(1)) / k
