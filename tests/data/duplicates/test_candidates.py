import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.scenes import scene
from probmcl.data.duplicates import candidates as module
from probmcl.data.duplicates.candidates import (
    MAX_DISTANCE,
    MAX_PAIRS,
    MIN_NEAREST,
    CandidatePairs,
    candidate_pairs,
    screen,
)
from probmcl.data.duplicates.hashing import FLIP_MASK, small_gray
from probmcl.data.duplicates.registration import TILE

Found = set[tuple[int, int, bool, int]]


def as_set(found: CandidatePairs) -> Found:
    columns = [column.tolist() for column in found]
    pairs = list(zip(*columns, strict=True))
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


def slowly(looks: list[int], inners: list[int]) -> Found:
    found: Found = set()
    for one in range(len(looks)):
        for other in range(one + 1, len(looks)):
            for flipped, turned in ((False, 0), (True, FLIP_MASK)):
                look, inner = looks[other] ^ turned, inners[other] ^ turned
                ways = (looks[one] ^ look, looks[one] ^ inner, inners[one] ^ look)
                distance = min(way.bit_count() for way in ways)
                if distance <= MAX_DISTANCE:
                    found.add((one, other, flipped, distance))
    return found


def searched(looks: list[int], inners: list[int]) -> Found:
    return as_set(candidate_pairs(np.array(looks, dtype=np.uint64), np.array(inners, dtype=np.uint64)))


hashes = st.integers(0, 2**64 - 1)


@settings(max_examples=60)
@given(st.lists(st.tuples(hashes, hashes, st.integers(0, 63), st.integers(0, 3)), max_size=6))
def test_every_pair_within_the_distance_is_found(seeds: list[tuple[int, int, int, int]]) -> None:
    looks, inners = [], []
    for look, inner, bit, way in seeds:
        looks += [look, (look, look ^ FLIP_MASK, inner, inner ^ FLIP_MASK)[way] ^ (1 << bit)]
        inners += [inner, look ^ 0xFFFF]
    assert searched(looks, inners) == slowly(looks, inners)


def test_an_image_is_no_lookalike_of_itself() -> None:
    symmetric = 0
    assert searched([symmetric], [symmetric]) == set()
    assert searched([], []) == set()


def test_blocks_of_rows_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    looks = np.repeat(rng.integers(0, 2**64, 20, dtype=np.uint64), 3)
    looks ^= np.uint64(1) << rng.integers(0, 64, 60, dtype=np.uint64)
    inners = rng.integers(0, 2**64, 60, dtype=np.uint64)
    whole = as_set(candidate_pairs(looks, inners))
    monkeypatch.setattr(module, "ENTRIES_PER_BLOCK", 240)
    assert as_set(candidate_pairs(looks, inners)) == whole == slowly(looks.tolist(), inners.tolist())


@pytest.mark.parametrize("all_pairs", [module.MAX_IMAGES_FOR_ALL_PAIRS, 0])
def test_thousands_that_look_the_same_give_few_pairs_each(monkeypatch: pytest.MonkeyPatch, all_pairs: int) -> None:
    monkeypatch.setattr(module, "MAX_IMAGES_FOR_ALL_PAIRS", all_pairs)
    monkeypatch.setattr(module, "PAIRS", 20_000)
    looks = np.random.default_rng(0).integers(0, 2, 3000, dtype=np.uint64)
    found = candidate_pairs(looks, looks)
    assert np.bincount(found.ones).max() == MIN_NEAREST
    assert found.distances.max() <= 1


def test_the_nearest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS", 0)
    monkeypatch.setattr(module, "MIN_NEAREST", 6)
    looks = [0, *(2**bits - 1 for bits in range(1, 14))]
    far = [int(n) for n in np.random.default_rng(0).integers(0, 2**64, len(looks), dtype=np.uint64)]
    kept = {other for one, other, flipped, _ in searched(looks, far) if one == 0 and not flipped}
    assert kept == set(range(1, 7))


def test_among_very_many_what_stands_close_when_sorted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    looks = rng.integers(0, 2**64, 2000, dtype=np.uint64)
    inners = rng.integers(0, 2**64, 2000, dtype=np.uint64)
    changed = np.uint64(1) << rng.integers(0, 64, 400, dtype=np.uint64)  # a bit, and for some another one
    sources = [
        looks[:100],
        looks[100:200] ^ np.uint64(FLIP_MASK),
        inners[200:300],
        inners[300:400] ^ np.uint64(FLIP_MASK),
    ]
    looks[1000:1400] = np.concatenate(sources) ^ changed ^ np.roll(changed, 1)
    every = as_set(candidate_pairs(looks, inners))
    near = {pair for pair in every if pair[-1] <= 2}
    monkeypatch.setattr(module, "MAX_IMAGES_FOR_ALL_PAIRS", 0)
    found = as_set(candidate_pairs(looks, inners))
    assert len(near) == 400
    assert near <= found <= every


@pytest.mark.parametrize("flip", [False, True])
def test_a_cropped_copy_is_among_the_few_that_go_on(flip: bool) -> None:
    images = [scene(seed) for seed in range(40)]
    images += [image.crop((7, 4, 154, 113)).resize((99, 80)) for image in images[:5]]
    tiles = np.stack([small_gray(image, TILE) for image in images]).astype(np.uint8)
    if flip:
        tiles[40:] = tiles[40:, :, ::-1]
    ones, others = np.triu_indices(len(tiles), 1)
    keep = screen(tiles, ones, others, np.full(len(ones), flip))
    kept = set(zip(ones[keep].tolist(), others[keep].tolist(), strict=True))
    assert {(row, 40 + row) for row in range(5)} <= kept
    assert len(kept) <= 2 * MAX_PAIRS * len(tiles)
    assert len(kept) < len(ones) / 2


def test_an_image_with_few_pairs_keeps_them_all() -> None:
    tiles = np.stack([small_gray(scene(seed), TILE) for seed in range(6)]).astype(np.uint8)
    ones, others = np.triu_indices(6, 1)
    assert screen(tiles, ones, others, np.zeros(len(ones), dtype=bool)).all()
