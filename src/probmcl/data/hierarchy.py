"""Hierarchies of classes: parents, levels, and scores that agree with them."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray


def parents_of(names: Sequence[str], hierarchy: Mapping[str, str] | None) -> Int[ndarray, "C"]:
    """Return the index of each class's parent, −1 if it has none or the parent is not a class.

    >>> parents_of(["E", "E.M", "C"], {"E.M": "E"}).tolist()
    [-1, 0, -1]
    """
    index = {name: k for k, name in enumerate(names)}
    parents = np.array([index.get((hierarchy or {}).get(name, ""), -1) for name in names], dtype=np.int64)
    above = parents
    for _ in names:
        above = np.where(above >= 0, parents[above], -1)
    circle = np.flatnonzero(above >= 0)
    if len(circle):
        raise ValueError(f"class {names[circle[0]]!r} is its own ancestor; correct the hierarchy")
    return parents


def levels_of(parents: Int[ndarray, "C"]) -> Int[ndarray, "C"]:
    """Return the level of each class: 1 without a parent, otherwise one more than its parent.

    >>> levels_of(np.array([-1, 0, 1, -1])).tolist()
    [1, 2, 3, 1]
    """
    levels, above = np.ones(len(parents), dtype=np.int64), parents
    while (above >= 0).any():
        levels += above >= 0
        above = np.where(above >= 0, parents[above], -1)
    return levels


def from_the_top(parents: Int[ndarray, "C"]) -> list[tuple[int, int]]:
    """Return pairs (class, parent), every parent before its children.

    >>> from_the_top(np.array([1, -1, 0]))
    [(0, 1), (2, 0)]
    """
    order = np.argsort(levels_of(parents), kind="stable")
    return [(int(k), int(parents[k])) for k in order if parents[k] >= 0]


def below_parents(scores: Float[ndarray, "N C"], parents: Int[ndarray, "C"]) -> Float[ndarray, "N C"]:
    """Return scores of which no child's exceeds its parent's: the minimum over a class and its ancestors.

    >>> below_parents(np.array([[0.3, 0.9, 0.5]]), np.array([-1, 0, -1])).tolist()
    [[0.3, 0.3, 0.5]]
    """
    capped = scores.copy()
    for child, parent in from_the_top(parents):
        np.minimum(capped[:, child], capped[:, parent], out=capped[:, child])
    return capped
