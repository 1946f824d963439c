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
from probmcl.audit.duplicates.hashing import DEFAULT_SEARCH, Fingerprint, SearchSettings, fingerprints, open_results
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
        confirmed = [(pair.one, pair.other) for pair in self.near if pair.confirmed]
        return [*self.exact, *confirmed]

    def take(self, rows: Int[ndarray, "K"]) -> "Duplicates":
        """Return the duplicates among the given rows, numbered from 0; they must include all duplicates.

        >>> found = Duplicates([Fingerprint("the file is empty")] * 4, [(1, 3)], []).take(np.array([1, 2, 3]))
        >>> len(found.fingerprints), found.exact
        (3, [(0, 2)])
        """
        new_row = {row: index for index, row in enumerate(rows.tolist())}
        prints = [self.fingerprints[row] for row in new_row]
        exact = [tuple(new_row[row] for row in identical) for identical in self.exact]
        near = [replace(pair, one=new_row[pair.one], other=new_row[pair.other]) for pair in self.near]
        return Duplicates(prints, exact, near)


def find_duplicates(
    paths: Sequence[Path], *, intensity: IntensityRange | None, workers: int, console: Console
) -> Duplicates:
    """Decode every image once, then compare the candidate pairs; results of earlier searches are reused."""
    with open_results(intensity) as cache:
        settings = SearchSettings(intensity, workers, cache)
        with console.progress("reading every image once", len(paths)) as bar:
            prints = fingerprints(paths, settings, advance=lambda images: bar.advance(images, steps=images))
        with console.progress("looking for duplicates", len(paths)) as bar:
            near = near_duplicates(paths, prints, settings, advance=lambda images: bar.advance(steps=images))
    return Duplicates(prints, exact_duplicates(prints), near)


def exact_duplicates(prints: Sequence[Fingerprint]) -> list[tuple[int, ...]]:
    """Return the sets of rows whose files are identical.

    >>> exact_duplicates([Fingerprint(None, content=content) for content in (b"a", b"b", b"a")])
    [(0, 2)]
    """
    rows_of_content: dict[bytes, list[int]] = {}
    for row, image in enumerate(prints):
        if image.reason is None:
            rows_of_content.setdefault(image.content, []).append(row)
    return [tuple(rows) for rows in rows_of_content.values() if len(rows) > 1]


def near_duplicates(
    paths: Sequence[Path],
    prints: Sequence[Fingerprint],
    settings: SearchSettings = DEFAULT_SEARCH,
    *,
    advance: Callable[[int], None] | None = None,
) -> list[NearPair]:
    """Return the confirmed and doubtful pairs of near-duplicates, sorted by row.

    `prints` are the fingerprints of `paths`. Images with similar hashes are registered; those that are not in the cache
    are read again for this, at a small size. Only the first of several identical files is compared, and nearly constant
    images are ignored. At most the 200 most similar doubtful pairs are returned. `advance` receives the progress in
    images, `len(paths)` in total.
    """
    distinct = _distinct_rows(prints)
    hashes = [(prints[row].phash, prints[row].inner_phash) for row in distinct]
    columns = np.array(hashes, dtype=np.uint64).reshape(-1, 2)  # two columns also without images
    candidates = candidate_pairs(columns[:, 0], columns[:, 1])
    if not len(candidates.ones):
        if advance is not None:
            advance(len(paths))
        return []
    unrelated = _random_pairs(len(distinct))  # they show how similar different images of this dataset are
    step = _in_images(len(paths), len(unrelated.ones) + len(candidates.ones), advance)

    # Only the images of a pair are read again. Below, the images of a pair are indices of `rows`.
    images = np.unique(np.concatenate([candidates.ones, candidates.others, unrelated.ones, unrelated.others]))
    rows = [distinct[image] for image in images]
    pairs = _renumbered(candidates, images)
    sample = _renumbered(unrelated, images)

    digests = [prints[row].content for row in rows]  # of the image files
    # After an error, the tiles may still be mapped, and Windows does not delete mapped files.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        tiles = Path(folder) / "tiles"
        write_tiles(tiles, [paths[row] for row in rows], digests, settings)
        comparison = TileComparison(tiles, digests, settings, step)
        coarse, fine = comparison.correlations(sample)  # at half size, and at full size
        final = np.where(np.isnan(fine), coarse, fine)  # few random pairs are compared at full size
        confirmed, doubtful = thresholds(final)
        # Only pairs that are unusually similar at half size are compared at full size.
        min_coarse = max(MIN_SIMILARITY.third, _unusual_correlation(coarse, COARSE_DEVIATIONS))
        measured = comparison.correlations(pairs, min_coarse)
    return _near_pairs(rows, pairs, measured.fine, confirmed, doubtful)


