"""Search for leaks and duplicates: identical files, and re-encoded, resized, flipped or cropped copies."""

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from probmcl.audit.duplicates.candidates import CandidatePairs, candidate_pairs
from probmcl.audit.duplicates.comparison import MIN_SIMILARITY, TileComparison, write_tiles
from probmcl.audit.duplicates.hashing import NO_CACHE, Fingerprint, ResultCache, fingerprints, open_results
from probmcl.console import Console
from probmcl.data.pixels import IntensityRange
from probmcl.data.records import SPLITS
from probmcl.errors import listed

REMEDY = (
    "Leaks inflate the scores. Remove one image from each pair, or drop the split column and let probmcl make the "
    "splits: it keeps copies together, and groups with `group=COLUMN`. `allow_leaks` trains anyway and records leaks"
)

MAX_DOUBTFUL = 200
CONFIRMED, DOUBTFUL = 0.92, 0.8
"""Minimum correlation of a confirmed duplicate, and of a doubtful pair, which is only reported.

Recall on planted copies (`benchmarks/duplicates.py`, 1,000 photographs each from PASCAL VOC and MS-COCO with seed 2,
500 synthetic tissue patches and 500 synthetic chest radiographs with seed 1): at least 99.7 % of re-encoded, resized
or flipped photographs and 100 % of the synthetic images; for crops of 2 to 6 % per side, at least 99.6 % (photographs),
100 % (patches) and 97 % (radiographs). No pair of different images was confirmed. The thresholds were chosen on other
seeds, whose images include a quarter of these VOC and an eighth of these MS-COCO photographs. Among all 6,703 VOC
photographs, 2 pairs are confirmed, and among 14,000 from MS-COCO, 1; each shows the same scene twice, moments apart.
"""

CONFIRMED_DEVIATIONS, DOUBTFUL_DEVIATIONS = 5.5, 4.5
"""Minimum distance from the median of random pairs, in robust standard deviations of log(1 - correlation).

This matters for datasets in which all images are similar. In the synthetic radiographs, random pairs have a median
correlation of 0.95, and a pair is confirmed if its correlation is at least 0.996.
"""

COARSE_DEVIATIONS = 2.5
"""The same for the correlation at half size, below which a pair is not compared at full size. In synthetic radiographs
with other seeds (5 to 7), 98 % of the pairs of different images are below; the copies exceed 3.8 deviations."""

SAMPLED_PAIRS = 300
MIN_SAMPLED_IMAGES = 40  # with fewer images, the sample is too small for an estimate


@dataclass(frozen=True)
class NearPair:
    """Two rows with similar images; `distance` is the Hamming distance between their 64-bit hashes."""

    one: int
    other: int
    distance: int
    correlation: float
    confirmed: bool


class Duplicates(NamedTuple):
    """The fingerprint of each image, sets of rows with identical files, and pairs of rows with similar images."""

    fingerprints: list[Fingerprint]
    exact: list[tuple[int, ...]]
    near: list[NearPair]

    def together(self) -> list[tuple[int, ...]]:
        """Return the sets of rows that must stay in one split: identical files and confirmed near-duplicates."""
        return [*self.exact, *((pair.one, pair.other) for pair in self.near if pair.confirmed)]

    def take(self, rows: Int[ndarray, "K"]) -> "Duplicates":
        """Return the duplicates among the given rows, numbered from 0; they must include all duplicates.

        >>> found = Duplicates([Fingerprint("the file is empty")] * 4, [(1, 3)], []).take(np.array([1, 2, 3]))
        >>> len(found.fingerprints), found.exact
        (3, [(0, 2)])
        """
        new = {row: index for index, row in enumerate(rows.tolist())}
        exact = [tuple(new[row] for row in same) for same in self.exact]
        near = [replace(pair, one=new[pair.one], other=new[pair.other]) for pair in self.near]
        return self._replace(fingerprints=[self.fingerprints[row] for row in new], exact=exact, near=near)


def find_duplicates(
    paths: Sequence[Path], *, intensity: IntensityRange | None, workers: int, console: Console
) -> Duplicates:
    """Decode every image once, then compare the candidate pairs; results of earlier searches are reused."""
    with open_results(intensity) as cache:
        with console.progress("reading every image once", len(paths)) as bar:
            prints = fingerprints(
                paths, intensity=intensity, workers=workers, advance=lambda n: bar.advance(n, steps=n), cache=cache
            )
        with console.progress("looking for duplicates", len(paths)) as bar:
            near = near_duplicates(
                paths, prints, intensity=intensity, workers=workers, advance=lambda n: bar.advance(steps=n), cache=cache
            )
    return Duplicates(prints, exact_duplicates(prints), near)


