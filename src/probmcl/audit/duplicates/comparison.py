"""Comparison of candidate pairs: their small images and correlations, from the cache or computed by workers."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from probmcl.audit.duplicates.candidates import CandidatePairs, screen
from probmcl.audit.duplicates.hashing import IMAGES_AT_ONCE, TILE, cached_tile, read_tile
from probmcl.audit.duplicates.registration import MIN_SIMILARITY, Correlations, registered_correlation
from probmcl.audit.duplicates.result_cache import ResultCache
from probmcl.data.intensity import IntensityRange
from probmcl.runtime.workers import map_in_order

PAIRS_AT_ONCE = 256
FEW_BATCHES = 4  # compared in this process, because starting the workers would take longer
TILES_PER_LOOKUP, PAIRS_PER_LOOKUP = 2**10, 2**17
UNKNOWN = np.full(2, np.nan, dtype=np.float32).tobytes()


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
