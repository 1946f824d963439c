"""Candidate pairs of duplicates: images whose perceptual hashes differ in few bits, screened by their small images.

To first order a shifted or stretched image is the image plus a multiple of its derivatives. The residual of another
image after projection on these costs a thousandth of a registration, and is smallest for copies.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8, UInt64
from numpy import ndarray

from probmcl.data.duplicates.hashing import FLIP_MASK

MAX_DISTANCE = 14
"""Bits in which two hashes of 64 may differ. All planted copies lie within it that were re-encoded, resized or
flipped, and 99 % of those cropped by 2 to 6 % a side; of pairs of different photographs, 1 in 10,000."""

MAX_IMAGES_FOR_ALL_PAIRS = 100_000
"""Up to this number every pair is compared, which takes a minute; above it, only neighbors in sorted order."""

PAIRS = 1_000_000
MIN_NEAREST = 16
"""If many images are similar, each is paired with its nearest only: with `PAIRS` in total, but at least 16 each."""

ENTRIES_PER_BLOCK = 2**19
ROTATIONS = 8
NEIGHBORS = 8

SIDE, BLURS = 16, 2  # of the images that are screened
MAX_PAIRS = 8
"""Pairs of each image that are registered. Among 600 chests, 99 % of copies cropped by 2 to 6 % are within them, with 4
pairs 95 %. More copies of one picture are still joined, by a chain."""

IMAGES_AT_ONCE = 1024


class CandidatePairs(NamedTuple):
    """Pairs of images, the first before the second; whether one is flipped, and the bits in which they then differ."""

    ones: Int[ndarray, "P"]
    others: Int[ndarray, "P"]
    flipped: Bool[ndarray, "P"]
    distances: UInt8[ndarray, "P"]

    def select(self, which: Int[ndarray, "K"]) -> "CandidatePairs":
        """Return these pairs alone."""
        return CandidatePairs(*(column[which] for column in self))


def candidate_pairs(phashes: UInt64[ndarray, "N"], inner: UInt64[ndarray, "N"]) -> CandidatePairs:
    """Return the pairs of images that may be copies of each other, by their hashes of the whole and of the inner part.

    Above 100,000 images not every pair is compared. Of 1,000,000 random hashes, those that differ in 2 bits were all
    found, in 4 bits 0.91 of them, in 6 bits 0.65, in 8 bits 0.36: nearly every copy that is re-encoded, resized or
    flipped, and a part of the cropped ones, of which half differ in at most 3 bits and 95 % in at most 7.

    >>> phashes = np.array([0, 2**64 - 1, 3, FLIP_MASK], dtype=np.uint64)
    >>> found = candidate_pairs(phashes, phashes ^ np.uint64(2**40 - 2**8))
    >>> found.ones.tolist(), found.others.tolist(), found.flipped.tolist(), found.distances.tolist()
    ([0, 0, 2], [2, 3, 3], [False, True, True], [2, 0, 2])
    """
    search = _all_pairs if len(phashes) <= MAX_IMAGES_FOR_ALL_PAIRS else _neighbors
    nearest = max(MIN_NEAREST, PAIRS // max(len(phashes), 1))
    parts = [CandidatePairs(*(np.zeros(0, dtype=kind) for kind in (np.int64, np.int64, np.bool_, np.uint8)))]
    parts += search(phashes, inner, nearest)
    return _capped(CandidatePairs(*(np.concatenate(column) for column in zip(*parts, strict=True))), nearest)


def _all_pairs(phashes: UInt64[ndarray, "N"], inner: UInt64[ndarray, "N"], nearest: int) -> Iterator[CandidatePairs]:
    """Compare blocks of rows with all later rows; a block fits into the processor's cache."""
    rows = max(1, ENTRIES_PER_BLOCK // max(len(phashes), 1))
    for start in range(0, len(phashes), rows):
        for flipped, turned in ((False, np.uint64(0)), (True, np.uint64(FLIP_MASK))):
            here, after = slice(start, start + rows), slice(start, None)
            distances = _distances(phashes[here], inner[here], phashes[after] ^ turned, inner[after] ^ turned)
            distances[np.tri(*distances.shape, dtype=np.bool_)] = 255  # each pair once, and none with itself
            yield _nearest(distances, nearest, start, flipped)


def _distances(
    phashes: UInt64[ndarray, "R"],
    inner: UInt64[ndarray, "R"],
    other_phashes: UInt64[ndarray, "N"],
    other_inner: UInt64[ndarray, "N"],
) -> UInt8[ndarray, "R N"]:
    """Return the bits that differ: between both whole images, or one whole and the inner part of the other."""
    distances = np.bitwise_count(phashes[:, None] ^ other_phashes)
    np.minimum(distances, np.bitwise_count(inner[:, None] ^ other_phashes), out=distances)
    least: ndarray = np.minimum(distances, np.bitwise_count(phashes[:, None] ^ other_inner), out=distances)
    return least


def _nearest(distances: UInt8[ndarray, "R N"], nearest: int, start: int, flipped: bool) -> CandidatePairs:
    """Return the pairs that are near enough, for each row at most `nearest`."""
    if np.count_nonzero(distances <= MAX_DISTANCE, axis=1).max() > nearest:
        farther = np.argpartition(distances, nearest, axis=1)[:, nearest:]
        np.put_along_axis(distances, farther, 255, axis=1)
    ones, others = np.nonzero(distances <= MAX_DISTANCE)
    return CandidatePairs(ones + start, others + start, np.full(len(ones), flipped), distances[ones, others])


def _neighbors(phashes: UInt64[ndarray, "N"], inner: UInt64[ndarray, "N"], nearest: int) -> Iterator[CandidatePairs]:
    """Compare hashes that are close together when all are sorted, for several rotations of their bits."""
    flip = np.uint64(FLIP_MASK)
    hashes = np.concatenate([phashes, phashes ^ flip, inner, inner ^ flip])
    for rotation in range(ROTATIONS):
        bits = np.uint64(64 // ROTATIONS * rotation)
        order = np.argsort(hashes << bits | hashes >> (np.uint64(64) - bits) if rotation else hashes)
        for apart in range(1, NEIGHBORS + 1):
            first, second = order[:-apart], order[apart:]
            near = np.bitwise_count(hashes[first] ^ hashes[second]) <= MAX_DISTANCE
            yield _capped(_paired(hashes, first[near], second[near], len(phashes)), nearest)


def _paired(
    hashes: UInt64[ndarray, "M"], first: Int[ndarray, "P"], second: Int[ndarray, "P"], count: int
) -> CandidatePairs:
    """Turn indices of hashes into pairs of images, of which one is whole and not flipped."""
    whole, other = np.minimum(first, second), np.maximum(first, second)  # whole images come first, as they are
    fits = (whole < count) & (whole != other % count)
    whole, other = whole[fits], other[fits]
    flipped = other // count % 2 == 1
    distances = np.bitwise_count(hashes[whole] ^ hashes[other])
    rows = other % count
    return CandidatePairs(np.minimum(whole, rows), np.maximum(whole, rows), flipped, distances)


def _capped(pairs: CandidatePairs, nearest: int) -> CandidatePairs:
    """Return each pair once, with its smallest distance, and for each first image only the nearest, in order."""
    order = np.lexsort((pairs.distances, pairs.flipped, pairs.others, pairs.ones))
    pairs = pairs.select(order)
    same = (np.diff(pairs.ones) == 0) & (np.diff(pairs.others) == 0) & (pairs.flipped[1:] == pairs.flipped[:-1])
    pairs = pairs.select(np.flatnonzero(np.concatenate([np.ones(min(1, len(order)), dtype=bool), ~same])))
    return pairs.select(np.sort(_smallest(pairs.ones, pairs.distances, nearest)))


def _smallest(rows: Int[ndarray, "P"], values: ndarray, count: int) -> Int[ndarray, "K"]:
    """Return where the smallest values of each row are, at most `count` of them."""
    order = np.lexsort((values, rows))
    ordered = rows[order]
    indices: ndarray = order[np.arange(len(rows)) - np.searchsorted(ordered, ordered) < count]
    return indices


def screen(
    tiles: UInt8[ndarray, "M T T"], ones: Int[ndarray, "P"], others: Int[ndarray, "P"], flipped: Bool[ndarray, "P"]
) -> Bool[ndarray, "P"]:
    """Return which pairs are, for one of their images, among the few with the smallest residual.

    >>> rng = np.random.default_rng(0)
    >>> tiles = np.kron(rng.integers(0, 256, (7, 16, 16)), np.ones((4, 4))).astype(np.uint8)
    >>> tiles[6] = np.roll(tiles[0], 1, axis=1)
    >>> keep = screen(tiles, np.zeros(6, dtype=int), np.arange(1, 7), np.zeros(6, dtype=bool))
    >>> keep.tolist()[-1]
    True
    """
    small = _blurred(tiles)
    residual = np.zeros(len(ones), dtype=np.float32)
    order = np.argsort(ones, kind="stable")
    rows, starts = np.unique(ones[order], return_index=True)
    for row, indices in zip(rows, np.split(order, starts[1:]), strict=False):
        seconds = small[others[indices]]
        seconds[flipped[indices]] = seconds[flipped[indices], :, ::-1]
        residual[indices] = _residual(small[row], seconds)
    keep = np.zeros(len(ones), dtype=np.bool_)
    for images in (ones, others):
        keep[_smallest(images, residual, MAX_PAIRS)] = True
    return keep


def _residual(first: Float[ndarray, "S S"], seconds: Float[ndarray, "K S S"]) -> Float[ndarray, "K"]:
    """Return the share of each second image that the first, shifted, stretched or brighter, does not explain."""
    flat = (seconds * _window()).reshape(len(seconds), SIDE * SIDE)
    parts = (flat @ _basis(first)) ** 2
    whole = (flat * flat).sum(axis=1)
    share: ndarray = (whole - parts.sum(axis=1)) / (whole - parts[:, 0] + 1)  # the first part is its brightness
    return share


def _basis(image: Float[ndarray, "S S"]) -> Float[ndarray, "K 6"]:
    """Return an orthonormal basis: brightness, the image, its derivatives, and these times the position."""
    along, down = np.gradient(image, axis=1), np.gradient(image, axis=0)
    middle = np.linspace(-1, 1, SIDE, dtype=np.float32)
    ways = np.stack([np.ones_like(image), image, along, along * middle, down, down * middle[:, None]], axis=-1)
    return np.linalg.qr((ways * _window()[:, :, None]).reshape(SIDE * SIDE, 6))[0]


def reduced(tiles: UInt8[ndarray, "M T T"], size: int) -> Float[ndarray, "M S S"]:
    """Return square images at a smaller size, each pixel the mean of those that it replaces."""
    images, side, _ = tiles.shape
    means: ndarray = tiles.reshape(images, size, side // size, size, side // size).mean(axis=(2, 4), dtype=np.float32)
    return means


def _blurred(tiles: UInt8[ndarray, "M T T"]) -> Float[ndarray, "M S S"]:
    """Reduce and blur, so that derivatives reach as far as crops shift."""
    small = np.zeros((len(tiles), SIDE, SIDE), dtype=np.float32)
    for start in range(0, len(tiles), IMAGES_AT_ONCE):
        pixels = reduced(tiles[start : start + IMAGES_AT_ONCE], SIDE)
        for _ in range(BLURS):
            padded = np.pad(pixels, ((0, 0), (1, 1), (1, 1)), mode="edge")
            rows = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
            pixels = (rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]) / 16
        small[start : start + IMAGES_AT_ONCE] = pixels
    return small


@lru_cache
def _window() -> Float[ndarray, "S S"]:
    """Return weights that fall toward the rim, where a crop lacks a part of the other image."""
    rise = np.sin(np.pi * (np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE)
    window: ndarray = np.sqrt(rise[:, None] * rise).astype(np.float32)
    return window
