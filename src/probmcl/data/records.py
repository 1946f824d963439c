"""Records: the paths, labels, splits and groups of images. Readers return them, and all later stages use them."""

from __future__ import annotations

import operator
import unicodedata
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, SupportsIndex, overload

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from numpy import ndarray

from probmcl.data.labels import LabelStates, State, parents_of
from probmcl.errors import LISTED, counted, listing, quoted
from probmcl.store.run_metadata import SPLITS as SPLITS
from probmcl.store.run_metadata import Split as Split

NO_LABELS = "images without labels, which are not used"
Missing = Literal["error", "keep"]  # whether a missing file is an error or is kept for the audit to report


@dataclass(frozen=True, eq=False)
class LabelSpace:
    """The classes, the counts of their positives and co-occurrences in the training split, and their parents."""

    names: tuple[str, ...]
    counts: Int[ndarray, "C"]
    cooccurrence: Int[ndarray, "C C"]  # images with both classes; the diagonal is 0
    hierarchy: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        repeated = sorted(name for name, times in Counter(self.names).items() if times > 1)
        if repeated:
            raise ValueError(f"class names must be unique; repeated: {', '.join(repeated)}")
        classes = len(self.names)
        fits = self.counts.shape == (classes,) and self.cooccurrence.shape == (classes, classes)
        if not fits:
            shapes = f"{self.counts.shape} and {self.cooccurrence.shape}"
            raise ValueError(f"{counted(classes, 'class name')}, but counts and co-occurrence have shapes {shapes}")

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_labels(
        cls,
        names: Sequence[str],
        labels: Float[ndarray, "N C"] | LabelStates,
        known: Bool[ndarray, "N C"] | None = None,
        hierarchy: Mapping[str, str] | None = None,
    ) -> LabelSpace:
        """Count the known positives of each class and the co-occurrences of each pair of classes.

        >>> space = LabelSpace.from_labels(["cat", "dog"], np.array([[1.0, 1.0], [0.0, 1.0]]))
        >>> space.counts.tolist(), space.cooccurrence.tolist()
        ([1, 2], [[0, 1], [1, 0]])
        """
        states = labels if isinstance(labels, LabelStates) else LabelStates.from_labels(labels, known)
        present = states.present().astype(np.int32)  # int64 would take 800 MB below for 10,000 classes
        cooccurrence = (present.T @ present).toarray()
        counts = cooccurrence.diagonal().astype(np.int64)
        np.fill_diagonal(cooccurrence, 0)
        return cls(tuple(names), counts, cooccurrence, hierarchy)


class Paths(Sequence[Path]):
    """Paths that are stored as text: a million `Path` objects take seconds to make and 300 MB.

    >>> paths = Paths(["a.jpg", "b.jpg"])
    >>> paths[1], paths[:1] == (Path("a.jpg"),)
    (PosixPath('b.jpg'), True)
    """

    def __init__(self, paths: Iterable[str | Path]) -> None:
        self.texts: tuple[str, ...]
        if isinstance(paths, Paths):
            self.texts = paths.texts
        else:
            self.texts = tuple(map(str, paths))

    def take(self, rows: Int[ndarray, "K"]) -> Paths:
        """Return the paths in the given rows."""
        return Paths(self.texts[row] for row in rows.tolist())

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, row: SupportsIndex) -> Path: ...
    @overload
    def __getitem__(self, row: slice) -> Paths: ...
    def __getitem__(self, row: SupportsIndex | slice) -> Path | Paths:
        if isinstance(row, slice):
            return Paths(self.texts[row])
        return Path(self.texts[row])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return all(map(operator.eq, self, other))

    def __hash__(self) -> int:
        return hash(self.texts)

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True)
class Origin:
    """Where records come from: the table or folder, how it was read, the line of each image in the table, and warnings.

    `description` has one line per decision. `unlabeled` are folders of images without labels, which are not in the
    records.

    >>> print(Origin(Path("labels.csv"), "path column 'file'\\nlabels: column 'tags'", lines=(2, 3)))
    labels.csv: path column 'file'
      labels: column 'tags'
    """

    path: Path
    description: str
    lines: Sequence[int] | None = None
    warnings: tuple[str, ...] = ()
    unlabeled: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = "\n".join([self.description, *self.warnings])
        return f"{self.path}: {lines}".replace("\n", "\n  ")


