"""Scores of images with their labels: validated, in rows and columns, and stored in a file."""

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from numpy import ndarray
from torch import Tensor

from probmcl.data.records import Records
from probmcl.errors import RunError, counted
from probmcl.runtime.files import arrays_file, atomic_write, open_file
from probmcl.store.evaluation import Aggregate
from probmcl.store.files import SCORES

# The type does not encode shapes, so that mismatched arrays raise the ValueErrors below instead of a type error.
Array: TypeAlias = Tensor | npt.NDArray[Any]

BLOCK_ENTRIES = 2**22
"""Entries per block, a few tens of megabytes for any number of classes."""

UNREADABLE = (
    *(OSError, EOFError, KeyError, TypeError, ValueError, ArithmeticError, MemoryError, RuntimeError),
    *(zlib.error, zipfile.BadZipFile),
)
"""Errors that NumPy and zipfile raise for damaged files."""

MAX_BYTES = 4_000_000_000
"""Largest size of the arrays in a file, which are compressed."""

KINDS = {"paths": "U", "scores": "f", "labels": "bif", "known": "b", "group": "U"}
"""The kinds of NumPy data types that each array may have: text, booleans, integers or floating-point numbers."""

DIMENSIONS = {"paths": 1, "group": 1}
"""The number of dimensions of the arrays that are not matrices."""


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
        negative = self.known & ~self.positive
        return bool(self.positive.any()) and bool(negative.any())


def checked(scores: Array, labels: Array, known: Array | None) -> Entries:
    """Convert the arrays to tensors and validate them. Errors name the row and class of the first bad entry."""
    score_tensor = to_tensor(scores)
    label_tensor = to_tensor(labels)
    if score_tensor.ndim != 2 or score_tensor.numel() == 0:
        raise ValueError(f"scores has shape {tuple(score_tensor.shape)}; expected (images, classes), both at least 1")
    mask = torch.ones(1, 1, dtype=torch.bool).expand_as(score_tensor)  # takes no memory
    if known is not None:
        mask = to_tensor(known)
    for name, tensor in {"labels": label_tensor, "known": mask}.items():
        if tensor.shape != score_tensor.shape:
            expected = f"expected {tuple(score_tensor.shape)}, like scores"
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; {expected}")
    if mask.dtype != torch.bool:
        raise ValueError(f"known must be boolean: expected torch.bool, got {mask.dtype}")
    for rows in blocks(*score_tensor.shape):
        wrong_labels = (label_tensor[rows] != 0) & (label_tensor[rows] != 1) & mask[rows]
        _refuse_entries("labels", label_tensor, rows, wrong_labels, expected="0 or 1")
        wrong_scores = score_tensor[rows].isnan() & mask[rows]
        _refuse_entries("scores", score_tensor, rows, wrong_scores, expected="a number")
    if not score_tensor.is_floating_point():
        score_tensor = score_tensor.double()
    return Entries(score_tensor, label_tensor, mask)


def to_tensor(array: Array) -> Tensor:
    """Convert an array to a CPU tensor without gradient, sharing memory if possible."""
    if isinstance(array, np.ndarray):
        has_negative_stride = min(array.strides, default=0) < 0
        if has_negative_stride or not array.flags.writeable:
            array = array.copy()  # torch rejects negative strides and warns about read-only memory
    return torch.as_tensor(array).detach().cpu()


def _refuse_entries(name: str, array: Tensor, rows: slice, wrong: Bool[Tensor, "K C"], *, expected: str) -> None:
    """Raise `ValueError` for the first wrong entry in some rows of the array; `wrong` marks the entries of these rows.

    `expected` describes valid values.
    """
    if not wrong.any():
        return
    row_in_block, column = wrong.nonzero()[0].tolist()
    row = rows.start + row_in_block
    entry = f"{name}: row {row}, class {column} is {array[row, column].item()}"
    raise ValueError(f"{entry}; expected {expected}, or known=False to exclude the entry")


