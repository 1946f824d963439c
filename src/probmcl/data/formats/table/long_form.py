"""Labels in a column: a list of labels per image, or the long form with one row per label."""

from itertools import chain

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from probmcl.data.formats.table.class_columns import meaning_notes
from probmcl.data.formats.table.columns import Columns
from probmcl.data.formats.table.image_columns import Images, repeated
from probmcl.data.formats.table.label_lists import SEPARATORS, Classes, ClassIndices, Labels, Lists, read_lists
from probmcl.data.formats.table.label_names import refuse_none_with_others
from probmcl.data.formats.table.policy import BLANK, LabelPolicy, describe_meanings, flags_of, holds_flags
from probmcl.data.formats.table.sheet import Table, quoted
from probmcl.data.labels import LabelStates, State
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError


def read_label_rows(table: Table, columns: Columns, classes: Classes, images: Images, options: ReadOptions) -> Labels:
    """Read the labels of a table with a label column: one list per image, or one row per label."""
    if options.rows == "labels" or len(images.first) < len(table.rows):
        return _long_form(table, columns, classes, images, options)
    if columns.presence and holds_flags(table.texts(columns.presence)):
        raise DataError(
            f"{table.path}: column {columns.presence!r} may mark whether the label in the same row is present; use "
            f"`rows=labels` if it does, otherwise `ignore={columns.presence}`"
        )
    return _lists_of_images(table, columns, classes, options)


def _lists_of_images(table: Table, columns: Columns, classes: Classes, options: ReadOptions) -> Labels:
    """Read one row per image. Labels in the difficult column are unknown."""
    policy, labels = options.policy, columns.labels or ""
    list_columns = [labels, columns.difficult] if columns.difficult else [labels]
    lists = read_lists(table, list_columns, classes, none_label=options.none_label)
    present, difficult = _pairs(lists.columns[0]), _pairs(lists.columns[1] if columns.difficult else [])
    blank_rows = np.array(lists.blank_rows, dtype=np.int64)
    blanks = policy.blank_states(lists.names, default="negative")
    unknown = np.concatenate([difficult, _all_pairs(blank_rows, np.flatnonzero(blanks == State.UNKNOWN))])
    size = np.int64(len(lists.names))
    positive = present @ [size, 1]
    if len(unknown):  # takes precedence over present
        positive = np.setdiff1d(positive, unknown @ [size, 1])
    rows, indices = np.concatenate([np.stack(np.divmod(positive, size), axis=1), unknown]).T
    states = np.repeat(np.array([State.PRESENT, State.UNKNOWN], dtype=np.uint8), [len(positive), len(unknown)])
    shape = (len(table.rows), len(lists.names))
    label_states = LabelStates.from_entries(rows, indices, states, shape, chance=policy.chance(lists.names))
    notes = meaning_notes(policy, len(blank_rows), 0, "negative") if options.blank or options.minus_one else []
    return Labels(lists.names, label_states, _describe(f"labels {labels!r}", lists, notes))


def _long_form(table: Table, columns: Columns, classes: Classes, images: Images, options: ReadOptions) -> Labels:
    """Read one row per label. Labels without a row are absent unless the policy defines them as unknown."""
    if columns.difficult:
        raise DataError(
            f"{table.path}: column {columns.difficult!r} cannot be used in a table with one row per label; ignore it "
            f"with `ignore={columns.difficult}`"
        )
    policy = options.policy
    none = "" if columns.presence and options.none_label is None else options.none_label
    separators = SEPARATORS if classes else SEPARATORS.replace(" ", "")  # a space is part of the name in long form
    lists = read_lists(table, [columns.labels or ""], classes, none_label=none, candidates=separators)
    if options.rows is None:
        _refuse_possible_lists(table, columns, images, lists, classes)
    flags = _presence(table, columns.presence)
    _refuse_undefined_labels(table, columns, flags, policy)
    blanks = policy.blank_states(lists.names, default="negative")
    pairs = _pairs(lists.columns[0])
    rows, indices = pairs.T
    states = np.where(flags[rows] == BLANK, blanks[indices], flags[rows])
    _refuse_repeated_pairs(table, lists, images, pairs, states, options)
    _refuse_none_in_other_rows(table, lists, images, rows, options)
    without_labels = images.of_row[np.array(lists.none_rows, dtype=np.int64)]
    absent = _all_pairs(without_labels, np.flatnonzero(blanks != State.ABSENT))  # "no label": all classes are absent
    label_states = LabelStates.from_entries(
        np.concatenate([images.of_row[rows], absent[:, 0]]),
        np.concatenate([indices, absent[:, 1]]),
        np.concatenate([states, np.zeros(len(absent), dtype=np.uint8)]),
        (len(images.first), len(lists.names)),
        default=blanks,
        chance=policy.chance(lists.names),
    )
    layout = f"one row per label: {len(table.rows):,} rows, {len(images.first):,} images, labels {columns.labels!r}"
    return Labels(lists.names, label_states, _describe(layout, lists, _notes(columns, flags, policy)))


