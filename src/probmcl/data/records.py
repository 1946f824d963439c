"""Records: paths, labels, splits and groups of images, produced by every reader and used by every later stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from probmcl.data.hierarchy import parents_of
from probmcl.data.labels import LabelStates, State

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Missing = Literal["error", "keep"]  # what a reader does about a missing file: it fails, or leaves it to the audit


@dataclass(frozen=True, eq=False)
class LabelSpace:
    """The classes, the known positives in the training split, alone and in pairs, and the parents of classes."""

    names: tuple[str, ...]
    counts: Int[ndarray, "C"]
    cooccurrence: Int[ndarray, "C C"]  # its diagonal is 0
    hierarchy: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        repeated = sorted(name for name, times in Counter(self.names).items() if times > 1)
        if repeated:
            raise ValueError(f"class names must differ; given twice: {', '.join(repeated)}")
        classes = len(self.names)
        if self.counts.shape != (classes,) or self.cooccurrence.shape != (classes, classes):
            shapes = f"{self.counts.shape} and {self.cooccurrence.shape}"
            raise ValueError(f"{classes} class names, but counts and co-occurrence of shape {shapes}")

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
        """Count the positives of the training split, alone and in pairs.

        >>> space = LabelSpace.from_labels(["cat", "dog"], np.array([[1.0, 1.0], [0.0, 1.0]]))
        >>> space.counts.tolist(), space.cooccurrence.tolist()
        ([1, 2], [[0, 1], [1, 0]])
        """
        states = labels if isinstance(labels, LabelStates) else LabelStates.from_labels(labels, known)
        present = states.present().astype(np.int32)
        together = (present.T @ present).toarray()  # int32: with 10,000 classes twice as much would be 800 MB
        counts = together.diagonal().astype(np.int64)
        np.fill_diagonal(together, 0)
        return cls(tuple(names), counts, together, hierarchy)


@dataclass(frozen=True)
class Origin:
    """The file or folder of records, how it was understood, the line of each image in a table, and warnings.

    >>> print(Origin(Path("labels.csv"), "path column 'file', labels 'tags'", lines=(2, 3)))
    labels.csv: path column 'file', labels 'tags'
    """

    place: Path
    understood: str
    lines: tuple[int, ...] | None = None
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.place}: {'; '.join([self.understood, *self.warnings])}"


@dataclass(frozen=True, eq=False)
class Records:
    """N images: path, label states and split of each.

    Images of one `group` (a patient, a slide) stay in one split. An image of `weight` 2 is trained on twice as often
    as one of weight 1; scores ignore weights. `columns` holds further columns of a table, `origin` is for messages.
    """

    paths: tuple[Path, ...]
    states: LabelStates
    split: tuple[Split, ...]
    group: tuple[str, ...] | None
    label_space: LabelSpace
    origin: Origin | None = None
    weight: Float[ndarray, "N"] | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {"paths": len(self.paths), "labels": len(self.states), "split": len(self.split)}
        if self.origin is not None and self.origin.lines is not None:
            lengths["origin.lines"] = len(self.origin.lines)
        optional = {"group": self.group, "weight": self.weight, **self.columns}
        lengths |= {name: len(values) for name, values in optional.items() if values is not None}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"records of unequal length: {lengths}")
        if self.states.shape[1] != len(self.label_space):
            raise ValueError(f"{self.states.shape[1]} label columns for {len(self.label_space)} class names")
        strange = sorted(set(self.split) - set(SPLITS))
        if strange:
            raise ValueError(f"split {strange[0]!r} is none of {', '.join(SPLITS)}")

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
        """Make records whose label space counts their training split, with the labels that the hierarchy implies.

        Labels are states, or a matrix of 0 and 1 with the mask of known labels.

        >>> labels = np.array([[1.0], [1.0]])
        >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "test"], labels)
        >>> records.label_space.counts.tolist()
        [1]
        """
        states = labels if isinstance(labels, LabelStates) else _states(names, paths, labels, known)
        if hierarchy is not None and len(names) == states.shape[1]:
            parents = parents_of(names, hierarchy)
            origin, states = _with_contradictions(origin, states.contradicted(parents)), states.with_parents(parents)
        train = states.take(np.flatnonzero(np.array(split, dtype=str) == "train"))
        space = LabelSpace.from_labels(names, train, hierarchy=hierarchy)
        return cls(tuple(paths), states, tuple(split), group, space, origin, weight, columns or {})

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def labels(self) -> Float[ndarray, "N C"]:
        """All labels as a matrix of 0 and 1; unknown labels are 0."""
        return self.states.labels_and_known()[0]

    @cached_property
    def known(self) -> Bool[ndarray, "N C"]:
        """The mask of known labels."""
        return self.states.labels_and_known()[1]

    def rows(self, split: Split) -> Int[ndarray, "K"]:
        """Return the rows of one split, in order."""
        return np.flatnonzero(np.array(self.split, dtype=str) == split)

    def take(self, rows: Int[ndarray, "K"]) -> Records:
        """Return the records of some rows; the label space counts those in train."""
        origin = self.origin
        if origin is not None and origin.lines is not None:
            origin = replace(origin, lines=tuple(origin.lines[row] for row in rows))
        return Records.from_labels(
            self.label_space.names,
            [self.paths[row] for row in rows],
            [self.split[row] for row in rows],
            self.states.take(rows),
            group=None if self.group is None else tuple(self.group[row] for row in rows),
            hierarchy=self.label_space.hierarchy,
            origin=origin,
            weight=None if self.weight is None else self.weight[rows],
            columns={name: tuple(values[row] for row in rows) for name, values in self.columns.items()},
        )

    def with_note(self, note: str) -> Records:
        """Return the same records with a note in the description of their origin; '' adds nothing."""
        if not note or self.origin is None:
            return self
        return replace(self, origin=replace(self.origin, understood=f"{self.origin.understood}; {note}"))

    def without(self, paths: Collection[str]) -> Records:
        """Return the records without these paths.

        >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "test"], np.ones((2, 1)))
        >>> records.without(["a.jpg"]).paths
        (PosixPath('b.jpg'),)
        """
        left_out = frozenset(paths)
        return self.take(np.flatnonzero([str(path) not in left_out for path in self.paths]))

    def where(self, row: int) -> str:
        """Return the path of an image, with its row in a table, for a message."""
        if self.origin is None or self.origin.lines is None:
            return str(self.paths[row])
        return f"{self.origin.place}: row {self.origin.lines[row]}: {self.paths[row]}"


def describe(records: Records) -> str:
    """Return a summary: the file and its columns, if known, then the number of images, classes and labels."""
    present, names = records.states.present(), records.label_space.names
    splits = " · ".join(f"{split} {records.split.count(split):,}" for split in SPLITS)
    never = [names[i] for i in np.flatnonzero(records.label_space.counts == 0)]
    unknown = 100 * (1 - records.states.known_share()) if len(records) and names else 0.0
    listed = ", ".join(never[:5]) + (", …" if len(never) > 5 else "")
    without = int((np.diff(present.indptr) == 0).sum())
    lines = [
        str(records.origin) if records.origin else "",
        f"{len(records):,} images: {splits}; {len(names):,} classes, "
        f"{present.nnz / max(len(records), 1):.1f} labels per image, {unknown:.1f} % not known",
        _label_notes(records),
        f"images without labels: {without:,}; classes without training positives: "
        + (f"{len(never):,} of {len(names):,} ({listed})" if never else "none"),
    ]
    return "\n".join(line for line in lines if line)


def _label_notes(records: Records) -> str:
    counts = records.states.counts()
    counts[State.UNCERTAIN, np.isin(records.states.chance, (0.0, 1.0))] = 0  # taken for absent or present
    states = [state for state in (State.UNKNOWN, State.UNCERTAIN) if counts[state].any()]
    parts = [f"{counts[state].sum():,} {state.name.lower()}" for state in states]
    notes = [f"labels: {', '.join(parts)}"] if parts else []
    if records.group is not None:
        groups = len(set(records.group))
        notes.append(f"{groups:,} {'group' if groups == 1 else 'groups'}")
    if records.weight is not None:
        notes.append(f"weights from {records.weight.min():g} to {records.weight.max():g}")
    return "; ".join(notes)


def _with_contradictions(origin: Origin | None, rows: Int[ndarray, "K"]) -> Origin | None:
    if origin is None or not len(rows):
        return origin
    first = f", first in row {origin.lines[rows[0]]}" if origin.lines is not None else ""
    text = f"a class is present and its parent absent in {len(rows):,} images{first}: the parent is taken as present"
    return replace(origin, warnings=(*origin.warnings, text))


def _states(
    names: Sequence[str], paths: Sequence[Path], labels: Float[ndarray, "N C"], known: Bool[ndarray, "N C"] | None
) -> LabelStates:
    if len(labels) != len(paths):
        raise ValueError(f"records of unequal length: {{'paths': {len(paths)}, 'labels': {len(labels)}}}")
    if known is not None and known.shape != labels.shape:
        raise ValueError(f"labels of shape {labels.shape}, but known of shape {known.shape}")
    wrong = np.argwhere((labels != 0) & (labels != 1) & (True if known is None else known))
    if len(wrong):
        row, column = wrong[0]
        label = f"label {names[column]!r} is {labels[row, column]}"
        raise ValueError(f"{paths[row]}: {label}; a known label is 0 or 1; mark any other as unknown")
    return LabelStates.from_labels(labels, known)
