"""Candidate pairs of duplicates: images with similar perceptual hashes, screened by comparing small versions.

To first order, a shifted or stretched image is the image plus a linear combination of its derivatives. The screening
projects the other image onto these and takes the residual, at a thousandth of the cost of registration.
"""

import math
from collections.abc import Iterable, Iterator
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
NO_PAIR = 255  # larger than the distance of any two hashes
ROTATIONS = 8
NEIGHBORS = 8
FLIPS = ((False, np.uint64(0)), (True, np.uint64(FLIP_MASK)))
"""Whether the second image of a pair is flipped, and the bits of its hashes that this inverts."""

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

    def select(self, indices: Int[ndarray, "K"] | slice) -> "CandidatePairs":
        """Return the pairs at these indices."""
        return CandidatePairs(self.ones[indices], self.others[indices], self.flipped[indices], self.distances[indices])

    @classmethod
    def concatenate(cls, parts: Iterable["CandidatePairs"]) -> "CandidatePairs":
        """Return the pairs of all parts, in order."""
        no_rows = np.zeros(0, dtype=np.int64)
        no_pairs = cls(no_rows, no_rows, np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.uint8))
        ones, others, flipped, distances = zip(no_pairs, *parts, strict=True)
        return cls(np.concatenate(ones), np.concatenate(others), np.concatenate(flipped), np.concatenate(distances))


