"""A small part of a grid of cases in which every two values that occur together still do."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations

Case = Mapping[str, object]
"""The name of each parameter to its value."""


def pairwise_cover(cases: Sequence[Case]) -> set[int]:
    """Which cases to take: greedily those that add the most pairs, in an order that depends on nothing but the grid."""
    named = [sorted((name, repr(value)) for name, value in case.items()) for case in cases]
    pairs: list[set[object]] = [set(combinations(values, 2)) or set(values) for values in named]
    order = random.Random(0).sample(range(len(cases)), len(cases))
    covered: set[object] = set()
    chosen: set[int] = set()
    for least in range(max(map(len, pairs), default=0), 0, -1):
        for index in order:
            if len(pairs[index] - covered) >= least:
                covered |= pairs[index]
                chosen.add(index)
    return chosen
