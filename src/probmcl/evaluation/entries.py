"""Validation of scores and labels, and iteration over them in blocks and columns."""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

# The type does not encode shapes, so that mismatched arrays raise the ValueErrors below instead of a type error.
Array: TypeAlias = Tensor | npt.NDArray[Any]

BLOCK_ENTRIES = 2**22
"""Entries per block, a few tens of megabytes for any number of classes."""


class Entries(NamedTuple):
    """Scores, 0/1 labels and the mask of known labels, validated by `checked`."""

    scores: Float[Tensor, "N C"]
    labels: Shaped[Tensor, "N C"]
    known: Bool[Tensor, "N C"]


class ClassEntries(NamedTuple):
    """The entries of one class; `positive` implies `known`."""

    scores: Float[np.ndarray, " N"]
    positive: Bool[np.ndarray, " N"]
    known: Bool[np.ndarray, " N"]

    @property
    def is_scored(self) -> bool:
        """True if the class has a known positive and a known negative; otherwise, no ranking is better than another."""
        return bool(self.positive.any()) and bool((self.known & ~self.positive).any())


def checked(scores: Array, labels: Array, known: Array | None) -> Entries:
    """Convert the arrays to tensors and validate them. Errors name the row and class of the first bad entry."""
    values, truth = to_tensor(scores), to_tensor(labels)
    if values.ndim != 2 or values.numel() == 0:
        raise ValueError(f"scores has shape {tuple(values.shape)}; expected (images, classes), both at least 1")
    mask = torch.ones(1, 1, dtype=torch.bool).expand_as(values) if known is None else to_tensor(known)
    for name, other in {"labels": truth, "known": mask}.items():
        if other.shape != values.shape:
            raise ValueError(f"{name} has shape {tuple(other.shape)}; expected {tuple(values.shape)}, like scores")
    if mask.dtype != torch.bool:
        raise ValueError(f"known must be boolean: expected torch.bool, got {mask.dtype}")
    for rows in blocks(*values.shape):
        _refuse((truth[rows] != 0) & (truth[rows] != 1) & mask[rows], rows.start, "labels", truth, "0 or 1")
        _refuse(values[rows].isnan() & mask[rows], rows.start, "scores", values, "a number")
    return Entries(values if values.is_floating_point() else values.double(), truth, mask)


def to_tensor(array: Array) -> Tensor:
    """Convert an array to a CPU tensor without gradient, sharing memory if possible."""
    if isinstance(array, np.ndarray):
        fits = array.flags.writeable and min(array.strides, default=0) >= 0
        array = array if fits else array.copy()  # torch rejects negative strides and warns about read-only memory
    return torch.as_tensor(array).detach().cpu()


def _refuse(wrong: Bool[Tensor, "N C"], start: int, name: str, array: Tensor, expected: str) -> None:
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        entry = f"{name}: row {start + row}, class {column} is {array[start + row, column].item()}"
        raise ValueError(f"{entry}; expected {expected}, or known=False to exclude the entry")


def class_columns(entries: Entries) -> Iterator[ClassEntries]:
    """Yield the classes as contiguous NumPy arrays; half precision is converted to float32."""
    # NumPy sorts values with SIMD and without indices, ten times faster than torch.sort, but lacks bfloat16.
    images, classes = entries.scores.shape
    dtype = torch.promote_types(entries.scores.dtype, torch.float32)
    for columns in blocks(classes, images):
        scores = entries.scores[:, columns].T.to(dtype).contiguous().numpy()  # (block, N)
        known = entries.known[:, columns].T.contiguous().numpy()
        positive = (entries.labels[:, columns].T == 1).contiguous().numpy() & known
        yield from map(ClassEntries, scores, positive, known)


def blocks(length: int, width: int) -> Iterator[slice]:
    """Return slices that divide `length` lines of `width` entries into blocks of about `BLOCK_ENTRIES` entries."""
    step = max(1, BLOCK_ENTRIES // width)
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