@dataclass(frozen=True, eq=False)
class Records:
    """N images with their paths, label states and splits.

    Images with the same `group` (a patient, a slide) stay in one split. An image with `weight` 2 is used in training
    twice as often as one with weight 1; evaluation ignores weights. `columns` has other table columns that were kept.
    """

    paths: Paths
    states: LabelStates
    split: tuple[Split, ...]
    group: tuple[str, ...] | None
    label_space: LabelSpace
    origin: Origin | None = None
    weight: Float[ndarray, "N"] | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = self._lengths()
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the fields have different lengths: {lengths}")
        _, columns = self.states.shape
        classes = len(self.label_space)
        if columns != classes:
            raise ValueError(f"{counted(columns, 'label column')}, but {counted(classes, 'class name')}")
        invalid = sorted(set(self.split) - set(SPLITS))
        if invalid:
            raise ValueError(f"split {invalid[0]!r} must be one of {', '.join(SPLITS)}")

    def _lengths(self) -> dict[str, int]:
        """Return the length of every field with a value per image, by its name in messages."""
        lengths = {"paths": len(self.paths), "labels": len(self.states), "split": len(self.split)}
        if self.origin is not None and self.origin.lines is not None:
            lengths["origin.lines"] = len(self.origin.lines)
        optional = {"group": self.group, "weight": self.weight, **self.columns}
        for name, values in optional.items():
            if values is not None:
                lengths[name] = len(values)
        return lengths

    @classmethod
    def from_labels(
        cls,
        names: Sequence[str],
        paths: Sequence[Path],
        split: Sequence[Split],
        labels: Float[ndarray, "N C"] | LabelStates,
        known: Bool[ndarray, "N C"] | None = None,
        *,
        group: tuple[str, ...] | None = None,
        hierarchy: Mapping[str, str] | None = None,
        origin: Origin | None = None,
        weight: Float[ndarray, "N"] | None = None,
        columns: Mapping[str, tuple[str, ...]] | None = None,
    ) -> Records:
        """Build records and their label space, and add the labels that the hierarchy implies.

        `labels` are label states, or a binary matrix with a mask of known labels (default: all known).

        >>> labels = np.array([[1.0], [1.0]])
        >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "test"], labels)
        >>> records.label_space.counts.tolist()
        [1]
        """
        states = labels if isinstance(labels, LabelStates) else _checked_states(names, paths, labels, known)
        _, classes = states.shape
        if hierarchy is not None and len(names) == classes:  # another number of names is refused by `LabelSpace` below
            parents = parents_of(names, hierarchy)
            contradicted = states.contradicted(parents)
            origin = _with_contradictions(origin, contradicted)
            states = states.with_parents(parents)
        return cls(
            paths=Paths(paths),
            states=states,
            split=tuple(split),
            group=group,
            label_space=_label_space(names, states, split, hierarchy),
            origin=origin,
            weight=weight,
            columns=columns or {},
        )

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def labels(self) -> Float[ndarray, "N C"]:
        """The labels as a binary matrix, in which unknown labels are 0."""
        return self.states.labels_and_known()[0]

    @cached_property
    def known(self) -> Bool[ndarray, "N C"]:
        """The mask of known labels."""
        return self.states.labels_and_known()[1]

    def rows(self, split: Split) -> Int[ndarray, "K"]:
        """Return the rows of one split in ascending order."""
        return np.flatnonzero(self._split_numbers == SPLITS.index(split))

    @cached_property
    def _split_numbers(self) -> UInt8[ndarray, "N"]:
        """The split of each image as its position in `SPLITS`, in a byte each."""
        return np.fromiter(map(SPLITS.index, self.split), dtype=np.uint8, count=len(self))

    def take(self, rows: Int[ndarray, "K"]) -> Records:
        """Return the records in the given rows, with a new label space."""
        picked = rows.tolist()
        states = self.states.take(rows)
        split = tuple(self.split[row] for row in picked)
        group, weight, origin = self.group, self.weight, self.origin
        if group is not None:
            group = tuple(group[row] for row in picked)
        if weight is not None:
            weight = weight[rows]
        if origin is not None and origin.lines is not None:
            lines = array("q", (origin.lines[row] for row in picked))
            origin = replace(origin, lines=lines)
        return Records(
            paths=self.paths.take(rows),
            states=states,
            split=split,
            group=group,
            label_space=_label_space(self.label_space.names, states, split, self.label_space.hierarchy),
            origin=origin,
            weight=weight,
            columns={name: tuple(values[row] for row in picked) for name, values in self.columns.items()},
        )

    def with_split(self, split: Shaped[ndarray, "N"]) -> Records:
        """Return the records with new splits; the label space is counted again on the new train split."""
        # `tolist` makes a new text for every image. Keeping them instead of these three would take 50 MB for a million.
        shared = dict[str, Split](zip(SPLITS, SPLITS, strict=True))
        names = tuple(shared.get(name, name) for name in split.tolist())
        space = _label_space(self.label_space.names, self.states, names, self.label_space.hierarchy)
        return replace(self, split=names, label_space=space)

    def with_note(self, note: str) -> Records:
        """Return the records with a note appended to the description of their origin; an empty note adds nothing."""
        if not note or self.origin is None:
            return self
        description = f"{self.origin.description}\n{note}"
        return replace(self, origin=replace(self.origin, description=description))

    def without(self, paths: Collection[str]) -> Records:
        """Return the records without the images at these paths.

        >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "test"], np.ones((2, 1)))
        >>> records.without(["a.jpg"]).paths
        (PosixPath('b.jpg'),)
        """
        if not paths:
            return self
        excluded = frozenset(paths)
        is_kept = [path not in excluded for path in self.paths.texts]
        return self.take(np.flatnonzero(is_kept))

    def where(self, row: int) -> str:
        """Return the path of an image for a message, preceded by its table and row if known."""
        if self.origin is None or self.origin.lines is None:
            return str(self.paths[row])
        return f"{self.origin.path}, row {self.origin.lines[row]}: {self.paths[row]}"