def class_columns(entries: Entries) -> Iterator[ClassEntries]:
    """Yield the classes as contiguous NumPy arrays; half precision is converted to float32."""
    # NumPy sorts values with SIMD and without indices, ten times faster than torch.sort, but lacks bfloat16.
    images, classes = entries.scores.shape
    dtype = torch.promote_types(entries.scores.dtype, torch.float32)
    for columns in blocks(classes, images):
        # Transposed, so that each row has the entries of one class: (block, N).
        scores = entries.scores[:, columns].T.to(dtype).contiguous().numpy()
        known = entries.known[:, columns].T.contiguous().numpy()
        labels = entries.labels[:, columns].T
        positive = (labels == 1).contiguous().numpy() & known
        for row in range(len(scores)):
            yield ClassEntries(scores[row], positive[row], known[row])


def blocks(length: int, width: int) -> Iterator[slice]:
    """Return slices that divide `length` lines of `width` entries into blocks of about `BLOCK_ENTRIES` entries."""
    step = max(1, BLOCK_ENTRIES // width)
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def group_numbers(images: int, groups: Sequence[str] | None) -> Int[ndarray, "N"]:
    """Return the number of each image's group, from 0. Without groups, each image is a group of its own.

    >>> group_numbers(3, ["b", "a", "b"]).tolist(), group_numbers(3, None).tolist()
    ([1, 0, 1], [0, 1, 2])
    """
    if groups is None:
        return np.arange(images)
    _, numbers = np.unique(np.array(groups), return_inverse=True)
    return numbers


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Scores, labels and masks of known labels for N images or groups of images.

    Attributes:
        group: group of each row, for example a patient or a slide. Images in one group are not independent.
        images: number of images in each row; None means one each.
        raw: the scores before calibration, if `scores` are calibrated.
    """

    scores: Float[ndarray, "N C"]
    labels: Float[ndarray, "N C"]
    known: Bool[ndarray, "N C"]
    group: tuple[str, ...] | None = None
    images: Int[ndarray, "N"] | None = None
    raw: Float[ndarray, "N C"] | None = None

    @classmethod
    def of(cls, records: Records, rows: Int[ndarray, "N"], scores: Float[ndarray, "N C"]) -> "ScoredRows":
        """Return the scores of some rows of the records, with their labels and groups."""
        labels, known = records.states.labels_and_known(rows)
        group = None
        if records.group is not None:
            group = tuple(records.group[row] for row in rows)
        return cls(scores, labels, known, group)

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def entries(self) -> Entries:
        """The scores, labels and mask of known labels, validated."""
        return checked(self.scores, self.labels, self.known)

    @property
    def raw_entries(self) -> Entries | None:
        """The same with the scores before calibration; None if the scores are not calibrated."""
        if self.raw is None:
            return None
        return checked(self.raw, self.labels, self.known)

    def take(self, rows: Int[ndarray, "K"]) -> "ScoredRows":
        """Return a selection of the rows."""
        group = None
        if self.group is not None:
            group = tuple(self.group[row] for row in rows)
        return ScoredRows(
            scores=self.scores[rows],
            labels=self.labels[rows],
            known=self.known[rows],
            group=group,
            images=None if self.images is None else self.images[rows],
            raw=None if self.raw is None else self.raw[rows],
        )

    def aggregate(self, how: Aggregate) -> "ScoredRows":
        """Return one row per group of images, sorted by group name.

        The score of a group is the mean or maximum over its images. A label is present if any image has it, absent if
        it is known for some image and no image has it, and otherwise unknown.

        >>> labels, known = np.array([[0.0], [1.0], [0.0]]), np.array([[True], [True], [False]])
        >>> tiles = ScoredRows(np.array([[0.2], [0.6], [0.9]]), labels, known, ("a", "a", "b"))
        >>> slides = tiles.aggregate("mean")
        >>> slides.scores.tolist(), slides.labels.tolist(), slides.known.tolist()
        ([[0.4], [0.9]], [[1.0], [0.0]], [[True], [False]])
        """
        if self.group is None:
            raise ValueError("rows without groups cannot be aggregated")
        names, group = np.unique(np.array(self.group), return_inverse=True)
        sizes = np.bincount(group)
        # In this order, the rows of a group are adjacent; `reduceat` combines the rows from each start to the next.
        order = np.argsort(group, kind="stable")
        starts = np.cumsum(sizes) - sizes

        def combine(scores: Float[ndarray, "N C"]) -> Float64[ndarray, "G C"]:
            ordered = scores[order].astype(np.float64)
            if how == "max":
                return np.maximum.reduceat(ordered, starts)
            mean: Float64[ndarray, "G C"] = np.add.reduceat(ordered, starts) / sizes[:, None]
            return mean

        present = np.where(self.known, self.labels, 0)
        return ScoredRows(
            scores=combine(self.scores),
            labels=np.maximum.reduceat(present[order], starts),
            known=np.logical_or.reduceat(self.known[order], starts),
            group=tuple(names.tolist()),
            images=sizes,
            raw=None if self.raw is None else combine(self.raw),
        )


class StoredScores(NamedTuple):
    """The scores of N images, with their paths."""

    paths: tuple[str, ...]
    rows: ScoredRows


def scores_file(folder: Path, name: str) -> Path:
    """Return the file with the scores of a split, or of other images, in the folder of a run or a candidate."""
    return folder / SCORES.named(name)


def write_scores(path: Path, paths: Sequence[Path | str], rows: ScoredRows, *, root: Path | None = None) -> None:
    """Write the scores, labels and groups of images; `root` is the run folder."""
    atomic_write(path, scores_content(paths, rows), root=root)


def scores_content(paths: Sequence[Path | str], rows: ScoredRows) -> bytes:
    """Return the bytes of a file with the scores, labels and groups of images."""
    arrays = {
        "paths": np.array([str(path) for path in paths]),
        "scores": rows.scores,
        "labels": rows.labels,
        "known": rows.known,
    }
    if rows.group is not None:
        arrays["group"] = np.array(rows.group)
    return arrays_file(arrays)


def read_scores(path: Path, *, root: Path | None = None, classes: int | None = None) -> StoredScores:
    """Read the scores of images; `root` is the run folder. Without groups of images, the file has none.

    If `classes` is given, a file with another number of columns raises `RunError`, like a damaged one.
    """
    try:
        with open_file(path, root=root) as opened:
            _refuse_large(opened)
            with np.load(opened) as file:
                arrays = {key: file[key] for key in KINDS if key in file}
        _check(arrays, classes)
    except UNREADABLE as error:
        problem = str(error) or type(error).__name__
        raise RunError(f"{path} cannot be read ({problem}); copy the file again, or train again") from error
    paths = tuple(arrays["paths"].tolist())
    labels = arrays["labels"].astype(np.float32)
    group = tuple(arrays["group"].tolist()) if "group" in arrays else None
    return StoredScores(paths, ScoredRows(arrays["scores"], labels, arrays["known"], group))


def _check(arrays: Mapping[str, ndarray], classes: int | None) -> None:
    """Raise `ValueError` if an array is missing or has a wrong type, shape or value."""
    for key in KINDS:
        if key != "group" and key not in arrays:
            raise ValueError(f"it has no array {key!r}")
    scores = arrays["scores"]
    labels = arrays["labels"]
    known = arrays["known"]
    lengths = {len(array) for array in arrays.values()}
    have_equal_shapes = scores.shape == labels.shape == known.shape
    if not have_equal_shapes or len(lengths) > 1:
        raise ValueError("its arrays have different lengths")
    for key, array in arrays.items():
        has_kind = array.dtype.kind in KINDS[key]
        has_dimensions = array.ndim == DIMENSIONS.get(key, 2)
        if not has_kind or not has_dimensions or array.size == 0:
            raise ValueError(f"{key} has the data type {array.dtype} and the shape {array.shape}")
    columns = scores.shape[1]
    if classes is not None and columns != classes:
        raise ValueError(f"it has {counted(columns, 'class', 'classes')}; the run has {classes}")
    are_fractions = (scores >= 0) & (scores <= 1)  # False for NaN
    if not are_fractions.all():
        raise ValueError("its scores are not between 0 and 1")
    if not np.isin(labels[known], (0, 1)).all():
        raise ValueError("its known labels are not 0 and 1")


def _refuse_large(file: io.BufferedReader) -> None:
    """Raise `ValueError` if the uncompressed arrays could exhaust the memory."""
    with zipfile.ZipFile(file) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > MAX_BYTES:
        raise ValueError(f"its arrays have {size:,} bytes; the limit is {MAX_BYTES:,}")
    file.seek(0)
