"""Registration: whether two small images are the same picture, after one is shifted and stretched onto the other.

A copy may be cropped by a few percent, so that its pixels are elsewhere. Four parameters describe that: a shift and a
stretch along the rows, and the same down the columns. Gauss-Newton steps find them, first on a coarse image, then on
finer ones, for many pairs at once. The correlation is that of the detail: neither noise nor the large bright and dark
areas that all chests, all skies and all slides share.
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
"""Side in pixels of the small images that are compared."""

ROUNDS = ((16, 6, 0.4), (32, 3, 0.6), (64, 2, 0.0))
"""Size of the image, steps, and the correlation below which a pair goes no further: most pairs differ at a glance."""

MAX_OFFSET = 0.25  # in halves of the image: a crop of 8 % on each side stretches by 0.16
MAX_STEP = 0.06
DETAIL = (1.0, 3.0)
"""Detail is what the first blur keeps and the second removes; both in pixels."""

CONTRAST_WIDTH, MIN_CONTRAST = 4.0, 2.0
"""Detail is divided by the contrast around it (width in pixels), or the rim of a scanner's field would outweigh
everything inside; contrast below this many gray levels is not amplified."""

PAIRS_AT_ONCE = 64


class Overlay(NamedTuple):
    """An image resampled onto another, and whether (0 or 1) each row and column of the other is covered."""

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
    """Return the registered correlation of each pair, or 0 if screening finds far better pairs for both images.

    The small images are kept in a file, 4 kB each: every image is read once, whatever the number of its pairs, and
    memory stays small. `advance` is called with the number of pairs done since the last call.
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
    """Return the correlation of the detail of each pair where they overlap, from -1 to 1; 1 is the same picture.

    >>> rng = np.random.default_rng(0)
    >>> scene = np.kron(rng.integers(0, 256, (1, 16, 16)), np.ones((1, 4, 4))).astype(np.uint8)
    >>> darker, another = scene // 2, np.rot90(scene, axes=(1, 2))
    >>> bool(registered_correlation(scene, darker)[0] > 0.99), bool(registered_correlation(scene, another)[0] < 0.5)
    (True, True)
    """
    correlation = np.zeros(len(ones), dtype=np.float32)
    left = np.arange(len(ones))
    offset = np.zeros((len(ones), 4), dtype=np.float32)
    for size, steps, least in ROUNDS:
        one, other = reduced(ones[left], size), reduced(others[left], size)
        offset = _fit(one, other, offset, steps)
        overlay = _overlay(one, offset)
        details = _detail(overlay), _detail(overlay._replace(pixels=other))
        first, second = (_standardized(overlay, detail)[0] for detail in details)
        correlation[left] = (first * second).sum(axis=(1, 2))
        further = correlation[left] >= least
        left, offset = left[further], offset[further]
    return correlation


def _fit(
    one: Float[ndarray, "P S S"], other: Float[ndarray, "P S S"], offset: Float[ndarray, "P 4"], steps: int
) -> Float[ndarray, "P 4"]:
    """Return the parameters that offset `one` on `other`: the best of those that the steps visit."""
    best, highest = offset, np.full(len(one), -2.0, dtype=np.float32)
    for step in range(steps + 1):
        overlay = _overlay(one, offset)
        standard, length = _standardized(overlay, overlay.pixels)
        rest = _standardized(overlay, other)[0] - standard
        agreement = 1 - (rest * rest).sum(axis=(1, 2)) / 2
        best = np.where((agreement > highest)[:, None], offset, best)
        highest = np.maximum(agreement, highest)
        if step < steps:
            offset = offset + _step(overlay, standard, rest * length)
            offset = np.clip(offset, -MAX_OFFSET, MAX_OFFSET)
    return best


