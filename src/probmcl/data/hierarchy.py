"""Classes that have parents: whose child each is, at which level it stands, and scores that agree with that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray


def parents_of(names: Sequence[str], hierarchy: Mapping[str, str] | None) -> Int[ndarray, "C"]:
    """The place of each class's parent among the names, −1 where it has none or that is no class itself.

    >>> parents_of(["E", "E.M", "C"], {"E.M": "E"}).tolist()
    [-1, 0, -1]
    """
    place = {name: k for k, name in enumerate(names)}
    parents = np.array([place.get((hierarchy or {}).get(name, ""), -1) for name in names], dtype=np.int64)
    _refuse_a_circle(names, parents)
    return parents


def levels_of(parents: Int[ndarray, "C"]) -> Int[ndarray, "C"]:
    """The level of each class: 1 without a parent, one more than its parent's with one.

    >>> levels_of(np.array([-1, 0, 1, -1])).tolist()
    [1, 2, 3, 1]
    """
    levels, above = np.ones(len(parents), dtype=np.int64), parents
    while (above >= 0).any():
        levels += above >= 0
        above = np.where(above >= 0, parents[above], -1)
    return levels


def from_the_top(parents: Int[ndarray, "C"]) -> list[tuple[int, int]]:
    """Pairs (class, parent), every parent before its children.

    >>> from_the_top(np.array([1, -1, 0]))
    [(0, 1), (2, 0)]
    """
    order = np.argsort(levels_of(parents), kind="stable")
    return [(int(k), int(parents[k])) for k in order if parents[k] >= 0]


def below_parents(scores: Float[ndarray, "N C"], parents: Int[ndarray, "C"]) -> Float[ndarray, "N C"]:
    """Scores of which no child's is above its parent's: each is the least of its own and all those above it.

    >>> below_parents(np.array([[0.3, 0.9, 0.5]]), np.array([-1, 0, -1])).tolist()
    [[0.3, 0.3, 0.5]]
    """
    capped = scores.copy()
    for child, parent in from_the_top(parents):
        np.minimum(capped[:, child], capped[:, parent], out=capped[:, child])
    return capped


def _refuse_a_circle(names: Sequence[str], parents: Int[ndarray, "C"]) -> None:
    above = parents
    for _ in names:
        above = np.where(above >= 0, parents[above], -1)
    if (above >= 0).any():
        raise ValueError(f"class {names[int(np.flatnonzero(above >= 0)[0])]!r} is its own ancestor; mend the hierarchy")
