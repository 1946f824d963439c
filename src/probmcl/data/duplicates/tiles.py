"""Pairs of files compared as small gray images, many at once and by several processes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from numpy import ndarray

from probmcl.data.duplicates.candidates import Lookalikes
from probmcl.data.duplicates.hashing import IMAGES_AT_ONCE, small_gray
from probmcl.data.duplicates.registration import TILE, likeness
from probmcl.data.duplicates.screening import worth_comparing
from probmcl.data.images import read_image
from probmcl.data.intensity import IntensityRange
from probmcl.runtime.workers import map_in_order

PAIRS_AT_ONCE = 64


class Part(NamedTuple):
    """Some pairs of small images in a file, the second of which may have to be flipped."""

    store: Path
    ones: Int[ndarray, "P"]
    others: Int[ndarray, "P"]
    flipped: Bool[ndarray, "P"]

    def some(self, rows: Int[ndarray, "K"]) -> Part:
        """These pairs alone."""
        return Part(self.store, self.ones[rows], self.others[rows], self.flipped[rows])


def correlations(
    paths: Sequence[Path],
    pairs: Lookalikes,
    *,
    intensity: IntensityRange | None = None,
    workers: int = 0,
    advance: Callable[[int], None] | None = None,
) -> Float[ndarray, "P"]:
    """How alike the two images of each pair are, as `likeness` says it, or 0 where others are far nearer to both.

    `advance` is told how many pairs more are done. The small images wait in a file, 4 kB each: every image is read
    once, whatever the number of its pairs, and memory stays small.
    """
    needed, places = np.unique(np.concatenate([pairs.ones, pairs.others]), return_inverse=True)
    ones, others = np.split(places, 2)
    found = np.zeros(len(pairs.ones), dtype=np.float32)
    if not len(found):
        return found
    with tempfile.TemporaryDirectory() as folder:
        every = Part(Path(folder) / "tiles", ones, others, pairs.flipped)
        _store(every.store, [paths[row] for row in needed], intensity, workers)
        kept = np.flatnonzero(worth_comparing(_stored(every.store), every.ones, every.others, every.flipped))
        if advance is not None:
            advance(len(found) - len(kept))
        starts = range(0, len(kept), PAIRS_AT_ONCE)
        stretches = [kept[start : start + PAIRS_AT_ONCE] for start in starts]
        with closing(map_in_order(_compared, [every.some(rows) for rows in stretches], workers)) as results:
            for rows, part in zip(stretches, results, strict=True):
                found[rows] = part
                if advance is not None:
                    advance(len(rows))
    return found


def tile(path: Path, intensity: IntensityRange | None = None) -> UInt8[ndarray, "S S"]:
    """A file as the small gray image that is compared."""
    return small_gray(read_image(path, TILE, intensity=intensity), TILE).astype(np.uint8)


def _store(store: Path, paths: Sequence[Path], intensity: IntensityRange | None, workers: int) -> None:
    parts = [paths[start : start + IMAGES_AT_ONCE] for start in range(0, len(paths), IMAGES_AT_ONCE)]
    with (
        store.open("wb") as file,
        closing(map_in_order(partial(_tiles, intensity=intensity), parts, workers)) as results,
    ):
        for tiles in results:
            file.write(tiles)


def _tiles(paths: Sequence[Path], intensity: IntensityRange | None) -> bytes:
    return b"".join(tile(path, intensity).tobytes() for path in paths)


def _stored(store: Path) -> UInt8[ndarray, "M S S"]:
    tiles: ndarray = np.memmap(store, dtype=np.uint8, mode="r").reshape(-1, TILE, TILE)
    return tiles


def _compared(part: Part) -> Float[ndarray, "P"]:
    tiles = _stored(part.store)
    others = np.array(tiles[part.others])
    others[part.flipped] = others[part.flipped, :, ::-1]
    return likeness(np.array(tiles[part.ones]), others)