def _step(overlay: Overlay, standard: Float[ndarray, "P S S"], rest: Float[ndarray, "P S S"]) -> Float[ndarray, "P 4"]:
    """Return a Gauss-Newton step that ignores changes of brightness and contrast."""
    pairs, side, _ = overlay.pixels.shape
    pixels, shared, where = overlay.pixels, overlay.rows * overlay.columns, _positions(side)
    along, down = np.zeros_like(pixels), np.zeros_like(pixels)  # derivatives, per half of the image
    along[:, :, 1:-1] = (pixels[:, :, 2:] - pixels[:, :, :-2]) * (side / 4)
    down[:, 1:-1] = (pixels[:, 2:] - pixels[:, :-2]) * (side / 4)
    along, down = along * shared, down * shared
    slopes = np.stack([along, along * where, down, down * where[:, None]], axis=1).reshape(pairs, 4, side * side)
    constant = shared / np.sqrt(shared.sum(axis=(1, 2), keepdims=True))
    # Brightness and contrast: two orthogonal directions of length 1.
    free = np.stack([standard, constant], axis=1).reshape(pairs, 2, side * side)
    idle = slopes @ free.transpose(0, 2, 1)
    curvature = slopes @ slopes.transpose(0, 2, 1) - idle @ idle.transpose(0, 2, 1)
    wanted = slopes @ rest.reshape(pairs, side * side, 1) - idle @ (free @ rest.reshape(pairs, side * side, 1))
    damping = 1e-3 * np.trace(curvature, axis1=1, axis2=2) + 1e-6
    step = np.linalg.solve(curvature + damping[:, None, None] * np.eye(4, dtype=np.float32), wanted)
    return np.clip(step[:, :, 0], -MAX_STEP, MAX_STEP)


def _overlay(one: Float[ndarray, "P S S"], offset: Float[ndarray, "P 4"]) -> Overlay:
    """Resample images at shifted and stretched positions, linearly between pixels."""
    along, columns = _sampling(offset[:, :2], one.shape[-1])
    down, rows = _sampling(offset[:, 2:], one.shape[-1])
    return Overlay(down @ one @ along.transpose(0, 2, 1), rows[:, :, None], columns[:, None, :])


def _sampling(offset: Float[ndarray, "P 2"], side: int) -> tuple[Float[ndarray, "P S S"], Float[ndarray, "P S"]]:
    """Return for each pixel of a row the weights of its source pixels, and whether they are in the image."""
    wanted = ((1 + offset[:, 1:]) * _positions(side) + offset[:, :1] + 1) * (side / 2) - 0.5
    inside = ((wanted > -0.51) & (wanted < side - 0.49)).astype(np.float32)
    away = np.clip(wanted, 0, side - 1)[:, :, None] - np.arange(side, dtype=np.float32)
    return np.maximum(1 - np.abs(away), 0), inside


def _detail(overlay: Overlay) -> Float[ndarray, "P S S"]:
    """Return the difference of two blurs, divided by the contrast around; pixels outside the overlap do not count."""
    fine, coarse = (_blurred(overlay, overlay.pixels, width) for width in DETAIL)
    detail = fine - coarse
    strength = np.sqrt(np.maximum(_blurred(overlay, detail * detail, CONTRAST_WIDTH), 0))
    detailed: ndarray = detail / (strength + MIN_CONTRAST)
    return detailed


def _blurred(overlay: Overlay, pixels: Float[ndarray, "P S S"], width: float) -> Float[ndarray, "P S S"]:
    blur = _blur(pixels.shape[-1], width)
    weight = (blur @ overlay.rows) * (overlay.columns @ blur.T)
    blurred: ndarray = (blur @ (pixels * overlay.rows * overlay.columns) @ blur.T) / np.maximum(weight, 1e-3)
    return blurred


def _standardized(
    overlay: Overlay, pixels: Float[ndarray, "P S S"]
) -> tuple[Float[ndarray, "P S S"], Float[ndarray, "P 1 1"]]:
    """Return the shared pixels with mean zero and length one, the others zero; and the former length."""
    shared = overlay.rows * overlay.columns
    mean = (pixels * shared).sum(axis=(1, 2), keepdims=True) / shared.sum(axis=(1, 2), keepdims=True)
    centered = (pixels - mean) * shared
    length = np.sqrt((centered * centered).sum(axis=(1, 2), keepdims=True)) + 1e-3
    return centered / length, length


def _positions(side: int) -> Float[ndarray, "S"]:
    """Return the positions of the pixels of a row, from -1 to 1."""
    return ((np.arange(side, dtype=np.float32) + 0.5) * 2 / side - 1).astype(np.float32)


@lru_cache
def _blur(side: int, width: float) -> Float[ndarray, "S S"]:
    """Return a matrix that blurs columns with a Gaussian."""
    pixels = np.arange(side)
    bell = np.exp(-(((pixels[:, None] - pixels) / width) ** 2) / 2)
    blur: ndarray = (bell / bell.sum(axis=1, keepdims=True)).astype(np.float32)
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
