"""Labels as entries (row, class, state), from lists, from one row per label, or from one column per class.

Every layout is a function in LAYOUTS that returns entries. Rows of the same image are merged afterwards.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from probmcl.data.formats.table.columns import Columns
from probmcl.data.formats.table.label_names import free_and_bound, refuse_none_with_others
from probmcl.data.formats.table.lists import CLASSES, Classes, Lists, NoLabelsError, read_lists
from probmcl.data.formats.table.policy import (
    BLANK,
    CROSSES,
    LabelPolicy,
    describe_meanings,
    flags_of,
    holds_flags,
    meaning_notes,
)
from probmcl.data.formats.table.sheet import Table, listing
from probmcl.data.labels import State
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError, OptionError, Question, Reading


class Images(NamedTuple):
    """The N images of a table with R rows: the first row of each image, and the image of each row."""

    first: Int[ndarray, "N"]
    of_row: Int[ndarray, "R"]

    @classmethod
    def of(cls, keys: Sequence[object]) -> "Images":
        """Group rows with the same key into one image.

        >>> Images.of(["a.jpg", "b.jpg", "a.jpg"]).of_row.tolist()
        [0, 1, 0]
        """
        index: dict[object, int] = {}
        of_row = np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.int64)
        return cls(np.unique(of_row, return_index=True)[1], of_row)

    @property
    def repeated(self) -> bool:
        """True if an image has several rows."""
        return len(self.first) < len(self.of_row)


class Entries(NamedTuple):
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


def repeated(table: Table, images: Images, path: str, remedy: str) -> RepeatedRowsError:
    """Return an error for rows with the path of an earlier row; `path` is the path column."""
    firsts = images.first[images.of_row].tolist()
    repeats = [(first, row) for row, first in enumerate(firsts) if row != first]
    others = [texts for name, texts in zip(table.columns, table.data, strict=True) if name != path]
    equal = [all(texts[first] == texts[row] for texts in others) for first, row in repeats]
    lines = [(table.lines[first], table.lines[row]) for first, row in repeats]
    same = [pair for pair, is_equal in zip(lines, equal, strict=True) if is_equal]
    different = [pair for pair, is_equal in zip(lines, equal, strict=True) if not is_equal]
    first, row = repeats[equal.index(False) if False in equal else 0]
    both = f"rows {table.lines[first]} and {table.lines[row]}: both have the path {table.texts(path)[row]!r}"
    counts = f" ({len(repeats):,} rows repeat a path, {len(same):,} of them with equal cells)"
    return RepeatedRowsError(f"{table.path}, {both}{counts if len(repeats) > 1 else ''}{remedy}", same, different)


def read_entries(table: Table, columns: Columns, classes: Classes, images: Images, options: ReadOptions) -> Entries:
    """Read the labels of a table in its layout."""
    return LAYOUTS[_layout(table, columns, images, options)](table, columns, classes, images, options)


def _layout(table: Table, columns: Columns, images: Images, options: ReadOptions) -> str:
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
        raise Question(
            f"{table.path}: column {columns.presence!r} may mark whether the label in the same row is present",
            [
                Reading("it does", {"rows": "labels"}),
                Reading("it has another meaning", {"ignore": columns.presence}),
            ],
        )
    return "lists"


def read_class_columns(
    table: Table, columns: Columns, classes: Classes, images: Images, options: ReadOptions
) -> Entries:
    """Read labels from a table with one column per class. Labels in the difficult column are unknown.

    By default, blanks are unknown if any cell is 0, and absent if labels are marked by a cross. If no cell is 0, blanks
    or −1 could mean absent, so the user is asked unless the policy defines them.
    """
    names, policy = columns.classes, options.policy
    _refuse_options_for_lists(table, columns, options)
    for text in options.unknown_label:
        if not any(text in table.texts(column) for column in names):
            raise OptionError("unknown_label", text, f"is not in any class column of {table.path}")
    flags = [flags_of(table, column, _remedy(column), options.unknown_label) for column in names]
    counts = np.stack([np.bincount(column, minlength=BLANK + 1) for column in flags])
    if not counts[:, [State.ABSENT, State.PRESENT]].any():
        raise NoLabelsError(f"{table.path}: no cell of {listing(map(repr, names))} is 0 or 1; add labels")
    crosses = {*CROSSES, ""} >= {text.lower() for name in names for text in set(table.texts(name))}
    default = "negative" if crosses else "unknown"
    if not crosses:
        _ask_about_blanks(table, names, counts, policy)
        _ask_about_classes_without_negatives(table, names, flags, policy)
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
    indices = np.repeat(np.arange(len(names)), [len(entries) for entries in rows])
    values = np.concatenate([column[entries] for column, entries in zip(states, rows, strict=True)])
    description = "; ".join((f"one column per class ({listing(map(repr, names))})", *notes))
    return Entries(names, np.concatenate(rows), indices, values, frequent, description)


def _refuse_options_for_lists(table: Table, columns: Columns, options: ReadOptions) -> None:
    if options.rows == "labels":
        problem = (
            f"needs a column of labels, but {table.path} has one column per class "
            f"({listing(map(repr, columns.classes))}); remove the option, or select the label column with "
            f"`labels_column=COLUMN`"
        )
        raise OptionError("rows", "labels", problem)
    if options.none_label:
        problem = f"needs a column of labels, but {table.path} has one column per class"
        remedy = f"use `ignore={options.none_label}` to ignore that column"
        raise OptionError("none_label", options.none_label, f"{problem}; {remedy}")


def _remedy(column: str) -> str:
    return (
        f"If another column has the labels, use `labels_column=COLUMN`; if this one is not a class, use "
        f"`ignore={column!r}` or list the classes in a {CLASSES}; if it means unknown, use `unknown_label=VALUE`"
    )


def _ask_about_blanks(table: Table, names: Sequence[str], counts: Int[ndarray, "C 5"], policy: LabelPolicy) -> None:
    """Ask for the meaning of blanks or −1 if no cell is 0, because they could mean absent."""
    if counts[:, State.ABSENT].any():
        return
    blank = [name for name, number in zip(names, counts[:, BLANK], strict=True) if number]
    if not policy.blank and set(blank) - set(policy.blank_of):
        raise Question(
            f"{table.path}: columns {listing(map(repr, blank))} have blank cells, and no column has a 0; does a blank "
            f"mean absent or unknown?",
            _meanings("blank", "a blank"),
        )
    uncertain = [name for name, number in zip(names, counts[:, State.UNCERTAIN], strict=True) if number]
    absent = policy.blank_states(names, default="unknown")[counts[:, BLANK] > 0] == State.ABSENT
    if not policy.minus_one and set(uncertain) - set(policy.minus_one_of) and not absent.any():
        raise Question(
            f"{table.path}: columns {listing(map(repr, uncertain))} have 1s and -1s, and no column has a 0; does -1 "
            f"mean absent or unknown?",
            _meanings("minus_one", "-1"),
        )


def _ask_about_classes_without_negatives(
    table: Table, names: Sequence[str], flags: Sequence[UInt8[ndarray, "N"]], policy: LabelPolicy
) -> None:
    """Ask about classes with 1s and blanks but no 0s: if blanks were unknown, all known labels would be positive.

    With several files, this holds for each of them: the rules for blanks may differ.
    """
    starts = [start for start, _ in table.files[1:]]
    settled = policy.chance(names) == 0
    classes = []
    for name, column, is_absent in zip(names, flags, settled, strict=True):
        counts = [np.bincount(part, minlength=BLANK + 1) for part in np.split(column, starts)]
        only = [c[State.PRESENT] and c[BLANK] and not c[State.ABSENT] + c[State.UNCERTAIN] * is_absent for c in counts]
        classes += [name] if any(only) and name not in policy.blank_of else []
    if classes and not policy.blank:
        raise Question(
            f"{table.path}: {'column' if len(classes) == 1 else 'columns'} {listing(map(repr, classes))}: there are 1s "
            f"and blanks but no 0s, unlike in other columns; does a blank mean absent or unknown? "
            f"`blank='{classes[0]}=negative'` or `blank='{classes[0]}=unknown'` sets the meaning for one class",
            _meanings("blank", "a blank"),
        )


def _meanings(option: str, cell: str) -> list[Reading]:
    return [
        Reading(f"{cell} means absent", {option: "negative"}),
        Reading(f"{cell} means unknown", {option: "unknown"}),
    ]


def read_label_lists(table: Table, columns: Columns, classes: Classes, images: Images, options: ReadOptions) -> Entries:
    """Read one or several columns of labels per image. Labels in the difficult column are unknown."""
    difficult = [columns.difficult] if columns.difficult else []
    spaces = len(columns.labels) == 1  # in several columns, a space is part of a name
    lists = read_lists(table, [*columns.labels, *difficult], classes, options, spaces=spaces)
    policy, size = options.policy, len(lists.names)
    present = np.concatenate([_pairs(column) for column in lists.columns[: len(columns.labels)]])
    blank_rows = np.array(lists.blank_rows if len(columns.labels) == 1 else [], dtype=np.int64)
    blanks = policy.blank_states(lists.names, default="negative")
    unknown_rows = np.array(lists.unknown_rows, dtype=np.int64)
    vague = [
        _all_pairs(blank_rows, np.flatnonzero(blanks == State.UNKNOWN)),
        _all_pairs(unknown_rows, np.arange(size)),
    ]
    certain = np.unique(present @ [size, 1]) if size else np.zeros(0, dtype=np.int64)
    vague_keys = np.setdiff1d(np.concatenate(vague) @ [size, 1], certain)  # a label next to "unknown" is present
    hidden = _pairs(lists.columns[-1]) @ [size, 1] if difficult else np.zeros(0, dtype=np.int64)
    positive = np.setdiff1d(certain, hidden) if difficult else certain  # difficult takes precedence over present
    unknown = np.union1d(vague_keys, hidden) if len(vague_keys) or len(hidden) else vague_keys
    rows, indices = np.divmod(np.concatenate([positive, unknown]), max(size, 1))
    states = np.repeat(np.array([State.PRESENT, State.UNKNOWN], dtype=np.uint8), [len(positive), len(unknown)])
    notes = meaning_notes(policy, len(blank_rows), 0, "negative") if options.blank or options.minus_one else []
    default = np.full(size, State.ABSENT, dtype=np.uint8)
    noun = "column" if len(columns.labels) == 1 else "columns"
    layout = f"{noun} {listing(map(repr, columns.labels))}"
    description = _describe(layout, lists, notes)
    return Entries(lists.names, rows, indices, states, default, description, lists.hierarchy)


def read_label_rows(table: Table, columns: Columns, classes: Classes, images: Images, options: ReadOptions) -> Entries:
    """Read one row per label or box. Labels without a row are absent unless the policy defines them as unknown."""
    if columns.difficult:
        raise DataError(
            f"{table.path}: column {columns.difficult!r} cannot be used in a table with one row per label; ignore it "
            f"with `ignore={columns.difficult}`"
        )
    policy = options.policy
    none = "" if columns.presence and options.none_label is None else options.none_label
    lists = read_lists(table, columns.labels, classes, _replaced(options, none_label=none), spaces=False)
    if options.rows is None and not columns.boxes:
        _refuse_possible_lists(table, columns, images, lists, classes)
    flags = _presence(table, columns.presence)
    notes = _notes(columns, flags, policy)
    _ask_about_labels_without_row(table, columns, flags, policy)
    blanks = policy.blank_states(lists.names, default="negative")
    pairs = np.concatenate([_pairs(column) for column in lists.columns])
    rows, indices = pairs.T
    states = np.where(flags[rows] == BLANK, blanks[indices], flags[rows])
    _refuse_none_in_other_rows(table, lists, images, rows, options)
    # A row that means "no label" makes all classes absent, and one that means "unknown" all classes unknown.
    absent = _all_pairs(np.array(lists.none_rows, dtype=np.int64), np.flatnonzero(blanks != State.ABSENT))
    unknown = _all_pairs(np.array(lists.unknown_rows, dtype=np.int64), np.arange(len(lists.names)))
    return Entries(
        lists.names,
        np.concatenate([rows, absent[:, 0], unknown[:, 0]]),
        np.concatenate([indices, absent[:, 1], unknown[:, 1]]),
        np.concatenate(
            [states, np.zeros(len(absent), dtype=np.uint8), np.full(len(unknown), State.UNKNOWN, dtype=np.uint8)]
        ),
        blanks,
        _describe(f"column {listing(map(repr, columns.labels))}, one row per label", lists, notes),
        lists.hierarchy,
        additive=True,
    )


LAYOUTS: Mapping[str, Callable[[Table, Columns, Classes, Images, ReadOptions], Entries]] = {
    "class columns": read_class_columns,
    "lists": read_label_lists,
    "label rows": read_label_rows,
}
"""The function that reads each layout."""


def _replaced(options: ReadOptions, **changes: str | None) -> ReadOptions:
    return ReadOptions(**{**vars(options), **changes})


def _describe(layout: str, lists: Lists, notes: list[str]) -> str:
    count = f"{len(lists.names):,} {'label' if len(lists.names) == 1 else 'labels'}"
    head, *meanings = lists.description.split("; ")
    return "; ".join([f"{layout}, {head}, {count}", *meanings, *notes])


def _notes(columns: Columns, flags: UInt8[ndarray, "R"], policy: LabelPolicy) -> list[str]:
    notes = [f"{columns.presence!r} marks which are present"] if columns.presence else []
    notes += [f"boxes ({listing(columns.boxes)}) are not used"] if columns.boxes else []
    if policy.blank or policy.blank_of:
        notes.append(f"labels without a row = {describe_meanings(policy.blank, policy.blank_of)}")
    uncertain = int((flags == State.UNCERTAIN).sum())
    return notes + meaning_notes(LabelPolicy(None, policy.minus_one, {}, policy.minus_one_of), 0, uncertain, "negative")


def _pairs(lists: list[tuple[int, ...]]) -> Int[ndarray, "P 2"]:
    """Return all (row, class) pairs."""
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    classes = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(lengths.sum()))
    return np.stack([np.repeat(np.arange(len(lists)), lengths), classes], axis=1)


def _all_pairs(rows: Int[ndarray, "K"], classes: Int[ndarray, "F"]) -> Int[ndarray, "P 2"]:
    return np.stack([np.repeat(rows, len(classes)), np.tile(classes, len(rows))], axis=1)


def _presence(table: Table, column: str | None) -> UInt8[ndarray, "R"]:
    """Return the state of the label in each row; without a presence column, all are present."""
    if column is None:
        return np.full(len(table), State.PRESENT, dtype=np.uint8)
    return flags_of(table, column, f"Use `ignore={column}` to read every label as present")


def _ask_about_labels_without_row(
    table: Table, columns: Columns, flags: UInt8[ndarray, "R"], policy: LabelPolicy
) -> None:
    """Ask for the meaning of labels without a row if some rows mark a label as absent."""
    negative = np.flatnonzero(np.isin(flags, (State.ABSENT, BLANK)))
    if len(negative) and not policy.blank:
        raise Question(
            f"{table.where(int(negative[0]))}: column {columns.presence!r} marks a label as absent; are labels without "
            f"a row absent or unknown?",
            _meanings("blank", "a missing row"),
        )


def _refuse_possible_lists(table: Table, columns: Columns, images: Images, lists: Lists, classes: Classes) -> None:
    """Refuse repeated paths if cells may be lists, because the repetition may be a mistake."""
    words = {tuple(text.split()): 1 for name in columns.labels for text in set(table.texts(name))}
    spaced = classes is None and bool(free_and_bound(words)[0]) and not lists.none >= {" ".join(w) for w in words}
    if spaced or any(len(indices) > 1 for column in lists.columns for indices in column):
        remedy = (
            ", and cells may be lists of labels; use `rows=labels` to merge the rows of an image and read spaces as "
            "part of a name, or `rows=images` to require one row per image"
        )
        raise repeated(table, images, columns.path, remedy)


def _refuse_none_in_other_rows(
    table: Table, lists: Lists, images: Images, rows: Int[ndarray, "P"], options: ReadOptions
) -> None:
    labeled = set(images.of_row[rows].tolist())
    for row in lists.none_rows:
        image = int(images.of_row[row])
        if image in labeled:
            other = next(int(r) for r in rows if images.of_row[r] == image)
            where = f"{table.where(row)} and row {table.lines[other]}"
            name = lists.names[next(column[other] for column in lists.columns if column[other])[0]]
            refuse_none_with_others(where, min(lists.none), name, options.none_label)