def _distinct_rows(prints: Sequence[Fingerprint]) -> list[int]:
    """Return the first row of each content, without images that are unreadable or nearly constant."""
    rows: list[int] = []
    seen: set[bytes] = set()
    for row, image in enumerate(prints):
        if image.reason is not None or image.content in seen:
            continue
        seen.add(image.content)
        if not image.nearly_constant:
            rows.append(row)
    return rows


def _renumbered(pairs: CandidatePairs, images: Int[ndarray, "K"]) -> CandidatePairs:
    """Return the pairs with the position of each image in `images`, which is sorted and has all of them."""
    return pairs._replace(ones=np.searchsorted(images, pairs.ones), others=np.searchsorted(images, pairs.others))


def thresholds(sample: Float[ndarray, "K"]) -> tuple[float, float]:
    """Return the minimum correlations of a confirmed and of a doubtful pair, given the correlations of random pairs.

    >>> confirmed, doubtful = thresholds(np.full(300, 0.96) + 0.01 * np.sin(np.arange(300)))
    >>> 0.98 < doubtful < confirmed < 1
    True
    """
    confirmed = max(CONFIRMED, _unusual_correlation(sample, CONFIRMED_DEVIATIONS))
    doubtful = max(DOUBTFUL, _unusual_correlation(sample, DOUBTFUL_DEVIATIONS))
    return confirmed, doubtful


def _unusual_correlation(sample: Float[ndarray, "K"], deviations: float) -> float:
    """Return the correlation a number of robust standard deviations above the median; 0 for an empty sample.

        1 − exp(median − deviations · σ),   σ = 1.4826 · median of |x − median|

    where x = log(1 − correlation) for each correlation in the sample, and the median is that of x. A high correlation
    has a low x. For a normal distribution, σ is the standard deviation.
    """
    if not len(sample):
        return 0.0
    log_difference = np.log(np.maximum(1 - sample, 1e-6))
    median = float(np.median(log_difference))
    median_deviation = float(np.median(np.abs(log_difference - median)))
    standard_deviation = 1.4826 * median_deviation
    return 1 - math.exp(median - deviations * standard_deviation)


def _random_pairs(images: int) -> CandidatePairs:
    """Return random pairs, to measure how similar unrelated images in the dataset are; none for very few images."""
    size = SAMPLED_PAIRS if images >= MIN_SAMPLED_IMAGES else 0
    rng = np.random.default_rng(0)
    ones = rng.integers(0, max(images, 1), size)
    steps = rng.integers(1, max(images, 2), size)  # from the first to the second image, which is never the same
    others = (ones + steps) % max(images, 1)
    return CandidatePairs(ones, others, np.zeros(size, dtype=bool), np.zeros(size, dtype=np.uint8))


def _near_pairs(
    rows: Sequence[int], pairs: CandidatePairs, correlation: Float[ndarray, "P"], confirmed: float, doubtful: float
) -> list[NearPair]:
    """Return all confirmed and the most similar doubtful pairs, each once with its highest correlation.

    Args:
        rows: the row of each image.
        pairs: pairs of images; a pair may be in it twice, flipped and not flipped.
        correlation: the correlation of each pair; NaN for a pair that is not similar.
        confirmed: the minimum correlation of a confirmed pair.
        doubtful: the minimum correlation of a doubtful pair.
    """
    best: dict[tuple[int, int], NearPair] = {}
    for index in np.flatnonzero(correlation >= doubtful):
        one = rows[pairs.ones[index]]
        other = rows[pairs.others[index]]
        value = float(correlation[index])
        earlier = best.get((one, other))
        if earlier is None or earlier.correlation < value:
            distance = int(pairs.distances[index])
            best[one, other] = NearPair(one, other, distance, value, confirmed=value >= confirmed)
    certain = [pair for pair in best.values() if pair.confirmed]
    uncertain = [pair for pair in best.values() if not pair.confirmed]
    most_similar = sorted(uncertain, key=lambda pair: -pair.correlation)[:MAX_DOUBTFUL]
    return sorted(certain + most_similar, key=lambda pair: (pair.one, pair.other))


