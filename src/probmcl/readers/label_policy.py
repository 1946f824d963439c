"""Cells of class columns: flags such as 0, 1, true and x, and the policy for blank and −1."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from probmcl.data.labels import State
from probmcl.errors import OptionError, counted, keyword, suggestion
from probmcl.readers.option_values import split_at_commas

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
