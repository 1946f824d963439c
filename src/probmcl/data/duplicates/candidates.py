"""Which of many images are worth a comparison: pairs whose perceptual hashes differ in few bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8, UInt64
from numpy import ndarray

from probmcl.data.duplicates.hashing import ODD

DISTANCE = 14
"""Bits in which two hashes of 64 may differ. All planted copies lie within it that were encoded anew, resized or
flipped, and 99 % of those cropped by 2 to 6 % a side; of pairs of different photographs, 1 in 10,000."""

ALL_PAIRS = 100_000
"""Up to so many images every pair is compared, which takes a minute; beyond, neighbors in sorted order alone."""

PAIRS = 1_000_000
NEAREST = 16
"""Where many images look alike, each is paired with its nearest only: as many as make `PAIRS` in all, at least 16."""

ENTRIES_AT_ONCE = 2**19
TURNS = 8
NEIGHBORS = 8


class Lookalikes(NamedTuple):
    """Pairs of images, the first before the second, and in how many bits they differ once one is flipped, or not."""

    ones: Int[ndarray, "P"]
    others: Int[ndarray, "P"]
    flipped: Bool[ndarray, "P"]
    distances: UInt8[ndarray, "P"]


def lookalikes(looks: UInt64[ndarray, "N"], inners: UInt64[ndarray, "N"]) -> Lookalikes:
    """Pairs of images that may be copies of each other, by their hashes `look` and `inner`.

    Above 100,000 images not every pair is compared. Of 1,000,000 random hashes, those that differ in 2 bits were all
    found, in 4 bits 0.91 of them, in 6 bits 0.65, in 8 bits 0.36: nearly every copy that is encoded anew, resized or
    flipped, and of cropped ones, which differ in 3 bits at the median and in 7 at most for 95 %, a part.

    >>> looks = np.array([0, 2**64 - 1, 3, ODD], dtype=np.uint64)
    >>> found = lookalikes(looks, looks ^ np.uint64(2**40 - 2**8))
    >>> found.ones.tolist(), found.others.tolist(), found.flipped.tolist(), found.distances.tolist()
    ([0, 0, 2], [2, 3, 3], [False, True, True], [2, 0, 2])
    """
    search = _all_pairs if len(looks) <= ALL_PAIRS else _neighbors
    nearest = max(NEAREST, PAIRS // max(len(looks), 1))
    parts = [Lookalikes(*(np.zeros(0, dtype=kind) for kind in (np.int64, np.int64, np.bool_, np.uint8)))]
    parts += search(looks, inners, nearest)
    joined = Lookalikes(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return _capped(joined, nearest)


def _all_pairs(looks: UInt64[ndarray, "N"], inners: UInt64[ndarray, "N"], nearest: int) -> Iterator[Lookalikes]:
    """Some rows at once against all that come after them, few enough for the processor's cache."""
    rows = max(1, ENTRIES_AT_ONCE // max(len(looks), 1))
    for start in range(0, len(looks), rows):
        for flipped, turned in ((False, np.uint64(0)), (True, np.uint64(ODD))):
            here, after = slice(start, start + rows), slice(start, None)
            distances = _distances(looks[here], inners[here], looks[after] ^ turned, inners[after] ^ turned)
            distances[np.tri(*distances.shape, dtype=np.bool_)] = 255  # each pair once, and none with itself
            yield _nearest(distances, nearest, start, flipped)


def _distances(
    looks: UInt64[ndarray, "R"],
    inners: UInt64[ndarray, "R"],
    other_looks: UInt64[ndarray, "N"],
    other_inners: UInt64[ndarray, "N"],
) -> UInt8[ndarray, "R N"]:
    """Bits that differ: of both images whole, or of one whole and the other without its margin."""
    distances = np.bitwise_count(looks[:, None] ^ other_looks)
    np.minimum(distances, np.bitwise_count(inners[:, None] ^ other_looks), out=distances)
    least: ndarray = np.minimum(distances, np.bitwise_count(looks[:, None] ^ other_inners), out=distances)
    return least


def _nearest(distances: UInt8[ndarray, "R N"], nearest: int, start: int, flipped: bool) -> Lookalikes:
    """The pairs near enough, of each row at most so many."""
    if np.count_nonzero(distances <= DISTANCE, axis=1).max() > nearest:
        farther = np.argpartition(distances, nearest, axis=1)[:, nearest:]
        np.put_along_axis(distances, farther, 255, axis=1)
    ones, others = np.nonzero(distances <= DISTANCE)
    return Lookalikes(ones + start, others + start, np.full(len(ones), flipped), distances[ones, others])


def _neighbors(looks: UInt64[ndarray, "N"], inners: UInt64[ndarray, "N"], nearest: int) -> Iterator[Lookalikes]:
    """Hashes that stand close together when all are sorted, from several bits on in turn."""
    flip = np.uint64(ODD)
    hashes = np.concatenate([looks, looks ^ flip, inners, inners ^ flip])
    for turn in range(TURNS):
        bits = np.uint64(64 // TURNS * turn)
        order = np.argsort(hashes << bits | hashes >> (np.uint64(64) - bits) if turn else hashes)
        for apart in range(1, NEIGHBORS + 1):
            first, second = order[:-apart], order[apart:]
            near = np.bitwise_count(hashes[first] ^ hashes[second]) <= DISTANCE
            yield _capped(_paired(hashes, first[near], second[near], len(looks)), nearest)


def _paired(
    hashes: UInt64[ndarray, "M"], first: Int[ndarray, "P"], second: Int[ndarray, "P"], count: int
) -> Lookalikes:
    """Places among all hashes as pairs of images, of which one shows its whole as it is."""
    whole, other = np.minimum(first, second), np.maximum(first, second)  # whole images come first, as they are
    fits = (whole < count) & (whole != other % count)
    whole, other = whole[fits], other[fits]
    flipped = other // count % 2 == 1
    distances = np.bitwise_count(hashes[whole] ^ hashes[other])
    rows = other % count
    return Lookalikes(np.minimum(whole, rows), np.maximum(whole, rows), flipped, distances)


def _capped(pairs: Lookalikes, nearest: int) -> Lookalikes:
    """Each pair once, at its smallest distance, and for each first image the nearest alone; in order."""
    order = np.lexsort((pairs.distances, pairs.flipped, pairs.others, pairs.ones))
    pairs = _taken(pairs, order)
    same = (np.diff(pairs.ones) == 0) & (np.diff(pairs.others) == 0) & (pairs.flipped[1:] == pairs.flipped[:-1])
    pairs = _taken(pairs, np.flatnonzero(np.concatenate([np.ones(min(1, len(order)), dtype=bool), ~same])))
    order = np.lexsort((pairs.distances, pairs.ones))
    ones = pairs.ones[order]
    rank = np.arange(len(ones)) - np.searchsorted(ones, ones)
    return _taken(pairs, np.sort(order[rank < nearest]))


def _taken(pairs: Lookalikes, which: Int[ndarray, "K"]) -> Lookalikes:
    return Lookalikes(*(column[which] for column in pairs))
