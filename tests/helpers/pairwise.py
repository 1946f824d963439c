"""Pairwise test selection: a subset of a grid of cases that contains every pair of parameter values."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations

Case = Mapping[str, object]
"""The value of each parameter by name."""


def pairwise_cover(cases: Sequence[Case]) -> set[int]:
    """Return the indices of a greedy pairwise cover; the order is random but fixed."""
    named = [sorted((name, repr(value)) for name, value in case.items()) for case in cases]
    pairs: list[set[object]] = [set(combinations(values, 2)) or set(values) for values in named]
    order = random.Random(0).sample(range(len(cases)), len(cases))
    covered: set[object] = set()
    chosen: set[int] = set()
    for min_gain in range(max(map(len, pairs), default=0), 0, -1):
        for index in order:
            if len(pairs[index] - covered) >= min_gain:
                covered |= pairs[index]
                chosen.add(index)
    return chosen
