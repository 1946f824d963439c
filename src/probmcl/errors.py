"""What somebody may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
