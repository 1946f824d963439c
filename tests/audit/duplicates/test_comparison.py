"""Comparison of candidate pairs: two small images are aligned by a shift and a stretch, and correlated."""

from pathlib import Path

import numpy as np
import pytest
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image

from helpers.scenes import scene
from probmcl.audit.duplicates import comparison as module
from probmcl.audit.duplicates.candidates import CandidatePairs
from probmcl.audit.duplicates.comparison import Correlations, TileComparison, registered_correlation, write_tiles
from probmcl.audit.duplicates.hashing import (
    NO_CACHE,
    TILE,
    ResultCache,
    SearchSettings,
    fingerprints,
    read_tile,
    small_gray,
)

PAIRS = CandidatePairs(np.array([0, 1, 2]), np.array([3, 4, 5]), np.zeros(3, dtype=bool), np.zeros(3, dtype=np.uint8))


def tiles(*images: Image.Image) -> UInt8[ndarray, "P S S"]:
    return np.stack([small_gray(image, TILE) for image in images]).astype(np.uint8)


def final(correlations: Correlations) -> Float[ndarray, "P"]:
    return np.where(np.isnan(correlations.fine), *correlations)


def correlation(one: Image.Image, other: Image.Image) -> float:
    return float(final(registered_correlation(tiles(one), tiles(other)))[0])


def test_correlation_is_invariant_to_brightness() -> None:
    assert correlation(scene(0), scene(0)) == pytest.approx(1, abs=1e-3)
    assert correlation(scene(0), scene(0).point(lambda level: level // 2 + 60)) > 0.98


@pytest.mark.parametrize(
    "box", [(8, 6, 152, 114), (0, 0, 152, 120), (8, 0, 160, 114), (0, 9, 160, 120), (12, 0, 160, 120)]
)
def test_crops_are_aligned_in_either_order(box: tuple[int, int, int, int]) -> None:
    for seed in range(3):
        whole, part = scene(seed), scene(seed).crop(box)
        assert correlation(whole, part) > 0.95
        assert correlation(part, whole) > 0.95


def test_different_pictures_have_a_low_correlation() -> None:
    ones, others = np.triu_indices(24, 1)
    pictures = tiles(*(scene(seed) for seed in range(24)))
    assert final(registered_correlation(pictures[ones], pictures[others])).max() < 0.7


def test_flipped_picture_has_a_low_correlation() -> None:
    assert correlation(scene(0), scene(0).transpose(Image.Transpose.FLIP_LEFT_RIGHT)) < 0.5


def test_common_frame_does_not_raise_the_correlation() -> None:
    def framed(seed: int) -> Image.Image:
        faint = scene(seed).point(lambda level: 110 + level // 4)
        mask = Image.new("L", faint.size, 0)
        mask.paste(255, (16, 12, 144, 108))
        return Image.composite(faint, Image.new("RGB", faint.size), mask)

    assert correlation(framed(0), framed(0).resize((100, 80))) > 0.92
    assert max(correlation(framed(0), framed(seed)) for seed in range(1, 12)) < 0.92


def test_pairs_in_a_batch_are_independent() -> None:
    ones = tiles(scene(0), scene(1), scene(2))
    others = tiles(scene(0).crop((5, 5, 155, 115)), scene(5), scene(2))
    together = final(registered_correlation(ones, others))
    alone = [final(registered_correlation(ones[k : k + 1], others[k : k + 1]))[0] for k in range(3)]
    assert together == pytest.approx(alone, abs=1e-3)
    assert [value > 0.9 for value in together] == [True, False, True]


def test_empty_batches_and_constant_images() -> None:
    nothing = np.zeros((0, TILE, TILE), dtype=np.uint8)
    assert final(registered_correlation(nothing, nothing)).shape == (0,)
    flat = np.full((2, TILE, TILE), 7, dtype=np.uint8)
    assert np.abs(final(registered_correlation(flat, flat))).max() < 0.5
    assert np.abs(final(registered_correlation(flat[:1], tiles(scene(0))))).max() < 0.5


def test_only_pairs_that_reach_the_minimum_are_compared_at_full_size() -> None:
    ones = tiles(scene(0), scene(1), scene(2))
    others = tiles(scene(0).crop((5, 5, 155, 115)), scene(5), scene(2))
    coarse, fine = registered_correlation(ones, others)
    assert np.isnan(fine).tolist() == [False, True, False]
    strict = registered_correlation(ones, others, minimum=float(coarse[[0, 2]].mean()))
    assert strict.coarse.tolist() == coarse.tolist()
    assert np.isnan(strict.fine).tolist() == [True, True, False]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Three scenes, a copy of the first, a cropped copy of the second, and another scene."""
    images = [scene(0), scene(1), scene(2), scene(0).resize((120, 90)), scene(1).crop((6, 5, 153, 116)), scene(3)]
    files = [tmp_path / f"{number}.png" for number in range(len(images))]
    for path, image in zip(files, images, strict=True):
        image.save(path)
    return files


def compared(paths: list[Path], cache: ResultCache, minimum: float, steps: list[int]) -> Correlations:
    tiles, digests = paths[0].with_name("tiles"), [path.name.encode() for path in paths]
    settings = SearchSettings(cache=cache)
    write_tiles(tiles, paths, digests, settings)
    return TileComparison(tiles, digests, settings, steps.append).correlations(PAIRS, minimum)


def test_tiles_are_read_from_the_cache_or_decoded(paths: list[Path], tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "results.sqlite")
    prints = fingerprints(paths[:4], SearchSettings(cache=cache))
    digests = [image.content for image in prints] + [b"unknown", b"unknown too"]
    expected = [read_tile(path, None) for path in paths]
    for path in paths[:4]:
        path.unlink()
    write_tiles(tmp_path / "tiles", paths, digests, SearchSettings(cache=cache))
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
    tiles, digests = tmp_path / "tiles", [path.name.encode() for path in paths]
    write_tiles(tiles, paths, digests, SearchSettings(workers=2))
    expected = TileComparison(tiles, digests, SearchSettings(), lambda count: None).correlations(PAIRS)
    monkeypatch.setattr(module, "PAIRS_AT_ONCE", 1)
    monkeypatch.setattr(module, "PAIRS_PER_LOOKUP", 2)
    monkeypatch.setattr(module, "FEW_BATCHES", 0)
    result = TileComparison(tiles, digests, SearchSettings(workers=2), lambda count: None).correlations(PAIRS)
    assert np.allclose(result, expected, atol=1e-3, equal_nan=True)
