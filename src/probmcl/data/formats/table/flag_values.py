"""Cells that say whether something is there: 0 and 1, true and false, blank, −1."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from probmcl.data.labels import State

BLANK = 4
"""Beside the four states: a cell that says nothing, whose meaning the label policy gives."""

FLAG_VALUES: Mapping[str, int] = {
    **dict.fromkeys(("0", "0.0", "false", "no"), State.ABSENT),
    **dict.fromkeys(("1", "1.0", "true", "yes"), State.PRESENT),
    **dict.fromkeys(("-1", "-1.0"), State.UNCERTAIN),
    **dict.fromkeys(("", "nan", "na", "n/a", "null", "none"), BLANK),
}


NUMBER = re.compile(r"([+-]?[01])(\.0*|,(?!000$)0+)?(e[+-]?0+)?", re.IGNORECASE)
"""0, 1 and −1 with zeros behind a point or a comma; 1,000 may be a thousand."""


def flag_value(text: str) -> int | None:
    """The state that a cell says, or BLANK; None where it is no flag.

    >>> [flag_value(text) == State.PRESENT for text in ("Yes", "1.00", "1,0", "1.000e+00", "1,000", "0.00")]
    [True, True, True, True, False, False]
    """
    found = FLAG_VALUES.get(text.lower())
    if found is None and (number := NUMBER.fullmatch(text)):
        return FLAG_VALUES[str(int(number[1]))]
    return found


def holds_flags(texts: Sequence[str], *, least: float = 1.0) -> bool:
    """Whether at least this share of the cells that are not blank are flags, and one of them at all.

    >>> holds_flags(["1", "", "0"]), holds_flags(["1", "64"]), holds_flags(["1", "64"], least=0.5)
    (True, False, True)
    """
    times = Counter(texts)
    meant = {text: flag_value(text) for text in times}
    said = sum(times[text] for text, value in meant.items() if value != BLANK)
    flags = sum(times[text] for text, value in meant.items() if value not in (BLANK, None))
    return flags > 0 and flags >= least * said


def flags_of(texts: Sequence[str]) -> tuple[UInt8[ndarray, "N"], int | None]:
    """The state of each cell, or BLANK, and the first row that holds no flag, if there is one.

    >>> flags_of(["yes", "0", "NaN", "-1"])[0].tolist()
    [1, 0, 4, 3]
    """
    meant = {text: flag_value(text) for text in set(texts)}
    if None in meant.values():
        return np.zeros(0, dtype=np.uint8), next(row for row, text in enumerate(texts) if meant[text] is None)
    return np.fromiter((meant[text] or 0 for text in texts), dtype=np.uint8, count=len(texts)), None
