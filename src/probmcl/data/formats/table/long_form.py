"""Labels in rows: as a list in each image's row, or in long form, one row a label."""

from itertools import chain

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from probmcl.data.formats.table.class_columns import meanings
from probmcl.data.formats.table.columns import Columns
from probmcl.data.formats.table.image_columns import Images, repeated
from probmcl.data.formats.table.label_lists import MARKS, Classes, Labels, Lists, Places, read_lists
from probmcl.data.formats.table.label_names import refuse_none_beside_others
from probmcl.data.formats.table.policy import BLANK, LabelPolicy, flags_of, holds_flags, in_words
from probmcl.data.formats.table.sheet import Table, quoted
from probmcl.data.labels import LabelStates, State
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError


def read_label_rows(table: Table, columns: Columns, classes: Classes, images: Images, options: ReadOptions) -> Labels:
    """The labels of tables that have a column of them: a list in each row, or one row a label."""
    if options.rows == "labels" or len(images.first) < len(table.rows):
        return _long_form(table, columns, classes, images, options)
    if columns.presence and holds_flags(table.texts(columns.presence)):
        raise DataError(
            f"{table.path}: column {columns.presence!r} may say whether the label beside it is there; `rows=labels` "
            f"reads it so, `ignore={columns.presence}` leaves it out"
        )
    return _lists_of_images(table, columns, classes, options)


def _lists_of_images(table: Table, columns: Columns, classes: Classes, options: ReadOptions) -> Labels:
    """One row an image; labels that the difficult column lists are not known."""
    policy, labels = options.policy, columns.labels or ""
    read = [labels, columns.difficult] if columns.difficult else [labels]
    lists = read_lists(table, read, classes, none_label=options.none_label)
    present, difficult = _pairs(lists.columns[0]), _pairs(lists.columns[1] if columns.difficult else [])
    blank_rows = np.array(lists.blank_rows, dtype=np.int64)
    blanks = policy.blank_states(lists.names, otherwise="negative")
    unknown = np.concatenate([difficult, _every(blank_rows, np.flatnonzero(blanks == State.UNKNOWN))])
    size = np.int64(len(lists.names))
    left = present @ [size, 1]
    if len(unknown):  # which goes first
        left = np.setdiff1d(left, unknown @ [size, 1])
    rows, places = np.concatenate([np.stack(np.divmod(left, size), axis=1), unknown]).T
    states = np.repeat(np.array([State.PRESENT, State.UNKNOWN], dtype=np.uint8), [len(left), len(unknown)])
    shape = (len(table.rows), len(lists.names))
    every = LabelStates.from_entries(rows, places, states, shape, chance=policy.chance(lists.names))
    notes = meanings(policy, len(blank_rows), 0, "negative") if options.blank or options.minus_one else []
    return Labels(lists.names, every, _written(f"labels {labels!r}", lists, notes))


def _long_form(table: Table, columns: Columns, classes: Classes, images: Images, options: ReadOptions) -> Labels:
    """One row a label; a pair that is not there is absent, unless the policy or explicit zeros say otherwise."""
    if columns.difficult:
        raise DataError(
            f"{table.path}: column {columns.difficult!r} lists labels, which has no place where a row is one label; "
            f"`ignore={columns.difficult}` leaves it out"
        )
    policy = options.policy
    none = "" if columns.presence and options.none_label is None else options.none_label
    marks = MARKS if classes else MARKS.replace(" ", "")  # one row a label: a space belongs to the name
    lists = read_lists(table, [columns.labels or ""], classes, none_label=none, marks=marks)
    if options.rows is None:
        _refuse_what_may_be_lists(table, columns, images, lists, classes)
    flags = _presence(table, columns.presence)
    _refuse_silent_pairs(table, columns, flags, policy)
    blanks = policy.blank_states(lists.names, otherwise="negative")
    pairs = _pairs(lists.columns[0])
    rows, places = pairs.T
    states = np.where(flags[rows] == BLANK, blanks[places], flags[rows])
    _refuse_repeated_pairs(table, lists, images, pairs, states, options)
    _refuse_none_in_other_rows(table, lists, images, rows, options)
    of_none = images.of_row[np.array(lists.none_rows, dtype=np.int64)]
    known = _every(of_none, np.flatnonzero(blanks != State.ABSENT))  # none of them: all are absent
    every = LabelStates.from_entries(
        np.concatenate([images.of_row[rows], known[:, 0]]),
        np.concatenate([places, known[:, 1]]),
        np.concatenate([states, np.zeros(len(known), dtype=np.uint8)]),
        (len(images.first), len(lists.names)),
        default=blanks,
        chance=policy.chance(lists.names),
    )
    what = f"one row a label: {len(table.rows):,} rows, {len(images.first):,} images, labels {columns.labels!r}"
    return Labels(lists.names, every, _written(what, lists, _notes(columns, flags, policy)))


