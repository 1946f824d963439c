"""The content of labels.json: the classes of a run, and how their labels were read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from probmcl.errors import counted

MAX_CLASSES = 100_000
"""Largest number of classes of a run. Loading a model with more would take minutes or exhaust the memory."""

UNPRINTABLE = re.compile(r"[\x00\ud800-\udfff]")
"""Characters that files and figures cannot contain: NUL and lone surrogates."""


class StoredPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the labels of a run were read, for the report.

    Attributes:
        unknown: what is done with labels that are not known.
        blank: the meaning of a blank cell, as given in the options.
        minus_one: the meaning of -1, as given in the options.
        chance_of_uncertain: for each class with uncertain labels, the probability that they are positive.
        labels: the number of labels in each state.
    """

    unknown: str
    blank: tuple[str, ...] | None
    minus_one: tuple[str, ...] | None
    chance_of_uncertain: dict[str, float]
    labels: dict[str, int]


class ClassLabels(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The classes of a run, in the order of the scores, with their training positives and parents."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    hierarchy: dict[str, str] | None
    policy: StoredPolicy

    def __post_init__(self) -> None:
        unprintable = [name for name in self.names if UNPRINTABLE.search(name)]
        if unprintable:
            raise ValueError(f"the class name {unprintable[0]!r} has characters that cannot be written")
        if len(self.names) > MAX_CLASSES:
            raise ValueError(f"{counted(len(self.names), 'class', 'classes')}; the limit is {MAX_CLASSES:,}")
        if not self.names or len(set(self.names)) < len(self.names) or len(self.counts) != len(self.names):
            names, counts = counted(len(self.names), "name"), counted(len(self.counts), "count")
            raise ValueError(f"{names} and {counts}; expected one of each per class")
        refuse_cycles(self.names, self.hierarchy or {})


def refuse_cycles(names: Sequence[str], hierarchy: Mapping[str, str]) -> None:
    """Raise `ValueError` if a class is its own ancestor, or has such an ancestor.

    >>> refuse_cycles(["a", "b"], {"a": "b", "b": "a"})
    Traceback (most recent call last):
    ValueError: class 'a' is its own ancestor; correct the hierarchy
    """
    classes = set(names)
    roots_reached: set[str] = set()  # classes whose ancestors are known to end at a root
    for name in names:
        path: dict[str, None] = {}  # in order, with fast lookup
        ancestor: str | None = name
        while ancestor in classes and ancestor not in roots_reached:
            if ancestor in path:
                raise ValueError(f"class {name!r} is its own ancestor; correct the hierarchy")
            path[ancestor] = None
            ancestor = hierarchy.get(ancestor)
        roots_reached.update(path)
