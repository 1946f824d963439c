"""Reduction of a loss over the rows, or over the known entries, of a batch."""

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

Reduction = Literal["mean", "sum"]


def reduce_rows(loss: Float[Tensor, "M"], reduction: Reduction) -> Float[Tensor, ""]:
    """Return the sum or mean over all rows.

    >>> import torch
    >>> reduce_rows(torch.tensor([1.0, 3.0]), "mean")
    tensor(2.)
    """
    _check(reduction)
    return loss.mean() if reduction == "mean" else loss.sum()


def reduce_known(
    loss: Float[Tensor, "N C"], known: Bool[Tensor, "N C"] | None, reduction: Reduction
) -> Float[Tensor, ""]:
    """Return the sum or mean over the entries whose label is known; 0 if none is.

    >>> import torch
    >>> reduce_known(torch.tensor([[1.0, 5.0]]), torch.tensor([[True, False]]), "mean")
    tensor(1.)
    """
    _check(reduction)
    if known is None:
        return reduce_rows(loss.flatten(), reduction)
    total = loss.where(known, 0).sum()
    return total if reduction == "sum" else total / known.sum().clamp(min=1)


def _check(reduction: str) -> None:
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction={reduction!r}; there are 'mean' and 'sum'")
