"""The search for duplicates (equal files, and re-encoded, resized, flipped or cropped images) and for leaks."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from probmcl.console import Console
from probmcl.data.duplicates.candidates import CandidatePairs, candidate_pairs
from probmcl.data.duplicates.hashing import Fingerprint, fingerprints
from probmcl.data.duplicates.registration import correlations
from probmcl.data.intensity import IntensityRange
from probmcl.data.records import SPLITS

SHOWN = 3  # leaks of each kind in a message
REMEDY = (
    "scores would be too good. Remove one of each, or drop the split column and let probmcl split: it keeps copies "
    "together, and with `group=COLUMN` groups; `allow_leaks` goes on, and the run records it"
)

MAX_DOUBTFUL = 200
CONFIRMED, DOUBTFUL = 0.92, 0.8
"""Correlations above which a pair is a duplicate, and above which it is reported.

Planted copies that are confirmed (`benchmarks/duplicates.py`): re-encoded, resized or flipped, at least 99.8 % in
1,000 photographs each of PASCAL VOC and MS-COCO (seed 2), 100 % in 500 synthetic tissue patches and 500 synthetic
chest radiographs (seed 1); cropped by 2 to 6 % a side, at least 99.6 %, 100 % and 97 %. Different images confirmed:
none. The thresholds were chosen on other seeds, but a quarter of the VOC draw and an eighth of the MS-COCO draw had
been seen. Among all 6,703 photographs of VOC 2 pairs are confirmed and among 14,000 of MS-COCO 1: all show a scene
twice, moments apart.
"""

CONFIRMED_DEVIATIONS, DOUBTFUL_DEVIATIONS = 5.5, 4.5
"""If any two images of a dataset are similar, a copy must be more similar: by this many deviations of
log(1 - correlation).

In the synthetic radiographs random pairs have a median of 0.95, and a pair must reach 0.996 to be confirmed.
"""

SAMPLED_PAIRS = 300
MIN_SAMPLED_IMAGES = 40  # a sample of fewer images says nothing


@dataclass(frozen=True)
class NearPair:
    """Two rows with similar images: the bits (of 64) in which their hashes differ, and their registered correlation."""

    one: int
    other: int
    distance: int
    correlation: float
    confirmed: bool


class Duplicates(NamedTuple):
    """A fingerprint of each image, sets of rows with equal files, and pairs of rows with similar images."""

    fingerprints: list[Fingerprint]
    exact: list[tuple[int, ...]]
    near: list[NearPair]

    def together(self) -> list[tuple[int, ...]]:
        """Return sets of rows that must stay in one split: equal files and confirmed near duplicates."""
        return [*self.exact, *((pair.one, pair.other) for pair in self.near if pair.confirmed)]


def find_duplicates(
    paths: Sequence[Path], *, intensity: IntensityRange | None, workers: int, console: Console
) -> Duplicates:
    """Decode every image once, then compare those that might be the same."""
    with console.progress("reading every image once", len(paths)) as bar:
        found = fingerprints(paths, intensity=intensity, workers=workers, advance=lambda n: bar.advance(n, steps=n))
    with console.progress("looking for duplicates", len(paths)) as bar:
        near = near_duplicates(
            paths, found, intensity=intensity, workers=workers, advance=lambda n: bar.advance(steps=n)
        )
    return Duplicates(found, exact_duplicates(found), near)


def exact_duplicates(found: Sequence[Fingerprint]) -> list[tuple[int, ...]]:
    """Return sets of at least two rows whose files have the same bytes.

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
    """Return the pairs that show the same picture, confirmed or doubtful, in the order of their rows.

    `found` are the fingerprints of `paths`. Images with similar hashes are read again, small, and registered. Of files
    with the same bytes only the first is compared; nearly constant images are never duplicates. At most the 200 most
    similar doubtful pairs are returned. `advance` is called with numbers of images that add up to that of the paths.
    """
    first = {taken.content: row for row, taken in reversed(list(enumerate(found))) if taken.reason is None}
    rows = sorted(row for row in first.values() if not found[row].nearly_constant)
    hashes = np.array([(found[row].phash, found[row].inner_phash) for row in rows], dtype=np.uint64).reshape(-1, 2)
    pairs = candidate_pairs(hashes[:, 0], hashes[:, 1])
    sample = _random_pairs(len(rows) if len(pairs.ones) else 0)
    steps = len(sample.ones) + len(pairs.ones)
    step = _in_images(len(paths), max(steps, 1), advance)
    if not steps:
        step(1)
    usual, special = (
        correlations([paths[row] for row in rows], some, intensity=intensity, workers=workers, advance=step)
        for some in (sample, pairs)
    )
    return _near_pairs(rows, pairs, special, *thresholds(usual))


