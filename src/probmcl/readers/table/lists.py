"""Reads cells with lists of labels: finds the separator, and whether items are names or indices into `classes.txt`."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from probmcl.errors import DataError, OptionError, Question, Reading, counted, quoted, suggestion
from probmcl.readers.label_policy import (
    Words,
    find_blanks,
    find_none_labels,
    refuse_none_with_others,
    refuse_possible_names,
)
from probmcl.readers.options import ReadOptions
from probmcl.readers.spreadsheet import LIST_ITEM, Spreadsheet, read_encoded_text

CLASSES = "classes.txt"
REMEDY = f"You can also list the classes in a {CLASSES} next to the table, or separate labels by |"
PLAIN_NAMES = "write names without brackets and quotes, separated by |"
SEPARATORS = "|;,\t"  # a space separates labels only if none of these occurs; otherwise, it is part of a name
MAX_CLASSES = 30_000  # the matrix of co-occurrences then has 3.6 GB
VECTOR = {*"01. ", *SEPARATORS, LIST_ITEM}  # characters of a list with a 0 or 1 for each class
LITERAL = re.compile(r"""[\[{]|\(['"]""")  # parentheses may also be part of a name
QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
LABEL_KEYS = ("label", "name", "class", "category", "choices")  # in JSON objects
Classes = tuple[str, ...] | None  # the names in `classes.txt`; None without that file
Labels = dict[str, Words]  # the labels in each distinct text of a column


class NoLabelsError(DataError):
    """A table without labels, such as a list of test images."""


class Lists(NamedTuple):
    """The class names, the class indices in each cell of each column, and a description of how lists were read.

    `hierarchy` has the parents of classes that were written as PARENT/CHILD. `none_rows` and `blank_rows` are the rows
    whose first column means "no label" or is blank; in `unknown_rows`, a column means "unknown".
    """

    names: tuple[str, ...]
    columns: tuple[list[tuple[int, ...]], ...]
    description: str
    hierarchy: dict[str, str]
    none: frozenset[str]
    none_rows: list[int]
    unknown_rows: list[int]
    blank_rows: list[int]


class _Cells(NamedTuple):
    """The distinct texts of some columns, and the labels that mean "no label" or "unknown"."""

    table: Spreadsheet
    columns: Sequence[str]
    times: Mapping[str, int]  # number of cells with each text
    plain: dict[str, str]  # each text, with lists in brackets as items, and "" for a blank
    none: frozenset[str]
    unknown: frozenset[str]
    none_label: str | None

    def where(self, text: str) -> str:
        """Return the row and column of the first cell with a text, for messages."""
        column = next(name for name in self.columns if text in self.table.texts(name))
        return f"{self.table.where(list(self.table.texts(column)).index(text))}: column {column!r}"

    @property
    def name(self) -> str:
        """The table and column, for messages."""
        return f"{self.table.path}: column {self.columns[0]!r}"

    def split(self, separator: str | None) -> Labels:
        """Return the labels in each distinct text."""
        lists: Labels = {}
        for text, plain in self.plain.items():
            items = () if self.means(plain, self.none) else _items(plain, separator)
            lists[text] = tuple(item for item in items if item not in self.unknown | self.none)
            none = next((item for item in items if item in self.none), None)
            if none and lists[text]:
                refuse_none_with_others(self.where(text), none, lists[text][0], self.none_label)
        return lists

    @staticmethod
    def means(text: str, meanings: frozenset[str]) -> bool:
        """Return whether a cell contains only a label with a special meaning."""
        return text.removeprefix(LIST_ITEM) in meanings


def read_classes(path: Path) -> Classes:
    """Read the class names from a file with one name per line; return None if it does not exist."""
    if not path.exists():
        return None
    names = [line.strip() for line in read_encoded_text(path).rstrip().splitlines()]
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
    table: Spreadsheet, columns: Sequence[str], classes: Classes, options: ReadOptions, *, spaces: bool = True
) -> Lists:
    """Read lists of labels, using the only separator that fits the classes or, without classes, the labels.

    All columns have the same separator. If `spaces` is false, a space is part of a name unless `classes.txt` has the
    words as classes. `options.none_label` is a label that means "no label": '' if there is none, None to detect it.
    """
    cells = _cells(table, columns, classes, options)
    listed = [text for text in cells.plain.values() if text and not cells.means(text, cells.none | cells.unknown)]
    marks: list[str | None] = [mark for mark in SEPARATORS if any(mark in text for text in listed)]
    marks += [" "] if (spaces or classes) and any(" " in text for text in listed) else []
    if options.separator is not None:
        if not any(options.separator in text for text in listed):  # '' is in every text
            raise OptionError("separator", options.separator, f"is not in any cell of {table.path}; leave it out")
        marks = [options.separator or None]
    elif any(text.startswith(LIST_ITEM) for text in listed):
        bare = next((text for text in listed if text[0] != LIST_ITEM and set(text) & {*SEPARATORS}), None)
        if bare:
            raise DataError(f"{cells.where(bare)} has {bare!r}, but other cells are in brackets; use one notation")
        marks = [LIST_ITEM]
    numbers = [re.findall("[01.]+", text) for text in listed] if all({*text} <= VECTOR for text in listed) else []
    if any(len(items) > len({*items}) for items in numbers):
        raise DataError(f"{cells.name} has a 0 or 1 for each class; write one column per class, or the class names")
    if classes is None:
        names, lists, description, hierarchy = _without_classes(cells, marks, options)
    else:
        names, lists, description, hierarchy = _with_classes(cells, classes, marks)
    if options.none_label and not any(cells.means(text, cells.none) for text in cells.plain.values()):
        problem = f"is not in any cell of {table.path}; {suggestion(options.none_label, names)}"
        raise OptionError("none_label", options.none_label, problem)
    index = {name: i for i, name in enumerate(names)}
    indices = {text: tuple(sorted({index[name] for name in items})) for text, items in lists.items()}
    first = [cells.plain[text] for text in table.texts(columns[0])]
    plain = cells.plain.items() if cells.unknown else ()
    vague = {text for text, cell in plain for mark in (*marks, None) if cells.unknown & {*_items(cell, mark)}}
    texts = [table.texts(column) for column in columns] if vague else []
    return Lists(
        names,
        tuple([indices[text] for text in table.texts(column)] for column in columns),
        description + _notes(cells),
        hierarchy,
        cells.none,
        [row for row, text in enumerate(first) if cells.means(text, cells.none)] if cells.none else [],
        sorted({row for column in texts for row, text in enumerate(column) if text in vague}),
        [row for row, text in enumerate(first) if not text],
    )


def _cells(table: Spreadsheet, columns: Sequence[str], classes: Classes, options: ReadOptions) -> _Cells:
    times = sum((Counter(table.texts(column)) for column in columns), Counter[str]())
    blanks = find_blanks(times, options.none_label, classes) - {*options.unknown_label}
    plain = {text: "" if text in blanks else text for text in times}
    cells = _Cells(table, columns, times, plain, frozenset(), frozenset(options.unknown_label), options.none_label)
    for text in times:
        if LITERAL.match(text) and text not in (classes or ()):
            items = _literal(text)
            if items is None:
                raise DataError(f"{cells.where(text)} has {text!r}; {PLAIN_NAMES}")
            plain[text] = "".join(f"{LIST_ITEM}{item}" for item in items)
    for text in options.unknown_label:
        if not any(text in (cell, *re.split(rf"[{SEPARATORS} {LIST_ITEM}]+", cell)) for cell in plain.values()):
            raise OptionError("unknown_label", text, f"is not in any cell of column {columns[0]!r} of {table.path}")
    return cells._replace(none=find_none_labels(plain.values(), options.none_label, classes))


def _literal(text: str) -> list[str] | None:
    """Return the items of a list in the notation of Python or JSON, or in braces; None if the brackets do not match.

    >>> _literal("['a', 'b c']"), _literal('["a"]'), _literal("{a, b c}"), _literal("['a' 'b']"), _literal("[]")
    (['a', 'b c'], ['a'], ['a', 'b c'], ['a', 'b'], [])
    """
    if len(text) < 2 or text[-1] != {"[": "]", "{": "}", "(": ")"}[text[0]]:
        return None
    try:
        return _labels_in_json(json.loads(text))
    except ValueError:
        body = text[1:-1]
    if not QUOTED.search(body):
        return [item.strip() for item in body.split(",") if item.strip()]
    if QUOTED.sub("", body).strip(" ,\n"):
        return None
    return [re.sub(r"\\(.)", r"\1", one or other) for one, other in QUOTED.findall(body)]


def _labels_in_json(value: Any) -> list[str]:
    """Return the labels in a JSON value; in an object, those under a key such as `label` or `rectanglelabels`."""
    if isinstance(value, dict):
        labels = [item for key, item in value.items() if key in LABEL_KEYS or key.endswith("labels")]
        if value and not labels:
            raise ValueError("an object without labels")
        value = labels
    return [label for item in value for label in _labels_in_json(item)] if isinstance(value, list) else [str(value)]


def _with_classes(
    cells: _Cells, classes: tuple[str, ...], marks: Sequence[str | None]
) -> tuple[tuple[str, ...], Labels, str, dict[str, str]]:
    """Find the only way to read all cells as names of classes or as indices; equal results count once."""
    classes = tuple(name for name in classes if name not in cells.none)
    readings: dict[str, Labels] = {}
    keys = {"names of": classes, "indices into": map(str, range(len(classes)))}
    by_kind = {kind: dict(zip(items, classes, strict=True)) for kind, items in keys.items()}
    for separator in marks if LIST_ITEM in marks else dict.fromkeys((*marks, None)):
        lists = cells.split(separator)
        for kind, names in by_kind.items():
            if all(item in names for items in lists.values() for item in items):
                result = {text: tuple(names[item] for item in items) for text, items in lists.items()}
                if result not in readings.values():
                    readings[_describe(f"{kind} {CLASSES}", separator)] = result
    if len(readings) > 1:
        raise DataError(
            f"{cells.name} matches {CLASSES} in more than one way: {' or '.join(readings)}; rename a class, or use a "
            f"separator that does not occur in names"
        )
    if not readings:
        raise DataError(_mismatch_message(cells, classes, _separator(cells, marks)))
    description, lists = next(iter(readings.items()))
    return classes, lists, description, {}


def _without_classes(
    cells: _Cells, marks: Sequence[str | None], options: ReadOptions
) -> tuple[tuple[str, ...], Labels, str, dict[str, str]]:
    separator, hierarchy = _separator(cells, marks), dict[str, str]()
    lists = cells.split(separator)
    if separator == " " and options.separator is None:
        times: Counter[Words] = Counter()
        for text, words in lists.items():
            times[words] += cells.times[text]
        refuse_possible_names(cells.name, times, REMEDY)
    if options.separator is None and options.hierarchy is None:
        lists, hierarchy = _with_hierarchy(cells, lists, separator)
    occurring = {name for items in lists.values() for name in items} | {*hierarchy.values()}
    if not occurring:
        blank = "is blank" if not cells.none else f"is blank or {quoted(sorted(cells.none))}"
        raise NoLabelsError(f"{cells.name} {blank} in every row; add labels")
    odd = {item for item in occurring if item[0] == "{" or (item.count('"') == 1 and (item,) not in lists.values())}
    if text := next((text for text, items in lists.items() if odd & {*items}), ""):
        raise DataError(f"{cells.where(text)} has {min(odd & {*lists[text]})!r}; {PLAIN_NAMES}")
    if len(occurring) > MAX_CLASSES:
        raise DataError(f"{cells.name} has {len(occurring):,} labels; if they are texts, use `labels_column=COLUMN`")
    numbers = all(map(_is_integer, occurring))
    names = tuple(sorted(occurring, key=lambda name: (int(name) if numbers else 0, name)))
    return names, lists, _describe("names with / as a hierarchy" if hierarchy else "names", separator), hierarchy


def _separator(cells: _Cells, marks: Sequence[str | None]) -> str | None:
    """Return the separator of the lists: the only one that occurs, or the only one that gives consistent labels."""
    strong = [mark for mark in marks if mark not in (" ", None)]
    if len(strong) <= 1:
        return strong[0] if strong else marks[0] if marks else None
    consistent = []
    for mark in strong:
        items = {item for labels in cells.split(mark).values() for item in labels}
        parts = (part.strip() for item in items for other in strong if other in item for part in item.split(other))
        consistent += [mark] if not any(part in items for part in parts) else []
    if len(consistent) == 1:
        return consistent[0]
    raise Question(
        f"{cells.name} contains {quoted(str(mark) for mark in strong)}, which could all separate labels. {REMEDY}",
        [Reading(f"{mark!r} separates labels", {"separator": str(mark)}) for mark in strong],
    )


def _with_hierarchy(cells: _Cells, lists: Labels, separator: str | None) -> tuple[Labels, dict[str, str]]:
    """Replace labels such as PARENT/CHILD by CHILD, and return the parents.

    Every name must have the same parent everywhere, and a parent must have two children. Otherwise, if no other
    separator occurs, / may separate labels.
    """
    items = {item for labels in lists.values() for item in labels}
    slashed = sorted(item for item in items if "/" in item and all(part.strip() for part in item.split("/")))
    if not slashed:
        return lists, {}
    steps = dict.fromkeys(step for item in sorted(items) for step in pairwise(["", *item.split("/")]))
    parents = {child: parent for parent, child in steps}
    children = [parent for parent in parents.values() if parent]
    if len(steps) == len(parents) and len(children) > len(set(children)):
        leaves = {text: tuple(item.split("/")[-1] for item in labels) for text, labels in lists.items()}
        return leaves, {child: parent for child, parent in parents.items() if parent}
    if separator is None:
        raise Question(
            f"{cells.name} has {slashed[0]!r}: does / separate labels, or is it part of a name?",
            [Reading("/ is part of a name", {"separator": ""}), Reading("/ separates labels", {"separator": "/"})],
        )
    return lists, {}


def _items(text: str, separator: str | None) -> Words:
    separator = LIST_ITEM if text.startswith(LIST_ITEM) else separator
    parts = [text] if separator is None else text.split(None if separator == " " else separator)
    return tuple(part.strip() for part in parts if part.strip())


def _describe(items: str, separator: str | None) -> str:
    special = {None: ", one per cell", LIST_ITEM: ", one list per cell", " ": " separated by spaces"}
    return items + special.get(separator, f" separated by {separator!r}")


def _notes(cells: _Cells) -> str:
    blanks = sorted({text for text, plain in cells.plain.items() if text and not plain and not LITERAL.match(text)})
    meanings = {"no label": sorted(cells.none), "unknown": sorted(cells.unknown), "blank": blanks}
    return "".join(f"; {quoted(texts)} = {meaning}" for meaning, texts in meanings.items() if texts)


def _mismatch_message(cells: _Cells, classes: tuple[str, ...], separator: str | None) -> str:
    lists = cells.split(separator)
    numbers = all(_is_integer(item) for items in lists.values() for item in items)
    valid = {str(i) for i in range(len(classes))} if numbers else set(classes)
    text, wrong = next((text, item) for text, items in lists.items() for item in items if item not in valid)
    problem = f"is not in {CLASSES}; {suggestion(wrong, classes)}"
    if numbers:
        indices = counted(len(classes), "class has index 0", f"classes have indices 0 to {len(classes) - 1}")
        problem = f"is not an index into {CLASSES}, whose {indices}"
    return f"{cells.where(text)}: {wrong!r} {problem}"


def _is_integer(item: str) -> bool:
    return re.fullmatch(r"-?[0-9]+", item) is not None
