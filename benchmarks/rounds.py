"""Alternating measurements of several competitors, so that changes in machine load affect all of them equally."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Mapping


def alternate(competitors: Mapping[str, Callable[[], float]], rounds: int, unit: str) -> dict[str, list[float]]:
    """Measure each competitor once per round, every second round in reverse order, and print each value."""
    print(f"{platform.machine()}, Python {platform.python_version()}, rounds: {rounds}", flush=True)
    values: dict[str, list[float]] = {name: [] for name in competitors}
    for index in range(rounds):
        for name in list(competitors) if index % 2 == 0 else reversed(list(competitors)):
            values[name].append(competitors[name]())
            print(f"  round {index + 1} of {rounds}: {name} {values[name][-1]:.4g} {unit}", flush=True)
    return values


def median_ratio(first: list[float], second: list[float]) -> float:
    """Return the median over the rounds of first / second.

    >>> median_ratio([2.0, 4.0, 9.0], [1.0, 1.0, 3.0])
    3.0
    """
    return statistics.median(a / b for a, b in zip(first, second, strict=True))