def exact_duplicates(prints: Sequence[Fingerprint]) -> list[tuple[int, ...]]:
    """Return the sets of rows whose files are identical.

    >>> exact_duplicates([Fingerprint(None, content=content) for content in (b"a", b"b", b"a")])
    [(0, 2)]
    """
    rows: dict[bytes, list[int]] = {}
    for row, image in enumerate(prints):
        if image.reason is None:
            rows.setdefault(image.content, []).append(row)
    return [tuple(identical) for identical in rows.values() if len(identical) > 1]


def near_duplicates(
    paths: Sequence[Path],
    prints: Sequence[Fingerprint],
    *,
    intensity: IntensityRange | None = None,
    workers: int = 0,
    advance: Callable[[int], None] | None = None,
    cache: ResultCache = NO_CACHE,
) -> list[NearPair]:
    """Return the confirmed and doubtful pairs of near-duplicates, sorted by row.

    `prints` are the fingerprints of `paths`. Images with similar hashes are registered; those that are not in the cache
    are read again for this, at a small size. Only the first of several identical files is compared, and nearly constant
    images are ignored. At most the 200 most similar doubtful pairs are returned. `advance` receives the progress in
    images, `len(paths)` in total.
    """
    first = {image.content: row for row, image in reversed(list(enumerate(prints))) if image.reason is None}
    rows = sorted(row for row in first.values() if not prints[row].nearly_constant)
    hashes = np.array([(prints[row].phash, prints[row].inner_phash) for row in rows], dtype=np.uint64).reshape(-1, 2)
    pairs = candidate_pairs(hashes[:, 0], hashes[:, 1])
    sample = _random_pairs(len(rows) if len(pairs.ones) else 0)
    steps = len(sample.ones) + len(pairs.ones)
    step = _in_images(len(paths), max(steps, 1), advance)
    if not steps:
        step(1)
        return []
    needed = np.unique(np.concatenate([pairs.ones, pairs.others, sample.ones, sample.others]))
    rows = [rows[index] for index in needed]
    pairs, sample = (
        some._replace(ones=np.searchsorted(needed, some.ones), others=np.searchsorted(needed, some.others))
        for some in (pairs, sample)
    )
    # After an error, the tiles may still be mapped, and Windows does not delete mapped files.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tiles, contents = Path(folder) / "tiles", [prints[row].content for row in rows]
        write_tiles(tiles, [paths[row] for row in rows], contents, intensity=intensity, workers=workers, cache=cache)
        comparison = TileComparison(tiles, contents, workers, cache, step)
        sample_coarse, sample_fine = comparison.correlations(sample)
        confirmed, doubtful = thresholds(np.where(np.isnan(sample_fine), sample_coarse, sample_fine))
        minimum = max(MIN_SIMILARITY[1], _unusual(sample_coarse, COARSE_DEVIATIONS))
        measured = comparison.correlations(pairs, minimum)
    return _near_pairs(rows, pairs, measured.fine, confirmed, doubtful)


def thresholds(sample: Float[ndarray, "K"]) -> tuple[float, float]:
    """Return the minimum correlations of a confirmed and of a doubtful pair, given the correlations of random pairs.

    >>> confirmed, doubtful = thresholds(np.full(300, 0.96) + 0.01 * np.sin(np.arange(300)))
    >>> 0.98 < doubtful < confirmed < 1
    True
    """
    confirmed, doubtful = (_unusual(sample, count) for count in (CONFIRMED_DEVIATIONS, DOUBTFUL_DEVIATIONS))
    return max(CONFIRMED, confirmed), max(DOUBTFUL, doubtful)


def _unusual(sample: Float[ndarray, "K"], deviations: float) -> float:
    """Return the correlation a number of robust standard deviations above the median; 0 for an empty sample."""
    if not len(sample):
        return 0.0
    log_difference = np.log(np.maximum(1 - sample, 1e-6))
    median = float(np.median(log_difference))
    deviation = 1.4826 * float(np.median(np.abs(log_difference - median)))
    return 1 - math.exp(median - deviations * deviation)


def _random_pairs(count: int) -> CandidatePairs:
    """Return random pairs, to measure how similar unrelated images in the dataset are."""
    size = SAMPLED_PAIRS if count >= MIN_SAMPLED_IMAGES else 0
    rng = np.random.default_rng(0)
    ones = rng.integers(0, max(count, 1), size)
    others = (ones + rng.integers(1, max(count, 2), size)) % max(count, 1)
    return CandidatePairs(ones, others, np.zeros(size, dtype=bool), np.zeros(size, dtype=np.uint8))