def candidate_pairs(phashes: UInt64[ndarray, "N"], inner_phashes: UInt64[ndarray, "N"]) -> CandidatePairs:
    """Return the pairs of images that may be copies, given the hashes of the full images and of their inner parts.

    Above 100,000 images, not all pairs are compared. Among 1,000,000 random hashes, recall was 1.00 for pairs that
    differ in 2 bits, 0.91 for 4, 0.65 for 6 and 0.36 for 8 bits. This is enough for nearly all copies that are
    re-encoded, resized or flipped. Half of the cropped copies differ in at most 3 bits, 95 % in at most 7.

    >>> phashes = np.array([0, 2**64 - 1, 3, FLIP_MASK], dtype=np.uint64)
    >>> pairs = candidate_pairs(phashes, phashes ^ np.uint64(2**40 - 2**8))
    >>> pairs.ones.tolist(), pairs.others.tolist(), pairs.flipped.tolist(), pairs.distances.tolist()
    ([0, 0, 2], [2, 3, 3], [False, True, True], [2, 0, 2])
    """
    nearest = max(MIN_NEAREST, PAIRS // max(len(phashes), 1))
    if len(phashes) <= MAX_IMAGES_FOR_ALL_PAIRS:
        parts = _all_pairs(phashes, inner_phashes, nearest)
    else:
        parts = _sorted_neighbors(phashes, inner_phashes, nearest)
    return _nearest_per_image(CandidatePairs.concatenate(parts), nearest)


def _all_pairs(
    phashes: UInt64[ndarray, "N"], inner_phashes: UInt64[ndarray, "N"], nearest: int
) -> Iterator[CandidatePairs]:
    """Yield the similar pairs of all images, at most `nearest` for each first image and flip.

    `phashes` are the hashes of the full images. `inner_phashes` are those of the images without their margins, which
    are close to the hashes of cropped copies. A left-right flip of an image inverts some bits of its hashes: those in
    the mask. A block of rows is compared with all later rows at once; its distances fit into the CPU cache.
    """
    rows_per_block = max(1, ENTRIES_PER_BLOCK // max(len(phashes), 1))
    for start in range(0, len(phashes), rows_per_block):
        block = slice(start, start + rows_per_block)
        later = slice(start, None)
        for flipped, mask in FLIPS:  # the later images as they are (the mask is 0), and flipped
            distances = _distances(
                phashes[block], inner_phashes[block], phashes[later] ^ mask, inner_phashes[later] ^ mask
            )
            # The columns start with the rows of the block, so this leaves each pair once, and no image with itself.
            lower_triangle = np.tri(*distances.shape, dtype=np.bool_)
            distances[lower_triangle] = NO_PAIR
            yield _pairs_in_block(distances, nearest, start, flipped)


def _distances(
    phashes: UInt64[ndarray, "R"],
    inner_phashes: UInt64[ndarray, "R"],
    other_phashes: UInt64[ndarray, "N"],
    other_inner_phashes: UInt64[ndarray, "N"],
) -> UInt8[ndarray, "R N"]:
    """Return the smallest Hamming distance of each pair: full image to full image, or full image to inner part."""
    distances = _different_bits(phashes, other_phashes)
    np.minimum(distances, _different_bits(inner_phashes, other_phashes), out=distances)
    np.minimum(distances, _different_bits(phashes, other_inner_phashes), out=distances)
    return distances


def _different_bits(hashes: UInt64[ndarray, "R"], others: UInt64[ndarray, "N"]) -> UInt8[ndarray, "R N"]:
    """Return the Hamming distance of each hash to each of the others."""
    distances: ndarray = np.bitwise_count(hashes[:, None] ^ others)
    return distances


def _pairs_in_block(distances: UInt8[ndarray, "R N"], nearest: int, start: int, flipped: bool) -> CandidatePairs:
    """Return the pairs of a row and a column with a distance of at most `MAX_DISTANCE`, at most `nearest` per row.

    Row and column 0 belong to the image `start`, the next ones to the images after it. The distances are overwritten.
    """
    near_per_row = np.count_nonzero(distances <= MAX_DISTANCE, axis=1)
    if near_per_row.max() > nearest:
        farther = np.argpartition(distances, nearest, axis=1)[:, nearest:]
        np.put_along_axis(distances, farther, NO_PAIR, axis=1)
    rows, columns = np.nonzero(distances <= MAX_DISTANCE)
    return CandidatePairs(rows + start, columns + start, np.full(len(rows), flipped), distances[rows, columns])


def _sorted_neighbors(
    phashes: UInt64[ndarray, "N"], inner_phashes: UInt64[ndarray, "N"], nearest: int
) -> Iterator[CandidatePairs]:
    """Yield the pairs of images whose hashes are similar and close in sorted order, for several rotations of the bits.

    `phashes` are the hashes of the full images. `inner_phashes` are those of the images without their margins, which
    are close to the hashes of cropped copies. Each image is sorted in with four hashes: both of these, and both again
    for the image flipped left to right, which inverts the bits in `FLIP_MASK`.

    Two hashes are close in sorted order if their first bits are equal. Each rotation puts other bits first, so it finds
    other pairs. At most `nearest` pairs per image are yielded at once.
    """
    images = len(phashes)
    flip = np.uint64(FLIP_MASK)
    hashes = np.concatenate([phashes, phashes ^ flip, inner_phashes, inner_phashes ^ flip])  # four blocks of N hashes
    bits_per_rotation = 64 // ROTATIONS
    for rotation in range(ROTATIONS):
        order = np.argsort(_rotated(hashes, bits_per_rotation * rotation))
        for gap in range(1, NEIGHBORS + 1):
            first_hash, second_hash = order[:-gap], order[gap:]  # all pairs of hashes that are `gap` places apart
            is_near = np.bitwise_count(hashes[first_hash] ^ hashes[second_hash]) <= MAX_DISTANCE
            pairs = _image_pairs(hashes, first_hash[is_near], second_hash[is_near], images)
            yield _nearest_per_image(pairs, nearest)


def _rotated(hashes: UInt64[ndarray, "M"], bits: int) -> UInt64[ndarray, "M"]:
    """Return the hashes with their bits rotated to the left."""
    if bits == 0:  # the second shift would be by all 64 bits, which is not defined
        return hashes
    return hashes << np.uint64(bits) | hashes >> np.uint64(64 - bits)


def _image_pairs(
    hashes: UInt64[ndarray, "M"], first: Int[ndarray, "P"], second: Int[ndarray, "P"], images: int
) -> CandidatePairs:
    """Convert pairs of hashes to pairs of images, and leave out the pairs of hashes that are not needed.

    `hashes` has four blocks with one hash per image: of full images, of flipped ones, of inner parts, and of flipped
    inner parts. `first` and `second` are the indices of the hashes of each pair. One hash of a pair must be in the
    first block, and the two must belong to different images; other pairs are left out.
    """
    lower = np.minimum(first, second)
    higher = np.maximum(first, second)
    has_full = lower < images
    is_of_two_images = first % images != second % images
    is_needed = has_full & is_of_two_images
    full = lower[is_needed]  # in the first block, the index of a hash is that of its image
    other = higher[is_needed]
    other_block, other_image = np.divmod(other, images)
    return CandidatePairs(
        ones=np.minimum(full, other_image),
        others=np.maximum(full, other_image),
        flipped=other_block % 2 == 1,
        distances=np.bitwise_count(hashes[full] ^ hashes[other]),
    )


def _nearest_per_image(pairs: CandidatePairs, nearest: int) -> CandidatePairs:
    """Return the pairs without repetitions, sorted, and for each first image only the `nearest` most similar ones."""
    unique = _without_repetitions(pairs)
    kept = _smallest_per_row(unique.ones, unique.distances, nearest)
    return unique.select(np.sort(kept))


def _without_repetitions(pairs: CandidatePairs) -> CandidatePairs:
    """Return each pair once with its smallest distance, sorted by first image, second image and flip.

    In pair i, the first image is `ones[i]` and the second one `others[i]`. Two images may be in two pairs: one with the
    second image flipped, and one without.
    """
    order = np.lexsort((pairs.distances, pairs.flipped, pairs.others, pairs.ones))  # the last key matters most
    ordered = pairs.select(order)  # the repetitions of a pair are adjacent, and the smallest distance comes first
    same_first_image = ordered.ones[1:] == ordered.ones[:-1]
    same_second_image = ordered.others[1:] == ordered.others[:-1]
    same_flip = ordered.flipped[1:] == ordered.flipped[:-1]
    is_first_of_its_kind = np.ones(len(order), dtype=bool)
    is_first_of_its_kind[1:] = ~(same_first_image & same_second_image & same_flip)
    return ordered.select(np.flatnonzero(is_first_of_its_kind))


def _smallest_per_row(rows: Int[ndarray, "P"], values: ndarray, count: int) -> Int[ndarray, "K"]:
    """Return the indices of the `count` smallest values for each row; `rows` has the row of each value."""
    if not len(rows) or np.bincount(rows).max() <= count:
        return np.arange(len(rows))
    order = np.lexsort((values, rows))  # by row, then by value
    ordered_rows = rows[order]
    start_of_row = np.searchsorted(ordered_rows, ordered_rows)
    rank_in_row = np.arange(len(rows)) - start_of_row
    indices: ndarray = order[rank_in_row < count]
    return indices


def screen(
    tiles: UInt8[ndarray, "M T T"], ones: Int[ndarray, "P"], others: Int[ndarray, "P"], flipped: Bool[ndarray, "P"]
) -> Bool[ndarray, "P"]:
    """Return which pairs to register: for each image, the `MAX_PAIRS` pairs with the smallest residual.

    `ones` and `others` are the rows of the first and the second image of each pair in `tiles`. `flipped` is true for a
    pair whose second image has to be flipped.

    >>> rng = np.random.default_rng(0)
    >>> tiles = np.kron(rng.integers(0, 256, (7, 16, 16)), np.ones((4, 4))).astype(np.uint8)
    >>> tiles[6] = np.roll(tiles[0], 1, axis=1)
    >>> keep = screen(tiles, np.zeros(6, dtype=int), np.arange(1, 7), np.zeros(6, dtype=bool))
    >>> keep.tolist()[-1]
    True
    """
    residuals = _residuals(tiles, ones, others, flipped)
    keep = np.zeros(len(ones), dtype=np.bool_)
    for images in (ones, others):
        keep[_smallest_per_row(images, residuals, MAX_PAIRS)] = True
    return keep


def _residuals(
    tiles: UInt8[ndarray, "M T T"], ones: Int[ndarray, "P"], others: Int[ndarray, "P"], flipped: Bool[ndarray, "P"]
) -> Float[ndarray, "P"]:
    """Return the residual of each pair: the share of the second image that the basis of the first cannot explain.

    The basis has the first image, its derivatives and the brightness (`_bases`); brightness does not count in the
    share. The pairs are grouped by their first image, so that its basis is computed once. The arguments are those of
    `screen`.
    """
    small = _blurred(tiles)
    flat = (small * _window()).reshape(len(tiles), SIDE * SIDE)
    energy = (flat * flat).sum(axis=1)
    residuals = np.zeros(len(ones), dtype=np.float32)
    by_first = np.argsort(ones, kind="stable")
    firsts, starts = np.unique(ones[by_first], return_index=True)
    pairs_of_first = np.split(by_first, starts[1:])
    for start in range(0, len(firsts), IMAGES_AT_ONCE):
        batch = slice(start, start + IMAGES_AT_ONCE)
        bases = _bases(small[firsts[batch]])
        for basis, pairs in zip(bases, pairs_of_first[batch], strict=True):
            seconds = others[pairs]
            explained = _projected(flat, seconds, flipped[pairs], basis) ** 2
            unexplained = energy[seconds] - explained.sum(axis=1)
            without_brightness = energy[seconds] - explained[:, 0]
            residuals[pairs] = unexplained / (without_brightness + 1)  # 1 avoids a division by zero
    return residuals


def _projected(
    flat: Float[ndarray, "M D"], seconds: Int[ndarray, "K"], flipped: Bool[ndarray, "K"], basis: Float[ndarray, "D 6"]
) -> Float[ndarray, "K 6"]:
    """Return the scalar products of each of K second images with the six vectors of the first image's basis.

    `flat` has all images as vectors of D = `SIDE`² pixels, `seconds` the rows of the second images, and `flipped`
    whether a second image is flipped left to right before the product.
    """
    # The product of a flipped image with a vector is that of the image with the flipped vector. So six vectors are
    # flipped instead of the second images, and the products with all twelve are computed at once.
    flipped_basis = basis.reshape(SIDE, SIDE, 6)[:, ::-1].reshape(SIDE * SIDE, 6)
    both_bases = np.concatenate([basis, flipped_basis], axis=1)  # (D, 12)
    # Small products, because BLAS computes large ones in several threads, which takes longer if the cores are busy.
    batch_count = math.ceil(len(seconds) / ROWS_PER_PRODUCT)
    batches = np.resize(seconds, (batch_count, ROWS_PER_PRODUCT))  # repeats rows to fill the last batch
    products = flat[batches] @ both_bases  # (batches, rows per product, 12)
    without_repeated = products.reshape(-1, 12)[: len(seconds)]
    with_basis, with_flipped_basis = without_repeated[:, :6], without_repeated[:, 6:]
    chosen: ndarray = np.where(flipped[:, None], with_flipped_basis, with_basis)
    return chosen


def _bases(images: Float[ndarray, "R S S"]) -> Float[ndarray, "R D 6"]:
    """Return an orthonormal basis for each image: of brightness, the image, and its changes by a shift or a stretch.

    A small shift changes an image by its derivative, and a small stretch by its derivative times the position. The
    first vector is the brightness, because the QR decomposition keeps the direction of the first column.
    """
    dx = np.gradient(images, axis=2)
    dy = np.gradient(images, axis=1)
    position = np.linspace(-1, 1, SIDE, dtype=np.float32)
    vectors = np.stack([np.ones_like(images), images, dx, dx * position, dy, dy * position[:, None]], axis=-1)
    windowed = vectors * _window()[:, :, None]
    orthonormal, _ = np.linalg.qr(windowed.reshape(len(images), SIDE * SIDE, 6))
    return orthonormal


def reduced(tiles: UInt8[ndarray, "M T T"], size: int) -> Float[ndarray, "M S S"]:
    """Downsample square images by averaging blocks of pixels."""
    factor = tiles.shape[-1] // size
    # Adding strided views is ten times as fast as `mean` over two axes.
    rows = tiles[:, ::factor].astype(np.uint16)  # (M, S, T)
    for offset in range(1, factor):
        rows += tiles[:, offset::factor]
    total = rows[:, :, ::factor].copy()  # (M, S, S)
    for offset in range(1, factor):
        total += rows[:, :, offset::factor]
    means: ndarray = total / np.float32(factor**2)
    return means


def _blurred(tiles: UInt8[ndarray, "M T T"]) -> Float[ndarray, "M S S"]:
    """Downsample and blur, so that the derivatives stay valid for the large shifts that crops cause."""
    blurred = np.zeros((len(tiles), SIDE, SIDE), dtype=np.float32)
    for start in range(0, len(tiles), IMAGES_AT_ONCE):
        batch = slice(start, start + IMAGES_AT_ONCE)
        pixels = reduced(tiles[batch], SIDE)
        for _ in range(BLURS):
            pixels = _smoothed(pixels)
        blurred[batch] = pixels
    return blurred


def _smoothed(images: Float[ndarray, "R S S"]) -> Float[ndarray, "R S S"]:
    """Average each pixel with its neighbors, with the weights 1, 2, 1 along each axis."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="edge")
    rows = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    total = rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]
    smoothed: ndarray = total / 16
    return smoothed


@lru_cache
def _window() -> Float[ndarray, "S S"]:
    """Return weights that decrease toward the border, where a crop lacks part of the other image.

    They are square roots, because a product of two weighted images has the weight twice.
    """
    centers = np.arange(SIDE, dtype=np.float32) + 0.5  # in pixels
    rise = np.sin(np.pi * centers / SIDE)
    weights = rise[:, None] * rise
    window: ndarray = np.sqrt(weights).astype(np.float32)
    return window
