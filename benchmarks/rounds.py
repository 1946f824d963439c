"""Ratios in one run: the rivals in turn, several rounds, the median. A slow minute then hits all of them alike."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Mapping


def alternate(rivals: Mapping[str, Callable[[], float]], rounds: int, unit: str) -> dict[str, list[float]]:
    """Measure each rival once a round, every second round in the opposite order; each number is printed at once."""
    print(f"{platform.machine()}, Python {platform.python_version()}, rounds: {rounds}", flush=True)
    found: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds):
        for name in list(rivals) if turn % 2 == 0 else reversed(list(rivals)):
            found[name].append(rivals[name]())
            print(f"  round {turn + 1} of {rounds}: {name} {found[name][-1]:.4g} {unit}", flush=True)
    return found


def median_ratio(first: list[float], second: list[float]) -> float:
    """Median over the rounds of first / second.

    >>> median_ratio([2.0, 4.0, 9.0], [1.0, 1.0, 3.0])
    3.0
    """
    return statistics.median(a / b for a, b in zip(first, second, strict=True))