def _near_pairs(
    rows: Sequence[int], pairs: CandidatePairs, correlation: Float[ndarray, "P"], confirmed: float, doubtful: float
) -> list[NearPair]:
    """Return all confirmed and the most similar doubtful pairs, each once with its highest correlation."""
    best: dict[tuple[int, int], NearPair] = {}
    for index in np.flatnonzero(correlation >= doubtful):
        one, other = rows[pairs.ones[index]], rows[pairs.others[index]]
        value = float(correlation[index])
        if (one, other) not in best or best[one, other].correlation < value:
            best[one, other] = NearPair(one, other, int(pairs.distances[index]), value, confirmed=value >= confirmed)
    certain = [pair for pair in best.values() if pair.confirmed]
    uncertain = sorted((pair for pair in best.values() if not pair.confirmed), key=lambda pair: -pair.correlation)
    return sorted(certain + uncertain[:MAX_DOUBTFUL], key=lambda pair: (pair.one, pair.other))


def _in_images(images: int, pairs: int, advance: Callable[[int], None] | None) -> Callable[[int], None]:
    """Return a function that converts progress in pairs to progress in images, the unit of the progress bar."""
    done = 0

    def step(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if advance is not None:
            advance(images * done // pairs - images * before // pairs)

    return step


@dataclass(frozen=True)
class Leaks:
    """Identical files, groups and similar images that are in more than one split."""

    split: Sequence[str]
    exact: list[tuple[int, ...]]
    groups: dict[str, tuple[int, ...]]
    confirmed: list[NearPair]
    doubtful: list[NearPair]

    @property
    def blocks(self) -> bool:
        """True if training requires `allow_leaks`; doubtful pairs alone do not."""
        return bool(self.exact or self.groups or self.confirmed)

    def described(self, name_of: Callable[[int], str]) -> dict[str, list[str]]:
        """Return the leaks that block training, by kind and splits; `name_of` names the image of a row."""
        groups = [(f": group {name!r}", rows) for name, rows in self.groups.items()]
        return {
            **self._described("identical files", [("", rows) for rows in self.exact], name_of),
            **self._described("same group", groups, name_of),
            **self._described("near-duplicates", [_with_correlation(pair) for pair in self.confirmed], name_of),
        }

    def described_doubtful(self, name_of: Callable[[int], str]) -> dict[str, list[str]]:
        """Return the doubtful pairs by splits; `name_of` names the image of a row."""
        doubtful = [_with_correlation(pair) for pair in self.doubtful]
        return self._described("possible near-duplicates", doubtful, name_of)

    def _described(
        self, kind: str, leaks: Sequence[tuple[str, tuple[int, ...]]], name_of: Callable[[int], str]
    ) -> dict[str, list[str]]:
        described: dict[str, list[str]] = {}
        for detail, rows in leaks:
            first = {self.split[row]: row for row in reversed(rows)}
            for one, other in combinations([split for split in SPLITS if split in first], 2):
                leak = f"{name_of(first[one])} ({one}) and {name_of(first[other])} ({other}){detail}"
                described.setdefault(f"{kind} in {one} and {other}", []).append(leak)
        return described


def leak_lines(described: Mapping[str, Sequence[str]]) -> list[str]:
    """Return text lines with the number of leaks of each kind and a few examples.

    >>> leak_lines({"identical files in train and test": ["a.jpg (train) and b.jpg (test)"]})
    ['identical files in train and test: 1', '  a.jpg (train) and b.jpg (test)']
    """
    return [line for kind, leaks in described.items() for line in (f"{kind}: {len(leaks):,}", *listed(leaks))]


def _with_correlation(pair: NearPair) -> tuple[str, tuple[int, ...]]:
    return f": correlation {pair.correlation:.3f}", (pair.one, pair.other)


def find_leaks(
    split: Sequence[str],
    groups: Sequence[str] | None,
    exact: Iterable[tuple[int, ...]],
    near: Iterable[NearPair],
) -> Leaks:
    """Return identical files, groups and similar pairs that are in more than one split.

    >>> leaks = find_leaks(["train", "test", "train"], ["a", "b", "b"], [(0, 1)], [NearPair(0, 2, 3, 0.99, True)])
    >>> leaks.blocks, leaks.exact, leaks.groups, leaks.confirmed
    (True, [(0, 1)], {'b': (1, 2)}, [])
    >>> print(*leak_lines(leaks.described("{}.jpg".format)), sep="\\n")
    identical files in train and test: 1
      0.jpg (train) and 1.jpg (test)
    same group in train and test: 1
      2.jpg (train) and 1.jpg (test): group 'b'
    """
    members: dict[str, list[int]] = {}
    for row, group in enumerate(groups or ()):
        members.setdefault(group, []).append(row)
    across = [pair for pair in near if split[pair.one] != split[pair.other]]
    return Leaks(
        split,
        [rows for rows in exact if len({split[row] for row in rows}) > 1],
        {group: tuple(rows) for group, rows in members.items() if len({split[row] for row in rows}) > 1},
        [pair for pair in across if pair.confirmed],
        [pair for pair in across if not pair.confirmed],
    )
