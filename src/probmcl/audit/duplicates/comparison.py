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
from jaxtyping import Float, UInt8
from numpy import ndarray

from probmcl.audit.duplicates.candidates import CandidatePairs, reduced, screen
from probmcl.audit.duplicates.hashing import IMAGES_AT_ONCE, TILE, ResultCache, cached_tile, read_tile
from probmcl.data.pixels import IntensityRange
from probmcl.runtime.workers import map_in_order

ROUNDS = ((16, 6, 256), (32, 3, 64), (64, 2, 16))
"""Image size, Gauss-Newton steps, and number of pairs at once (so that they fit into the CPU cache) of each round."""

MIN_SIMILARITY = (0.4, 0.6)
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
    ones: UInt8[ndarray, "P S S"], others: UInt8[ndarray, "P S S"], minimum: float = MIN_SIMILARITY[1]
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
    result = Correlations(np.zeros(len(ones), dtype=np.float32), np.full(len(ones), np.nan, dtype=np.float32))
    active = np.arange(len(ones))
    offset = np.zeros((len(ones), 4), dtype=np.float32)
    targets = (result.coarse, result.coarse, result.fine)
    for (size, steps, at_once), least, target in zip(ROUNDS, (MIN_SIMILARITY[0], minimum, 1.0), targets, strict=True):
        for start in range(0, len(active), at_once):
            rows = active[start : start + at_once]
            one, other = (_centered(reduced(tiles[rows], size)) for tiles in (ones, others))
            offset[rows] = _fit(one, other, offset[rows], steps)
            target[rows] = _correlation(_overlay(one, offset[rows]), other)
        active = active[target[active] >= least]
    return result


def _centered(pixels: Float[ndarray, "P S S"]) -> Float[ndarray, "P S S"]:
    """Subtract the mean of each image, so that sums of squares are not dominated by it and float32 suffices."""
    centered: ndarray = pixels - pixels.mean(axis=(1, 2), keepdims=True)
    return centered


def _fit(
    one: Float[ndarray, "P S S"], other: Float[ndarray, "P S S"], offset: Float[ndarray, "P 4"], steps: int
) -> Float[ndarray, "P 4"]:
    """Return the offset that aligns `one` with `other`: the best offset after any step."""
    best, highest = offset, np.full(len(one), -2.0, dtype=np.float32)
    for _ in range(steps + 1):
        agreement, step = _step(_overlay(one, offset), other)
        best = np.where((agreement > highest)[:, None], offset, best)
        highest = np.maximum(agreement, highest)
        offset = np.clip(offset + step, -MAX_OFFSET, MAX_OFFSET)
    return best


def _step(overlay: Overlay, other: Float[ndarray, "P S S"]) -> tuple[Float[ndarray, "P"], Float[ndarray, "P 4"]]:
    """Return the correlation of the gray levels, and a Gauss-Newton step that ignores brightness and contrast.

    Both follow from the covariances of the two images and the derivatives. The derivatives are projected orthogonally
    to the image, because a change in contrast must not count as a shift.
    """
    covariance = _covariance(overlay, other)
    norm = np.sqrt(np.maximum(covariance[:, (0, 1), (0, 1)], 0)) + EPSILON
    agreement = covariance[:, 0, 1] / (norm[:, 0] * norm[:, 1])
    along_one, along_other = covariance[:, 2:, 0] / norm[:, :1], covariance[:, 2:, 1] / norm[:, 1:]
    curvature = covariance[:, 2:, 2:] - along_one[:, :, None] * along_one[:, None]
    gradient = norm[:, :1] * (along_other - along_one * agreement[:, None])
    damping = EPSILON * np.trace(curvature, axis1=1, axis2=2) + np.float32(1e-6)
    damped = curvature + damping[:, None, None] * np.eye(4, dtype=np.float32)
    return agreement, np.clip(np.linalg.solve(damped, gradient[:, :, None])[:, :, 0], -MAX_STEP, MAX_STEP)


