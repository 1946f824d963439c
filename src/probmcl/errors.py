"""Errors with a message for the user, and suggestions for a misspelled name.

A message names an option as the keyword argument that it is in Python, in backticks: `skip_bad` or `skip_bad=0.05`. The
command line prints it as the user types it.
"""

import difflib
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


class ProbmclError(ValueError):
    """A mistake of the user, or a condition that the user can remedy; the message says how."""


class DataError(ProbmclError):
    """The data cannot be used as they are; the message names the file, the row or column, the value and the remedy."""


class OptionError(ProbmclError):
    """An option has a value that it cannot have, or two options contradict each other.

    >>> print(OptionError("folds", 1, "must be at least 2"))
    `folds=1` must be at least 2
    """

    def __init__(self, name: str, value: object, problem: str) -> None:
        super().__init__(f"`{name}={value}` {problem}")


class SettingsError(ProbmclError):
    """A recipe or a setting that does not exist or has no meaning."""


class WeightsError(ProbmclError):
    """Weights that cannot be found, or do not fit the encoder."""


class RunError(ProbmclError):
    """A folder that is not a run, or a run that cannot be used."""


class ImageError(ProbmclError):
    """A file that does not give an image: its path, and the reason.

    >>> str(ImageError(Path("photos/7.jpg"), "the file is empty"))
    'photos/7.jpg: the file is empty'
    >>> str(ImageError(Path("two\\nlines.jpg"), "the file is empty"))
    "'two\\\\nlines.jpg': the file is empty"
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)  # both, so that worker processes can pickle it
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        name = str(self.path)
        # A file name may contain line breaks, or bytes that are not text.
        return f"{name if name.isprintable() else repr(name)}: {self.reason}"


WarningKind = Literal["collapse", "diverged", "leak", "seen_before"]


@dataclass(frozen=True)
class RunWarning:
    """Something that a user should know about a run, stored with it.

    Its kind says what happened: the features collapsed, a method diverged and was left out, a leak was allowed, or
    held-out images were trained on in the run that the weights come from.
    """

    kind: WarningKind
    message: str


Number = int | float | None


def check_range(
    *, at_least: Number = None, above: Number = None, at_most: Number = None, below: Number = None, **values: Number
) -> None:
    """Refuse numbers outside of a range; a value of None is always allowed.

    >>> check_range(at_least=0, below=1, dropout=0.1, clip=1.5)
    Traceback (most recent call last):
    ValueError: clip=1.5 must be at least 0 and below 1
    """
    bounds = [("at least", operator.ge, at_least), ("above", operator.gt, above)]
    bounds += [("at most", operator.le, at_most), ("below", operator.lt, below)]
    limits = [(word, holds, limit) for word, holds, limit in bounds if limit is not None]
    given = {name: value for name, value in values.items() if value is not None}
    wrong = [f"{name}={x}" for name, x in given.items() if not all(holds(x, limit) for _, holds, limit in limits)]
    if wrong:
        allowed = " and ".join(f"{word} {limit}" for word, _, limit in limits)
        raise ValueError(f"{', '.join(wrong)} must be {allowed}")


def suggestion(word: str, choices: Iterable[str]) -> str:
    """The names most like a word or, where there are few enough to read, all of them.

    >>> suggestion("temprature", ["temperature", "threshold"])
    "did you mean 'temperature'?"
    >>> suggestion("zzz", ["bce", "asl"])
    'there are bce, asl'
    """
    choices = list(choices)
    if not choices:
        return "there are none"
    near = difflib.get_close_matches(word, choices, n=3, cutoff=0.75)
    if near:
        return "did you mean {}?".format(" or ".join(repr(name) for name in near))
    return f"there are {', '.join(choices)}" if len(choices) <= 30 else f"there are {len(choices)}, none like it"