def thresholds(sample: Float[ndarray, "K"]) -> tuple[float, float]:
    """Return the correlations above which a pair is confirmed and doubtful, given those of random pairs.

    >>> confirmed, doubtful = thresholds(np.full(300, 0.96) + 0.01 * np.sin(np.arange(300)))
    >>> 0.98 < doubtful < confirmed < 1
    True
    """
    if not len(sample):
        return CONFIRMED, DOUBTFUL
    log_difference = np.log(np.maximum(1 - sample, 1e-6))
    median = float(np.median(log_difference))
    deviation = 1.4826 * float(np.median(np.abs(log_difference - median)))
    confirmed = 1 - math.exp(median - CONFIRMED_DEVIATIONS * deviation)
    doubtful = 1 - math.exp(median - DOUBTFUL_DEVIATIONS * deviation)
    return max(CONFIRMED, confirmed), max(DOUBTFUL, doubtful)


def _random_pairs(count: int) -> CandidatePairs:
    """Return random pairs, which show how similar any two images of the dataset are."""
    size = SAMPLED_PAIRS if count >= MIN_SAMPLED_IMAGES else 0
    rng = np.random.default_rng(0)
    ones = rng.integers(0, max(count, 1), size)
    others = (ones + rng.integers(1, max(count, 2), size)) % max(count, 1)
    return CandidatePairs(ones, others, np.zeros(size, dtype=bool), np.zeros(size, dtype=np.uint8))


def _near_pairs(
    rows: Sequence[int], pairs: CandidatePairs, correlation: Float[ndarray, "P"], confirmed: float, doubtful: float
) -> list[NearPair]:
    """Return each pair once, with its highest correlation: all confirmed ones, and the most similar doubtful ones."""
    best: dict[tuple[int, int], NearPair] = {}
    for index in np.flatnonzero(correlation >= doubtful):
        one, other = rows[pairs.ones[index]], rows[pairs.others[index]]
        value = float(correlation[index])
        if (one, other) not in best or best[one, other].correlation < value:
            best[one, other] = NearPair(one, other, int(pairs.distances[index]), value, confirmed=value >= confirmed)
    sure = [pair for pair in best.values() if pair.confirmed]
    unsure = sorted((pair for pair in best.values() if not pair.confirmed), key=lambda pair: -pair.correlation)
    return sorted(sure + unsure[:MAX_DOUBTFUL], key=lambda pair: (pair.one, pair.other))


def _in_images(images: int, pairs: int, advance: Callable[[int], None] | None) -> Callable[[int], None]:
    """Return a function that translates progress in pairs into progress in images, whose sum is known in advance."""
    done = 0

    def step(more: int) -> None:
        nonlocal done
        before, done = done, done + more
        if advance is not None:
            advance(images * done // pairs - images * before // pairs)

    return step


@dataclass(frozen=True)
class Leaks:
    """Rows in two splits: equal files, members of a group, and pairs of similar images."""

    split: Sequence[str]
    exact: list[tuple[int, ...]]
    groups: dict[str, tuple[int, ...]]
    confirmed: list[NearPair]
    doubtful: list[NearPair]

    @property
    def blocks(self) -> bool:
        """Whether a run is refused unless leaks are allowed; doubtful pairs alone do not block."""
        return bool(self.exact or self.groups or self.confirmed)

    def lines(self, names: Sequence[str]) -> list[str]:
        """Return a text of several lines: the number of leaks of each kind, and the first few by the names of rows."""
        return [
            *self._lines("equal files", [("", rows) for rows in self.exact], names),
            *self._lines("one group", [(f": group {group!r}", rows) for group, rows in self.groups.items()], names),
            *self._lines("the same picture", [_marked(pair) for pair in self.confirmed], names),
            *self._lines("perhaps the same picture", [_marked(pair) for pair in self.doubtful], names),
        ]

    def _lines(self, title: str, leaking: Sequence[tuple[str, tuple[int, ...]]], names: Sequence[str]) -> list[str]:
        lines: list[str] = []
        for one, other in combinations(SPLITS, 2):
            examples = []
            for mark, rows in leaking:
                first = {self.split[row]: names[row] for row in reversed(rows)}
                if one in first and other in first:
                    examples.append(f"  {first[one]} ({one}) and {first[other]} ({other}){mark}")
            if examples:
                lines += [f"{title} in {one} and {other}: {len(examples):,}", *examples[:SHOWN]]
        return lines


def _marked(pair: NearPair) -> tuple[str, tuple[int, ...]]:
    return f": correlation {pair.correlation:.3f}", (pair.one, pair.other)


def leaks(
    split: Sequence[str],
    groups: Sequence[str] | None,
    exact: Iterable[tuple[int, ...]],
    near: Iterable[NearPair],
    rows: Iterable[int] | None = None,
) -> Leaks:
    """Return the equal files, groups and similar pairs that are in two splits; of groups, only these rows count.

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
    across = [pair for pair in near if split[pair.one] != split[pair.other]]
    return Leaks(
        split,
        [rows for rows in exact if len({split[row] for row in rows}) > 1],
        {group: tuple(rows) for group, rows in members.items() if len({split[row] for row in rows}) > 1},
        [pair for pair in across if pair.confirmed],
        [pair for pair in across if not pair.confirmed],
    )