def _in_images(images: int, pairs: int, advance: Callable[[int], None] | None) -> Callable[[int], None]:
    """Return a function that converts progress in pairs to progress in images, the unit of the progress bar.

    The calls of `advance` add up to `images` when all pairs are done.
    """
    pairs_done = 0

    def step(count: int) -> None:
        nonlocal pairs_done
        images_before = images * pairs_done // pairs
        pairs_done += count
        if advance is not None:
            advance(images * pairs_done // pairs - images_before)

    return step


class _Leak(NamedTuple):
    """Rows that belong together, but may be in several splits, and what a message adds about them."""

    rows: tuple[int, ...]
    detail: str = ""


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
        identical = [_Leak(rows) for rows in self.exact]
        groups = [_Leak(rows, f": group {name!r}") for name, rows in self.groups.items()]
        copies = [_similar_leak(pair) for pair in self.confirmed]
        described = self._described("identical files", identical, name_of)
        described |= self._described("same group", groups, name_of)
        described |= self._described("near-duplicates", copies, name_of)
        return described

    def described_doubtful(self, name_of: Callable[[int], str]) -> dict[str, list[str]]:
        """Return the doubtful pairs by splits; `name_of` names the image of a row."""
        doubtful = [_similar_leak(pair) for pair in self.doubtful]
        return self._described("possible near-duplicates", doubtful, name_of)

    def _described(self, kind: str, leaks: Sequence[_Leak], name_of: Callable[[int], str]) -> dict[str, list[str]]:
        """Return a text for each leak of a kind, in lists by kind and splits, such as "same group in train and test".

        A text names the first image of the leak in each of the two splits. `name_of` names the image of a row.
        """
        described: dict[str, list[str]] = {}
        for leak in leaks:
            first_row: dict[str, int] = {}
            for row in leak.rows:
                first_row.setdefault(self.split[row], row)
            image_in = {split: f"{name_of(first_row[split])} ({split})" for split in SPLITS if split in first_row}
            for one, other in combinations(image_in, 2):
                text = f"{image_in[one]} and {image_in[other]}{leak.detail}"
                described.setdefault(f"{kind} in {one} and {other}", []).append(text)
        return described


def leak_lines(described: Mapping[str, Sequence[str]]) -> list[str]:
    """Return text lines with the number of leaks of each kind and a few examples.

    >>> leak_lines({"identical files in train and test": ["a.jpg (train) and b.jpg (test)"]})
    ['identical files in train and test: 1', '  a.jpg (train) and b.jpg (test)']
    """
    lines: list[str] = []
    for kind, leaks in described.items():
        lines.append(f"{kind}: {len(leaks):,}")
        lines += listed(leaks)
    return lines


def _similar_leak(pair: NearPair) -> _Leak:
    """Return a pair of similar images as a leak."""
    return _Leak((pair.one, pair.other), f": correlation {pair.correlation:.3f}")


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

    def is_across(rows: Iterable[int]) -> bool:
        """Return whether the images of these rows are in more than one split."""
        return len({split[row] for row in rows}) > 1

    rows_of_group: dict[str, list[int]] = {}
    for row, group in enumerate(groups or ()):
        rows_of_group.setdefault(group, []).append(row)
    exact_across = [rows for rows in exact if is_across(rows)]
    groups_across = {group: tuple(rows) for group, rows in rows_of_group.items() if is_across(rows)}
    near_across = [pair for pair in near if is_across((pair.one, pair.other))]
    confirmed = [pair for pair in near_across if pair.confirmed]
    doubtful = [pair for pair in near_across if not pair.confirmed]
    return Leaks(split, exact_across, groups_across, confirmed, doubtful)
