"""Labels in one column per class, as flags. Blanks and −1 that could have two meanings are refused."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from probmcl.data.formats.table.label_lists import CLASSES, Labels, read_lists
from probmcl.data.formats.table.policy import BLANK, LabelPolicy, describe_meanings, flags_of
from probmcl.data.formats.table.sheet import Table, listing
from probmcl.data.labels import LabelStates, State
from probmcl.errors import DataError


def read_class_columns(table: Table, names: tuple[str, ...], difficult: str | None, policy: LabelPolicy) -> Labels:
    """Read labels from a table with one column per class. Labels in the difficult column are unknown.

    By default, blanks are unknown if any cell is 0. If no cell is 0, blanks or −1 could mean absent, so the table is
    refused unless the policy defines them.
    """
    flags = [flags_of(table, column, _remedy(column)) for column in names]
    counts = np.stack([np.bincount(column, minlength=BLANK + 1) for column in flags])
    _refuse_two_meanings(table, names, counts, policy)
    _refuse_no_negatives(table, names, counts, policy)
    blanks = policy.blank_states(names, default="unknown")
    states = [np.where(column == BLANK, blank, column) for column, blank in zip(flags, blanks, strict=True)]
    if difficult:
        for row, classes in enumerate(read_lists(table, [difficult], names).columns[0]):
            for k in classes:
                states[k][row] = State.UNKNOWN
    notes = meaning_notes(policy, int(counts[:, BLANK].sum()), int(counts[:, State.UNCERTAIN].sum()), "unknown")
    description = "; ".join((f"one column per class ({listing(map(repr, names))})", *notes))
    return Labels(names, _states_of_columns(states, policy.chance(names)), description)


def _remedy(column: str) -> str:
    return (
        f"If another column has the labels, use `labels_column=COLUMN`; if this one is not a class, use "
        f"`ignore={column!r}` or list the classes in a {CLASSES}"
    )


def _states_of_columns(columns: Sequence[UInt8[ndarray, "N"]], chance: ndarray) -> LabelStates:
    """Build label states in which the default of each class is its most frequent state."""
    default = np.array([np.bincount(column).argmax() for column in columns], dtype=np.uint8)
    rows = [np.flatnonzero(column != state) for column, state in zip(columns, default, strict=True)]
    classes = np.repeat(np.arange(len(columns)), [len(entries) for entries in rows])
    states = np.concatenate([column[entries] for column, entries in zip(columns, rows, strict=True)])
    shape = (len(columns[0]), len(columns))
    return LabelStates.from_entries(np.concatenate(rows), classes, states, shape, default=default, chance=chance)


def meaning_notes(policy: LabelPolicy, blanks: int, uncertain: int, default: str) -> list[str]:
    """Return notes on the meanings of blank and −1, the number of such cells, and the option that changes the meaning.

    >>> meaning_notes(LabelPolicy.of([], ["positive"]), 3, 2, "unknown")
    ['blank = unknown (3 cells; change with `blank=negative`)', '-1 = positive (2 cells)']
    """
    other = f"`blank={'negative' if default == 'unknown' else 'unknown'}`"
    blank = ("blank", "`blank`", other, blanks, default, policy.blank, policy.blank_of)
    minus_one = ("-1", "`minus_one`", "`minus_one`", uncertain, "unknown", policy.minus_one, policy.minus_one_of)
    notes = []
    for text, option, change, count, meaning, general, single in (blank, minus_one):
        if count:
            cells = f"{count:,} {'cell' if count == 1 else 'cells'}{'' if general else f'; change with {change}'}"
            notes.append(f"{text} = {describe_meanings(general or meaning, single)} ({cells})")
        elif general or single:
            notes.append(f"{option} has no effect, because no cell is {text}")
    return notes


def _refuse_two_meanings(table: Table, names: Sequence[str], counts: Int[ndarray, "C 5"], policy: LabelPolicy) -> None:
    """Refuse blanks or −1 without a policy if no cell is 0, because they could mean absent."""
    if counts[:, State.ABSENT].any():
        return
    blank = [name for name, number in zip(names, counts[:, BLANK], strict=True) if number]
    if not policy.blank and set(blank) - set(policy.blank_of):
        raise DataError(
            f"{table.path}: columns {listing(map(repr, blank))} have blank cells, and no column has a 0, so a blank "
            f"may mean absent or unknown; choose `blank=negative` or `blank=unknown`"
        )
    uncertain = [name for name, number in zip(names, counts[:, State.UNCERTAIN], strict=True) if number]
    absent = policy.blank_states(names, default="unknown")[counts[:, BLANK] > 0] == State.ABSENT
    if not policy.minus_one and set(uncertain) - set(policy.minus_one_of) and not absent.any():
        raise DataError(
            f"{table.path}: columns {listing(map(repr, uncertain))} have 1s and -1s, and no column has a 0, so -1 may "
            f"mean absent or uncertain; choose `minus_one=negative` or `minus_one=unknown`"
        )


def _refuse_no_negatives(table: Table, names: Sequence[str], counts: Int[ndarray, "C 5"], policy: LabelPolicy) -> None:
    """Refuse a class with 1s and blanks but no 0s: if blanks were unknown, all its known labels would be positive."""
    absent = counts[:, State.ABSENT] + counts[:, State.UNCERTAIN] * (policy.chance(names) == 0)
    positive_only = (counts[:, State.PRESENT] > 0) & (counts[:, BLANK] > 0) & (absent == 0)
    classes = [name for name, only in zip(names, positive_only, strict=True) if only and name not in policy.blank_of]
    if not classes or policy.blank:
        return
    raise DataError(
        f"{table.path}: {'column' if len(classes) == 1 else 'columns'} {listing(map(repr, classes))}: there are 1s and "
        f"blanks but no 0s, unlike in other columns, so a blank may mean absent or unknown; choose "
        f"`blank='{classes[0]}=negative'` or `blank='{classes[0]}=unknown'` for one class, `blank=negative` or "
        f"`blank=unknown` for all"
    )
