"""Reads cells with lists of labels: detects the separator and whether items are names or indices into `classes.txt`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from probmcl.data.formats.table.label_names import (
    find_blanks,
    find_none_labels,
    means_none,
    refuse_none_with_others,
    refuse_possible_names,
)
from probmcl.data.formats.table.sheet import LIST_ITEM, Table, quoted, read_text
from probmcl.data.labels import LabelStates
from probmcl.errors import DataError, OptionError, suggestion

CLASSES = "classes.txt"
SEPARATORS = "|;, "
"""Possible separators of labels. A space is part of a name if another separator occurs."""

Classes = tuple[str, ...] | None
"""The names in `classes.txt`; None without that file."""
ClassIndices = tuple[int, ...]


class Labels(NamedTuple):
    """The class names, the label states of all images, and a description of how the labels were read."""

    names: tuple[str, ...]
    states: LabelStates
    description: str


class Lists(NamedTuple):
    """The class names, the class indices in each cell of each column, and a description of how lists were read.

    `none` has the labels that mean "no label", and `blanks` the texts that were read as blank, such as 'NaN'.
    `none_rows` and `blank_rows` are the rows with such a cell in the first column.
    """

    names: tuple[str, ...]
    columns: tuple[list[ClassIndices], ...]
    description: str
    none: frozenset[str]
    none_rows: list[int]
    blanks: frozenset[str]
    blank_rows: list[int]


class Cells(NamedTuple):
    """The texts of some columns, concatenated, and the labels that mean "no label"."""

    table: Table
    columns: Sequence[str]
    texts: list[str]
    none: frozenset[str]
    none_label: str | None

    def where(self, index: int) -> str:
        """Return the row and column of a cell, for messages."""
        column, row = divmod(index, len(self.table.rows))
        return f"{self.table.where(row)}: column {self.columns[column]!r}"


def read_classes(path: Path) -> Classes:
    """Read the class names from a file with one name per line; return None if it does not exist."""
    if not path.exists():
        return None
    names = [line.strip() for line in read_text(path).rstrip().splitlines()]
    first: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if not name:
            raise DataError(f"{path}, row {line}: the line is blank; expected the name of a class")
        if first.setdefault(name, line) != line:
            raise DataError(f"{path}, rows {first[name]} and {line}: both are {name!r}; remove one")
    if not names:
        raise DataError(f"{path}: the file is empty; write one class name per line, or remove the file")
    return tuple(names)


def read_lists(
    table: Table, columns: Sequence[str], classes: Classes, *, none_label: str | None = "", candidates: str = SEPARATORS
) -> Lists:
    """Read lists of labels, using the only separator that fits the classes or, without classes, that occurs.

    All columns have the same separator, one of `candidates`. `none_label` is a label that means "no label"; pass '' if
    there is none, or None to detect it by name.
    """
    texts = [text for column in columns for text in table.texts(column)]
    blanks = find_blanks(texts, none_label, classes)
    texts = ["" if text in blanks else text for text in texts]
    cells = Cells(table, columns, texts, find_none_labels(texts, none_label, classes), none_label)
    for index, text in enumerate(texts):
        if text[:1] in ("[", "{"):
            raise DataError(f"{cells.where(index)} has {text!r}; write labels without brackets, separated by |")
    listed = [text for text in texts if not means_none(text, cells.none)]
    occurring = [LIST_ITEM] if any(text.startswith(LIST_ITEM) for text in texts) else []
    occurring = occurring or [mark for mark in candidates if any(mark in text for text in listed)]
    if classes is None:
        names, indices, description = _without_classes(cells, _separator(cells, occurring))
    else:
        names, indices, description = _with_classes(cells, classes, occurring)
    if none_label and not any(means_none(text, cells.none) for text in texts):
        problem = f"is not in any cell of {table.path}; {suggestion(none_label, names)}"
        raise OptionError("none_label", none_label, problem)
    count = len(table.rows)
    parts = tuple(indices[start : start + count] for start in range(0, len(indices), count))
    none_rows = [row for row, text in enumerate(texts[:count]) if means_none(text, cells.none)]
    blank_rows = [row for row, text in enumerate(texts[:count]) if not text]
    return Lists(names, parts, description, cells.none, none_rows, blanks, blank_rows)


def _with_classes(
    cells: Cells, classes: tuple[str, ...], occurring: Sequence[str]
) -> tuple[tuple[str, ...], list[ClassIndices], str]:
    classes = tuple(name for name in classes if name not in cells.none)
    readings = _readings(cells, classes, occurring)
    if len(readings) > 1:
        raise DataError(
            f"{cells.table.path}: column {cells.columns[0]!r} matches {CLASSES} in more than one way: "
            f"{' or '.join(readings)}; rename a class, or use a separator that does not occur in names"
        )
    if not readings:
        raise DataError(_mismatch_message(cells, classes, _separator(cells, occurring)))
    description, indices = next(iter(readings.items()))
    return classes, indices, description


def _separator(cells: Cells, occurring: Sequence[str]) -> str | None:
    """Return the separator of the lists. A space separates labels only if nothing else does."""
    marks = [mark for mark in occurring if mark != " "]
    if len(marks) > 1:
        raise DataError(
            f"{cells.table.path}: column {cells.columns[0]!r} contains {quoted(marks)}, which could all separate "
            f"labels; use one of them, or list the classes in a {CLASSES} next to the table"
        )
    return marks[0] if marks else " " if occurring else None


def _entries(text: str, separator: str | None) -> tuple[str, ...]:
    """Split a cell into labels.

    >>> _entries("traffic light| dog|", "|"), _entries(" 3  14 ", " ")
    (('traffic light', 'dog'), ('3', '14'))
    """
    parts = [text] if separator is None else text.split(None if separator == " " else separator)
    return tuple(part.strip() for part in parts if part.strip())


def _split(cells: Cells, separator: str | None) -> list[tuple[str, ...]]:
    """Return the labels in each cell. A cell that means "no label" has none."""
    distinct = dict.fromkeys(cells.texts)
    lists = {text: () if means_none(text, cells.none) else _entries(text, separator) for text in distinct}
    for text, entries in lists.items() if cells.none else ():
        none = [entry for entry in entries if entry in cells.none]
        others = [entry for entry in entries if entry not in cells.none]
        if none and others:
            refuse_none_with_others(cells.where(cells.texts.index(text)), none[0], others[0], cells.none_label)
    return [lists[text] for text in cells.texts]


def _without_classes(cells: Cells, separator: str | None) -> tuple[tuple[str, ...], list[ClassIndices], str]:
    lists = _split(cells, separator)
    if separator == " ":
        remedy = f"List the classes in a {CLASSES} next to the table, or separate labels by |"
        refuse_possible_names(f"{cells.table.path}: column {cells.columns[0]!r}", lists, remedy)
    occurring = {name for entries in lists for name in entries}
    if not occurring:
        blank = "is blank" if not cells.none else f"is blank or {quoted(sorted(cells.none))}"
        raise DataError(f"{cells.table.path}: column {cells.columns[0]!r} {blank} in every row; add labels")
    numbers = all(map(_is_integer, occurring))
    names = tuple(sorted(occurring, key=lambda name: (int(name) if numbers else 0, name)))
    index = {name: i for i, name in enumerate(names)}
    return names, [tuple(index[name] for name in entries) for entries in lists], _describe("names", separator)


def _readings(cells: Cells, classes: tuple[str, ...], occurring: Sequence[str]) -> dict[str, list[ClassIndices]]:
    """Return every way to read all cells as classes, with its description; equal results are listed once."""
    by_name = {name: i for i, name in enumerate(classes)}
    by_index = {str(i): i for i in range(len(classes))}
    readings: dict[str, list[ClassIndices]] = {}
    for separator in occurring if LIST_ITEM in occurring else (*occurring, None):
        lists = _split(cells, separator)
        for items, index in ((f"names of {CLASSES}", by_name), (f"indices into {CLASSES}", by_index)):
            if all(entry in index for entries in lists for entry in entries):
                indices = [tuple(index[entry] for entry in entries) for entries in lists]
                if indices not in readings.values():
                    readings[_describe(items, separator)] = indices
    return readings


def _describe(items: str, separator: str | None) -> str:
    if separator is None:
        return f"{items}, one per cell"
    if separator == LIST_ITEM:
        return f"{items}, one list per cell"
    return f"{items} separated by {'spaces' if separator == ' ' else repr(separator)}"


def _mismatch_message(cells: Cells, classes: tuple[str, ...], separator: str | None) -> str:
    lists = _split(cells, separator)
    numbers = all(_is_integer(entry) for entries in lists for entry in entries)
    valid = {str(i) for i in range(len(classes))} if numbers else set(classes)
    index, wrong = next((i, entry) for i, entries in enumerate(lists) for entry in entries if entry not in valid)
    if numbers:
        problem = f"is not an index into {CLASSES}, whose {len(classes)} classes have indices 0 to {len(classes) - 1}"
    else:
        problem = f"is not in {CLASSES}; {suggestion(wrong, classes)}"
    return f"{cells.where(index)}: {wrong!r} {problem}"


def _is_integer(entry: str) -> bool:
    return re.fullmatch(r"-?[0-9]+", entry) is not None