def _describe(layout: str, lists: Lists, notes: list[str]) -> str:
    none = [f"{quoted(sorted(lists.none))} = no label"] if lists.none else []
    none += [f"{quoted(sorted(lists.blanks))} = blank"] if lists.blanks else []
    count = f"{len(lists.names):,} {'label' if len(lists.names) == 1 else 'labels'}"
    return f"{layout} ({'; '.join([f'{lists.description}, {count}', *none, *notes])})"


def _notes(columns: Columns, flags: UInt8[ndarray, "R"], policy: LabelPolicy) -> list[str]:
    notes = [f"{columns.presence!r} marks which are present"] if columns.presence else []
    if policy.blank or policy.blank_of:
        notes.append(f"labels without a row = {describe_meanings(policy.blank, policy.blank_of)}")
    uncertain = int((flags == State.UNCERTAIN).sum())
    return notes + meaning_notes(LabelPolicy(None, policy.minus_one, {}, policy.minus_one_of), 0, uncertain, "negative")


def _pairs(lists: list[ClassIndices]) -> Int[ndarray, "P 2"]:
    """Return all (row, class) pairs."""
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    classes = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(lengths.sum()))
    return np.stack([np.repeat(np.arange(len(lists)), lengths), classes], axis=1)


def _all_pairs(rows: Int[ndarray, "K"], classes: Int[ndarray, "F"]) -> Int[ndarray, "P 2"]:
    return np.stack([np.repeat(rows, len(classes)), np.tile(classes, len(rows))], axis=1)


def _presence(table: Table, column: str | None) -> UInt8[ndarray, "R"]:
    """Return the state of the label in each row; without a presence column, all are present."""
    if column is None:
        return np.full(len(table.rows), State.PRESENT, dtype=np.uint8)
    return flags_of(table, column, f"Use `ignore={column}` to read every label as present")


def _refuse_undefined_labels(table: Table, columns: Columns, flags: UInt8[ndarray, "R"], policy: LabelPolicy) -> None:
    """Refuse explicit negatives without a policy, because labels without a row may then be absent or unknown."""
    negative = np.flatnonzero(np.isin(flags, (State.ABSENT, BLANK)))
    if len(negative) and not policy.blank:
        raise DataError(
            f"{table.where(int(negative[0]))}: column {columns.presence!r} marks a label as absent, so labels without "
            f"a row may be absent or unknown; choose `blank=negative` or `blank=unknown`"
        )


def _refuse_possible_lists(table: Table, columns: Columns, images: Images, lists: Lists, classes: Classes) -> None:
    """Refuse repeated paths if cells may be lists, because the repetition may be a mistake."""
    texts = table.texts(columns.labels or "")
    spaced = classes is None and any(" " in text for text in texts if text not in lists.none)
    if spaced or any(len(indices) > 1 for indices in lists.columns[0]):
        remedy = (
            ", and cells may be lists of labels; use `rows=labels` to merge the rows of an image and read spaces as "
            "part of a name, or `rows=images` to require one row per image"
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
    """Refuse a label that an image has in two rows; with `rows=labels`, only if the rows disagree."""
    rows, indices = pairs.T
    keys = images.of_row[rows] * len(lists.names) + indices
    order = np.argsort(keys, kind="stable")
    repeated_pairs = np.diff(keys[order]) == 0
    if options.rows == "labels":
        repeated_pairs &= states[order[1:]] != states[order[:-1]]
    if not repeated_pairs.any():
        return
    one, other = (int(order[np.flatnonzero(repeated_pairs)[0] + step]) for step in (0, 1))
    both = f"{table.path}, rows {table.lines[rows[one]]} and {table.lines[rows[other]]}"
    label = f"label {lists.names[indices[one]]!r} for the same image"
    if states[one] != states[other]:
        raise DataError(f"{both}: contradictory states of the {label}; remove one of the rows")
    raise DataError(f"{both}: both have the {label}; use `rows=labels` to count it once, or write one row per image")


def _refuse_none_in_other_rows(
    table: Table, lists: Lists, images: Images, rows: Int[ndarray, "P"], options: ReadOptions
) -> None:
    labeled = set(images.of_row[rows].tolist())
    for row in lists.none_rows:
        image = int(images.of_row[row])
        if image in labeled:
            other = next(int(r) for r in rows if images.of_row[r] == image)
            where = f"{table.where(row)} and row {table.lines[other]}"
            name = lists.names[lists.columns[0][other][0]]
            refuse_none_with_others(where, min(lists.none), name, options.none_label)
