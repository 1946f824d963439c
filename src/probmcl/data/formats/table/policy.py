"""What a blank cell and a −1 mean: for all classes, and for some of them otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from probmcl.data.labels import State
from probmcl.errors import OptionError, suggestion

BLANK: Mapping[str, State] = {"negative": State.ABSENT, "unknown": State.UNKNOWN}
MINUS_ONE: Mapping[str, float] = {"unknown": np.nan, "negative": 0.0, "positive": 1.0}
SOFT = "soft:"


@dataclass(frozen=True)
class LabelPolicy:
    """The meaning of a blank cell and of −1; None where nothing was said.

    Attributes:
        blank: `negative` or `unknown`.
        minus_one: `unknown`, `negative`, `positive` or `soft:P`, present with probability P.
        blank_of: classes for which a blank means something else.
        minus_one_of: classes for which −1 means something else.
    """

    blank: str | None = None
    minus_one: str | None = None
    blank_of: Mapping[str, str] = field(default_factory=dict)
    minus_one_of: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, blank: Sequence[str] = (), minus_one: Sequence[str] = ()) -> LabelPolicy:
        """Return the policy that the options of these names describe: MEANING, or CLASS=MEANING for one class.

        >>> LabelPolicy.of(["negative"], ["unknown", "Edema=soft:0.6"]).minus_one_of
        {'Edema': 'soft:0.6'}
        """
        blanks, others = _meanings("blank", blank), _meanings("minus_one", minus_one)
        for meaning in blanks.values():
            _refuse("blank", meaning, meaning in BLANK)
        for meaning in others.values():
            _refuse("minus_one", meaning, meaning in MINUS_ONE or _chance(meaning) is not None)
        return cls(blanks.pop("", None), others.pop("", None), blanks, others)

    def blank_states(self, names: Sequence[str], *, otherwise: str) -> UInt8[ndarray, "C"]:
        """The state of a blank in each class; `otherwise` where nothing was said."""
        refuse_other_classes("blank", self.blank_of, names)
        return np.array([BLANK[self.blank_of.get(name, self.blank or otherwise)] for name in names], dtype=np.uint8)

    def chance(self, names: Sequence[str]) -> Float[ndarray, "C"]:
        """How likely an uncertain label of each class is present, NaN for not known."""
        refuse_other_classes("minus_one", self.minus_one_of, names)
        meanings = (self.minus_one_of.get(name, self.minus_one or "unknown") for name in names)
        return np.array([_number(meaning) for meaning in meanings], dtype=np.float32)

    def describe(self) -> str:
        """What was said, for a summary; nothing where nothing was.

        >>> LabelPolicy.of(["negative"], ["unknown", "Edema=soft:0.6"]).describe()
        "blank = negative; -1 = unknown, 'Edema' soft:0.6"
        """
        said = {"blank": (self.blank, self.blank_of), "-1": (self.minus_one, self.minus_one_of)}
        parts = []
        for mark, (general, single) in said.items():
            meanings = [general] if general else []
            meanings += [f"{name!r} {meaning}" for name, meaning in single.items()]
            if meanings:
                parts.append(f"{mark} = {', '.join(meanings)}")
        return "; ".join(parts)


def refuse_other_classes(option: str, meanings: Mapping[str, str], names: Sequence[str]) -> None:
    """Refuse a meaning for a class that does not exist."""
    for name in meanings:
        if name not in names:
            problem = f"names no class: there is no {name!r}; {suggestion(name, names)}"
            raise OptionError(option, f"{name}={meanings[name]}", problem)


def _meanings(option: str, values: Sequence[str]) -> dict[str, str]:
    """Return meanings by class, that of all others under the empty name."""
    meanings: dict[str, str] = {}
    for value in values:
        name, _, meaning = value.rpartition("=")
        if name in meanings and meanings[name] != meaning:
            which = f"for {name!r}" if name else "for all classes"
            raise OptionError(option, value, f"contradicts {meanings[name]} {which}; give one of them")
        meanings[name] = meaning
    return meanings


def _refuse(option: str, meaning: str, allowed: bool) -> None:
    if not allowed:
        words = [*BLANK] if option == "blank" else [*MINUS_ONE, "soft:P with P between 0 and 1, as soft:0.6"]
        problem = f"must be {', '.join(words[:-1])} or {words[-1]}; CLASS=… for one class alone"
        raise OptionError(option, meaning, problem)


def _chance(meaning: str) -> float | None:
    """The number behind soft:, if it is one between 0 and 1."""
    try:
        number = float(meaning.removeprefix(SOFT)) if meaning.startswith(SOFT) else np.nan
    except ValueError:
        return None
    return number if 0 < number < 1 else None


def _number(meaning: str) -> float:
    found = _chance(meaning)
    return MINUS_ONE[meaning] if found is None else found
