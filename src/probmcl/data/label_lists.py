"""Cells that list labels: which separator they have, and whether they hold names or indices into `classes.txt`.

Cells that can be read in two ways are not read but answered with what decides.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32
from numpy import ndarray

from probmcl.data.records import DataError
from probmcl.data.sheet import Cell, Table, quoted, read_text
from probmcl.nearest import suggestion

CLASSES = "classes.txt"
ALWAYS_TOGETHER = 3
"""So many times side by side and never apart, two words look like one name with a space in it."""


class Labels(NamedTuple):
    """The labels of every row, which of them are known, and how they are written."""

    names: tuple[str, ...]
    values: Float32[ndarray, "N C"]
    known: Bool[ndarray, "N C"]
    written: str


class Lists(NamedTuple):
    """The names of the classes, for each cell the places of its labels among them, and how they are written."""

    names: tuple[str, ...]
    classes: list[tuple[int, ...]]
    written: str


def read_classes(path: Path) -> tuple[str, ...] | None:
    """The classes that a file names, one a line; None where there is no such file."""
    if not path.exists():
        return None
    names = [line.strip() for line in read_text(path).rstrip().splitlines()]
    for line, name in enumerate(names, 1):
        if not name:
            raise DataError(f"{path}: row {line}: is blank; each line names one class")
        if name in names[: line - 1]:
            raise DataError(f"{path}: rows {names.index(name) + 1} and {line}: both name {name!r}; remove one")
    if not names:
        raise DataError(f"{path}: names no class; write one a line, or remove the file")
    return tuple(names)


def read_label_lists(table: Table, labels: str, difficult: str | None, classes: tuple[str, ...] | None) -> Labels:
    """Read a column of label lists; labels that the difficult column lists are not known."""
    cells = table.cells(labels)
    if difficult:
        cells += table.cells(difficult)  # one separator for both
    names, lists, written = read_lists(table, cells, classes)
    values = np.zeros((len(table.rows), len(names)), dtype=np.float32)
    known = np.ones(values.shape, dtype=bool)
    for row, places in enumerate(lists[: len(values)]):
        values[row, list(places)] = 1.0
    forget(values, known, lists[len(values) :])
    return Labels(names, values, known, written)


def read_lists(table: Table, cells: list[Cell], classes: tuple[str, ...] | None) -> Lists:
    """Read cells in the one way that fits the classes or, without classes, by the one separator they have."""
    for cell in cells:
        if cell.text[:1] in ("[", "{"):
            where = f"{table.path}: row {cell.line}: column {cell.column!r}"
            raise DataError(f"{where} holds {cell.text!r}; write the labels bare, with | between them")
    occurring = [mark for mark in "|;, " if any(mark in cell.text for cell in cells)]
    if classes is None:
        return _without_classes(table, cells, _separator(table, cells, occurring))
    readings = _readings(cells, classes, occurring)
    if len(readings) > 1:
        raise DataError(
            f"{table.path}: column {cells[0].column!r} fits {CLASSES} in more than one way: {' or '.join(readings)}; "
            f"rename a class, or use a separator that is in no name"
        )
    if not readings:
        raise DataError(_what_does_not_fit(table, cells, classes, _separator(table, cells, occurring)))
    written, lists = next(iter(readings.items()))
    return Lists(classes, lists, written)


def forget(values: Float32[ndarray, "N C"], known: Bool[ndarray, "N C"], classes: Sequence[Sequence[int]]) -> None:
    """Mark the labels at these places of each row as not known."""
    for row, places in enumerate(classes):
        values[row, list(places)], known[row, list(places)] = 0.0, False


def _separator(table: Table, cells: list[Cell], occurring: Sequence[str]) -> str | None:
    """The separator of the lists; a space beside another one belongs to the names."""
    marks = [mark for mark in occurring if mark != " "]
    if len(marks) > 1:
        raise DataError(
            f"{table.path}: column {cells[0].column!r} holds {quoted(marks)}, and each could separate the labels; "
            f"use one of them, or name the classes in a {CLASSES} beside the table"
        )
    return marks[0] if marks else " " if occurring else None


def _entries(text: str, separator: str | None) -> tuple[str, ...]:
    """The labels of a cell.

    >>> _entries("traffic light| dog|", "|"), _entries(" 3  14 ", " ")
    (('traffic light', 'dog'), ('3', '14'))
    """
    parts = [text] if separator is None else text.split(None if separator == " " else separator)
    return tuple(part.strip() for part in parts if part.strip())


def _without_classes(table: Table, cells: list[Cell], separator: str | None) -> Lists:
    lists = [_entries(cell.text, separator) for cell in cells]
    if separator == " ":
        _refuse_words_never_apart(table, cells[0].column, lists)
    found = {name for entries in lists for name in entries}
    if not found:
        raise DataError(f"{table.path}: column {cells[0].column!r} is blank in every row; a model needs labels")
    numbers = all(map(_is_integer, found))
    names = tuple(sorted(found, key=lambda name: (int(name) if numbers else 0, name)))
    place = {name: i for i, name in enumerate(names)}
    return Lists(names, [tuple(place[name] for name in entries) for entries in lists], _written("names", separator))


def _refuse_words_never_apart(table: Table, column: str, lists: list[tuple[str, ...]]) -> None:
    words = Counter(word for entries in lists for word in entries)
    pairs = Counter(pair for entries in lists for pair in pairwise(entries))
    for (one, other), times in pairs.items():
        if times >= ALWAYS_TOGETHER and times == words[one] == words[other]:
            raise DataError(
                f"{table.path}: column {column!r}: {one!r} and {other!r} never stand apart; are they one class or two? "
                f"Name the classes in a {CLASSES} beside the table, or separate them by |"
            )


def _readings(
    cells: list[Cell], classes: tuple[str, ...], occurring: Sequence[str]
) -> dict[str, list[tuple[int, ...]]]:
    """Every way in which all cells fit the classes, described; ways that come to the same are one."""
    by_name = {name: i for i, name in enumerate(classes)}
    by_index = {str(i): i for i in range(len(classes))}
    ways: dict[str, list[tuple[int, ...]]] = {}
    for separator in (*occurring, None):
        lists = [_entries(cell.text, separator) for cell in cells]
        for kind, place in ((f"names of {CLASSES}", by_name), (f"indices into {CLASSES}", by_index)):
            if all(entry in place for entries in lists for entry in entries):
                way = [tuple(place[entry] for entry in entries) for entries in lists]
                if way not in ways.values():
                    ways[_written(kind, separator)] = way
    return ways


def _written(kind: str, separator: str | None) -> str:
    """How lists are written, as a message says it.

    >>> _written("names", "|"), _written("names", " "), _written("names", None)
    ("names separated by '|'", 'names separated by spaces', 'names, one in each cell')
    """
    if separator is None:
        return f"{kind}, one in each cell"
    return f"{kind} separated by {'spaces' if separator == ' ' else repr(separator)}"


def _what_does_not_fit(table: Table, cells: list[Cell], classes: tuple[str, ...], separator: str | None) -> str:
    lists = [_entries(cell.text, separator) for cell in cells]
    numbers = all(_is_integer(entry) for entries in lists for entry in entries)
    fine = {str(i) for i in range(len(classes))} if numbers else set(classes)
    cell, wrong = next(
        (cell, entry) for cell, entries in zip(cells, lists, strict=True) for entry in entries if entry not in fine
    )
    where = f"{table.path}: row {cell.line}: column {cell.column!r}: {wrong!r}"
    if numbers:
        return f"{where} is no index into {CLASSES}, whose {len(classes)} classes are 0 to {len(classes) - 1}"
    return f"{where} is not in {CLASSES}; {suggestion(wrong, classes)}"


def _is_integer(entry: str) -> bool:
    return re.fullmatch(r"-?[0-9]+", entry) is not None