def _covariance(overlay: Overlay, other: Float[ndarray, "P S S"]) -> Float[ndarray, "P 6 6"]:
    """Return the covariances, summed over the overlap, of both images and the derivatives by the four offsets."""
    pixels, (pairs, side, _), position = overlay.pixels, other.shape, _positions(other.shape[-1])
    vectors = np.zeros((pairs, 7, side, side), dtype=np.float32)
    shared = np.multiply(overlay.rows, overlay.columns, out=vectors[:, 0])
    np.multiply(pixels, shared, out=vectors[:, 1])
    np.multiply(other, shared, out=vectors[:, 2])
    np.subtract(pixels[:, :, 2:], pixels[:, :, :-2], out=vectors[:, 3, :, 1:-1])
    np.subtract(pixels[:, 2:], pixels[:, :-2], out=vectors[:, 5, 1:-1])
    vectors[:, 3::2] *= shared[:, None] * np.float32(side / 4)  # per half image size
    np.multiply(vectors[:, 3], position, out=vectors[:, 4])
    np.multiply(vectors[:, 5], position[:, None], out=vectors[:, 6])
    flat = vectors.reshape(pairs, 7, side * side)
    # The product of an array with its own transpose would call BLAS's `syrk`, which takes 5 times as long here.
    products = flat[:, 1:] @ flat.transpose(0, 2, 1)
    sums = products[:, :, 0]
    covariance: ndarray = products[:, :, 1:] - sums[:, :, None] * (sums / overlay.area[:, None])[:, None]
    return covariance


def _overlay(one: Float[ndarray, "P S S"], offset: Float[ndarray, "P 4"]) -> Overlay:
    """Resample images at shifted and stretched positions, with bilinear interpolation."""
    side = one.shape[-1]
    shift, stretch = offset[:, ::2, None], offset[:, 1::2, None]
    source = ((1 + stretch) * _positions(side) + shift + 1) * np.float32(side / 2) - np.float32(0.5)  # (P, 2, S)
    inside = ((source > -0.51) & (source < side - 0.49)).astype(np.float32)
    weights = np.clip(source, 0, side - 1)[..., None] - np.arange(side, dtype=np.float32)
    np.maximum(np.subtract(1, np.abs(weights, out=weights), out=weights), 0, out=weights)
    horizontal, vertical = weights[:, 0], weights[:, 1]
    return Overlay(vertical @ one @ horizontal.transpose(0, 2, 1), inside[:, 1, :, None], inside[:, 0, None, :])


def _correlation(overlay: Overlay, other: Float[ndarray, "P S S"]) -> Float[ndarray, "P"]:
    """Return the correlation of the detail of both images over the overlap."""
    shared, area = overlay.rows * overlay.columns, overlay.area[:, None, None]
    detail = _detail(overlay, np.stack([overlay.pixels, other]), shared)
    detail -= shared * (detail.sum(axis=(2, 3), keepdims=True) / area)
    norm = np.sqrt((detail * detail).sum(axis=(2, 3))) + EPSILON
    correlation: ndarray = (detail[0] * detail[1]).sum(axis=(1, 2)) / (norm[0] * norm[1])
    return correlation


def _detail(
    overlay: Overlay, images: Float[ndarray, "2 P S S"], shared: Float[ndarray, "P S S"]
) -> Float[ndarray, "2 P S S"]:
    """Return the difference of two blurs divided by the local contrast, 0 outside the overlap."""
    fine, coarse = (_blurred(overlay, images * shared, width) for width in DETAIL)
    detail = (fine - coarse) * shared
    contrast = np.sqrt(np.maximum(_blurred(overlay, detail * detail, CONTRAST_WIDTH), 0))
    normalized: ndarray = detail / (contrast + np.float32(MIN_CONTRAST))
    return normalized


def _blurred(overlay: Overlay, images: Float[ndarray, "2 P S S"], width: float) -> Float[ndarray, "2 P S S"]:
    """Blur images that are 0 outside the overlap, using only the pixels inside."""
    blur = _blur(images.shape[-1], width)
    weight = (blur @ overlay.rows) * (overlay.columns @ blur.T)
    blurred: ndarray = (blur @ images @ blur.T) / np.maximum(weight, EPSILON)
    return blurred


@lru_cache
def _positions(side: int) -> Float[ndarray, "S"]:
    """Return the pixel positions along one axis, from -1 to 1."""
    return ((np.arange(side, dtype=np.float32) + 0.5) * 2 / side - 1).astype(np.float32)


@lru_cache
def _blur(side: int, width: float) -> Float[ndarray, "S S"]:
    """Return the matrix of a one-dimensional Gaussian blur."""
    pixels = np.arange(side)
    gaussian = np.exp(-(((pixels[:, None] - pixels) / width) ** 2) / 2)
    blur: ndarray = (gaussian / gaussian.sum(axis=1, keepdims=True)).astype(np.float32)
    return blur


