"""Registration of image pairs: aligns two small images by a shift and a stretch, and correlates them.

A copy may be cropped by a few percent, which shifts and stretches its content. A shift and a stretch per axis are
fitted by Gauss-Newton steps, from coarse to fine, for a batch of pairs. The images are band-pass filtered, because
large bright and dark areas look alike in all chest radiographs, skies or slides.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from probmcl.data.duplicates.candidates import CandidatePairs, reduced, screen
from probmcl.data.duplicates.hashing import IMAGES_AT_ONCE, small_gray
from probmcl.data.images import read_image
from probmcl.data.intensity import IntensityRange
from probmcl.runtime.machine import map_in_order

TILE = 64
"""Side length, in pixels, of the images that are compared."""

ROUNDS = ((16, 6, 0.4), (32, 3, 0.6), (64, 2, 0.0))
"""Image size, Gauss-Newton steps, and minimum correlation to enter the next round, which few pairs reach."""

MAX_OFFSET = 0.25  # in half image sizes; a crop of 8 % on each side is a stretch of 0.16
MAX_STEP = 0.06
DETAIL = (1.0, 3.0)
"""Widths in pixels of the two Gaussian blurs whose difference is the detail of an image."""

CONTRAST_WIDTH, MIN_CONTRAST = 4.0, 2.0
"""Detail is divided by the local contrast (blur width in pixels); otherwise strong edges, such as the border of a scan,
would dominate. Contrast below `MIN_CONTRAST` gray levels is not amplified."""

PAIRS_AT_ONCE = 64


class Overlay(NamedTuple):
    """Images resampled onto others, with masks (0 or 1) of the rows and columns that they cover."""

    pixels: Float[ndarray, "P S S"]
    rows: Float[ndarray, "P S 1"]
    columns: Float[ndarray, "P 1 S"]


def correlations(
    paths: Sequence[Path],
    pairs: CandidatePairs,
    *,
    intensity: IntensityRange | None,
    workers: int,
    advance: Callable[[int], None],
) -> Float[ndarray, "P"]:
    """Return the registered correlation of each pair, or 0 for pairs that the screening removes.

    Every image is decoded once. The small images, 4 kB each, are stored in a temporary file to save memory. `advance`
    is called with the number of pairs completed since the last call.
    """
    needed, index = np.unique(np.concatenate([pairs.ones, pairs.others]), return_inverse=True)
    ones, others = np.split(index, 2)
    stored = pairs._replace(ones=ones, others=others)
    result = np.zeros(len(ones), dtype=np.float32)
    if not len(result):
        return result
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "tiles"
        _write_tiles(store, [paths[row] for row in needed], intensity, workers)
        kept = np.flatnonzero(screen(_tiles_in(store), ones, others, pairs.flipped))
        advance(len(result) - len(kept))
        batches = [kept[start : start + PAIRS_AT_ONCE] for start in range(0, len(kept), PAIRS_AT_ONCE)]
        parts = [stored.select(rows) for rows in batches]
        with closing(map_in_order(partial(_correlations, store), parts, workers)) as correlated:
            for rows, batch in zip(batches, correlated, strict=True):
                result[rows] = batch
                advance(len(rows))
    return result


def registered_correlation(ones: UInt8[ndarray, "P S S"], others: UInt8[ndarray, "P S S"]) -> Float[ndarray, "P"]:
    """Return the correlation of each pair after registration, from -1 to 1, computed on the detail of the overlap.

    >>> rng = np.random.default_rng(0)
    >>> scene = np.kron(rng.integers(0, 256, (1, 16, 16)), np.ones((1, 4, 4))).astype(np.uint8)
    >>> darker, another = scene // 2, np.rot90(scene, axes=(1, 2))
    >>> bool(registered_correlation(scene, darker)[0] > 0.99), bool(registered_correlation(scene, another)[0] < 0.5)
    (True, True)
    """
    correlation = np.zeros(len(ones), dtype=np.float32)
    active = np.arange(len(ones))
    offset = np.zeros((len(ones), 4), dtype=np.float32)
    for size, steps, minimum in ROUNDS:
        one, other = reduced(ones[active], size), reduced(others[active], size)
        offset = _fit(one, other, offset, steps)
        overlay = _overlay(one, offset)
        details = _detail(overlay), _detail(overlay._replace(pixels=other))
        first, second = (_standardized(overlay, detail)[0] for detail in details)
        correlation[active] = (first * second).sum(axis=(1, 2))
        similar = correlation[active] >= minimum
        active, offset = active[similar], offset[similar]
    return correlation


def _fit(
    one: Float[ndarray, "P S S"], other: Float[ndarray, "P S S"], offset: Float[ndarray, "P 4"], steps: int
) -> Float[ndarray, "P 4"]:
    """Return the offset that aligns `one` with `other`: the best offset after any step."""
    best, highest = offset, np.full(len(one), -2.0, dtype=np.float32)
    for step in range(steps + 1):
        overlay = _overlay(one, offset)
        standard, length = _standardized(overlay, overlay.pixels)
        residual = _standardized(overlay, other)[0] - standard
        agreement = 1 - (residual * residual).sum(axis=(1, 2)) / 2
        best = np.where((agreement > highest)[:, None], offset, best)
        highest = np.maximum(agreement, highest)
        if step < steps:
            offset = offset + _step(overlay, standard, residual * length)
            offset = np.clip(offset, -MAX_OFFSET, MAX_OFFSET)
    return best


def _step(overlay: Overlay, standard: Float[ndarray, "P S S"], diff: Float[ndarray, "P S S"]) -> Float[ndarray, "P 4"]:
    """Return a Gauss-Newton step that is invariant to brightness and contrast."""
    pairs, side, _ = overlay.pixels.shape
    pixels, shared, position = overlay.pixels, overlay.rows * overlay.columns, _positions(side)
    dx, dy = np.zeros_like(pixels), np.zeros_like(pixels)  # per half image size
    dx[:, :, 1:-1] = (pixels[:, :, 2:] - pixels[:, :, :-2]) * (side / 4)
    dy[:, 1:-1] = (pixels[:, 2:] - pixels[:, :-2]) * (side / 4)
    dx, dy = dx * shared, dy * shared
    jacobian = np.stack([dx, dx * position, dy, dy * position[:, None]], axis=1).reshape(pairs, 4, side * side)
    constant = shared / np.sqrt(shared.sum(axis=(1, 2), keepdims=True))
    # Contrast and brightness are two orthonormal directions, which are projected out.
    nuisance = np.stack([standard, constant], axis=1).reshape(pairs, 2, side * side)
    projected = jacobian @ nuisance.transpose(0, 2, 1)
    curvature = jacobian @ jacobian.transpose(0, 2, 1) - projected @ projected.transpose(0, 2, 1)
    flat = diff.reshape(pairs, side * side, 1)
    gradient = jacobian @ flat - projected @ (nuisance @ flat)
    damping = 1e-3 * np.trace(curvature, axis1=1, axis2=2) + 1e-6
    step = np.linalg.solve(curvature + damping[:, None, None] * np.eye(4, dtype=np.float32), gradient)
    return np.clip(step[:, :, 0], -MAX_STEP, MAX_STEP)


def _overlay(one: Float[ndarray, "P S S"], offset: Float[ndarray, "P 4"]) -> Overlay:
    """Resample images at shifted and stretched positions, with bilinear interpolation."""
    horizontal, columns = _sampling(offset[:, :2], one.shape[-1])
    vertical, rows = _sampling(offset[:, 2:], one.shape[-1])
    return Overlay(vertical @ one @ horizontal.transpose(0, 2, 1), rows[:, :, None], columns[:, None, :])


def _sampling(offset: Float[ndarray, "P 2"], side: int) -> tuple[Float[ndarray, "P S S"], Float[ndarray, "P S"]]:
    """Return the interpolation weights along one axis, and a mask of the positions inside the image."""
    source = ((1 + offset[:, 1:]) * _positions(side) + offset[:, :1] + 1) * (side / 2) - 0.5
    inside = ((source > -0.51) & (source < side - 0.49)).astype(np.float32)
    distance = np.clip(source, 0, side - 1)[:, :, None] - np.arange(side, dtype=np.float32)
    return np.maximum(1 - np.abs(distance), 0), inside


def _detail(overlay: Overlay) -> Float[ndarray, "P S S"]:
    """Return the difference of two blurs divided by the local contrast, ignoring pixels outside the overlap."""
    fine, coarse = (_blurred(overlay, overlay.pixels, width) for width in DETAIL)
    detail = fine - coarse
    contrast = np.sqrt(np.maximum(_blurred(overlay, detail * detail, CONTRAST_WIDTH), 0))
    normalized: ndarray = detail / (contrast + MIN_CONTRAST)
    return normalized


def _blurred(overlay: Overlay, pixels: Float[ndarray, "P S S"], width: float) -> Float[ndarray, "P S S"]:
    blur = _blur(pixels.shape[-1], width)
    weight = (blur @ overlay.rows) * (overlay.columns @ blur.T)
    blurred: ndarray = (blur @ (pixels * overlay.rows * overlay.columns) @ blur.T) / np.maximum(weight, 1e-3)
    return blurred


def _standardized(
    overlay: Overlay, pixels: Float[ndarray, "P S S"]
) -> tuple[Float[ndarray, "P S S"], Float[ndarray, "P 1 1"]]:
    """Return the pixels of the overlap with zero mean and unit norm (0 elsewhere), and the original norm."""
    shared = overlay.rows * overlay.columns
    mean = (pixels * shared).sum(axis=(1, 2), keepdims=True) / shared.sum(axis=(1, 2), keepdims=True)
    centered = (pixels - mean) * shared
    length = np.sqrt((centered * centered).sum(axis=(1, 2), keepdims=True)) + 1e-3
    return centered / length, length


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


def _write_tiles(store: Path, paths: Sequence[Path], intensity: IntensityRange | None, workers: int) -> None:
    parts = [paths[start : start + IMAGES_AT_ONCE] for start in range(0, len(paths), IMAGES_AT_ONCE)]
    with store.open("wb") as file, closing(map_in_order(partial(_tiles, intensity), parts, workers)) as results:
        for tiles in results:
            file.write(tiles)


def _tiles(intensity: IntensityRange | None, paths: Sequence[Path]) -> bytes:
    images = (read_image(path, TILE, intensity=intensity) for path in paths)
    return b"".join(small_gray(image, TILE).astype(np.uint8).tobytes() for image in images)


def _tiles_in(store: Path) -> UInt8[ndarray, "M S S"]:
    tiles: ndarray = np.memmap(store, dtype=np.uint8, mode="r").reshape(-1, TILE, TILE)
    return tiles


def _correlations(store: Path, pairs: CandidatePairs) -> Float[ndarray, "P"]:
    tiles = _tiles_in(store)
    others = np.array(tiles[pairs.others])
    others[pairs.flipped] = others[pairs.flipped, :, ::-1]
    return registered_correlation(np.array(tiles[pairs.ones]), others)
