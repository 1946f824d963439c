"""Are two small images the same picture? One is laid over the other as well as it goes, and their detail is compared.

A copy may be cropped by some per cent, so that its pixels stand elsewhere. Four numbers say where: a shift and a
stretch along the rows, and the same down the columns. Gauss-Newton steps find them, first on a coarse image, then on
finer ones, for many pairs at once. What is correlated then is detail: neither noise nor the large light and dark that
all chests, all skies and all slides share.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

TILE = 64
"""Pixels a side of the small images that are compared."""

ROUNDS = ((16, 6, 0.4), (32, 3, 0.6), (64, 2, 0.0))
"""Size of the image, steps, and the likeness below which a pair goes no further: most pairs differ at a glance."""

FARTHEST = 0.25  # in halves of the image: a crop of 8 % on each side stretches by 0.16
LONGEST_STEP = 0.06
DETAIL = (1.0, 3.0)
"""Detail is what the first blur keeps and the second loses; both in pixels."""

AROUND, FAINT = 4.0, 2.0
"""Detail counts by its surroundings of so many pixels, or the rim of a scanner's field would outweigh all within it;
what is fainter than so many gray levels stays faint."""


class Laid(NamedTuple):
    """An image laid over another, and the share, 0 or 1, that each row and each column of the other has in it."""

    pixels: Float[ndarray, "P S S"]
    rows: Float[ndarray, "P S 1"]
    columns: Float[ndarray, "P 1 S"]


def likeness(ones: UInt8[ndarray, "P S S"], others: UInt8[ndarray, "P S S"]) -> Float[ndarray, "P"]:
    """The correlation of the detail of each pair where they overlap, from -1 to 1; 1 is the same picture.

    >>> rng = np.random.default_rng(0)
    >>> scene = np.kron(rng.integers(0, 256, (1, 16, 16)), np.ones((1, 4, 4))).astype(np.uint8)
    >>> darker, another = scene // 2, np.rot90(scene, axes=(1, 2))
    >>> bool(likeness(scene, darker)[0] > 0.99), bool(likeness(scene, another)[0] < 0.5)
    (True, True)
    """
    found = np.zeros(len(ones), dtype=np.float32)
    left = np.arange(len(ones))
    place = np.zeros((len(ones), 4), dtype=np.float32)
    for size, steps, least in ROUNDS:
        one, other = _reduced(ones[left], size), _reduced(others[left], size)
        place = _fitted(one, other, place, steps)
        laid = _laid(one, place)
        found[left] = _correlation(laid._replace(pixels=_detail(laid)), _detail(laid._replace(pixels=other)))
        further = found[left] >= least
        left, place = left[further], place[further]
    return found


def _reduced(tiles: UInt8[ndarray, "P T T"], size: int) -> Float[ndarray, "P S S"]:
    pairs, side, _ = tiles.shape
    reduced: ndarray = tiles.reshape(pairs, size, side // size, size, side // size).mean(axis=(2, 4), dtype=np.float32)
    return reduced


def _fitted(
    one: Float[ndarray, "P S S"], other: Float[ndarray, "P S S"], place: Float[ndarray, "P 4"], steps: int
) -> Float[ndarray, "P 4"]:
    """Where `one` lies on `other`: of the places that some steps come by, the best."""
    best, highest = place, np.full(len(one), -2.0, dtype=np.float32)
    for step in range(steps + 1):
        laid = _laid(one, place)
        standard, length = _standard(laid, laid.pixels)
        rest = _standard(laid, other)[0] - standard
        agreement = 1 - (rest * rest).sum(axis=(1, 2)) / 2
        best = np.where((agreement > highest)[:, None], place, best)
        highest = np.maximum(agreement, highest)
        if step < steps:
            place = place + _step(laid, standard, rest * length)
            place = np.clip(place, -FARTHEST, FARTHEST)
    return best


def _step(laid: Laid, standard: Float[ndarray, "P S S"], rest: Float[ndarray, "P S S"]) -> Float[ndarray, "P 4"]:
    """How far a Gauss-Newton step goes; changes of brightness and contrast are none of its business."""
    pairs, side, _ = laid.pixels.shape
    along, down = _slopes(laid)
    where = _middles(side)
    slopes = np.stack([along, along * where, down, down * where[:, None]], axis=1).reshape(pairs, 4, side * side)
    free = np.stack([standard, _even(laid)], axis=1).reshape(
        pairs, 2, side * side
    )  # two directions of length 1, at right angles
    idle = slopes @ free.transpose(0, 2, 1)
    curvature = slopes @ slopes.transpose(0, 2, 1) - idle @ idle.transpose(0, 2, 1)
    wanted = slopes @ rest.reshape(pairs, side * side, 1) - idle @ (free @ rest.reshape(pairs, side * side, 1))
    damping = 1e-3 * np.trace(curvature, axis1=1, axis2=2) + 1e-6
    step = np.linalg.solve(curvature + damping[:, None, None] * np.eye(4, dtype=np.float32), wanted)
    return np.clip(step[:, :, 0], -LONGEST_STEP, LONGEST_STEP)


def _slopes(laid: Laid) -> tuple[Float[ndarray, "P S S"], Float[ndarray, "P S S"]]:
    """Change along the rows and down the columns, for each half of the image, where there is something laid."""
    pixels, side = laid.pixels, laid.pixels.shape[-1]
    along, down = np.zeros_like(pixels), np.zeros_like(pixels)
    along[:, :, 1:-1] = (pixels[:, :, 2:] - pixels[:, :, :-2]) * (side / 4)
    down[:, 1:-1] = (pixels[:, 2:] - pixels[:, :-2]) * (side / 4)
    shared = laid.rows * laid.columns
    return along * shared, down * shared


def _laid(one: Float[ndarray, "P S S"], place: Float[ndarray, "P 4"]) -> Laid:
    """Sample images at shifted and stretched places, between pixels in proportion."""
    along, columns = _sampling(place[:, :2], one.shape[-1])
    down, rows = _sampling(place[:, 2:], one.shape[-1])
    return Laid(down @ one @ along.transpose(0, 2, 1), rows[:, :, None], columns[:, None, :])


def _sampling(place: Float[ndarray, "P 2"], side: int) -> tuple[Float[ndarray, "P S S"], Float[ndarray, "P S"]]:
    """For each pixel of a row the weights of the pixels that it is made of, and whether they are in the image."""
    wanted = ((1 + place[:, 1:]) * _middles(side) + place[:, :1] + 1) * (side / 2) - 0.5
    inside = ((wanted > -0.51) & (wanted < side - 0.49)).astype(np.float32)
    away = np.clip(wanted, 0, side - 1)[:, :, None] - np.arange(side, dtype=np.float32)
    return np.maximum(1 - np.abs(away), 0), inside


def _detail(laid: Laid) -> Float[ndarray, "P S S"]:
    """What the first blur keeps and the second loses, by its strength around; what is not shared spills nowhere."""
    fine, coarse = (_blurred(laid, laid.pixels, width) for width in DETAIL)
    detail = fine - coarse
    strength = np.sqrt(np.maximum(_blurred(laid, detail * detail, AROUND), 0))
    detailed: ndarray = detail / (strength + FAINT)
    return detailed


def _blurred(laid: Laid, pixels: Float[ndarray, "P S S"], width: float) -> Float[ndarray, "P S S"]:
    blur = _blur(pixels.shape[-1], width)
    weight = (blur @ laid.rows) * (laid.columns @ blur.T)
    blurred: ndarray = (blur @ (pixels * laid.rows * laid.columns) @ blur.T) / np.maximum(weight, 1e-3)
    return blurred


def _correlation(laid: Laid, other: Float[ndarray, "P S S"]) -> Float[ndarray, "P"]:
    correlation: ndarray = (_standard(laid, laid.pixels)[0] * _standard(laid, other)[0]).sum(axis=(1, 2))
    return correlation


def _standard(laid: Laid, pixels: Float[ndarray, "P S S"]) -> tuple[Float[ndarray, "P S S"], Float[ndarray, "P 1 1"]]:
    """Shared pixels with mean zero and length one, the others zero; and the length that they had."""
    shared = laid.rows * laid.columns
    mean = (pixels * shared).sum(axis=(1, 2), keepdims=True) / shared.sum(axis=(1, 2), keepdims=True)
    centered = (pixels - mean) * shared
    length = np.sqrt((centered * centered).sum(axis=(1, 2), keepdims=True)) + 1e-3
    return centered / length, length


def _even(laid: Laid) -> Float[ndarray, "P S S"]:
    """The shared pixels, alike, at length one."""
    shared = laid.rows * laid.columns
    even: ndarray = shared / np.sqrt(shared.sum(axis=(1, 2), keepdims=True))
    return even


def _middles(side: int) -> Float[ndarray, "S"]:
    """Where the pixels of a row stand, from -1 to 1."""
    return ((np.arange(side, dtype=np.float32) + 0.5) * 2 / side - 1).astype(np.float32)


@lru_cache
def _blur(side: int, width: float) -> Float[ndarray, "S S"]:
    """A matrix that blurs columns with a bell curve of some width."""
    pixels = np.arange(side)
    bell = np.exp(-(((pixels[:, None] - pixels) / width) ** 2) / 2)
    blur: ndarray = (bell / bell.sum(axis=1, keepdims=True)).astype(np.float32)
    return blur
