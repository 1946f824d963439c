"""A label that means "none of them", such as NIH's 'No Finding': no class, but said of the whole image."""

from __future__ import annotations

import re
from collections.abc import Sequence

from probmcl.data.formats.table.sheet import IN_A_LIST, Table
from probmcl.errors import DataError, OptionError, suggestion

NONE = ("no finding", "no findings", "none", "nothing", "no label", "no labels")
NOTHING_SAID = ("nan", "na", "n/a", "null")
"""What programs write for a blank."""


def find_none_labels(texts: Sequence[str], said: str | None, classes: tuple[str, ...] | None) -> frozenset[str]:
    """Labels that mean none: the one that was said or, where nothing was, those that a reader would take for it.

    These stand alone in some cell and are in no list of classes.

    >>> find_none_labels(["No Finding", "Edema|none"], None, None)
    frozenset({'No Finding'})
    """
    if said is not None:
        return frozenset({said} - {""})
    alone = {text.removeprefix(IN_A_LIST) for text in set(texts)}
    return frozenset(text for text in alone if text.lower() in NONE and text not in (classes or ()))


def find_blanks(texts: Sequence[str], none_label: str | None, classes: tuple[str, ...] | None) -> frozenset[str]:
    """Cells that say no more than a blank: 'NaN' and the like, unless it is a class, or stands in a list with others.

    >>> find_blanks(["NaN", "cat", "NA", "NA|cat"], None, None)
    frozenset({'NaN'})
    """
    distinct = set(texts)
    found = {text for text in distinct if text.lower() in NOTHING_SAID} - {none_label, *(classes or ())}
    if not found:
        return frozenset()
    listed = {part.strip() for text in distinct - found for part in re.split(r"[|;, ]", text)}
    return frozenset(found - listed)


def says_none(text: str, none: frozenset[str]) -> bool:
    """Whether a cell is one of these and nothing else."""
    return text.removeprefix(IN_A_LIST) in none


def refuse_none_beside_others(where: str, label: str, other: str, said: str | None) -> None:
    """An error for an image that has none and another: two readings, or a mistake."""
    if said:
        raise DataError(
            f"{where}: {label!r} stands beside {other!r}, but `none_label` says that it means none; mend the row, "
            f"or leave the option out"
        )
    raise DataError(
        f"{where}: {label!r} stands beside {other!r}, so that it can hardly mean none of them; `none_label=''` reads "
        f"it as a class like any other; where it does mean none, mend the row"
    )


def refuse_one_that_is_not_there(table: Table, said: str | None, texts: Sequence[str], names: Sequence[str]) -> None:
    """An error for a label that is said to mean none and that no cell holds."""
    if said and not any(says_none(text, frozenset({said})) for text in texts):
        raise OptionError("none_label", said, f"is not in any cell of {table.path}; {suggestion(said, names)}")
