"""Cells that list labels: which separator they have, and whether they hold names or indices into `classes.txt`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from probmcl.data.formats.table.label_names import (
    find_blanks,
    find_none_labels,
    refuse_none_beside_others,
    refuse_what_may_be_names,
    says_none,
)
from probmcl.data.formats.table.sheet import IN_A_LIST, Table, quoted, read_text
from probmcl.data.labels import LabelStates
from probmcl.errors import DataError, OptionError, suggestion

CLASSES = "classes.txt"
MARKS = "|;, "
"""What may separate labels; a space beside another one belongs to the names."""

Classes = tuple[str, ...] | None
"""The names in `classes.txt`; None without that file."""
Places = tuple[int, ...]


class Labels(NamedTuple):
    """What is said of every class in every image, and how that is written."""

    names: tuple[str, ...]
    states: LabelStates
    written: str


class Lists(NamedTuple):
    """The names of the classes; for each column, of each cell the places of its labels; and how they are written.

    `none` are the labels that mean none of them, and `none_rows` the rows of the first column that say so; `blanks` are
    texts that say nothing, and `blank_rows` the rows of the first column that say no more.
    """

    names: tuple[str, ...]
    columns: tuple[list[Places], ...]
    written: str
    none: frozenset[str]
    none_rows: list[int]
    blanks: frozenset[str]
    blank_rows: list[int]


class Cells(NamedTuple):
    """The texts of some columns, one column after the other, of which some labels mean none of them."""

    table: Table
    columns: Sequence[str]
    texts: list[str]
    none: frozenset[str]
    none_said: str | None

    def where(self, place: int) -> str:
        """A cell as a message names it."""
        column, row = divmod(place, len(self.table.rows))
        return f"{self.table.where(row)}: column {self.columns[column]!r}"


def read_classes(path: Path) -> Classes:
    """The classes that a file names, one a line; None where there is no such file."""
    if not path.exists():
        return None
    names = [line.strip() for line in read_text(path).rstrip().splitlines()]
    first: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if not name:
            raise DataError(f"{path}: row {line}: is blank; each line names one class")
        if first.setdefault(name, line) != line:
            raise DataError(f"{path}: rows {first[name]} and {line}: both name {name!r}; remove one")
    if not names:
        raise DataError(f"{path}: names no class; write one a line, or remove the file")
    return tuple(names)


def read_lists(
    table: Table, columns: Sequence[str], classes: Classes, *, none_label: str | None = "", marks: str = MARKS
) -> Lists:
    """Read cells in the one way that fits the classes or, without classes, by the one separator they have.

    All columns have the same separator. `none_label` is a label that means none; blank, there is none; None, it is
    looked for by name. `marks` are what may separate the labels.
    """
    texts = [text for column in columns for text in table.texts(column)]
    blanks = find_blanks(texts, none_label, classes)
    texts = ["" if text in blanks else text for text in texts]
    cells = Cells(table, columns, texts, find_none_labels(texts, none_label, classes), none_label)
    for place, text in enumerate(texts):
        if text[:1] in ("[", "{"):
            raise DataError(f"{cells.where(place)} holds {text!r}; write the labels bare, with | between them")
    listed = [text for text in texts if not says_none(text, cells.none)]
    occurring = [IN_A_LIST] if any(text.startswith(IN_A_LIST) for text in texts) else []
    occurring = occurring or [mark for mark in marks if any(mark in text for text in listed)]
    if classes is None:
        names, places, written = _without_classes(cells, _separator(cells, occurring))
    else:
        names, places, written = _with_classes(cells, classes, occurring)
    if none_label and not any(says_none(text, cells.none) for text in texts):
        problem = f"is not in any cell of {table.path}; {suggestion(none_label, names)}"
        raise OptionError("none_label", none_label, problem)
    count = len(table.rows)
    parts = tuple(places[start : start + count] for start in range(0, len(places), count))
    none_rows = [row for row, text in enumerate(texts[:count]) if says_none(text, cells.none)]
    blank_rows = [row for row, text in enumerate(texts[:count]) if not text]
    return Lists(names, parts, written, cells.none, none_rows, blanks, blank_rows)


def _with_classes(
    cells: Cells, classes: tuple[str, ...], occurring: Sequence[str]
) -> tuple[tuple[str, ...], list[Places], str]:
    classes = tuple(name for name in classes if name not in cells.none)
    readings = _readings(cells, classes, occurring)
    if len(readings) > 1:
        raise DataError(
            f"{cells.table.path}: column {cells.columns[0]!r} fits {CLASSES} in more than one way: "
            f"{' or '.join(readings)}; rename a class, or use a separator that is in no name"
        )
    if not readings:
        raise DataError(_what_does_not_fit(cells, classes, _separator(cells, occurring)))
    written, places = next(iter(readings.items()))
    return classes, places, written


def _separator(cells: Cells, occurring: Sequence[str]) -> str | None:
    """The separator of the lists; a space beside another one belongs to the names."""
    marks = [mark for mark in occurring if mark != " "]
    if len(marks) > 1:
        raise DataError(
            f"{cells.table.path}: column {cells.columns[0]!r} holds {quoted(marks)}, and each could separate the "
            f"labels; use one of them, or name the classes in a {CLASSES} beside the table"
        )
    return marks[0] if marks else " " if occurring else None


def _entries(text: str, separator: str | None) -> tuple[str, ...]:
    """The labels of a cell.

    >>> _entries("traffic light| dog|", "|"), _entries(" 3  14 ", " ")
    (('traffic light', 'dog'), ('3', '14'))
    """
    parts = [text] if separator is None else text.split(None if separator == " " else separator)
    return tuple(part.strip() for part in parts if part.strip())


def _split(cells: Cells, separator: str | None) -> list[tuple[str, ...]]:
    """The labels of every cell; none where one says so."""
    distinct = dict.fromkeys(cells.texts)
    lists = {text: () if says_none(text, cells.none) else _entries(text, separator) for text in distinct}
    for text, entries in lists.items() if cells.none else ():
        meant = [entry for entry in entries if entry in cells.none]
        others = [entry for entry in entries if entry not in cells.none]
        if meant and others:
            refuse_none_beside_others(cells.where(cells.texts.index(text)), meant[0], others[0], cells.none_said)
    return [lists[text] for text in cells.texts]


def _without_classes(cells: Cells, separator: str | None) -> tuple[tuple[str, ...], list[Places], str]:
    lists = _split(cells, separator)
    if separator == " ":
        remedy = f"Name the classes in a {CLASSES} beside the table, or separate them by |"
        refuse_what_may_be_names(f"{cells.table.path}: column {cells.columns[0]!r}", lists, remedy)
    occurring = {name for entries in lists for name in entries}
    if not occurring:
        blank = "is blank" if not cells.none else f"is blank or {quoted(sorted(cells.none))}"
        raise DataError(f"{cells.table.path}: column {cells.columns[0]!r} {blank} in every row; a model needs labels")
    numbers = all(map(_is_integer, occurring))
    names = tuple(sorted(occurring, key=lambda name: (int(name) if numbers else 0, name)))
    place = {name: i for i, name in enumerate(names)}
    return names, [tuple(place[name] for name in entries) for entries in lists], _written("names", separator)


def _readings(cells: Cells, classes: tuple[str, ...], occurring: Sequence[str]) -> dict[str, list[Places]]:
    """Every way in which all cells fit the classes, described; ways that come to the same are one."""
    by_name = {name: i for i, name in enumerate(classes)}
    by_index = {str(i): i for i in range(len(classes))}
    ways: dict[str, list[Places]] = {}
    for separator in occurring if IN_A_LIST in occurring else (*occurring, None):
        lists = _split(cells, separator)
        for kind, place in ((f"names of {CLASSES}", by_name), (f"indices into {CLASSES}", by_index)):
            if all(entry in place for entries in lists for entry in entries):
                way = [tuple(place[entry] for entry in entries) for entries in lists]
                if way not in ways.values():
                    ways[_written(kind, separator)] = way
    return ways


def _written(kind: str, separator: str | None) -> str:
    """How lists are written, as a message says it."""
    if separator is None:
        return f"{kind}, one in each cell"
    if separator == IN_A_LIST:
        return f"{kind}, a list in each cell"
    return f"{kind} separated by {'spaces' if separator == ' ' else repr(separator)}"


def _what_does_not_fit(cells: Cells, classes: tuple[str, ...], separator: str | None) -> str:
    lists = _split(cells, separator)
    numbers = all(_is_integer(entry) for entries in lists for entry in entries)
    fine = {str(i) for i in range(len(classes))} if numbers else set(classes)
    place, wrong = next((place, entry) for place, entries in enumerate(lists) for entry in entries if entry not in fine)
    if numbers:
        what = f"is no index into {CLASSES}, whose {len(classes)} classes are 0 to {len(classes) - 1}"
    else:
        what = f"is not in {CLASSES}; {suggestion(wrong, classes)}"
    return f"{cells.where(place)}: {wrong!r} {what}"


def _is_integer(entry: str) -> bool:
    return re.fullmatch(r"-?[0-9]+", entry) is not None
