"""Reads cells with lists of labels: finds the separator, and whether items are names or indices into `classes.txt`."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probmcl.data.formats.table.label_names import (
    Words,
    find_blanks,
    find_none_labels,
    refuse_none_with_others,
    refuse_possible_names,
)
from probmcl.data.formats.table.sheet import LIST_ITEM, Table, quoted, read_text
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError, OptionError, Question, Reading, suggestion

CLASSES = "classes.txt"
SEPARATORS = "|;,\t"
"""Separators of labels. A space separates labels only if none of these occurs; otherwise, it is part of a name."""

LITERAL = re.compile(r"""[\[{]|\(['"]""")  # parentheses may also be part of a name
QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
Classes = tuple[str, ...] | None
"""The names in `classes.txt`; None without that file."""


class NoLabelsError(DataError):
    """A table without labels, such as a list of test images."""


class Lists(NamedTuple):
    """The class names, the class indices in each cell of each column, and a description of how lists were read.

    `hierarchy` has the parents of classes that were written as PARENT/CHILD. Cells that mean "no label", "unknown" or
    that are blank have no indices; `none_rows` and `blank_rows` are their rows in the first column, and `unknown_rows`
    those in any column.
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
    """The distinct texts of some columns with their labels, and the texts that have another meaning."""

    table: Table
    columns: Sequence[str]
    times: Mapping[str, int]  # number of cells with each text
    plain: Mapping[str, str]  # each text, with lists in brackets as items, and "" for a blank
    none: frozenset[str]
    unknown: frozenset[str]
    none_label: str | None

    def where(self, text: str) -> str:
        """Return the row and column of the first cell with a text, for messages."""
        column = next(name for name in self.columns if text in self.table.texts(name))
        return f"{self.table.where(list(self.table.texts(column)).index(text))}: column {column!r}"

    @property
    def name(self) -> str:
        return f"{self.table.path}: column {self.columns[0]!r}"

    def listed(self) -> list[str]:
        """Return the plain texts that contain labels."""
        texts = self.plain.values()
        return [text for text in texts if text and text.removeprefix(LIST_ITEM) not in self.none | self.unknown]

    def split(self, separator: str | None) -> dict[str, Words]:
        """Return the labels in each distinct text."""
        lists: dict[str, Words] = {}
        for text, plain in self.plain.items():
            items = _items(plain, LIST_ITEM if plain.startswith(LIST_ITEM) else separator)
            known = tuple(item for item in items if item not in self.unknown)
            labels = tuple(item for item in known if item not in self.none)
            if labels and len(labels) < len(known) and plain.removeprefix(LIST_ITEM) not in self.none:
                none = next(item for item in known if item in self.none)
                refuse_none_with_others(self.where(text), none, labels[0], self.none_label)
            lists[text] = () if plain.removeprefix(LIST_ITEM) in self.none else labels
        return lists


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
    table: Table, columns: Sequence[str], classes: Classes, options: ReadOptions, *, spaces: bool = True
) -> Lists:
    """Read lists of labels, using the only separator that fits the classes or, without classes, the labels.

    All columns have the same separator. If `spaces` is false, a space is part of a name unless `classes.txt` has the
    words as classes. `options.none_label` is a label that means "no label": '' if there is none, None to detect it.
    """
    cells = _cells(table, columns, classes, options)
    marks = [options.separator or None] if options.separator is not None else _occurring(cells, spaces or bool(classes))
    if classes is None:
        names, lists, description, hierarchy = _without_classes(cells, marks, options)
    else:
        names, lists, description = _with_classes(cells, classes, marks)
        hierarchy = {}
    if options.none_label and not any(_means(text, cells.none) for text in cells.plain.values()):
        problem = f"is not in any cell of {table.path}; {suggestion(options.none_label, names)}"
        raise OptionError("none_label", options.none_label, problem)
    index = {name: i for i, name in enumerate(names)}
    indices = {text: tuple(index[name] for name in items) for text, items in lists.items()}
    parts = tuple([indices[text] for text in table.texts(column)] for column in columns)
    first = [cells.plain[text] for text in table.texts(columns[0])]
    mark = marks[0] if marks else None
    has_unknown = {text for text, plain in cells.plain.items() if cells.unknown & {*_items(plain, mark), plain}}
    texts = [table.texts(name) for name in columns] if has_unknown else []
    unknown = {row for column in texts for row, text in enumerate(column) if text in has_unknown}
    return Lists(
        names,
        parts,
        description + _notes(cells),
        hierarchy,
        cells.none,
        [row for row, text in enumerate(first) if _means(text, cells.none)] if cells.none else [],
        sorted(unknown),
        [row for row, text in enumerate(first) if not text],
    )


def _cells(table: Table, columns: Sequence[str], classes: Classes, options: ReadOptions) -> _Cells:
    distinct = sum((Counter(table.texts(column)) for column in columns), Counter[str]())
    blanks = find_blanks(distinct, options.none_label, classes) - {*options.unknown_label}
    plain = {text: "" if text in blanks else text for text in distinct}
    known = frozenset(classes or ())
    unclear = _Cells(table, columns, distinct, plain, frozenset(), frozenset(options.unknown_label), options.none_label)
    for text in distinct:
        if LITERAL.match(text) and text not in known:
            items = _literal(text)
            if items is None:
                raise DataError(f"{unclear.where(text)} has {text!r}; write labels without brackets, separated by |")
            plain[text] = "".join(f"{LIST_ITEM}{item}" for item in items)
    for text in options.unknown_label:
        if not any(text in re.split(rf"[{SEPARATORS} {LIST_ITEM}]+", cell) or text == cell for cell in plain.values()):
            raise OptionError("unknown_label", text, f"is not in any cell of column {columns[0]!r} of {table.path}")
    none = find_none_labels(list(plain.values()), options.none_label, classes)
    return unclear._replace(none=none)


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
    """Return the labels in a JSON value; in an object, those under `choices` or a key such as `rectanglelabels`."""
    if isinstance(value, list):
        return [label for item in value for label in _labels_in_json(item)]
    if isinstance(value, dict):
        return [
            label
            for key, item in value.items()
            if key == "choices" or key.endswith("labels")
            for label in _labels_in_json(item)
        ]
    return [str(value)]


def _means(text: str, meanings: frozenset[str]) -> bool:
    return text.removeprefix(LIST_ITEM) in meanings


def _occurring(cells: _Cells, spaces: bool) -> list[str | None]:
    """Return the separators that occur, and a space only if there are no others."""
    listed = cells.listed()
    if any(text.startswith(LIST_ITEM) for text in listed):
        return [LIST_ITEM]
    marks: list[str | None] = [mark for mark in SEPARATORS if any(mark in text for text in listed)]
    return marks + ([" "] if spaces and any(" " in text for text in listed) else [])


def _with_classes(
    cells: _Cells, classes: tuple[str, ...], marks: Sequence[str | None]
) -> tuple[tuple[str, ...], dict[str, Words], str]:
    classes = tuple(name for name in classes if name not in cells.none)
    readings = _readings(cells, classes, marks)
    if len(readings) > 1:
        raise DataError(
            f"{cells.name} matches {CLASSES} in more than one way: {' or '.join(readings)}; rename a class, or use a "
            f"separator that does not occur in names"
        )
    if not readings:
        raise DataError(_mismatch_message(cells, classes, _separator(cells, marks)))
    description, lists = next(iter(readings.items()))
    return classes, lists, description


def _readings(cells: _Cells, classes: tuple[str, ...], marks: Sequence[str | None]) -> dict[str, dict[str, Words]]:
    """Return every way to read all cells as classes, with its description; equal results are listed once."""
    by_index = {str(i): name for i, name in enumerate(classes)}
    readings: dict[str, dict[str, Words]] = {}
    for separator in marks if LIST_ITEM in marks else dict.fromkeys((*marks, None)):
        lists = cells.split(separator)
        for kind, names in (("names of", dict(zip(classes, classes, strict=True))), ("indices into", by_index)):
            if all(item in names for items in lists.values() for item in items):
                result = {text: tuple(names[item] for item in items) for text, items in lists.items()}
                if result not in readings.values():
                    readings[_describe(f"{kind} {CLASSES}", separator)] = result
    return readings


def _without_classes(
    cells: _Cells, marks: Sequence[str | None], options: ReadOptions
) -> tuple[tuple[str, ...], dict[str, Words], str, dict[str, str]]:
    separator = _separator(cells, marks)
    lists = cells.split(separator)
    hierarchy: dict[str, str] = {}
    if options.separator is None:
        if separator == " ":
            times: Counter[Words] = Counter()
            for text, words in lists.items():
                times[words] += cells.times[text]
            refuse_possible_names(cells.name, times, _remedy())
        if options.hierarchy is None:
            lists, hierarchy = _with_hierarchy(cells, lists, separator)
    occurring = {name for items in lists.values() for name in items} | {*hierarchy.values()}
    if not occurring:
        blank = "is blank" if not cells.none else f"is blank or {quoted(sorted(cells.none))}"
        raise NoLabelsError(f"{cells.name} {blank} in every row; add labels")
    numbers = all(map(_is_integer, occurring))
    names = tuple(sorted(occurring, key=lambda name: (int(name) if numbers else 0, name)))
    kind = "names with / as a hierarchy" if hierarchy else "names"
    return names, lists, _describe(kind, separator), hierarchy


def _separator(cells: _Cells, marks: Sequence[str | None]) -> str | None:
    """Return the separator of the lists: the only one that occurs, or the only one that gives consistent labels."""
    strong = [mark for mark in marks if mark not in (" ", None)]
    if len(strong) <= 1:
        return strong[0] if strong else marks[0] if marks else None
    consistent = [mark for mark in strong if _is_consistent(cells, mark, strong)]
    if len(consistent) == 1:
        return consistent[0]
    raise Question(
        f"{cells.name} contains {quoted(str(mark) for mark in strong)}, which could all separate labels. {_remedy()}",
        [Reading(f"{mark!r} separates labels", {"separator": str(mark)}) for mark in strong],
    )


def _is_consistent(cells: _Cells, separator: str | None, marks: Sequence[str | None]) -> bool:
    """Return whether no label contains another separator between texts that are labels themselves."""
    items = {item for labels in cells.split(separator).values() for item in labels}
    return not any(
        part.strip() in items for item in items for mark in marks if mark in item for part in item.split(mark)
    )


def _remedy() -> str:
    return f"You can also list the classes in a {CLASSES} next to the table, or separate labels by |"


def _with_hierarchy(
    cells: _Cells, lists: dict[str, Words], separator: str | None
) -> tuple[dict[str, Words], dict[str, str]]:
    """Replace labels such as PARENT/CHILD by CHILD, and return the parents.

    Every name must have the same parent everywhere, and a parent must have two children. Otherwise, if no other separator
    occurs, / may separate labels.
    """
    items = {item for labels in lists.values() for item in labels}
    slashed = [item for item in items if "/" in item and all(part.strip() for part in item.split("/"))]
    if not slashed:
        return lists, {}
    parents = {part: parent for item in items for parent, part in _steps(item)}
    same = all(parents[part] == parent for item in items for parent, part in _steps(item))
    children = [parent for part, parent in parents.items() if parent]
    if same and len(children) > len(set(children)) and len(slashed) == sum("/" in item for item in items):
        hierarchy = {part: parent for part, parent in parents.items() if parent}
        return {text: tuple(item.split("/")[-1] for item in labels) for text, labels in lists.items()}, hierarchy
    if separator is None:
        raise Question(
            f"{cells.name} has {sorted(slashed)[0]!r}: does / separate labels, or is it part of a name?",
            [
                Reading("/ is part of a name", {"separator": ""}),
                Reading("/ separates labels", {"separator": "/"}),
            ],
        )
    return lists, {}


def _steps(item: str) -> Iterable[tuple[str, str]]:
    """Return the pairs (parent, child) along a path; the parent of the first name is blank."""
    parts = item.split("/")
    return zip(["", *parts], parts, strict=False)


def _items(text: str, separator: str | None) -> Words:
    """Split a cell into labels.

    >>> _items("traffic light| dog|", "|"), _items(" 3  14 ", " ")
    (('traffic light', 'dog'), ('3', '14'))
    """
    parts = [text] if separator is None else text.split(None if separator == " " else separator)
    return tuple(part.strip() for part in parts if part.strip())


def _describe(items: str, separator: str | None) -> str:
    if separator is None:
        return f"{items}, one per cell"
    if separator == LIST_ITEM:
        return f"{items}, one list per cell"
    return f"{items} separated by {'spaces' if separator == ' ' else repr(separator)}"


def _notes(cells: _Cells) -> str:
    blanks = sorted({text for text, plain in cells.plain.items() if text and not plain})
    meanings = {"no label": sorted(cells.none), "unknown": sorted(cells.unknown), "blank": blanks}
    return "".join(f"; {quoted(texts)} = {meaning}" for meaning, texts in meanings.items() if texts)


def _mismatch_message(cells: _Cells, classes: tuple[str, ...], separator: str | None) -> str:
    lists = cells.split(separator)
    numbers = all(_is_integer(item) for items in lists.values() for item in items)
    valid = {str(i) for i in range(len(classes))} if numbers else set(classes)
    text, wrong = next((text, item) for text, items in lists.items() for item in items if item not in valid)
    if numbers:
        problem = f"is not an index into {CLASSES}, whose {len(classes)} classes have indices 0 to {len(classes) - 1}"
    else:
        problem = f"is not in {CLASSES}; {suggestion(wrong, classes)}"
    return f"{cells.where(text)}: {wrong!r} {problem}"


def _is_integer(item: str) -> bool:
    return re.fullmatch(r"-?[0-9]+", item) is not None