def write_tiles(
    file: Path,
    paths: Sequence[Path],
    contents: Sequence[bytes],
    *,
    intensity: IntensityRange | None,
    workers: int,
    cache: ResultCache,
) -> None:
    """Write the tiles of images to a file, 4 kB each, to save memory. Images that are not in the cache are decoded."""
    tiles = np.memmap(file, dtype=np.uint8, mode="w+", shape=(len(paths), TILE * TILE))
    missing: list[int] = []
    for start in range(0, len(paths), TILES_PER_LOOKUP):
        keys = [cache.key(content) for content in contents[start : start + TILES_PER_LOOKUP]]
        cached = cache.get(keys)
        for row, key in enumerate(keys, start):
            if key in cached:
                tiles[row] = np.frombuffer(cached_tile(cached[key]), dtype=np.uint8)
            else:
                missing.append(row)
    batches = [missing[start : start + IMAGES_AT_ONCE] for start in range(0, len(missing), IMAGES_AT_ONCE)]
    parts = [[paths[row] for row in rows] for rows in batches]
    with closing(map_in_order(partial(_read_tiles, intensity), parts, workers, files=list)) as results:
        for rows, batch in zip(batches, results, strict=True):
            tiles[rows] = batch
    tiles.flush()


@dataclass(frozen=True)
class TileComparison:
    """Compares pairs of the images whose tiles are in `file` and whose digests are `contents`.

    Pairs that are in the cache are not registered again. `advance` is called with the number of pairs completed since
    the last call.
    """

    file: Path
    contents: Sequence[bytes]
    workers: int
    cache: ResultCache
    advance: Callable[[int], None]

    def correlations(self, pairs: CandidatePairs, minimum: float = MIN_SIMILARITY[1]) -> Correlations:
        """Return the registered correlations of each pair; 0 and NaN if the screening removes it."""
        kept = np.flatnonzero(screen(_tiles_in(self.file), pairs.ones, pairs.others, pairs.flipped))
        self.advance(len(pairs.ones) - len(kept))
        result = np.full((len(pairs.ones), 2), (0.0, np.nan), dtype=np.float32)
        for start in range(0, len(kept), PAIRS_PER_LOOKUP):
            rows = kept[start : start + PAIRS_PER_LOOKUP]
            result[rows] = self._cached(pairs.select(rows), minimum)
        result[result[:, 0] < minimum, 1] = np.nan  # the cached pair may have been compared with a lower minimum
        return Correlations(*result.T)

    def _cached(self, pairs: CandidatePairs, minimum: float) -> Float[ndarray, "P 2"]:
        """Look up the correlations, and compute and store the missing ones."""
        columns = (pairs.ones.tolist(), pairs.others.tolist(), pairs.flipped.tolist())
        keys = [
            self.cache.key(self.contents[one], self.contents[other], bytes([flipped]))
            for one, other, flipped in zip(*columns, strict=True)
        ]
        cached = self.cache.get(keys)
        stored = b"".join(cached.get(key, UNKNOWN) for key in keys)
        values = np.frombuffer(stored, dtype=np.float32).reshape(-1, 2).copy()
        is_complete = (values[:, 0] < minimum) | ~np.isnan(values[:, 1])
        missing = np.flatnonzero(~is_complete)
        self.advance(len(keys) - len(missing))
        values[missing] = self._registered(pairs.select(missing), minimum)
        self.cache.put({keys[row]: values[row].tobytes() for row in missing})
        return values

    def _registered(self, pairs: CandidatePairs, minimum: float) -> Float[ndarray, "P 2"]:
        starts = range(0, len(pairs.ones), PAIRS_AT_ONCE)
        parts = [CandidatePairs(*(column[start : start + PAIRS_AT_ONCE] for column in pairs)) for start in starts]
        values = [np.zeros((0, 2), dtype=np.float32)]
        workers = self.workers if len(parts) > FEW_BATCHES else 0
        with closing(map_in_order(partial(_correlations, self.file, minimum), parts, workers)) as results:
            for batch in results:
                values.append(batch)
                self.advance(len(batch))
        return np.concatenate(values)


def _read_tiles(intensity: IntensityRange | None, paths: Sequence[Path]) -> UInt8[ndarray, "M D"]:
    tiles = b"".join(read_tile(path, intensity) for path in paths)
    return np.frombuffer(tiles, dtype=np.uint8).reshape(len(paths), TILE * TILE)


def _tiles_in(file: Path) -> UInt8[ndarray, "M S S"]:
    tiles: ndarray = np.memmap(file, dtype=np.uint8, mode="r").reshape(-1, TILE, TILE)
    return tiles


def _correlations(file: Path, minimum: float, pairs: CandidatePairs) -> Float[ndarray, "P 2"]:
    tiles = _tiles_in(file)
    others = np.array(tiles[pairs.others])
    others[pairs.flipped] = others[pairs.flipped, :, ::-1]
    return np.stack(registered_correlation(np.array(tiles[pairs.ones]), others, minimum), axis=1)
