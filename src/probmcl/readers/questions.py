"""Questions about ambiguous data: tries all readings, and asks only if they give different labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from probmcl.data.labels import State
from probmcl.data.records import Records
from probmcl.errors import DataError, OptionError, ProbmclError, Question, Reading, listing
from probmcl.readers.options import ReadOptions

SHOWN_ROWS = 3  # rows in a question about columns; others show two
SHOWN_LABELS = 6  # labels of a row in a question
BLOCK = 2_000_000  # labels that are compared at once


def answered(read: Callable[[ReadOptions], Records], options: ReadOptions) -> Records:
    """Read data, and ask a question only if its readings give different labels.

    All readings are tried. A reading that is an error is left out; if several remain, the question shows rows in which
    they differ. If all have the same error, it is raised, because no answer would help.
    """
    try:
        return read(options)
    except Question as error:
        question = error
    results, errors, final = list[tuple[Reading, Records | None]](), list[ProbmclError](), True
    for reading in question.readings:
        chosen = _chosen(options, reading)
        try:
            results.append((reading, read(chosen)))
        except Question as another:
            final = False
            results.append((reading, _preview(read, _chosen(chosen, another.readings[0]))))
        except (DataError, OptionError) as error:
            errors.append(error)
    if not results and len({*map(str, errors)}) == 1:
        raise errors[0]
    possible = [records for _, records in results if records is not None]
    rows = _differing_rows(possible)[: SHOWN_ROWS if "labels_column" in question.readings[0].options else 2]
    if possible and final and not rows:
        return possible[0]
    shown = [
        replace(reading, rows=tuple(_row_text(records, row) for row in rows) if records else ())
        for reading, records in results
    ]
    raise Question(question.problem, shown or question.readings)


def _chosen(options: ReadOptions, reading: Reading) -> ReadOptions:
    """Return the options with those of a reading; an option that takes several values keeps its others."""
    values: dict[str, Any] = {
        name: (*now, value) if isinstance(now := getattr(options, name), tuple) else value
        for name, value in reading.options.items()
    }
    return replace(options, **values)


def _preview(read: Callable[[ReadOptions], Records], options: ReadOptions) -> Records | None:
    """Return the labels of a reading that needs another decision, with the first answer to it."""
    try:
        return read(options)
    except (DataError, OptionError):
        return None


def _differing_rows(readings: Sequence[Records]) -> list[int]:
    """Return the first images whose labels differ between readings; a class that a reading lacks is absent there."""
    if not readings:
        return []
    names = {name for records in readings for name in records.label_space.names}
    column_of = {name: column for column, name in enumerate(names)}
    rows, size = list[int](), max(1, BLOCK // len(names))
    for start in range(0, len(readings[0]), size):
        block = np.arange(start, min(start + size, len(readings[0])))
        first, *others = (_states_by_name(records, column_of, block) for records in readings)
        different = np.any([(other != first).any(axis=1) for other in others] or [len(block) * [False]], axis=0)
        rows += (start + np.flatnonzero(different)).tolist()
        if len(rows) >= SHOWN_ROWS:
            break
    return rows[:SHOWN_ROWS]


def _states_by_name(records: Records, column_of: Mapping[str, int], rows: Int[ndarray, "K"]) -> UInt8[ndarray, "K C"]:
    states = np.full((len(rows), len(column_of)), State.ABSENT, dtype=np.uint8)
    labels, known = records.states.labels_and_known(rows)
    states[:, [column_of[name] for name in records.label_space.names]] = np.where(known, labels > 0, State.UNKNOWN)
    return states


def _row_text(records: Records, row: int) -> str:
    """Return the labels of an image, with its row in the table or, if there are several tables, its whole path."""
    labels, known = (values[0] for values in records.states.labels_and_known(np.array([row])))
    names = np.array(records.label_space.names)
    present, unknown = names[(labels > 0) & known].tolist(), names[~known].tolist()
    missing = f" (unknown: {listing(unknown, SHOWN_LABELS)})" if unknown else ""
    image = str(records.paths[row])
    if records.origin is not None and records.origin.lines is not None:
        image = f"row {records.origin.lines[row]}, {records.paths[row].name}"
    return f"{image}: {listing(present, SHOWN_LABELS) or 'no label'}{missing}"
