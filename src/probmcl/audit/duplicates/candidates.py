"""Candidate pairs of duplicates: images with similar perceptual hashes, screened by comparing small versions.

To first order, a shifted or stretched image is the image plus a linear combination of its derivatives. The screening
projects the other image onto these and takes the residual, at a thousandth of the cost of registration.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8, UInt64
from numpy import ndarray

from probmcl.audit.duplicates.hashing import FLIP_MASK

MAX_DISTANCE = 14
"""Maximum Hamming distance between two 64-bit hashes. It includes all planted copies that were re-encoded, resized
or flipped, 99 % of the copies cropped by 2 to 6 % per side, and 1 in 10,000 pairs of different photographs."""

MAX_IMAGES_FOR_ALL_PAIRS = 100_000
"""Up to this number of images, all pairs are compared, which takes a minute; above it, only sorted neighbors."""

PAIRS = 1_000_000
MIN_NEAREST = 16
"""Each image is paired with its nearest images only: `PAIRS` in total, or `MIN_NEAREST` per image if that is more."""

ENTRIES_PER_BLOCK = 2**19
ROTATIONS = 8
NEIGHBORS = 8

SIDE, BLURS = 16, 2  # size in pixels of the screened images, and how often they are blurred
MAX_PAIRS = 8
"""Number of pairs to register per image. With 8, they include 99 % of the copies cropped by 2 to 6 % among 600 chest
radiographs; with 4, 95 %. If an image has more copies, chains of pairs still connect all of them."""

IMAGES_AT_ONCE = 1024
ROWS_PER_PRODUCT = 64


class CandidatePairs(NamedTuple):
    """Pairs of image rows with `ones < others`, whether one image is flipped, and the Hamming distances."""

    ones: Int[ndarray, "P"]
    others: Int[ndarray, "P"]
    flipped: Bool[ndarray, "P"]
    distances: UInt8[ndarray, "P"]

    def select(self, indices: Int[ndarray, "K"]) -> "CandidatePairs":
        """Return the pairs at these indices."""
        return CandidatePairs(*(column[indices] for column in self))


def candidate_pairs(phashes: UInt64[ndarray, "N"], inner: UInt64[ndarray, "N"]) -> CandidatePairs:
    """Return the pairs of images that may be copies, given the hashes of the full images and of their inner parts.

    Above 100,000 images, not all pairs are compared. Among 1,000,000 random hashes, recall was 1.00 for pairs that
    differ in 2 bits, 0.91 for 4, 0.65 for 6 and 0.36 for 8 bits. This is enough for nearly all copies that are
    re-encoded, resized or flipped. Half of the cropped copies differ in at most 3 bits, 95 % in at most 7.

    >>> phashes = np.array([0, 2**64 - 1, 3, FLIP_MASK], dtype=np.uint64)
    >>> pairs = candidate_pairs(phashes, phashes ^ np.uint64(2**40 - 2**8))
    >>> pairs.ones.tolist(), pairs.others.tolist(), pairs.flipped.tolist(), pairs.distances.tolist()
    ([0, 0, 2], [2, 3, 3], [False, True, True], [2, 0, 2])
    """
    search = _all_pairs if len(phashes) <= MAX_IMAGES_FOR_ALL_PAIRS else _neighbors
    nearest = max(MIN_NEAREST, PAIRS // max(len(phashes), 1))
    parts = [CandidatePairs(*(np.zeros(0, dtype=dtype) for dtype in (np.int64, np.int64, np.bool_, np.uint8)))]
    parts += search(phashes, inner, nearest)
    return _limit(CandidatePairs(*(np.concatenate(column) for column in zip(*parts, strict=True))), nearest)


def _all_pairs(phashes: UInt64[ndarray, "N"], inner: UInt64[ndarray, "N"], nearest: int) -> Iterator[CandidatePairs]:
    """Compare blocks of rows with all later rows; a block fits into the CPU cache."""
    rows = max(1, ENTRIES_PER_BLOCK // max(len(phashes), 1))
    for start in range(0, len(phashes), rows):
        for flipped, mask in ((False, np.uint64(0)), (True, np.uint64(FLIP_MASK))):
            block, later = slice(start, start + rows), slice(start, None)
            distances = _distances(phashes[block], inner[block], phashes[later] ^ mask, inner[later] ^ mask)
            distances[np.tri(*distances.shape, dtype=np.bool_)] = 255  # each pair once, without the diagonal
            yield _nearest(distances, nearest, start, flipped)


def _distances(
    phashes: UInt64[ndarray, "R"],
    inner: UInt64[ndarray, "R"],
    other_phashes: UInt64[ndarray, "N"],
    other_inner: UInt64[ndarray, "N"],
) -> UInt8[ndarray, "R N"]:
    """Return the smallest Hamming distance: full image to full image, or full image to inner part."""
    distances = np.bitwise_count(phashes[:, None] ^ other_phashes)
    np.minimum(distances, np.bitwise_count(inner[:, None] ^ other_phashes), out=distances)
    least: ndarray = np.minimum(distances, np.bitwise_count(phashes[:, None] ^ other_inner), out=distances)
    return least


def _nearest(distances: UInt8[ndarray, "R N"], nearest: int, start: int, flipped: bool) -> CandidatePairs:
    """Return the pairs within `MAX_DISTANCE`, at most `nearest` per row."""
    if np.count_nonzero(distances <= MAX_DISTANCE, axis=1).max() > nearest:
        farther = np.argpartition(distances, nearest, axis=1)[:, nearest:]
        np.put_along_axis(distances, farther, 255, axis=1)
    ones, others = np.nonzero(distances <= MAX_DISTANCE)
    return CandidatePairs(ones + start, others + start, np.full(len(ones), flipped), distances[ones, others])


def _neighbors(phashes: UInt64[ndarray, "N"], inner: UInt64[ndarray, "N"], nearest: int) -> Iterator[CandidatePairs]:
    """Compare hashes that are close in sorted order, for several bit rotations."""
    flip = np.uint64(FLIP_MASK)
    hashes = np.concatenate([phashes, phashes ^ flip, inner, inner ^ flip])
    for rotation in range(ROTATIONS):
        bits = np.uint64(64 // ROTATIONS * rotation)
        order = np.argsort(hashes << bits | hashes >> (np.uint64(64) - bits) if rotation else hashes)
        for gap in range(1, NEIGHBORS + 1):
            first, second = order[:-gap], order[gap:]
            near = np.bitwise_count(hashes[first] ^ hashes[second]) <= MAX_DISTANCE
            yield _limit(_image_pairs(hashes, first[near], second[near], len(phashes)), nearest)


def _image_pairs(
    hashes: UInt64[ndarray, "M"], first: Int[ndarray, "P"], second: Int[ndarray, "P"], count: int
) -> CandidatePairs:
    """Convert pairs of hashes to pairs of images; one of the hashes must be of a full, unflipped image."""
    full, other = np.minimum(first, second), np.maximum(first, second)  # the first `count` hashes are full, unflipped
    valid = (full < count) & (full != other % count)
    full, other = full[valid], other[valid]
    flipped = other // count % 2 == 1
    distances = np.bitwise_count(hashes[full] ^ hashes[other])
    rows = other % count
    return CandidatePairs(np.minimum(full, rows), np.maximum(full, rows), flipped, distances)


def _limit(pairs: CandidatePairs, nearest: int) -> CandidatePairs:
    """Return each pair once with its smallest distance, at most `nearest` pairs per first image, sorted."""
    order = np.lexsort((pairs.distances, pairs.flipped, pairs.others, pairs.ones))
    pairs = pairs.select(order)
    same = (np.diff(pairs.ones) == 0) & (np.diff(pairs.others) == 0) & (pairs.flipped[1:] == pairs.flipped[:-1])
    pairs = pairs.select(np.flatnonzero(np.concatenate([np.ones(min(1, len(order)), dtype=bool), ~same])))
    return pairs.select(np.sort(_smallest(pairs.ones, pairs.distances, nearest)))


def _smallest(rows: Int[ndarray, "P"], values: ndarray, count: int) -> Int[ndarray, "K"]:
    """Return the indices of the `count` smallest values for each row."""
    if not len(rows) or np.bincount(rows).max() <= count:
        return np.arange(len(rows))
    order = np.lexsort((values, rows))
    ordered = rows[order]
    indices: ndarray = order[np.arange(len(rows)) - np.searchsorted(ordered, ordered) < count]
    return indices


def screen(
    tiles: UInt8[ndarray, "M T T"], ones: Int[ndarray, "P"], others: Int[ndarray, "P"], flipped: Bool[ndarray, "P"]
) -> Bool[ndarray, "P"]:
    """Return which pairs to register: for each image, the `MAX_PAIRS` pairs with the smallest residual.

    >>> rng = np.random.default_rng(0)
    >>> tiles = np.kron(rng.integers(0, 256, (7, 16, 16)), np.ones((4, 4))).astype(np.uint8)
    >>> tiles[6] = np.roll(tiles[0], 1, axis=1)
    >>> keep = screen(tiles, np.zeros(6, dtype=int), np.arange(1, 7), np.zeros(6, dtype=bool))
    >>> keep.tolist()[-1]
    True
    """
    small = _blurred(tiles)
    flat = (small * _window()).reshape(len(tiles), SIDE * SIDE)
    total = (flat * flat).sum(axis=1)
    residual = np.zeros(len(ones), dtype=np.float32)
    order = np.argsort(ones, kind="stable")
    rows, starts = np.unique(ones[order], return_index=True)
    groups = np.split(order, starts[1:])
    for start in range(0, len(rows), IMAGES_AT_ONCE):
        batch = slice(start, start + IMAGES_AT_ONCE)
        for basis, indices in zip(_bases(small[rows[batch]]), groups[batch], strict=True):
            seconds = others[indices]
            parts = _projected(flat, seconds, flipped[indices], basis) ** 2
            # The first part is the brightness.
            residual[indices] = (total[seconds] - parts.sum(axis=1)) / (total[seconds] - parts[:, 0] + 1)
    keep = np.zeros(len(ones), dtype=np.bool_)
    for images in (ones, others):
        keep[_smallest(images, residual, MAX_PAIRS)] = True
    return keep


def _projected(
    flat: Float[ndarray, "M D"], seconds: Int[ndarray, "K"], flipped: Bool[ndarray, "K"], basis: Float[ndarray, "D 6"]
) -> Float[ndarray, "K 6"]:
    """Return the components of the second images along the basis of the first image."""
    mirrored = basis.reshape(SIDE, SIDE, 6)[:, ::-1].reshape(SIDE * SIDE, 6)  # instead of flipping each second image
    # Small products, because BLAS computes large ones in several threads, which takes longer if the cores are busy.
    batches = np.resize(seconds, (-(-len(seconds) // ROWS_PER_PRODUCT), ROWS_PER_PRODUCT))
    both = (flat[batches] @ np.concatenate([basis, mirrored], axis=1)).reshape(-1, 12)[: len(seconds)]
    components: ndarray = np.where(flipped[:, None], both[:, 6:], both[:, :6])
    return components


def _bases(images: Float[ndarray, "R S S"]) -> Float[ndarray, "R D 6"]:
    """Return orthonormal bases of brightness, the image, its derivatives, and the derivatives times the position."""
    dx, dy = np.gradient(images, axis=2), np.gradient(images, axis=1)
    position = np.linspace(-1, 1, SIDE, dtype=np.float32)
    vectors = np.stack([np.ones_like(images), images, dx, dx * position, dy, dy * position[:, None]], axis=-1)
    return np.linalg.qr((vectors * _window()[:, :, None]).reshape(len(images), SIDE * SIDE, 6))[0]


def reduced(tiles: UInt8[ndarray, "M T T"], size: int) -> Float[ndarray, "M S S"]:
    """Downsample square images by averaging blocks of pixels."""
    factor = tiles.shape[-1] // size  # adding strided views is ten times as fast as `mean` over two axes
    rows = sum((tiles[:, k::factor] for k in range(1, factor)), tiles[:, ::factor].astype(np.uint16))
    total = sum((rows[:, :, k::factor] for k in range(1, factor)), rows[:, :, ::factor])
    means: ndarray = total / np.float32(factor**2)
    return means


def _blurred(tiles: UInt8[ndarray, "M T T"]) -> Float[ndarray, "M S S"]:
    """Downsample and blur, so that the derivatives stay valid for the large shifts that crops cause."""
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
    """Return weights that decrease toward the border, where a crop lacks part of the other image."""
    rise = np.sin(np.pi * (np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE)
    window: ndarray = np.sqrt(rise[:, None] * rise).astype(np.float32)
    return window
