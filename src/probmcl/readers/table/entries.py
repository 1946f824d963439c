"""Labels as entries (row, class, state). Each layout is a function in LAYOUTS; `merging` merges rows of an image."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from probmcl.data.labels import State
from probmcl.errors import DataError, OptionError, Question, Reading, counted, keyword, listing
from probmcl.readers.label_policy import (
    BLANK,
    CROSSES,
    LabelPolicy,
    flag_value,
    free_and_bound,
    holds_flags,
    meaning_notes,
    refuse_none_with_others,
)
from probmcl.readers.options import ReadOptions
from probmcl.readers.spreadsheet import Spreadsheet
from probmcl.readers.table.columns import Columns
from probmcl.readers.table.lists import Classes, Lists, NoLabelsError, read_lists

T = TypeVar("T")


class Images(NamedTuple):
    """The N images of a table with R rows: the first row of each image, and the image of each row."""

    first: Int[ndarray, "N"]
    of_row: Int[ndarray, "R"]

    @classmethod
    def of(cls, keys: Sequence[object]) -> "Images":
        """Group rows with the same key into one image."""
        if len(set(keys)) == len(keys):
            return cls(np.arange(len(keys)), np.arange(len(keys)))
        index: dict[object, int] = {}
        of_row = np.fromiter((index.setdefault(key, len(index)) for key in keys), dtype=np.int64, count=len(keys))
        return cls(np.flatnonzero(np.diff(np.maximum.accumulate(of_row), prepend=-1)), of_row)

    @property
    def repeated(self) -> bool:
        """True if an image has several rows."""
        return len(self.first) < len(self.of_row)

    def select(self, values: Sequence[T]) -> Sequence[T]:
        """Return the value of each image, given a value for each row."""
        return [values[row] for row in self.first.tolist()] if self.repeated else values


class LabelEntries(NamedTuple):
    """The states of labels in rows. A class without an entry in a row has its default state.

    If `additive`, the rows of an image add labels to each other; otherwise, each row has all labels of its image.
    """

    names: tuple[str, ...]
    rows: Int[ndarray, "E"]
    classes: Int[ndarray, "E"]
    states: UInt8[ndarray, "E"]
    default: UInt8[ndarray, "C"]
    description: str
    hierarchy: Mapping[str, str] = {}
    additive: bool = False


class RepeatedRowsError(DataError):
    """Contradictory rows of an image. `same` and `different` have the lines of row pairs with equal or other cells."""

    def __init__(self, message: str, same: list[tuple[int, int]], different: list[tuple[int, int]]) -> None:
        super().__init__(message)
        self.same, self.different = same, different


def repeated(table: Spreadsheet, images: Images, path: str, remedy: str) -> RepeatedRowsError:
    """Return an error for rows with the path of an earlier row; `path` is the path column."""
    others = [texts for name, texts in zip(table.columns, table.data, strict=True) if name != path]
    same, different = list[tuple[int, int]](), list[tuple[int, int]]()
    for row, first in enumerate(images.first[images.of_row].tolist()):
        if row != first:
            (same if all(texts[first] == texts[row] for texts in others) else different).append((first, row))
    first, row = (different or same)[0]
    both = f"rows {table.lines[first]} and {table.lines[row]}: both have the path {table.texts(path)[row]!r}"
    count = len(same) + len(different)
    counts = f" ({count:,} rows repeat a path, {len(same):,} of them with equal cells)" if count > 1 else ""
    lines = [[(table.lines[one], table.lines[other]) for one, other in pairs] for pairs in (same, different)]
    return RepeatedRowsError(f"{table.path}, {both}{counts}{remedy}", *lines)


def read_entries(
    table: Spreadsheet, columns: Columns, classes: Classes, images: Images, options: ReadOptions
) -> LabelEntries:
    """Read the labels of a table in its layout."""
    return LAYOUTS[_layout(table, columns, images, options)](table, columns, classes, images, options)


def _layout(table: Spreadsheet, columns: Columns, images: Images, options: ReadOptions) -> str:
    if columns.classes:
        return "class columns"
    if images.repeated and options.rows == "images":
        raise repeated(table, images, columns.path, "; expected one row per image")
    if options.rows == "labels":
        return "label rows"
    if images.repeated:
        texts = [table.texts(name) for name in columns.labels]
        firsts = enumerate(images.first[images.of_row].tolist())
        equal = all(column[row] == column[first] for row, first in firsts for column in texts)
        return "lists" if equal and not columns.boxes and not columns.presence else "label rows"
    if columns.presence and not columns.boxes and holds_flags(table.texts(columns.presence)):
        mark = f"{table.path}: column {columns.presence!r} may mark whether the label in the same row is present"
        other = Reading("it has another meaning", {"ignore": columns.presence})
        raise Question(mark, [Reading("it does", {"rows": "labels"}), other])
    return "lists"


def read_class_columns(
    table: Spreadsheet, columns: Columns, classes: Classes, images: Images, options: ReadOptions
) -> LabelEntries:
    """Read labels from a table with one column per class. Labels in the difficult column are unknown.

    By default, blanks are unknown if any cell is 0, and absent if labels are marked by a cross. If no cell is 0, blanks
    or −1 could mean absent, so the user is asked unless the policy defines them.
    """
    names, policy = columns.classes, options.policy
    _refuse_options_for_lists(table, names, options)
    for text in options.unknown_label:
        if not any(text in table.texts(column) for column in names):
            raise OptionError("unknown_label", text, f"is not in any class column of {table.path}")
    others = "`unknown_label=VALUE` if it means unknown, or `labels_column=COLUMN` if another column has the labels"
    remedy = f"Correct the cell, delete the row if it is a sum, use %s if this is not a class, {others}"
    flags = [_flags(table, column, remedy % keyword("ignore", column), options.unknown_label) for column in names]
    counts = np.stack([np.bincount(column, minlength=BLANK + 1) for column in flags])
    if not counts[:, [State.ABSENT, State.PRESENT]].any():
        raise NoLabelsError(f"{table.path}: no cell of {listing(map(repr, names))} is 0 or 1; add labels")
    crosses = {*CROSSES, ""} >= {text.lower() for name in names for text in set(table.texts(name))}
    if not crosses:
        _ask_about_blanks(table, names, flags, policy)
        _ask_about_minus_one(table, names, counts, policy)
    default = "negative" if crosses else "unknown"
    blanks = policy.blank_states(names, default=default)
    states = [np.where(column == BLANK, blank, column) for column, blank in zip(flags, blanks, strict=True)]
    if columns.difficult:
        no_none = ReadOptions(none_label="", separator=options.separator)
        for row, indices in enumerate(read_lists(table, [columns.difficult], names, no_none).columns[0]):
            for k in indices:
                states[k][row] = State.UNKNOWN
    notes = meaning_notes(policy, int(counts[:, BLANK].sum()), int(counts[:, State.UNCERTAIN].sum()), default)
    frequent = np.array([np.bincount(column).argmax() for column in states], dtype=np.uint8)
    rows = [np.flatnonzero(column != state) for column, state in zip(states, frequent, strict=True)]
    of_class = np.repeat(np.arange(len(names)), [len(entries) for entries in rows])
    values = np.concatenate([column[entries] for column, entries in zip(states, rows, strict=True)])
    description = "; ".join((f"one column per class ({listing(map(repr, names))})", *notes))
    return LabelEntries(names, np.concatenate(rows), of_class, values, frequent, description)


def _flags(table: Spreadsheet, column: str, remedy: str, unknown: Sequence[str] = ()) -> UInt8[ndarray, "N"]:
    """Return the state of each cell of a column, or BLANK. A text that is not a flag or in `unknown` is an error."""
    texts = table.texts(column)
    values = {text: int(State.UNKNOWN) if text in unknown else flag_value(text) for text in set(texts)}
    if None in values.values():
        row = next(row for row, text in enumerate(texts) if values[text] is None)
        raise DataError(
            f"{table.where(row)}: column {column!r} has {texts[row]!r}, not 0, 1, true, false, -1 or blank. {remedy}"
        )
    return np.fromiter((values[text] or 0 for text in texts), dtype=np.uint8, count=len(texts))


def _refuse_options_for_lists(table: Spreadsheet, names: Sequence[str], options: ReadOptions) -> None:
    problem = f"needs a column of labels, but {table.path} has one column per class ({listing(map(repr, names))})"
    if options.rows == "labels":
        remedy = "remove the option, or select the label column with `labels_column=COLUMN`"
        raise OptionError("rows", "labels", f"{problem}; {remedy}")
    if options.none_label:
        remedy = f"use {keyword('ignore', options.none_label)} to ignore that column"
        raise OptionError("none_label", options.none_label, f"{problem}; {remedy}")


def _ask_about_blanks(
    table: Spreadsheet, names: Sequence[str], flags: Sequence[UInt8[ndarray, "N"]], policy: LabelPolicy
) -> None:
    """Ask about classes with 1s and blanks but no 0s: if blanks were unknown, all known labels would be positive.

    With several files, this holds for each of them, because blanks may have another meaning in each.
    """
    starts, classes = [start for start, _ in table.files[1:]], []
    for name, column, settled in zip(names, flags, policy.chance(names) == 0, strict=True):
        counts = [np.bincount(part, minlength=BLANK + 1) for part in np.split(column, starts)]
        only = [c[State.PRESENT] and c[BLANK] and not c[State.ABSENT] + c[State.UNCERTAIN] * settled for c in counts]
        classes += [name] if any(only) and name not in policy.blank_of else []
    if classes and not policy.blank:
        one_class = [keyword("blank", f"{classes[0]}={meaning}") for meaning in ("negative", "unknown")]
        raise Question(
            f"{table.path}: {'column' if len(classes) == 1 else 'columns'} {listing(map(repr, classes))}: there are 1s "
            f"and blanks but no 0s; does a blank mean absent or unknown? {' or '.join(one_class)} sets the meaning for "
            "one class",
            _meanings("blank", "a blank"),
        )


def _ask_about_minus_one(
    table: Spreadsheet, names: Sequence[str], counts: Int[ndarray, "C 5"], policy: LabelPolicy
) -> None:
    """Ask for the meaning of −1 if no cell is 0 and no blank means absent."""
    uncertain = [name for name, number in zip(names, counts[:, State.UNCERTAIN], strict=True) if number]
    absent = policy.blank_states(names, default="unknown")[counts[:, BLANK] > 0] == State.ABSENT
    defined = policy.minus_one or not set(uncertain) - set(policy.minus_one_of)
    if not defined and not absent.any() and not counts[:, State.ABSENT].any():
        columns, have = ("column", "has") if len(uncertain) == 1 else ("columns", "have")
        raise Question(
            f"{table.path}: {columns} {listing(map(repr, uncertain))} {have} 1s and -1s, and no column has a 0; does "
            f"-1 mean absent or unknown?",
            _meanings("minus_one", "-1"),
        )


def _meanings(option: str, cell: str) -> list[Reading]:
    meanings = {"absent": "negative", "unknown": "unknown"}
    return [Reading(f"{cell} means {meaning}", {option: value}) for meaning, value in meanings.items()]


def read_label_lists(
    table: Spreadsheet, columns: Columns, classes: Classes, images: Images, options: ReadOptions
) -> LabelEntries:
    """Read one or several columns of labels per image. Labels in the difficult column are unknown."""
    difficult = [columns.difficult] if columns.difficult else []
    spaces = len(columns.labels) == 1  # in several columns, a space is part of a name
    lists = read_lists(table, [*columns.labels, *difficult], classes, options, spaces=spaces)
    policy, hidden = options.policy, lists.columns[len(columns.labels) :]
    blank_rows = lists.blank_rows if len(columns.labels) == 1 else []
    blanks = policy.blank_states(lists.names, default="negative")
    implied = blank_rows and not options.blank and not options.minus_one
    notes = ["blank = no label"] if implied else meaning_notes(policy, len(blank_rows), 0, "negative")
    parts = [
        _everywhere(blank_rows, np.flatnonzero(blanks == State.UNKNOWN), State.UNKNOWN),
        _everywhere(lists.unknown_rows, np.arange(len(blanks)), State.UNKNOWN),
        *(_listed(column, State.PRESENT) for column in lists.columns[: len(columns.labels)]),
        *(_listed(column, State.UNKNOWN) for column in hidden),
    ]
    noun = "column" if len(columns.labels) == 1 else "columns"
    text = _describe(f"{noun} {listing(map(repr, columns.labels))}", lists, notes)
    default = np.full(len(blanks), State.ABSENT, dtype=np.uint8)
    return LabelEntries(lists.names, *_last(parts, len(blanks)), default, text, lists.hierarchy)


def read_label_rows(
    table: Spreadsheet, columns: Columns, classes: Classes, images: Images, options: ReadOptions
) -> LabelEntries:
    """Read one row per label or box. Labels without a row are absent unless the policy defines them as unknown."""
    if columns.difficult:
        raise DataError(
            f"{table.path}: column {columns.difficult!r} cannot be used in a table with one row per label; ignore it "
            f"with {keyword('ignore', columns.difficult)}"
        )
    policy = options.policy
    none = "" if columns.presence and options.none_label is None else options.none_label
    lists = read_lists(table, columns.labels, classes, replace(options, none_label=none), spaces=False)
    if options.rows is None and not columns.boxes:
        _refuse_possible_lists(table, columns, images, lists, classes)
    flags, notes = np.full(len(table), State.PRESENT, dtype=np.uint8), []
    if columns.presence:
        flags = _flags(
            table, columns.presence, f"Use {keyword('ignore', columns.presence)} to read every label as present"
        )
        notes = [f"{columns.presence!r} marks which are present"]
        negative = np.flatnonzero(np.isin(flags, (State.ABSENT, BLANK)))
        if len(negative) and not policy.blank:
            where = f"{table.where(int(negative[0]))}: column {columns.presence!r}"
            question = "marks a label as absent; are labels without a row absent or unknown?"
            raise Question(f"{where} {question}", _meanings("blank", "a missing row"))
    blanks = policy.blank_states(lists.names, default="negative")
    rows, indices, _ = (np.concatenate(arrays) for arrays in zip(*(_listed(c, 0) for c in lists.columns), strict=True))
    _refuse_none_in_other_rows(table, lists, images, rows, options)
    unknown = _everywhere(lists.unknown_rows, np.arange(len(blanks)), State.UNKNOWN)
    known = images.of_row[rows] * len(blanks) + indices
    other = ~np.isin(images.of_row[unknown[0]] * len(blanks) + unknown[1], known)  # not in another row of the image
    parts = [
        _everywhere(lists.none_rows, np.flatnonzero(blanks != State.ABSENT), State.ABSENT),
        (unknown[0][other], unknown[1][other], unknown[2][other]),
        (rows, indices, np.where(flags[rows] == BLANK, blanks[indices], flags[rows])),
    ]
    notes += [f"boxes ({listing(columns.boxes)}) are not used"] if columns.boxes else []
    uncertain = int((flags == State.UNCERTAIN).sum())
    notes += meaning_notes(policy, None, uncertain, "negative")
    text = _describe(f"column {listing(map(repr, columns.labels))}, one row per label", lists, notes)
    return LabelEntries(lists.names, *_last(parts, len(blanks)), blanks, text, lists.hierarchy, additive=True)


LAYOUTS: Mapping[str, Callable[[Spreadsheet, Columns, Classes, Images, ReadOptions], LabelEntries]] = {
    "class columns": read_class_columns,
    "lists": read_label_lists,
    "label rows": read_label_rows,
}

Part = tuple[Int[ndarray, "_"], Int[ndarray, "_"], UInt8[ndarray, "_"]]


def _listed(lists: Sequence[tuple[int, ...]], state: int) -> Part:
    lengths = np.fromiter(map(len, lists), dtype=np.int32, count=len(lists))
    classes = np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(lengths.sum()))
    rows = np.repeat(np.arange(len(lists), dtype=np.int32), lengths)
    return rows, classes, np.full(len(rows), state, dtype=np.uint8)


def _everywhere(rows: Sequence[int], classes: Int[ndarray, "F"], state: int) -> Part:
    columns = np.tile(classes.astype(np.int32), len(rows))
    return np.repeat(np.array(rows, dtype=np.int32), len(classes)), columns, np.full(len(columns), state, np.uint8)


def _last(parts: Sequence[Part], size: int) -> Part:
    """Concatenate entries. If a row has several entries for a class, the last one counts."""
    filled = [part for part in parts if len(part[0])] or list(parts[:1])
    rows, classes, states = filled[0] if len(filled) == 1 else map(np.concatenate, zip(*filled, strict=True))
    if len(filled) > 1:
        keys = rows.astype(np.int64) * size + classes
        order = np.argsort(keys, kind="stable")
        order = order[np.append(np.diff(keys[order]) != 0, True)]
        rows, classes, states = rows[order], classes[order], states[order]
    return rows, classes, states


def _describe(layout: str, lists: Lists, notes: list[str]) -> str:
    count = counted(len(lists.names), "label")
    head, *meanings = lists.description.split("; ")
    return "; ".join([f"{layout}, {head}, {count}", *meanings, *notes])


def _refuse_possible_lists(
    table: Spreadsheet, columns: Columns, images: Images, lists: Lists, classes: Classes
) -> None:
    """Refuse repeated paths if cells may be lists, because the repetition may be a mistake."""
    words = {tuple(text.split()): 1 for name in columns.labels for text in set(table.texts(name)) - lists.none}
    spaced = classes is None and bool(free_and_bound(words)[0])
    firsts = list(enumerate(images.first[images.of_row].tolist()))
    different = any(column[row] != column[first] for column in lists.columns for row, first in firsts)
    if spaced or (different and any(len(indices) > 1 for column in lists.columns for indices in column)):
        remedy = (
            ', and cells may be lists of labels; use `rows="labels"` to merge the rows of an image and read spaces as '
            'part of a name, or `rows="images"` to require one row per image'
        )
        raise repeated(table, images, columns.path, remedy)


def _refuse_none_in_other_rows(
    table: Spreadsheet, lists: Lists, images: Images, rows: Int[ndarray, "P"], options: ReadOptions
) -> None:
    row_of_image = dict(zip(images.of_row[rows].tolist(), rows.tolist(), strict=True)) if lists.none_rows else {}
    for row in lists.none_rows:
        other = row_of_image.get(int(images.of_row[row]))
        if other is not None:
            where = f"{table.where(row)} and row {table.lines[other]}"
            name = lists.names[next(column[other] for column in lists.columns if column[other])[0]]
            refuse_none_with_others(where, min(lists.none), name, options.none_label)