def _label_space(
    names: Sequence[str], states: LabelStates, split: Sequence[str], hierarchy: Mapping[str, str] | None
) -> LabelSpace:
    """Count the labels of the training split."""
    in_train = np.fromiter((name == "train" for name in split), dtype=np.bool_, count=len(split))
    if not in_train.all():  # otherwise there is no need for a copy
        states = states.take(np.flatnonzero(in_train))
    return LabelSpace.from_labels(names, states, hierarchy=hierarchy)


def describe(records: Records) -> str:
    """Return a summary in a few lines: the origin, if known, then the numbers of images, classes and labels."""
    labels_per_image = np.diff(records.states.present().indptr)
    origin = "" if records.origin is None else str(records.origin)
    totals = _totals(records, labels_per_image)
    notes = _label_notes(records)
    similar = _similar_names(records.label_space.names)
    gaps = _missing_labels(records, labels_per_image)
    return "\n".join(line for line in (origin, totals, notes, similar, gaps) if line)


def _totals(records: Records, labels_per_image: Int[ndarray, "N"]) -> str:
    """Return a line with the numbers of images, classes and labels; `labels_per_image` counts present labels."""
    images = counted(len(records), "image")
    splits = " · ".join(f"{split} {records.split.count(split):,}" for split in SPLITS)
    classes = counted(len(records.label_space), "class", "classes")
    mean = labels_per_image.sum() / max(len(records), 1)
    line = f"{images}: {splits}; {classes}, {mean:.1f} labels per image"
    if len(records) == 0 or len(records.label_space) == 0:
        return line
    unknown = 100 * (1 - records.states.known_share())
    return f"{line}, {unknown:.1f} % unknown" if unknown else line


def _missing_labels(records: Records, labels_per_image: Int[ndarray, "N"]) -> str:
    """Return a line with the images that have no present label and the classes that are never present in train."""
    images = int((labels_per_image == 0).sum())
    names = records.label_space.names
    unseen = [names[index] for index in np.flatnonzero(records.label_space.counts == 0)]
    classes = "none"
    if unseen:
        shown = ", ".join(unseen[:LISTED])
        more = ", …" if len(unseen) > LISTED else ""
        classes = f"{len(unseen):,} of {len(names):,} ({shown}{more})"
    return f"images without labels: {images:,}; classes without training positives: {classes}"


def _label_notes(records: Records) -> str:
    """Return a line with the numbers of unknown and uncertain labels and of groups, and the range of the weights."""
    counts = records.states.settled_counts()
    states = [state for state in (State.UNKNOWN, State.UNCERTAIN) if counts[state].any()]
    notes = []
    if states:
        numbers = ", ".join(f"{counts[state].sum():,} {state.name.lower()}" for state in states)
        notes.append(f"labels: {numbers}")
    if records.group is not None:
        groups = len(set(records.group))
        notes.append(counted(groups, "group"))
    if records.weight is not None:
        notes.append(f"weights from {records.weight.min():g} to {records.weight.max():g}")
    return "; ".join(notes)


def _similar_names(names: Sequence[str]) -> str:
    """Return a note on class names that look the same apart from case, or an empty text."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        simplified = unicodedata.normalize("NFKC", name).casefold()
        spellings.setdefault(simplified, []).append(name)
    similar = [quoted(group) for group in spellings.values() if len(group) > 1]
    if not similar:
        return ""
    return f"classes {listing(similar)} differ only in case or Unicode form"


def _with_contradictions(origin: Origin | None, rows: Int[ndarray, "K"]) -> Origin | None:
    """Return the origin with a warning about the rows in which a class is present but its parent is absent."""
    if origin is None or not len(rows):
        return origin
    images = counted(len(rows), "image")
    if origin.lines is not None:
        images = f"{images} (first: row {origin.lines[rows[0]]})"
    text = f"in {images}, a class is present but its parent is absent; the parent is set to present"
    return replace(origin, warnings=(*origin.warnings, text))


def _checked_states(
    names: Sequence[str], paths: Sequence[Path], labels: Float[ndarray, "N C"], known: Bool[ndarray, "N C"] | None
) -> LabelStates:
    """Return the states of a label matrix; a known label that is neither 0 nor 1 is an error."""
    if len(labels) != len(paths):
        raise ValueError(f"the fields have different lengths: {{'paths': {len(paths)}, 'labels': {len(labels)}}}")
    if known is not None and known.shape != labels.shape:
        raise ValueError(f"labels have shape {labels.shape}, but known has shape {known.shape}")
    is_wrong = (labels != 0) & (labels != 1)
    if known is not None:
        is_wrong = is_wrong & known
    wrong = np.argwhere(is_wrong)
    if len(wrong):
        row, column = wrong[0]
        label = f"label {names[column]!r} is {labels[row, column]}"
        raise ValueError(f"{paths[row]}: {label}; a known label must be 0 or 1")
    return LabelStates.from_labels(labels, known)
