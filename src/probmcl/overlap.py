"""Overlap of label sets: D(y_i, y_j) in ProbMCL, section 2.2, and in its first ablation study."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from probmcl.runtime.precision import full_precision


@full_precision
def jaccard(
    a: Float[Tensor, "M C"],
    b: Float[Tensor, "P C"] | None = None,
    *,
    known_a: Bool[Tensor, "M C"] | None = None,
    known_b: Bool[Tensor, "P C"] | None = None,
) -> Float[Tensor, "M P"]:
    """Return the Jaccard index of every pair of label sets.

    D(y, y') = |y ∩ y'| / |y ∪ y'| over the labels that are known for both images. An empty union has D = 1 if every
    label is known, because two images without objects match, and D = 0 otherwise (decision 0001, point 10).

    Reference: ProbMCL, section 3.2, "Ablation Study on Overlapping Index Function".

    >>> import torch
    >>> jaccard(torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    counts = _count_pairs(a, b, known_a, known_b)
    union = counts.a + counts.b - counts.intersection
    index = counts.intersection / union.clamp(min=1)  # 1 only avoids a division by zero
    return index.where(union > 0, counts.all_known)


@full_precision
def cosine(
    a: Float[Tensor, "M C"],
    b: Float[Tensor, "P C"] | None = None,
    *,
    known_a: Bool[Tensor, "M C"] | None = None,
    known_b: Bool[Tensor, "P C"] | None = None,
    literal: bool = False,
) -> Float[Tensor, "M P"]:
    """Return the cosine similarity of every pair of label vectors.

    D(y, y') = y·y' / (‖y‖ ‖y'‖) over the labels that are known for both images. Empty label sets are treated as in
    `jaccard`. The paper's formula has squared norms (`literal=True`), which give two equal sets of m labels D = 1/m.

    Reference: ProbMCL, section 3.2, "Ablation Study on Overlapping Index Function"; decision 0001, point 9.

    >>> import torch
    >>> labels = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
    >>> cosine(labels)
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    >>> cosine(labels, literal=True)
    tensor([[0.2500, 0.2500],
            [0.2500, 1.0000]])
    """
    counts = _count_pairs(a, b, known_a, known_b)
    squared_norms = counts.a * counts.b
    # Deviation (decision 0001, point 9): norms instead of the paper's squared norms, unless `literal` is set.
    norms = squared_norms if literal else squared_norms.sqrt()
    both_empty = (counts.a + counts.b) == 0
    similarity = counts.intersection / norms.clamp(min=1)  # 1 only avoids a division by zero
    return similarity.where(~both_empty, counts.all_known)


class _Counts(NamedTuple):
    """Label counts for every pair of images, over the labels that are known for both."""

    a: Float[Tensor, "M P"]  # labels of the first image
    b: Float[Tensor, "M P"]  # labels of the second image
    intersection: Float[Tensor, "M P"]  # labels that both images share
    all_known: Float[Tensor, "M P"]  # 1 if every label is known for both images, else 0


def _count_pairs(a: Tensor, b: Tensor | None, known_a: Tensor | None, known_b: Tensor | None) -> _Counts:
    """Count the labels of every pair of images; `b` and its mask default to `a` and its mask."""
    if b is None:
        if known_b is not None:
            raise ValueError("`known_b` requires `b`; without `b`, `known_a` applies to both sides")
        b, known_b = a, known_a
    present_a, mask_a = _fill_mask(a, known_a)
    present_b, mask_b = _fill_mask(b, known_b)
    classes = a.shape[1]
    all_known = (mask_a @ mask_b.T == classes).to(a.dtype)
    # Counts below 2**24 are exact in float32, so an overlap of one half is exactly 0.5.
    return _Counts(
        a=present_a @ mask_b.T,
        b=mask_a @ present_b.T,
        intersection=present_a @ present_b.T,
        all_known=all_known,
    )


def _fill_mask(
    labels: Float[Tensor, "M C"], known: Bool[Tensor, "M C"] | None
) -> tuple[Float[Tensor, "M C"], Float[Tensor, "M C"]]:
    """Return the labels with 0 for unknown labels, and the mask of known labels as numbers; it defaults to all."""
    if known is None:
        return labels, labels.new_ones(labels.shape)
    mask = known.to(labels.dtype)
    present = labels.where(mask > 0, 0)  # a product with the mask would keep the NaNs of unknown labels
    return present, mask
