"""How much two label sets share: D(y_i, y_j) of ProbMCL, section 2.2 and its first ablation."""

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
    """Share of the labels of either image that both have.

    D(y, y') = |y ∩ y'| / |y ∪ y'|, counted over the labels known to both images. Where neither has a label, D = 1 if
    every label is known (two empty photographs are alike), else 0 (decision 0001, point 10).

    Reference: ProbMCL, section 3.2, "Ablation Study on Overlapping Index Function".

    >>> import torch
    >>> jaccard(torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    count = _count(a, b, known_a, known_b)
    either = count.a + count.b - count.shared
    return (count.shared / either.clamp(min=1)).where(either > 0, count.all_known)


@full_precision
def cosine(
    a: Float[Tensor, "M C"],
    b: Float[Tensor, "P C"] | None = None,
    *,
    known_a: Bool[Tensor, "M C"] | None = None,
    known_b: Bool[Tensor, "P C"] | None = None,
    literal: bool = False,
) -> Float[Tensor, "M P"]:
    """Cosine of the angle between two label vectors.

    D(y, y') = y·y' / (‖y‖ ‖y'‖), counted over the labels known to both images; empty label sets as in `jaccard`. The
    paper prints squared norms, with which two equal label sets of m labels have D = 1/m: `literal` computes that.

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
    count = _count(a, b, known_a, known_b)
    squared_norms = count.a * count.b
    # Deviation (decision 0001, point 9): plain norms, unless the printed formula is asked for.
    norms = squared_norms if literal else squared_norms.sqrt()
    neither = (count.a + count.b) == 0
    return (count.shared / norms.clamp(min=1)).where(~neither, count.all_known)


class _Count(NamedTuple):
    """Whole numbers for each pair of images, over the labels known to both."""

    a: Float[Tensor, "M P"]  # labels of the first
    b: Float[Tensor, "M P"]  # labels of the second
    shared: Float[Tensor, "M P"]  # labels of both
    all_known: Float[Tensor, "M P"]  # 1 where every label is known to both


def _count(a: Tensor, b: Tensor | None, known_a: Tensor | None, known_b: Tensor | None) -> _Count:
    if b is None:
        if known_b is not None:
            raise ValueError("known_b belongs to b, which is not given; known_a serves for both sides")
        b, known_b = a, known_a
    seen_a = a.new_ones(a.shape) if known_a is None else known_a.to(a.dtype)
    seen_b = b.new_ones(b.shape) if known_b is None else known_b.to(b.dtype)
    a, b = a.where(seen_a > 0, 0), b.where(seen_b > 0, 0)  # not a product: what is unknown may be NaN
    # Counts below 2**24 are exact in float32, so that a true 0.5 comes out as 0.5.
    return _Count(a @ seen_b.T, seen_a @ b.T, a @ b.T, (seen_a @ seen_b.T == a.shape[1]).to(a.dtype))
