"""One column a class: 0 and 1, true and false, blank and −1, whose meaning is said back or asked for."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray

from probmcl.data.formats.table.label_lists import CLASSES, Labels, read_lists
from probmcl.data.formats.table.policy import BLANK, LabelPolicy, flags_of, in_words
from probmcl.data.formats.table.sheet import Table, listing
from probmcl.data.labels import LabelStates, State
from probmcl.errors import DataError


def read_class_columns(table: Table, names: tuple[str, ...], difficult: str | None, policy: LabelPolicy) -> Labels:
    """The states of classes that have a column each; those that the difficult column lists are not known.

    Blanks are unknown where another cell is an explicit 0. Where none is, they could as well mean absent, and a table
    of 1 and −1 alone could mean that by −1: such a table is refused, unless the policy says which.
    """
    flags = [flags_of(table, column, _remedy(column)) for column in names]
    counts = np.stack([np.bincount(column, minlength=BLANK + 1) for column in flags])
    _refuse_two_meanings(table, names, counts, policy)
    _refuse_no_negatives(table, names, counts, policy)
    blanks = policy.blank_states(names, otherwise="unknown")
    states = [np.where(column == BLANK, blank, column) for column, blank in zip(flags, blanks, strict=True)]
    if difficult:
        for row, places in enumerate(read_lists(table, [difficult], names).columns[0]):
            for place in places:
                states[place][row] = State.UNKNOWN
    notes = meanings(policy, int(counts[:, BLANK].sum()), int(counts[:, State.UNCERTAIN].sum()), "unknown")
    written = "; ".join((f"one column a class ({listing(map(repr, names))})", *notes))
    return Labels(names, _states_of_columns(states, policy.chance(names)), written)


def _remedy(column: str) -> str:
    return (
        f"if another column lists the labels, `labels_column` says which; if this one is no class, `ignore={column!r}` "
        f"leaves it out, or name the classes in a {CLASSES}"
    )


def _states_of_columns(columns: Sequence[UInt8[ndarray, "N"]], chance: ndarray) -> LabelStates:
    """States class by class; what is usual in each is the state that most images have."""
    usual = np.array([np.bincount(column).argmax() for column in columns], dtype=np.uint8)
    rows = [np.flatnonzero(column != state) for column, state in zip(columns, usual, strict=True)]
    classes = np.repeat(np.arange(len(columns)), [len(unusual) for unusual in rows])
    states = np.concatenate([column[unusual] for column, unusual in zip(columns, rows, strict=True)])
    shape = (len(columns[0]), len(columns))
    return LabelStates.from_entries(np.concatenate(rows), classes, states, shape, default=usual, chance=chance)


def meanings(policy: LabelPolicy, blanks: int, uncertain: int, otherwise: str) -> list[str]:
    """What blanks and −1 were taken for, how many there are, and which option says otherwise.

    >>> meanings(LabelPolicy.of([], ["positive"]), 3, 2, "unknown")
    ['blank = unknown (3 cells; `blank=negative` says otherwise)', '-1 = positive (2 cells)']
    """
    other = f"`blank={'negative' if otherwise == 'unknown' else 'unknown'}`"
    blank = ("blank", "`blank`", other, blanks, otherwise, policy.blank, policy.blank_of)
    minus_one = ("-1", "`minus_one`", "`minus_one`", uncertain, "unknown", policy.minus_one, policy.minus_one_of)
    notes = []
    for mark, option, change, count, usual, general, single in (blank, minus_one):
        if count:
            cells = f"{count:,} {'cell' if count == 1 else 'cells'}{'' if general else f'; {change} says otherwise'}"
            notes.append(f"{mark} = {in_words(general or usual, single)} ({cells})")
        elif general or single:
            notes.append(f"{option} changes nothing: no cell is {mark}")
    return notes


def _refuse_two_meanings(table: Table, names: Sequence[str], counts: Int[ndarray, "C 5"], policy: LabelPolicy) -> None:
    """Without an explicit 0, blanks may be the zeros, and so may −1."""
    if counts[:, State.ABSENT].any():
        return
    blank = [name for name, number in zip(names, counts[:, BLANK], strict=True) if number]
    if not policy.blank and set(blank) - set(policy.blank_of):
        raise DataError(
            f"{table.path}: columns {listing(map(repr, blank))} hold blanks and no column holds 0: is what is blank "
            f"absent, or not known? `blank=negative` or `blank=unknown` says which"
        )
    uncertain = [name for name, number in zip(names, counts[:, State.UNCERTAIN], strict=True) if number]
    absent = policy.blank_states(names, otherwise="unknown")[counts[:, BLANK] > 0] == State.ABSENT
    if not policy.minus_one and set(uncertain) - set(policy.minus_one_of) and not absent.any():
        raise DataError(
            f"{table.path}: columns {listing(map(repr, uncertain))} hold 1 and -1 and no column holds 0: is -1 absent, "
            f"or uncertain? `minus_one=negative` or `minus_one=unknown` says which"
        )


def _refuse_no_negatives(table: Table, names: Sequence[str], counts: Int[ndarray, "C 5"], policy: LabelPolicy) -> None:
    """A class of 1 and blank beside others that have 0: were its blanks unknown, all that is known would be present."""
    absent = counts[:, State.ABSENT] + counts[:, State.UNCERTAIN] * (policy.chance(names) == 0)
    alone = (counts[:, State.PRESENT] > 0) & (counts[:, BLANK] > 0) & (absent == 0)
    found = [name for name, only in zip(names, alone, strict=True) if only and name not in policy.blank_of]
    if not found or policy.blank:
        return
    raise DataError(
        f"{table.path}: {'column' if len(found) == 1 else 'columns'} {listing(map(repr, found))}: 1 and blank, but no "
        f"0, as other columns have: is what is blank there absent, or not known? `blank='{found[0]}=negative'` or "
        f"`blank='{found[0]}=unknown'` says which for one class, `blank=negative` or `blank=unknown` for all"
    )
