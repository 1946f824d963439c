"""Pairwise test selection: a subset of a grid of cases that contains every pair of parameter values."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations

Case = Mapping[str, object]
"""The value of each parameter by name."""


def pairwise_cover(cases: Sequence[Case]) -> set[int]:
    """Return the indices of a greedy pairwise cover: cases with the most new pairs come first.

    Cases with equally many new pairs are visited in an order that is random but always the same.
    """
    pairs = [_pairs(case) for case in cases]
    most_pairs = max(map(len, pairs), default=0)
    order = random.Random(0).sample(range(len(cases)), len(cases))
    covered: set[object] = set()
    chosen: set[int] = set()
    for least_gain in range(most_pairs, 0, -1):
        for index in order:
            new_pairs = pairs[index] - covered
            if len(new_pairs) >= least_gain:
                covered |= new_pairs
                chosen.add(index)
    return chosen


def _pairs(case: Case) -> set[object]:
    """Return all pairs of named values of a case; for a case with one parameter, its only named value."""
    values = sorted((name, repr(value)) for name, value in case.items())  # repr, because not every value has a hash
    if len(values) == 1:
        return set(values)
    return set(combinations(values, 2))
