"""Merges rows of the same image: equal rows, one row per label, and rows of several annotators."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from probmcl.data.labels import LabelStates, State
from probmcl.errors import DataError, Question, Reading, counted
from probmcl.readers.options import Annotators
from probmcl.readers.spreadsheet import Spreadsheet
from probmcl.readers.table.columns import Columns
from probmcl.readers.table.entries import Images, LabelEntries, repeated

ANNOTATORS = {
    "majority": "the majority decides, and ties are unknown",
    "any": "a label that one annotator gave is present",
    "unknown": "labels on which they disagree are unknown",
}


def merge_rows(
    table: Spreadsheet,
    columns: Columns,
    entries: LabelEntries,
    images: Images,
    units: Images,
    option: Annotators | None,
) -> LabelStates:
    """Merge the rows of images, each annotator's rows (`units`) first. Contradictory rows are an error."""
    rows, classes, states = entries.rows, entries.classes, entries.states
    if entries.additive:
        _refuse_contradictory_labels(table, entries, units)
    else:
        _refuse_contradictory_rows(table, columns.path, entries, units)
        kept = np.isin(rows, units.first)
        rows, classes, states = rows[kept], classes[kept], states[kept]
    shape = (len(units.first), len(entries.names))
    merged = LabelStates.from_entries(units.of_row[rows], classes, states, shape, default=entries.default)
    if columns.annotator is None:
        return merged
    return _voted(table, columns.annotator, merged.dense(), units, images, entries.names, option)


def _refuse_contradictory_labels(table: Spreadsheet, entries: LabelEntries, images: Images) -> None:
    """Refuse a label that is present in one row of an image and absent or unknown in another."""
    keys = images.of_row[entries.rows] * len(entries.names) + entries.classes
    order = np.lexsort((entries.states, keys))
    conflicts = np.flatnonzero((np.diff(keys[order]) == 0) & (np.diff(entries.states[order].astype(np.int16)) != 0))
    if len(conflicts):
        pair = order[conflicts[0] : conflicts[0] + 2]
        first, second = sorted(table.lines[row] for row in entries.rows[pair].tolist())
        label = f"label {entries.names[entries.classes[pair[0]]]!r} for the same image"
        both = f"{table.path}, rows {first} and {second}"
        raise DataError(f"{both}: contradictory states of the {label}; remove one of the rows")


def _refuse_contradictory_rows(table: Spreadsheet, path: str, entries: LabelEntries, images: Images) -> None:
    several = np.bincount(images.of_row)[images.of_row] > 1
    kept = several[entries.rows]
    labels: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for row, k, state in np.stack([entries.rows, entries.classes, entries.states], axis=1)[kept].tolist():
        labels[row].add((k, state))
    for row in np.flatnonzero(several).tolist():
        if labels[row] != labels[int(images.first[images.of_row[row]])]:
            raise repeated(table, images, path, ", but not the same labels; remove the wrong row")


def _voted(
    table: Spreadsheet,
    column: str,
    states: UInt8[ndarray, "U C"],
    units: Images,
    images: Images,
    names: Sequence[str],
    option: Annotators | None,
) -> LabelStates:
    """Combine the labels that annotators gave to an image. If they disagree, an option must decide."""
    shape, image_of_unit = (len(images.first), len(names)), images.of_row[units.first]
    present, absent = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    np.add.at(present, image_of_unit, states == State.PRESENT)
    np.add.at(absent, image_of_unit, states == State.ABSENT)
    disputed = np.argwhere((present > 0) & (absent > 0))
    if len(disputed) and option is None:
        image, k = disputed[0]
        theirs = [np.flatnonzero((image_of_unit == image) & (states[:, k] == state))[0] for state in (1, 0)]
        rows = [int(units.first[unit]) for unit in theirs]
        both = " and ".join(f"{table.lines[row]} ({table.texts(column)[row]})" for row in rows)
        count = len(np.unique(disputed[:, 0]))
        raise Question(
            f"{table.path}: the annotators in column {column!r} disagree on "
            f"{counted(count, 'image')}, for example on {names[k]!r} in rows {both}; how should their "
            f"labels be merged?",
            [Reading(meaning, {"annotators": name}) for name, meaning in ANNOTATORS.items()],
        )
    decided = _decide(present, absent, option or "unknown")
    for image, k in zip(image_of_unit, states == State.UNCERTAIN, strict=True):
        decided[image, k & (decided[image] == State.UNKNOWN) & (present[image] + absent[image] == 0)] = State.UNCERTAIN
    return LabelStates.from_states(decided)


def _decide(present: Int[ndarray, "N C"], absent: Int[ndarray, "N C"], option: str) -> UInt8[ndarray, "N C"]:
    """Return the states of labels from the numbers of annotators that gave and did not give them.

    >>> present, absent = np.array([[2, 1, 1, 0]]), np.array([[1, 1, 0, 0]])
    >>> [_decide(present, absent, option).tolist() for option in ANNOTATORS]
    [[[1, 2, 1, 2]], [[1, 1, 1, 2]], [[2, 2, 1, 2]]]
    """
    yes = {"majority": present > absent, "any": present > 0, "unknown": (present > 0) & (absent == 0)}[option]
    no = absent > present if option == "majority" else (absent > 0) & (present == 0)
    return np.select([yes, no], [State.PRESENT, State.ABSENT], State.UNKNOWN).astype(np.uint8)
