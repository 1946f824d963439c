"""Cells of class columns: flags such as 0, 1, true, false and x."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from probmcl.data.formats.table.sheet import Table
from probmcl.data.labels import State
from probmcl.errors import DataError

BLANK = 4
"""Code of a blank cell, in addition to the four states. The label policy defines its meaning."""

CROSSES = ("x", "✓", "✔")
"""Marks of a present label. In a table without other marks, a blank means absent."""

FLAG_VALUES: Mapping[str, int] = {
    **dict.fromkeys(("0", "0.0", "false", "no"), State.ABSENT),
    **dict.fromkeys(("1", "1.0", "true", "yes", *CROSSES), State.PRESENT),
    **dict.fromkeys(("-1", "-1.0"), State.UNCERTAIN),
    **dict.fromkeys(("", "nan", "na", "n/a", "null", "none"), BLANK),
}
NUMBER = re.compile(r"([+-]?[01])(\.0*|,(?!000$)0+)?(e[+-]?0+)?", re.IGNORECASE)
"""0, 1 and −1, with optional zeros after a decimal point or comma; 1,000 is excluded, as it may be a thousand."""


def flag_value(text: str) -> int | None:
    """Return the state of a cell, BLANK for a blank, or None if the text is not a flag.

    >>> [flag_value(text) == State.PRESENT for text in ("Yes", "1.00", "1,0", "1.000e+00", "1,000", "0.00")]
    [True, True, True, True, False, False]
    """
    value = FLAG_VALUES.get(text.lower())
    if value is None and (number := NUMBER.fullmatch(text)):
        return FLAG_VALUES[str(int(number[1]))]
    return value


def holds_flags(texts: Iterable[str], *, least: float = 1.0, without: Sequence[str] = ()) -> bool:
    """Return whether there are flags, and they make up at least a share `least` of the cells that are not blank.

    Texts in `without` are not counted.

    >>> holds_flags(["1", "", "0"]), holds_flags(["1", "64"]), holds_flags(["1", "64"], least=0.5)
    (True, False, True)
    """
    times = Counter(texts)
    values = {text: flag_value(text) for text in times if text not in without}
    flags = sum(times[text] for text, value in values.items() if value not in (BLANK, None))
    others = sum(times[text] for text, value in values.items() if value is None)
    return flags > 0 and flags >= least * (flags + others)


def flags_of(table: Table, column: str, remedy: str, unknown: Sequence[str] = ()) -> UInt8[ndarray, "N"]:
    """Return the state of each cell of a column, or BLANK. A text that is not a flag or in `unknown` is an error."""
    texts = table.texts(column)
    values = {text: int(State.UNKNOWN) if text in unknown else flag_value(text) for text in set(texts)}
    if None in values.values():
        row = next(row for row, text in enumerate(texts) if values[text] is None)
        raise DataError(
            f"{table.where(row)}: column {column!r} has {texts[row]!r}, not 0, 1, true, false, -1 or blank. {remedy}"
        )
    return np.fromiter((values[text] or 0 for text in texts), dtype=np.uint8, count=len(texts))
