"""Cells whose only mark is a space: lists of words, or names of several words? Where both may be, it is asked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from probmcl.errors import DataError

ALWAYS_TOGETHER = 3
"""So many times side by side and never apart, two words look like one name with a space in it."""

RECURRING = 1.5
"""So often, in the mean, a cell of several words comes where it may be a name."""

Words = tuple[str, ...]


def refuse_what_may_be_names(where: str, lists: Sequence[Words], remedy: str) -> None:
    """An error for words that may be parts of names; numbers never are."""
    cells = Counter(words for words in lists if words)
    if all(re.fullmatch(r"-?[0-9]+", word) for words in cells for word in words):
        return
    _refuse_words_never_apart(where, cells, remedy)
    free, bound = free_and_bound(cells)
    if len(bound) < len(free) or not _recur(cells, free):
        return
    cell = next((words for words in cells if len(words) > 1 and bound & {*words}), ())
    if cell:
        raise DataError(
            f"{where}: is {' '.join(cell)!r} one class or {len(cell)}? Too few of the words stand alone or change "
            f"their places for a list. {remedy}"
        )


def _recur(cells: Mapping[Words, int], free: frozenset[str]) -> bool:
    """Whether cells of several words come again as names do, and lists of many labels seldom; or hold no label at all.

    Fewer than three such cells tell nothing.

    >>> names, lists = {("red", "fox"): 3, ("fox",): 2}, {("cat", "dog"): 1, ("cat", "emu"): 1, ("dog",): 1}
    >>> _recur(names, frozenset({"fox"})), _recur(lists, frozenset({"dog"}))
    (True, False)
    """
    several = {words: times for words, times in cells.items() if len(words) > 1}
    if sum(several.values()) < ALWAYS_TOGETHER:
        return False
    return sum(several.values()) >= RECURRING * len(several) or not any(free & {*words} for words in several)


def free_and_bound(cells: Mapping[Words, int]) -> tuple[frozenset[str], frozenset[str]]:
    """The words of cells of several: those that are used as labels are, and those that may be parts of a name.

    A label stands alone, or comes first here and later there, or last here and sooner there. Parts of names keep their
    places: 'Pleural' is always the first of two, 'effusion' always the last.

    >>> free, bound = free_and_bound({("cat", "dog"): 1, ("dog",): 1, ("red", "fox"): 1, ("red", "kite"): 1})
    >>> sorted(free), sorted(bound)
    (['dog'], ['cat', 'fox', 'kite', 'red'])
    """
    several = [words for words in cells if len(words) > 1]
    used = frozenset(word for words in several for word in words)
    free = used & {words[0] for words in cells if len(words) == 1}
    free |= {words[0] for words in several} & {word for words in several for word in words[1:]}
    free |= {words[-1] for words in several} & {word for words in several for word in words[:-1]}
    return free, used - free


def _refuse_words_never_apart(where: str, cells: Mapping[Words, int], remedy: str) -> None:
    words: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for cell, times in cells.items():
        words.update(dict.fromkeys(cell, times))
        pairs.update(dict.fromkeys(pairwise(cell), times))
    for (one, other), times in pairs.items():
        if times >= ALWAYS_TOGETHER and times == words[one] == words[other]:
            raise DataError(f"{where}: {one!r} and {other!r} never stand apart; are they one class or two? {remedy}")
