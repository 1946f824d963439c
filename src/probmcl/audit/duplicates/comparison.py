"""Comparison of candidate pairs: two small images are aligned by a shift and a stretch, and correlated.

A copy may be cropped by a few percent, which shifts and stretches its content. A shift and a stretch per axis are
fitted by Gauss-Newton steps, from coarse to fine, for a batch of pairs. The images are band-pass filtered, because
large bright and dark areas look alike in all chest radiographs, skies or slides.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy import ndarray

from probmcl.audit.duplicates.candidates import CandidatePairs, reduced, screen
from probmcl.audit.duplicates.hashing import IMAGES_AT_ONCE, TILE, ResultCache, SearchSettings, cached_tile, read_tile
from probmcl.data.pixels import IntensityRange
from probmcl.runtime.workers import map_in_order


class RegistrationRound(NamedTuple):
    """A round of registration: the side of the images in pixels, and the number of Gauss-Newton steps.

    `pairs_at_once` pairs of images fit into the CPU cache.
    """

    size: int
    steps: int
    pairs_at_once: int


class EntryLevels(NamedTuple):
    """A minimum for the second and one for the third round of registration."""

    second: float
    third: float


ROUNDS = (RegistrationRound(16, 6, 256), RegistrationRound(32, 3, 64), RegistrationRound(64, 2, 16))

MIN_SIMILARITY = EntryLevels(second=0.4, third=0.6)
"""Minimum correlation to enter the second and the third round, which few pairs reach."""

MAX_OFFSET = 0.25  # in half image sizes; a crop of 8 % on each side is a stretch of 0.16
MAX_STEP = 0.06
DETAIL = (1.0, 3.0)
"""Widths in pixels of the two Gaussian blurs whose difference is the detail of an image."""

CONTRAST_WIDTH, MIN_CONTRAST = 4.0, 2.0
"""Detail is divided by the local contrast (blur width in pixels); otherwise strong edges, such as the border of a scan,
would dominate. Contrast below `MIN_CONTRAST` gray levels is not amplified."""

EPSILON = np.float32(1e-3)  # avoids a division by zero

PAIRS_AT_ONCE = 256
FEW_BATCHES = 4  # compared in this process, because starting the workers would take longer
TILES_PER_LOOKUP, PAIRS_PER_LOOKUP = 2**10, 2**17
UNKNOWN = np.full(2, np.nan, dtype=np.float32).tobytes()


class Overlay(NamedTuple):
    """Images resampled onto others, with masks (0 or 1) of the rows and columns that they cover."""

    pixels: Float[ndarray, "P S S"]
    rows: Float[ndarray, "P S 1"]
    columns: Float[ndarray, "P 1 S"]

    @property
    def area(self) -> Float[ndarray, "P"]:
        """The number of pixels in each overlap."""
        area: ndarray = self.rows.sum(axis=(1, 2)) * self.columns.sum(axis=(1, 2))
        return area


class Correlations(NamedTuple):
    """The correlation of each pair after the second round, and after the third (NaN if it did not enter it)."""

    coarse: Float[ndarray, "P"]
    fine: Float[ndarray, "P"]


def registered_correlation(
    ones: UInt8[ndarray, "P S S"], others: UInt8[ndarray, "P S S"], minimum: float = MIN_SIMILARITY.third
) -> Correlations:
    """Return the correlations of each pair after registration, from -1 to 1, computed on the detail of the overlap.

    A pair enters the third round if its coarse correlation is at least `minimum`.

    >>> rng = np.random.default_rng(0)
    >>> scene = np.kron(rng.integers(0, 256, (1, 16, 16)), np.ones((1, 4, 4))).astype(np.uint8)
    >>> darker, another = scene // 2, np.rot90(scene, axes=(1, 2))
    >>> registered_correlation(scene, darker).fine.item() > 0.99
    True
    >>> registered_correlation(scene, another).coarse.item() < 0.5
    True
    """
    registration = _Registration(ones, others, offset=np.zeros((len(ones), 4), dtype=np.float32))
    first_round, second_round, third_round = ROUNDS
    coarse = np.zeros(len(ones), dtype=np.float32)
    fine = np.full(len(ones), np.nan, dtype=np.float32)

    all_pairs = np.arange(len(ones))
    coarse[all_pairs] = registration.refine(first_round, all_pairs)
    in_second = all_pairs[coarse[all_pairs] >= MIN_SIMILARITY.second]
    coarse[in_second] = registration.refine(second_round, in_second)
    in_third = in_second[coarse[in_second] >= minimum]
    fine[in_third] = registration.refine(third_round, in_third)
    return Correlations(coarse, fine)


@dataclass(frozen=True, eq=False)
class _Registration:
    """The registration of pairs of images. `offset` is the shift and stretch of each pair; each round refines it.

    An offset has four numbers: horizontal shift and stretch, vertical shift and stretch. A shift is in half image
    sizes; a stretch is the relative change in size.
    """

    ones: UInt8[ndarray, "P S S"]
    others: UInt8[ndarray, "P S S"]
    offset: Float[ndarray, "P 4"]

    def refine(self, this_round: RegistrationRound, rows: Int[ndarray, "K"]) -> Float[ndarray, "K"]:
        """Refine the offsets of the pairs with these rows, and return their correlations."""
        correlations = np.zeros(len(rows), dtype=np.float32)
        for start in range(0, len(rows), this_round.pairs_at_once):
            batch = slice(start, start + this_round.pairs_at_once)
            pairs = rows[batch]
            one = _centered(reduced(self.ones[pairs], this_round.size))
            other = _centered(reduced(self.others[pairs], this_round.size))
            offset = _fit(one, other, self.offset[pairs], this_round.steps)
            correlations[batch] = _correlation(_overlay(one, offset), other)
            self.offset[pairs] = offset
        return correlations


def _centered(pixels: Float[ndarray, "P S S"]) -> Float[ndarray, "P S S"]:
    """Subtract the mean of each image, so that sums of squares are not dominated by it and float32 suffices."""
    centered: ndarray = pixels - pixels.mean(axis=(1, 2), keepdims=True)
    return centered


def _fit(
    one: Float[ndarray, "P S S"], other: Float[ndarray, "P S S"], offset: Float[ndarray, "P 4"], steps: int
) -> Float[ndarray, "P 4"]:
    """Return the offset that aligns `one` with `other`: the best of the first offset and those after each step."""
    best_offset = offset
    best_agreement = np.full(len(one), -2.0, dtype=np.float32)  # less than any correlation
    for _ in range(steps + 1):  # the last iteration only measures the agreement after the last step
        agreement, step = _step(_overlay(one, offset), other)
        is_better = agreement > best_agreement
        best_offset = np.where(is_better[:, None], offset, best_offset)
        best_agreement = np.maximum(agreement, best_agreement)
        offset = np.clip(offset + step, -MAX_OFFSET, MAX_OFFSET)
    return best_offset


def _step(overlay: Overlay, other: Float[ndarray, "P S S"]) -> tuple[Float[ndarray, "P"], Float[ndarray, "P 4"]]:
    """Return the correlation r of the gray levels, and the Gauss-Newton step of the four offsets.

        r = cov(A, B) / (|A| |B|)     step = (cov(D, D) − a aᵀ)⁻¹ |A| (b − r a)

    where A is the resampled image, B the other image, and D the derivatives of A by the four offsets; |A|² = cov(A, A),
    a = cov(D, A) / |A| and b = cov(D, B) / |B|. Covariances ignore brightness. The terms with a remove the part of D
    along A, because a change in contrast must not count as a shift.
    """
    covariance = _covariance(overlay, other)  # 0: the resampled image; 1: the other image; 2 to 5: the derivatives
    variances = covariance[:, (0, 1), (0, 1)]
    norm = np.sqrt(np.maximum(variances, 0)) + EPSILON  # (P, 2)
    agreement = covariance[:, 0, 1] / (norm[:, 0] * norm[:, 1])
    along_one = covariance[:, 2:, 0] / norm[:, :1]  # (P, 4): a
    along_other = covariance[:, 2:, 1] / norm[:, 1:]  # (P, 4): b
    explained = along_one[:, :, None] * along_one[:, None]  # (P, 4, 4): a aᵀ
    curvature = covariance[:, 2:, 2:] - explained
    gradient = norm[:, :1] * (along_other - along_one * agreement[:, None])
    damping = EPSILON * np.trace(curvature, axis1=1, axis2=2) + np.float32(1e-6)
    damped = curvature + damping[:, None, None] * np.eye(4, dtype=np.float32)
    step = np.linalg.solve(damped, gradient[:, :, None])[:, :, 0]
    return agreement, np.clip(step, -MAX_STEP, MAX_STEP)


def _covariance(overlay: Overlay, other: Float[ndarray, "P S S"]) -> Float[ndarray, "P 6 6"]:
    """Return the covariances, summed over the overlap, of six images.

    They are the resampled image, the other image, and the derivatives of the resampled image by the four offsets:
    horizontal shift and stretch, vertical shift and stretch.
    """
    pairs, side, _ = other.shape
    position = _positions(side)
    vectors = np.zeros((pairs, 7, side, side), dtype=np.float32)
    # The first vector is the mask of the overlap, whose products with the others are their sums.
    mask, image, other_image, shift_x, stretch_x, shift_y, stretch_y = vectors.swapaxes(0, 1)  # views
    np.multiply(overlay.rows, overlay.columns, out=mask)
    np.multiply(overlay.pixels, mask, out=image)
    np.multiply(other, mask, out=other_image)
    np.subtract(overlay.pixels[:, :, 2:], overlay.pixels[:, :, :-2], out=shift_x[:, :, 1:-1])
    np.subtract(overlay.pixels[:, 2:], overlay.pixels[:, :-2], out=shift_y[:, 1:-1])
    per_half_size = mask * np.float32(side / 4)  # the differences span two pixels
    shift_x *= per_half_size
    shift_y *= per_half_size
    np.multiply(shift_x, position, out=stretch_x)
    np.multiply(shift_y, position[:, None], out=stretch_y)

    flat = vectors.reshape(pairs, 7, side * side)
    # The product of an array with its own transpose would call BLAS's `syrk`, which takes 5 times as long here.
    products = flat[:, 1:] @ flat.transpose(0, 2, 1)  # (P, 6, 7)
    sums = products[:, :, 0]
    means = sums / overlay.area[:, None]
    covariance: ndarray = products[:, :, 1:] - sums[:, :, None] * means[:, None]
    return covariance


def _overlay(one: Float[ndarray, "P S S"], offset: Float[ndarray, "P 4"]) -> Overlay:
    """Resample images at shifted and stretched positions, with bilinear interpolation.

    An offset has four numbers: horizontal shift and stretch, vertical shift and stretch. Positions are from −1 to 1.
    """
    side = one.shape[-1]
    shift, stretch = offset[:, ::2, None], offset[:, 1::2, None]  # (P, 2, 1): horizontal, vertical
    source = (1 + stretch) * _positions(side) + shift  # (P, 2, S), from -1 to 1
    source_pixel = (source + 1) * np.float32(side / 2) - np.float32(0.5)
    # A pixel extends half a pixel beyond its center; 0.01 is room for rounding.
    inside = ((source_pixel > -0.51) & (source_pixel < side - 0.49)).astype(np.float32)
    # The weight of a pixel decreases linearly from 1 to 0 with its distance from the source.
    nearest_source = np.clip(source_pixel, 0, side - 1)
    weights = nearest_source[..., None] - np.arange(side, dtype=np.float32)  # (P, 2, S, S)
    np.abs(weights, out=weights)
    np.subtract(1, weights, out=weights)
    np.maximum(weights, 0, out=weights)
    horizontal, vertical = weights[:, 0], weights[:, 1]
    return Overlay(
        pixels=vertical @ one @ horizontal.transpose(0, 2, 1),
        rows=inside[:, 1, :, None],
        columns=inside[:, 0, None, :],
    )


def _correlation(overlay: Overlay, other: Float[ndarray, "P S S"]) -> Float[ndarray, "P"]:
    """Return the correlation of the detail of both images over the overlap."""
    shared = overlay.rows * overlay.columns
    area = overlay.area[:, None, None]
    images = np.stack([overlay.pixels, other])
    detail = _detail(overlay, images, shared)
    mean = detail.sum(axis=(2, 3), keepdims=True) / area
    detail -= shared * mean
    norm = np.sqrt((detail * detail).sum(axis=(2, 3))) + EPSILON  # (2, P)
    product = (detail[0] * detail[1]).sum(axis=(1, 2))
    correlation: ndarray = product / (norm[0] * norm[1])
    return correlation


def _detail(
    overlay: Overlay, images: Float[ndarray, "2 P S S"], shared: Float[ndarray, "P S S"]
) -> Float[ndarray, "2 P S S"]:
    """Return the difference of two blurs divided by the local contrast, 0 outside the overlap.

    `shared` is the mask of the overlap.
    """
    fine, coarse = (_blurred(overlay, images * shared, width) for width in DETAIL)
    detail = (fine - coarse) * shared
    variance = _blurred(overlay, detail * detail, CONTRAST_WIDTH)
    contrast = np.sqrt(np.maximum(variance, 0))
    normalized: ndarray = detail / (contrast + np.float32(MIN_CONTRAST))
    return normalized


def _blurred(overlay: Overlay, images: Float[ndarray, "2 P S S"], width: float) -> Float[ndarray, "2 P S S"]:
    """Blur images that are 0 outside the overlap, using only the pixels inside."""
    blur = _blur(images.shape[-1], width)
    weight_inside = (blur @ overlay.rows) * (overlay.columns @ blur.T)
    blurred: ndarray = (blur @ images @ blur.T) / np.maximum(weight_inside, EPSILON)
    return blurred


@lru_cache
def _positions(side: int) -> Float[ndarray, "S"]:
    """Return the pixel positions along one axis, from -1 to 1."""
    centers = np.arange(side, dtype=np.float32) + 0.5  # in pixels
    return (centers * 2 / side - 1).astype(np.float32)


@lru_cache
def _blur(side: int, width: float) -> Float[ndarray, "S S"]:
    """Return the matrix of a one-dimensional Gaussian blur."""
    pixels = np.arange(side)
    distance = pixels[:, None] - pixels
    gaussian = np.exp(-((distance / width) ** 2) / 2)
    blur: ndarray = (gaussian / gaussian.sum(axis=1, keepdims=True)).astype(np.float32)
    return blur


def write_tiles(file: Path, paths: Sequence[Path], digests: Sequence[bytes], settings: SearchSettings) -> None:
    """Write the tile of each image to a file, to save memory. A tile is a gray image of 4 kB.

    The tiles have the order of `paths`. A tile is copied from the cache, whose key is the digest of the image file.
    Images without a tile in the cache are decoded, in worker processes.
    """
    tiles = np.memmap(file, dtype=np.uint8, mode="w+", shape=(len(paths), TILE * TILE))
    missing = _write_cached_tiles(tiles, digests, settings.cache)  # the rows of the images to decode
    batches = [missing[start : start + IMAGES_AT_ONCE] for start in range(0, len(missing), IMAGES_AT_ONCE)]
    paths_of_batches = [[paths[row] for row in rows] for rows in batches]
    read_tiles = partial(_read_tiles, settings.intensity)

    def files_of(paths_of_batch: list[Path]) -> list[Path]:
        """Return the files to list in the error message if a worker dies while it decodes a batch."""
        return paths_of_batch

    with closing(map_in_order(read_tiles, paths_of_batches, settings.workers, files=files_of)) as results:
        for rows, tiles_of_rows in zip(batches, results, strict=True):
            tiles[rows] = tiles_of_rows
    tiles.flush()


def _write_cached_tiles(tiles: UInt8[ndarray, "M D"], digests: Sequence[bytes], cache: ResultCache) -> list[int]:
    """Write the tiles that are in the cache, and return the rows of the others. `digests` are those of the files."""
    missing: list[int] = []
    for start in range(0, len(digests), TILES_PER_LOOKUP):
        keys = [cache.key(digest) for digest in digests[start : start + TILES_PER_LOOKUP]]
        cached = cache.get(keys)
        for row, key in enumerate(keys, start):
            if key in cached:
                tiles[row] = np.frombuffer(cached_tile(cached[key]), dtype=np.uint8)
            else:
                missing.append(row)
    return missing


@dataclass(frozen=True)
class TileComparison:
    """Compares pairs of the images whose tiles are in `file`. `digests` are the digests of the image files.

    Pairs that are in the cache are not registered again. `advance` is called with the number of pairs completed since
    the last call. The correlations of a pair are cached as two numbers: coarse and fine.
    """

    file: Path
    digests: Sequence[bytes]
    settings: SearchSettings
    advance: Callable[[int], None]

    def correlations(self, pairs: CandidatePairs, minimum: float = MIN_SIMILARITY.third) -> Correlations:
        """Return the registered correlations of each pair; 0 and NaN if the screening removes it."""
        kept = np.flatnonzero(screen(_tiles_in(self.file), pairs.ones, pairs.others, pairs.flipped))
        self.advance(len(pairs.ones) - len(kept))
        coarse = np.zeros(len(pairs.ones), dtype=np.float32)
        fine = np.full(len(pairs.ones), np.nan, dtype=np.float32)
        for start in range(0, len(kept), PAIRS_PER_LOOKUP):
            rows = kept[start : start + PAIRS_PER_LOOKUP]
            correlations = self._look_up_or_register(pairs.select(rows), minimum)
            coarse[rows] = correlations[:, 0]
            fine[rows] = correlations[:, 1]
        fine[coarse < minimum] = np.nan  # the cached pair may have been compared with a lower minimum
        return Correlations(coarse, fine)

    def _look_up_or_register(self, pairs: CandidatePairs, minimum: float) -> Float[ndarray, "P 2"]:
        """Return the coarse and the fine correlation of each pair: from the cache, or computed and then stored.

        The coarse correlation is computed first. The fine one is needed only if the coarse one is at least `minimum`;
        otherwise it may be NaN. Both are NaN if a pair is not in the cache.
        """
        cache = self.settings.cache
        keys = self._keys(pairs)
        cached = cache.get(keys)
        content = b"".join(cached.get(key, UNKNOWN) for key in keys)  # `UNKNOWN` has the bytes of two NaN
        correlations = np.frombuffer(content, dtype=np.float32).reshape(-1, 2).copy()  # the buffer is read-only

        coarse = correlations[:, 0]
        fine = correlations[:, 1]
        is_below_minimum = coarse < minimum  # False if the pair is not in the cache, as NaN < minimum is False
        has_fine = ~np.isnan(fine)
        missing = np.flatnonzero(~(is_below_minimum | has_fine))
        self.advance(len(keys) - len(missing))

        correlations[missing] = self._register(pairs.select(missing), minimum)
        cache.put({keys[row]: correlations[row].tobytes() for row in missing})
        return correlations

    def _keys(self, pairs: CandidatePairs) -> list[bytes]:
        """Return the key of each pair in the cache."""
        columns = (pairs.ones.tolist(), pairs.others.tolist(), pairs.flipped.tolist())
        keys: list[bytes] = []
        for one, other, flipped in zip(*columns, strict=True):
            key = self.settings.cache.key(self.digests[one], self.digests[other], bytes([flipped]))
            keys.append(key)
        return keys

    def _register(self, pairs: CandidatePairs, minimum: float) -> Float[ndarray, "P 2"]:
        """Align the images of each pair and return their correlations, coarse and fine.

        The pairs are processed in batches, in worker processes if there are many batches.
        """
        starts = range(0, len(pairs.ones), PAIRS_AT_ONCE)
        batches = [pairs.select(slice(start, start + PAIRS_AT_ONCE)) for start in starts]
        workers = self.settings.workers if len(batches) > FEW_BATCHES else 0
        correlate = partial(_correlations, self.file, minimum)
        correlations = [np.zeros((0, 2), dtype=np.float32)]  # the result if there are no pairs
        with closing(map_in_order(correlate, batches, workers)) as results:
            for correlations_of_batch in results:
                correlations.append(correlations_of_batch)
                self.advance(len(correlations_of_batch))
        return np.concatenate(correlations)


def _read_tiles(intensity: IntensityRange | None, paths: Sequence[Path]) -> UInt8[ndarray, "M D"]:
    """Decode images and return their tiles, one per row."""
    tiles = b"".join(read_tile(path, intensity) for path in paths)
    return np.frombuffer(tiles, dtype=np.uint8).reshape(len(paths), TILE * TILE)


def _tiles_in(file: Path) -> UInt8[ndarray, "M S S"]:
    """Map the file of the tiles into memory, so that only the tiles in use are read."""
    tiles: ndarray = np.memmap(file, dtype=np.uint8, mode="r").reshape(-1, TILE, TILE)
    return tiles


def _correlations(file: Path, minimum: float, pairs: CandidatePairs) -> Float[ndarray, "P 2"]:
    """Return the coarse and the fine correlation of each pair of the tiles in `file`."""
    tiles = _tiles_in(file)
    ones = np.array(tiles[pairs.ones])
    others = np.array(tiles[pairs.others])
    others[pairs.flipped] = others[pairs.flipped, :, ::-1]
    return np.stack(registered_correlation(ones, others, minimum), axis=1)
