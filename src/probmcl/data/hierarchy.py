"""Class hierarchies: parents, levels, and scores that respect them."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from probmcl.store.class_labels import refuse_cycles


def parents_of(names: Sequence[str], hierarchy: Mapping[str, str] | None) -> Int[ndarray, "C"]:
    """Return the parent index of each class, or −1 if it has no parent among the classes.

    >>> parents_of(["E", "E.M", "C"], {"E.M": "E"}).tolist()
    [-1, 0, -1]
    """
    parent_names = hierarchy or {}
    refuse_cycles(names, parent_names)
    index = {name: k for k, name in enumerate(names)}
    return np.array([index.get(parent_names.get(name, ""), -1) for name in names], dtype=np.int64)


def levels_of(parents: Int[ndarray, "C"]) -> Int[ndarray, "C"]:
    """Return the level of each class: 1 for a root, otherwise one more than the level of its parent.

    >>> levels_of(np.array([-1, 0, 1, -1])).tolist()
    [1, 2, 3, 1]
    """
    steps, ancestors = (parents >= 0).astype(np.int64), parents
    while (ancestors >= 0).any():  # each time, the ancestors are twice as far away
        steps += np.where(ancestors >= 0, steps[ancestors], 0)
        ancestors = np.where(ancestors >= 0, ancestors[ancestors], -1)
    return steps + 1


def child_parent_pairs(parents: Int[ndarray, "C"]) -> list[tuple[int, int]]:
    """Return all pairs (child, parent), ordered from the roots to the leaves.

    >>> child_parent_pairs(np.array([1, -1, 0]))
    [(0, 1), (2, 0)]
    """
    order = np.argsort(levels_of(parents), kind="stable")
    return [(int(k), int(parents[k])) for k in order if parents[k] >= 0]


def cap_at_parents(scores: Float[ndarray, "N C"], parents: Int[ndarray, "C"]) -> Float[ndarray, "N C"]:
    """Cap the score of each class at the lowest score among its ancestors.

    >>> cap_at_parents(np.array([[0.3, 0.9, 0.5]]), np.array([-1, 0, -1])).tolist()
    [[0.3, 0.3, 0.5]]
    """
    capped = scores.copy()
    for child, parent in child_parent_pairs(parents):
        np.minimum(capped[:, child], capped[:, parent], out=capped[:, child])
    return capped
