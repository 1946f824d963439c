"""Meaning of label cells: flags such as 0, 1, true and x, blanks, −1, and labels for "no label"."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from probmcl.data.labels import State
from probmcl.errors import DataError, OptionError, Question, Reading, counted, keyword, quoted, suggestion
from probmcl.readers.spreadsheet import LIST_ITEM

BLANK = 4
"""Code of a blank cell, in addition to the four states. The label policy defines its meaning."""

CROSSES = ("x", "✓", "✔")
"""Marks of a present label. In a table without other marks, a blank means absent."""

FLAG_VALUES: Mapping[str, int] = {
    **dict.fromkeys(("0", "0.0", "false", "no", "n", "nein", "absent", "negative"), State.ABSENT),
    **dict.fromkeys(("1", "1.0", "true", "yes", "y", "ja", "present", "positive", *CROSSES), State.PRESENT),
    **dict.fromkeys(("-1", "-1.0"), State.UNCERTAIN),
    **dict.fromkeys(("", "nan", "na", "n/a", "null", "none"), BLANK),
}
NUMBER = re.compile(r"([+-]?[01])(\.0*|,(?!000$)0+)?(e[+-]?0+)?", re.IGNORECASE)
"""0, 1 and −1, with optional zeros after a decimal point or comma; 1,000 is excluded, as it may be a thousand."""

BLANK_MEANINGS: Mapping[str, State] = {"negative": State.ABSENT, "unknown": State.UNKNOWN}
MINUS_ONE_MEANINGS: Mapping[str, float] = {"unknown": np.nan, "negative": 0.0, "positive": 1.0}
SOFT = "soft:"

NONE = ("no finding", "no findings", "none", "nothing", "no label", "no labels")
BLANK_TEXTS = ("nan", "na", "n/a", "null")  # written by programs for a missing value

ALWAYS_TOGETHER = 3  # times that two words occur, always next to each other, if they may be one name with a space
RECURRING = 1.5  # times that distinct cells with several words occur on average, if they may be names

Words = tuple[str, ...]


def split_at_commas(values: Sequence[str], is_value: Callable[[str], bool]) -> tuple[str, ...]:
    """Split each value at its commas, unless it is a value itself or some part is not.

    >>> split_at_commas(["site,date", "lung, left", "lung, right"], {"site", "date", "lung, left"}.__contains__)
    ('site', 'date', 'lung, left', 'lung, right')
    """
    result: list[str] = []
    for value in values:
        parts = [part.strip() for part in value.split(",")]
        split = len(parts) > 1 and not is_value(value) and all(map(is_value, parts))
        result += parts if split else [value]
    return tuple(result)


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


@dataclass(frozen=True)
class LabelPolicy:
    """The meanings of a blank cell and of −1; None if not set.

    Attributes:
        blank: `negative` or `unknown`.
        minus_one: `unknown`, `negative`, `positive` or `soft:P` (present with probability P).
        blank_of: the meaning of a blank cell for single classes.
        minus_one_of: the meaning of −1 for single classes.
    """

    blank: str | None = None
    minus_one: str | None = None
    blank_of: Mapping[str, str] = field(default_factory=dict)
    minus_one_of: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, blank: Sequence[str] = (), minus_one: Sequence[str] = ()) -> "LabelPolicy":
        """Parse the values of the `blank` and `minus_one` options: MEANING, or CLASS=MEANING for one class.

        >>> LabelPolicy.of(["negative"], ["unknown", "Edema=soft:0.6"]).minus_one_of
        {'Edema': 'soft:0.6'}
        """
        words = [*MINUS_ONE_MEANINGS, "soft:P with P between 0 and 1, such as soft:0.6"]
        blanks = _meanings("blank", blank, BLANK_MEANINGS.__contains__, [*BLANK_MEANINGS])
        others = _meanings("minus_one", minus_one, lambda meaning: _chance(meaning) is not None, words)
        return cls(blanks.pop("", None), others.pop("", None), blanks, others)

    def blank_states(self, names: Sequence[str], *, default: str) -> UInt8[ndarray, "C"]:
        """Return, for each class, the state of a blank cell; `default` applies if no meaning is set."""
        _refuse_other_classes("blank", self.blank_of, names)
        meanings = (self.blank_of.get(name, self.blank or default) for name in names)
        return np.array([BLANK_MEANINGS[meaning] for meaning in meanings], dtype=np.uint8)

    def chance(self, names: Sequence[str]) -> Float[ndarray, "C"]:
        """Return, for each class, the probability that an uncertain label is present, or NaN for unknown."""
        _refuse_other_classes("minus_one", self.minus_one_of, names)
        meanings = (self.minus_one_of.get(name, self.minus_one or "unknown") for name in names)
        return np.array([_chance(meaning) for meaning in meanings], dtype=np.float32)


def meaning_notes(policy: LabelPolicy, blanks: int | None, uncertain: int, default: str) -> list[str]:
    """Return notes on the meanings of blank and −1, the number of such cells, and the option that changes the meaning.

    `blanks` is None if each row has one label; the policy then applies to labels without a row.

    >>> meaning_notes(LabelPolicy.of([], ["positive", "Edema=soft:0.6"]), 3, 2, "unknown")
    ['blank = unknown (3 cells; change with `blank="negative"`)', "-1 = positive, 'Edema' soft:0.6 (2 cells)"]
    """
    change = keyword("blank", "negative" if default == "unknown" else "unknown")
    blank = ("blank" if blanks is not None else "labels without a row", "`blank`", change, blanks, default)
    notes = []
    for (text, option, change, count, meaning), general, single in (
        (blank, policy.blank, policy.blank_of),
        (("-1", "`minus_one`", "`minus_one`", uncertain, "unknown"), policy.minus_one, policy.minus_one_of),
    ):
        meanings = ", ".join([general or meaning, *(f"{name!r} {value}" for name, value in single.items())])
        if count:
            cells = f"{counted(count, 'cell')}{'' if general else f'; change with {change}'}"
            notes.append(f"{text} = {meanings} ({cells})")
        elif general or single:
            effect = f"{option} has no effect, because no cell is {text}"
            notes.append(effect if count is not None else f"{text} = {meanings}")
    return notes


def _refuse_other_classes(option: str, meanings: Mapping[str, str], names: Sequence[str]) -> None:
    for name in meanings:
        if name not in names:
            problem = f"names the unknown class {name!r}; {suggestion(name, names)}"
            raise OptionError(option, f"{name}={meanings[name]}", problem)


def _meanings(
    option: str, values: Sequence[str], is_meaning: Callable[[str], bool], allowed: Sequence[str]
) -> dict[str, str]:
    """Return the meanings by class, with the meaning for all other classes under the empty name."""
    meanings: dict[str, str] = {}
    for value in split_at_commas(values, lambda text: "," not in text and is_meaning(text.rpartition("=")[2])):
        name, _, meaning = value.rpartition("=")
        if meanings.setdefault(name, meaning) != meaning:
            which = f"for {name!r}" if name else "for all classes"
            raise OptionError(option, value, f"contradicts {meanings[name]!r} {which}; remove one of them")
    for meaning in meanings.values():
        if not is_meaning(meaning):
            problem = f"must be {', '.join(allowed[:-1])} or {allowed[-1]}; CLASS=MEANING sets it for one class"
            raise OptionError(option, meaning, problem)
    return meanings


def _chance(meaning: str) -> float | None:
    """Return the probability that a label marked −1 is present, or None if the meaning is invalid."""
    if meaning in MINUS_ONE_MEANINGS:
        return MINUS_ONE_MEANINGS[meaning]
    try:
        number = float(meaning.removeprefix(SOFT)) if meaning.startswith(SOFT) else np.nan
    except ValueError:
        return None
    return number if 0 < number < 1 else None


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
