"""Merges rows of the same image: equal rows, one row per label, and rows of several annotators."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from probmcl.data.formats.table.columns import Columns
from probmcl.data.formats.table.entries import Entries, Images, repeated
from probmcl.data.formats.table.sheet import Table
from probmcl.data.labels import LabelStates, State
from probmcl.data.options import Annotators
from probmcl.errors import DataError, Question, Reading

ANNOTATORS = {
    "majority": "the majority decides, and ties are unknown",
    "any": "a label that one annotator gave is present",
    "unknown": "labels on which they disagree are unknown",
}


def merge_rows(
    table: Table, columns: Columns, entries: Entries, images: Images, units: Images, option: Annotators | None
) -> LabelStates:
    """Return the label states of images with several rows; `units` are the images of each annotator.

    Contradictory rows are an error.
    """
    states = _merged(table, columns.path, entries, units)
    if columns.annotator is None:
        return states
    return _voted(table, columns.annotator, states, units, images, entries.names, option)


def _merged(table: Table, path: str, entries: Entries, images: Images) -> LabelStates:
    rows, classes, states = entries.rows, entries.classes, entries.states
    if entries.additive:
        _refuse_contradictory_labels(table, entries, images)
    else:
        _refuse_contradictory_rows(table, path, entries, images)
        kept = np.isin(rows, images.first)
        rows, classes, states = rows[kept], classes[kept], states[kept]
    shape = (len(images.first), len(entries.names))
    return LabelStates.from_entries(images.of_row[rows], classes, states, shape, default=entries.default)


def _refuse_contradictory_labels(table: Table, entries: Entries, images: Images) -> None:
    """Refuse a label that is present in one row of an image and absent or unknown in another."""
    keys = images.of_row[entries.rows] * len(entries.names) + entries.classes
    order = np.lexsort((entries.states, keys))
    conflicts = (np.diff(keys[order]) == 0) & (np.diff(entries.states[order].astype(np.int16)) != 0)
    if conflicts.any():
        one, other = (int(order[np.flatnonzero(conflicts)[0] + step]) for step in (0, 1))
        lines = sorted(table.lines[int(entries.rows[entry])] for entry in (one, other))
        label = f"label {entries.names[entries.classes[one]]!r} for the same image"
        both = f"{table.path}, rows {lines[0]} and {lines[1]}"
        raise DataError(f"{both}: contradictory states of the {label}; remove one of the rows")


def _refuse_contradictory_rows(table: Table, path: str, entries: Entries, images: Images) -> None:
    """Refuse rows of an image that do not have the same labels."""
    several = np.bincount(images.of_row)[images.of_row] > 1
    labels: dict[int, set[tuple[int, int]]] = {int(row): set() for row in np.flatnonzero(several)}
    kept = several[entries.rows]
    triples = zip(entries.rows[kept], entries.classes[kept], entries.states[kept], strict=True)
    for row, k, state in triples:
        labels[int(row)].add((int(k), int(state)))
    for row, found in labels.items():
        if found != labels[int(images.first[images.of_row[row]])]:
            raise repeated(table, images, path, ", but not the same labels; remove the wrong row")


def _voted(
    table: Table,
    column: str,
    states: LabelStates,
    units: Images,
    images: Images,
    names: Sequence[str],
    option: Annotators | None,
) -> LabelStates:
    """Combine the labels that annotators gave to an image. If they disagree, an option must decide."""
    shape, image_of_unit = (len(images.first), len(names)), images.of_row[units.first]
    present, absent = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    dense = states.dense()
    np.add.at(present, image_of_unit, dense == State.PRESENT)
    np.add.at(absent, image_of_unit, dense == State.ABSENT)
    disputed = np.argwhere((present > 0) & (absent > 0))
    if len(disputed) and option is None:
        image, k = disputed[0]
        first, second = (
            int(units.first[np.flatnonzero((image_of_unit == image) & (dense[:, k] == state))[0]]) for state in (1, 0)
        )
        people = table.texts(column)
        raise Question(
            f"{table.path}: the annotators in column {column!r} disagree on {len(np.unique(disputed[:, 0])):,} images, for "
            f"example on {names[k]!r} in rows {table.lines[first]} ({people[first]}) and {table.lines[second]} "
            f"({people[second]}); how should their labels be merged?",
            [Reading(meaning, {"annotators": name}) for name, meaning in ANNOTATORS.items()],
        )
    return LabelStates.from_states(_decide(present, absent, option or "unknown"))


def _decide(present: Int[ndarray, "N C"], absent: Int[ndarray, "N C"], option: str) -> UInt8[ndarray, "N C"]:
    """Return the states of labels from the numbers of annotators that gave and did not give them.

    >>> present, absent = np.array([[2, 1, 1, 0]]), np.array([[1, 1, 0, 0]])
    >>> [_decide(present, absent, option).tolist() for option in ANNOTATORS]
    [[[1, 2, 1, 2]], [[1, 1, 1, 2]], [[2, 2, 1, 2]]]
    """
    yes = {"majority": present > absent, "any": present > 0, "unknown": (present > 0) & (absent == 0)}[option]
    no = {"majority": absent > present, "any": (present == 0) & (absent > 0), "unknown": (absent > 0) & (present == 0)}
    states = np.full(present.shape, State.UNKNOWN, dtype=np.uint8)
    states[yes], states[no[option]] = State.PRESENT, State.ABSENT
    return states
