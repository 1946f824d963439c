"""Special label names: labels for "no label", texts for a blank, and names with several words."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

from probmcl.errors import DataError, Question, Reading, quoted
from probmcl.readers.spreadsheet import LIST_ITEM

NONE = ("no finding", "no findings", "none", "nothing", "no label", "no labels")
BLANK_TEXTS = ("nan", "na", "n/a", "null")  # written by programs for a missing value

ALWAYS_TOGETHER = 3  # times that two words occur, always next to each other, if they may be one name with a space
RECURRING = 1.5  # times that distinct cells with several words occur on average, if they may be names

Words = tuple[str, ...]


def find_none_labels(texts: Iterable[str], none_label: str | None, classes: tuple[str, ...] | None) -> frozenset[str]:
    """Return the labels that mean "no label": `none_label` or, if None, common names that occur alone in a cell."""
    if none_label is not None:
        return frozenset({none_label} - {""})
    alone = {text.removeprefix(LIST_ITEM) for text in set(texts)}
    return frozenset(text for text in alone if text.lower() in NONE and text not in (classes or ()))


def find_blanks(texts: Iterable[str], none_label: str | None, classes: tuple[str, ...] | None) -> frozenset[str]:
    """Return the texts to read as blank: 'NaN' and the like, unless they are a class or occur in a list."""
    distinct = set(texts)
    blanks = {text for text in distinct if text.lower() in BLANK_TEXTS} - {none_label, *(classes or ())}
    if not blanks:
        return frozenset()
    listed = {part.strip() for text in distinct - blanks for part in re.split(r"[|;,\s]", text)}
    return frozenset(blanks - listed)


def refuse_none_with_others(where: str, label: str, other: str, none_label: str | None) -> None:
    """Raise an error for an image that has another label together with one that means "no label"."""
    reason, remedy = "it seems to mean no label", 'use `none_label=""` if it is a class, otherwise correct the row'
    if none_label:
        reason, remedy = "`none_label` defines it as no label", "correct the row or remove the option"
    raise DataError(f"{where}: {label!r} occurs together with {other!r}, although {reason}; {remedy}")


def refuse_possible_names(where: str, times: Mapping[Words, int], remedy: str) -> None:
    """Ask if cells with several words may be names instead of lists. Cells of numbers are always lists."""
    cells = {words: count for words, count in times.items() if words}
    if all(re.fullmatch(r"-?[0-9]+", word) for words in cells for word in words):
        return
    readings = [
        Reading("a space is part of a name", {"separator": ""}),
        Reading("a space separates labels", {"separator": " "}),
    ]
    words: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for cell, count in cells.items():
        words.update(dict.fromkeys(cell, count))
        pairs.update(dict.fromkeys(pairwise(cell), count))
    signs = {word for word in words if not any(map(str.isalnum, word))}  # such as + or &
    if mark := min(signs - {word for cell in cells for word in (cell[0], cell[-1])}, default=""):
        readings[1] = Reading(f"{mark} separates labels", {"separator": f" {mark} "})
        raise Question(f"{where}: is {mark!r} part of a name, or does it separate labels?", readings)
    for pair, count in pairs.items():
        if count >= ALWAYS_TOGETHER and count == words[pair[0]] == words[pair[1]]:
            problem = f"{quoted(pair)} only occur together; are they one class or two? {remedy}"
            raise Question(f"{where}: {problem}", readings)
    free, bound = free_and_bound(cells)
    several = {cell: count for cell, count in cells.items() if len(cell) > 1}
    often = sum(several.values()) >= max(ALWAYS_TOGETHER, RECURRING * len(several))
    never = sum(several.values()) >= ALWAYS_TOGETHER and not any(free & {*cell} for cell in several)
    cell = next((cell for cell in several if bound & {*cell}), ())
    if cell and len(bound) >= len(free) and (often or never):
        problem = f"is {' '.join(cell)!r} one class or {len(cell)}? Most words never occur alone or in another position"
        raise Question(f"{where}: {problem}, as labels in a list would. {remedy}", readings)


def free_and_bound(cells: Mapping[Words, int]) -> tuple[frozenset[str], frozenset[str]]:
    """Divide the words of cells with several words into labels and possible parts of names.

    A word is a label if it also occurs alone, if it is first in one cell and later in another, or if it is last in one
    cell and earlier in another. Parts of names keep their position.
    """
    several = [words for words in cells if len(words) > 1]
    used = frozenset(word for words in several for word in words)
    free = used & {words[0] for words in cells if len(words) == 1}
    free |= {words[0] for words in several} & {word for words in several for word in words[1:]}
    free |= {words[-1] for words in several} & {word for words in several for word in words[:-1]}
    return free, used - free
