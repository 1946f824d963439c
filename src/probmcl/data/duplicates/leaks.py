"""Images that are there twice: as the same file, or as the same picture encoded anew, resized, flipped or cropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from probmcl.data.duplicates.candidates import Lookalikes, lookalikes
from probmcl.data.duplicates.confirmation import limits, sample_pairs
from probmcl.data.duplicates.hashing import Fingerprint
from probmcl.data.duplicates.tiles import correlations
from probmcl.data.intensity import IntensityRange
from probmcl.data.records import SPLITS

MOST_DOUBTFUL = 200
SHOWN = 3  # leaks of each kind, in a message
REMEDY = (
    "scores would be too good. Remove one of each, or drop the split column and let probmcl split: it keeps copies "
    "together, and with `group=COLUMN` groups; `allow_leaks` goes on, and the run records it"
)


@dataclass(frozen=True)
class NearPair:
    """Two rows whose images look alike, in how many of 64 bits they differ, and how well their detail correlates."""

    one: int
    other: int
    distance: int
    correlation: float
    confirmed: bool


def exact_duplicates(found: Sequence[Fingerprint]) -> list[tuple[int, ...]]:
    """Rows whose files hold the same bytes, each set with at least two.

    >>> exact_duplicates([Fingerprint(None, content=content) for content in (b"a", b"b", b"a")])
    [(0, 2)]
    """
    rows: dict[bytes, list[int]] = {}
    for row, taken in enumerate(found):
        if taken.reason is None:
            rows.setdefault(taken.content, []).append(row)
    return [tuple(same) for same in rows.values() if len(same) > 1]


def near_duplicates(
    paths: Sequence[Path],
    found: Sequence[Fingerprint],
    *,
    intensity: IntensityRange | None = None,
    workers: int = 0,
    advance: Callable[[int], None] | None = None,
) -> list[NearPair]:
    """Pairs that show the same picture, confirmed or doubtful, in the order of their rows.

    `found` are the fingerprints of `paths`. Images whose fingerprints are near are read again, small, and compared. Of
    files with the same bytes the first stands for all; images that are nearly constant are copies of nothing. Of
    doubtful pairs at most the 200 most alike are given. `advance` is told how many of all images more are done.
    """
    rows = _comparable(found)
    hashes = np.array([(found[row].look, found[row].inner) for row in rows], dtype=np.uint64).reshape(-1, 2)
    pairs = lookalikes(hashes[:, 0], hashes[:, 1])
    sample = sample_pairs(len(rows) if len(pairs.ones) else 0)
    steps = len(sample.ones) + len(pairs.ones)
    told = _of_all(len(paths), max(steps, 1), advance)
    if not steps:
        told(1)
    usual, special = (
        correlations([paths[row] for row in rows], some, intensity=intensity, workers=workers, advance=told)
        for some in (sample, pairs)
    )
    return _judged(rows, pairs, special, *limits(usual))


def clusters(count: int, joined: Iterable[tuple[int, ...] | NearPair]) -> list[tuple[int, ...]]:
    """The sets into which rows fall that are joined, directly or through others; each has at least two.

    >>> clusters(6, [(0, 3), NearPair(3, 5, 2, 0.99, True), (1, 2)])
    [(0, 3, 5), (1, 2)]
    """
    parent = list(range(count))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for rows in joined:
        first, *others = (rows.one, rows.other) if isinstance(rows, NearPair) else rows
        for row in others:
            low, high = sorted((root(first), root(row)))
            parent[high] = low
    sets: dict[int, list[int]] = {}
    for row in range(count):
        sets.setdefault(root(row), []).append(row)
    return [tuple(rows) for rows in sets.values() if len(rows) > 1]


@dataclass(frozen=True)
class Leaks:
    """What stands in two splits at once: equal files, groups with their rows, and pairs that look alike."""

    split: Sequence[str]
    exact: list[tuple[int, ...]]
    groups: dict[str, tuple[int, ...]]
    confirmed: list[NearPair]
    doubtful: list[NearPair]

    @property
    def blocks(self) -> bool:
        """Whether a run must not go on by itself; doubtful pairs alone are no reason."""
        return bool(self.exact or self.groups or self.confirmed)

    def lines(self, names: Sequence[str]) -> list[str]:
        """What leaks, of each kind the first few by the names of their rows; nothing where nothing does."""
        return [
            *self._told("equal files", [("", rows) for rows in self.exact], names),
            *self._told("one group", [(f": group {group!r}", rows) for group, rows in self.groups.items()], names),
            *self._told("the same picture", [_marked(pair) for pair in self.confirmed], names),
            *self._told("perhaps the same picture", [_marked(pair) for pair in self.doubtful], names),
        ]

    def _told(self, kind: str, found: Sequence[tuple[str, tuple[int, ...]]], names: Sequence[str]) -> list[str]:
        lines: list[str] = []
        for one, other in combinations(SPLITS, 2):
            there = [
                f"  {names[first]} ({one}) and {names[second]} ({other}){mark}"
                for mark, rows in found
                for first, second in self._first_of(rows, one, other)
            ]
            if there:
                lines += [f"{kind} in {one} and {other}: {len(there):,}", *there[:SHOWN]]
        return lines

    def _first_of(self, rows: Sequence[int], one: str, other: str) -> list[tuple[int, int]]:
        """The first row in each of two splits, if there is one in both."""
        first = [row for row in rows if self.split[row] == one][:1]
        second = [row for row in rows if self.split[row] == other][:1]
        return list(zip(first, second, strict=False))


def _marked(pair: NearPair) -> tuple[str, tuple[int, ...]]:
    return f": correlation {pair.correlation:.3f}", (pair.one, pair.other)


def leaks(
    split: Sequence[str],
    groups: Sequence[str] | None,
    exact: Iterable[tuple[int, ...]],
    near: Iterable[NearPair],
    rows: Iterable[int] | None = None,
) -> Leaks:
    """What of equal files, groups and pairs that look alike stands in two different splits; groups only of these rows.

    >>> found = leaks(["train", "test", "train"], ["a", "b", "b"], [(0, 1)], [NearPair(0, 2, 3, 0.99, True)])
    >>> found.blocks, found.exact, found.groups, found.confirmed
    (True, [(0, 1)], {'b': (1, 2)}, [])
    >>> print(*found.lines(["0.jpg", "1.jpg", "2.jpg"])[:4], sep="\\n")
    equal files in train and test: 1
      0.jpg (train) and 1.jpg (test)
    one group in train and test: 1
      2.jpg (train) and 1.jpg (test): group 'b'
    """
    members: dict[str, list[int]] = {}
    if groups is not None:
        for row in range(len(groups)) if rows is None else rows:
            members.setdefault(groups[row], []).append(row)
    divided = {group: tuple(rows) for group, rows in members.items() if len({split[row] for row in rows}) > 1}
    across = [pair for pair in near if split[pair.one] != split[pair.other]]
    return Leaks(
        split,
        [rows for rows in exact if len({split[row] for row in rows}) > 1],
        divided,
        [pair for pair in across if pair.confirmed],
        [pair for pair in across if not pair.confirmed],
    )


def _comparable(found: Sequence[Fingerprint]) -> list[int]:
    """Rows whose images show something, the first of each content."""
    first = {taken.content: row for row, taken in reversed(list(enumerate(found))) if taken.reason is None}
    return sorted(row for row in first.values() if not found[row].nearly_constant)


def _judged(
    rows: Sequence[int], pairs: Lookalikes, correlations: Float[ndarray, "P"], confirmed: float, doubtful: float
) -> list[NearPair]:
    """Each pair once, as it is most alike: all that are confirmed, and the first few of those that are not."""
    best: dict[tuple[int, int], NearPair] = {}
    for place in np.flatnonzero(correlations >= doubtful):
        one, other = rows[pairs.ones[place]], rows[pairs.others[place]]
        correlation = float(correlations[place])
        if (one, other) not in best or best[one, other].correlation < correlation:
            best[one, other] = NearPair(
                one, other, int(pairs.distances[place]), correlation, confirmed=correlation >= confirmed
            )
    sure = [pair for pair in best.values() if pair.confirmed]
    unsure = sorted((pair for pair in best.values() if not pair.confirmed), key=lambda pair: -pair.correlation)
    return sorted(sure + unsure[:MOST_DOUBTFUL], key=lambda pair: (pair.one, pair.other))


def _of_all(images: int, pairs: int, advance: Callable[[int], None] | None) -> Callable[[int], None]:
    """Tells of images what it is told of pairs, so that the sum is known before the pairs are.

    >>> told: list[int] = []
    >>> step = _of_all(5, 3, told.append)
    >>> [step(1) for _ in range(3)] and told
    [1, 2, 2]
    """
    done = 0

    def step(more: int) -> None:
        nonlocal done
        before, done = done, done + more
        if advance is not None:
            advance(images * done // pairs - images * before // pairs)

    return step
