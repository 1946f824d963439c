from pathlib import Path

import numpy as np
import pytest

from helpers.scenes import scene
from probmcl.audit.duplicates import comparison as module
from probmcl.audit.duplicates.candidates import CandidatePairs
from probmcl.audit.duplicates.comparison import TileComparison, write_tiles
from probmcl.audit.duplicates.hashing import TILE, fingerprints, read_tile
from probmcl.audit.duplicates.registration import Correlations
from probmcl.audit.duplicates.result_cache import NO_CACHE, ResultCache

PAIRS = CandidatePairs(np.array([0, 1, 2]), np.array([3, 4, 5]), np.zeros(3, dtype=bool), np.zeros(3, dtype=np.uint8))


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Three scenes, a copy of the first, a cropped copy of the second, and another scene."""
    images = [scene(0), scene(1), scene(2), scene(0).resize((120, 90)), scene(1).crop((6, 5, 153, 116)), scene(3)]
    files = [tmp_path / f"{number}.png" for number in range(len(images))]
    for path, image in zip(files, images, strict=True):
        image.save(path)
    return files


def compared(paths: list[Path], cache: ResultCache, minimum: float, steps: list[int]) -> Correlations:
    tiles, contents = paths[0].with_name("tiles"), [path.name.encode() for path in paths]
    write_tiles(tiles, paths, contents, intensity=None, workers=0, cache=cache)
    return TileComparison(tiles, contents, 0, cache, steps.append).correlations(PAIRS, minimum)


def test_tiles_are_read_from_the_cache_or_decoded(paths: list[Path], tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "results.sqlite")
    contents = [image.content for image in fingerprints(paths[:4], cache=cache)] + [b"unknown", b"unknown too"]
    expected = [read_tile(path, None) for path in paths]
    for path in paths[:4]:
        path.unlink()
    write_tiles(tmp_path / "tiles", paths, contents, intensity=None, workers=0, cache=cache)
    assert (tmp_path / "tiles").read_bytes() == b"".join(expected)
    assert len(expected[0]) == TILE * TILE


def test_cached_correlations_do_not_depend_on_earlier_minimums(paths: list[Path], tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "results.sqlite")
    for minimum in (0.999, 0.6, 0.999):
        expected = compared(paths, NO_CACHE, minimum, [])
        for _ in range(2):
            steps: list[int] = []
            assert np.allclose(compared(paths, cache, minimum, steps), expected, atol=1e-6, equal_nan=True)
            assert sum(steps) == len(PAIRS.ones)
    assert np.isnan(compared(paths, cache, 0.6, []).fine).tolist() == [False, False, True]


def test_workers_compare_many_pairs(paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles, contents = tmp_path / "tiles", [path.name.encode() for path in paths]
    write_tiles(tiles, paths, contents, intensity=None, workers=2, cache=NO_CACHE)
    expected = TileComparison(tiles, contents, 0, NO_CACHE, lambda count: None).correlations(PAIRS)
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", 1)
    monkeypatch.setattr(module, "PAIRS_PER_LOOKUP", 2)
    monkeypatch.setattr(module, "FEW_BATCHES", 0)
    result = TileComparison(tiles, contents, 2, NO_CACHE, lambda count: None).correlations(PAIRS)
    assert np.allclose(result, expected, atol=1e-3, equal_nan=True)