def _written(what: str, lists: Lists, notes: list[str]) -> str:
    none = [f"{quoted(sorted(lists.none))} = none of them"] if lists.none else []
    none += [f"{quoted(sorted(lists.blanks))} = blank"] if lists.blanks else []
    count = f"{len(lists.names):,} {'label' if len(lists.names) == 1 else 'labels'}"
    return f"{what} ({'; '.join([f'{lists.written}, {count}', *none, *notes])})"


def _notes(columns: Columns, flags: UInt8[ndarray, "R"], policy: LabelPolicy) -> list[str]:
    notes = [f"{columns.presence!r} says which are there"] if columns.presence else []
    if policy.blank or policy.blank_of:
        notes.append(f"pairs that are not there = {in_words(policy.blank, policy.blank_of)}")
    uncertain = int((flags == State.UNCERTAIN).sum())
    return notes + meanings(LabelPolicy(None, policy.minus_one, {}, policy.minus_one_of), 0, uncertain, "negative")


def _pairs(lists: list[Places]) -> Int[ndarray, "P 2"]:
    """Pairs (row, class)."""
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    classes = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(lengths.sum()))
    return np.stack([np.repeat(np.arange(len(lists)), lengths), classes], axis=1)


def _every(rows: Int[ndarray, "K"], classes: Int[ndarray, "F"]) -> Int[ndarray, "P 2"]:
    """Every pair of these rows and classes."""
    return np.stack([np.repeat(rows, len(classes)), np.tile(classes, len(rows))], axis=1)


def _presence(table: Table, column: str | None) -> UInt8[ndarray, "R"]:
    """What each row says of its label: present, without a column that says it."""
    if column is None:
        return np.full(len(table.rows), State.PRESENT, dtype=np.uint8)
    return flags_of(table, column, f"`ignore={column}` reads every label as present")


def _refuse_silent_pairs(table: Table, columns: Columns, flags: UInt8[ndarray, "R"], policy: LabelPolicy) -> None:
    silent = np.flatnonzero(np.isin(flags, (State.ABSENT, BLANK)))
    if len(silent) and not policy.blank:
        raise DataError(
            f"{table.where(int(silent[0]))}: column {columns.presence!r} says which labels are not there: what of "
            f"those that no row names? `blank=negative` reads them as absent, `blank=unknown` as not known"
        )


def _refuse_what_may_be_lists(table: Table, columns: Columns, images: Images, lists: Lists, classes: Classes) -> None:
    """A path twice, and cells that may be lists: one row a label, or a mistake?"""
    texts = table.texts(columns.labels or "")
    spaced = classes is None and any(" " in text for text in texts if text not in lists.none)
    if spaced or any(len(places) > 1 for places in lists.columns[0]):
        remedy = (
            ", and cells may list several labels; `rows=labels` takes all rows of an image together, and spaces as "
            "part of a name; `rows=images` wants each image in one row"
        )
        raise repeated(table, images, columns.path, remedy)


def _refuse_repeated_pairs(
    table: Table,
    lists: Lists,
    images: Images,
    pairs: Int[ndarray, "P 2"],
    states: UInt8[ndarray, "P"],
    options: ReadOptions,
) -> None:
    """A pair that is said twice, unless rows are labels for certain and both say the same."""
    rows, places = pairs.T
    keys = images.of_row[rows] * len(lists.names) + places
    order = np.argsort(keys, kind="stable")
    again = np.diff(keys[order]) == 0
    if options.rows == "labels":
        again &= states[order[1:]] != states[order[:-1]]
    if not again.any():
        return
    one, other = (int(order[np.flatnonzero(again)[0] + step]) for step in (0, 1))
    both = f"{table.path}: rows {table.lines[rows[one]]} and {table.lines[rows[other]]}"
    what = f"{lists.names[places[one]]!r} of one image"
    if states[one] != states[other]:
        raise DataError(f"{both}: say of {what} that it is there and that it is not, or not sure; leave one")
    raise DataError(f"{both}: both say {what}; `rows=labels` counts it once; otherwise give each image one row")


def _refuse_none_in_other_rows(
    table: Table, lists: Lists, images: Images, rows: Int[ndarray, "P"], options: ReadOptions
) -> None:
    has = set(images.of_row[rows].tolist())
    for row in lists.none_rows:
        image = int(images.of_row[row])
        if image in has:
            other = next(int(r) for r in rows if images.of_row[r] == image)
            where = f"{table.where(row)}, with row {table.lines[other]}"
            name = lists.names[lists.columns[0][other][0]]
            refuse_none_beside_others(where, min(lists.none), name, options.none_label)
