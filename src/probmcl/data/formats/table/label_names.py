"""Names that are no plain labels: such as mean none of them, may be several words, or differ only by case."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from probmcl.data.formats.table.sheet import IN_A_LIST, listing, quoted
from probmcl.errors import DataError

NONE = ("no finding", "no findings", "none", "nothing", "no label", "no labels")
NOTHING_SAID = ("nan", "na", "n/a", "null")
"""What programs write for a blank."""

ALWAYS_TOGETHER = 3
"""So many times side by side and never apart, two words look like one name with a space in it."""

RECURRING = 1.5
"""So often, in the mean, a cell of several words comes where it may be a name."""

Words = tuple[str, ...]


def find_none_labels(texts: Sequence[str], said: str | None, classes: tuple[str, ...] | None) -> frozenset[str]:
    """Labels that mean none: the one that was said, else those that look so, stand alone in a cell and are no class.

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
    blanks = {text for text in distinct if text.lower() in NOTHING_SAID} - {none_label, *(classes or ())}
    if not blanks:
        return frozenset()
    listed = {part.strip() for text in distinct - blanks for part in re.split(r"[|;, ]", text)}
    return frozenset(blanks - listed)


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
    """Whether cells of several words, at least three, come again as names do and lists seldom; or hold no label."""
    several = {words: times for words, times in cells.items() if len(words) > 1}
    if sum(several.values()) < ALWAYS_TOGETHER:
        return False
    return sum(several.values()) >= RECURRING * len(several) or not any(free & {*words} for words in several)


def free_and_bound(cells: Mapping[Words, int]) -> tuple[frozenset[str], frozenset[str]]:
    """The words of cells of several: those that are used as labels are, and those that may be parts of a name.

    A label stands alone, or comes first here and later there, or last here and sooner there. Parts of names keep their
    places.

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


def alike_names(names: Iterable[str]) -> list[str]:
    """What is said of classes that differ only by case; nothing where none do.

    >>> alike_names(["Cat", "dog", "cat"])
    ["classes 'Cat' and 'cat' differ only by case"]
    """
    spellings: dict[str, list[str]] = defaultdict(list)
    for name in names:
        spellings[name.casefold()].append(name)
    alike = [quoted(same) for same in spellings.values() if len(same) > 1]
    return [f"classes {listing(alike)} differ only by case"] if alike else []
