import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.scenes import scene
from probmcl.audit.duplicates import candidates as module
from probmcl.audit.duplicates.candidates import (
    MAX_DISTANCE,
    MAX_PAIRS,
    MIN_NEAREST,
    CandidatePairs,
    candidate_pairs,
    screen,
)
from probmcl.audit.duplicates.hashing import FLIP_MASK, TILE, small_gray

PairSet = set[tuple[int, int, bool, int]]


def as_set(candidates: CandidatePairs) -> PairSet:
    columns = [column.tolist() for column in candidates]
    pairs = list(zip(*columns, strict=True))
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


def brute_force(phashes: list[int], inners: list[int]) -> PairSet:
    pairs: PairSet = set()
    for one in range(len(phashes)):
        for other in range(one + 1, len(phashes)):
            for flipped, mask in ((False, 0), (True, FLIP_MASK)):
                phash, inner = phashes[other] ^ mask, inners[other] ^ mask
                differences = (phashes[one] ^ phash, phashes[one] ^ inner, inners[one] ^ phash)
                distance = min(difference.bit_count() for difference in differences)
                if distance <= MAX_DISTANCE:
                    pairs.add((one, other, flipped, distance))
    return pairs


def search(phashes: list[int], inners: list[int]) -> PairSet:
    return as_set(candidate_pairs(np.array(phashes, dtype=np.uint64), np.array(inners, dtype=np.uint64)))


hashes = st.integers(0, 2**64 - 1)


@settings(max_examples=60)
@given(st.lists(st.tuples(hashes, hashes, st.integers(0, 63), st.integers(0, 3)), max_size=6))
def test_every_pair_within_the_distance_is_found(seeds: list[tuple[int, int, int, int]]) -> None:
    phashes, inners = [], []
    for phash, inner, bit, source in seeds:
        phashes += [phash, (phash, phash ^ FLIP_MASK, inner, inner ^ FLIP_MASK)[source] ^ (1 << bit)]
        inners += [inner, phash ^ 0xFFFF]
    assert search(phashes, inners) == brute_force(phashes, inners)


def test_an_image_is_not_paired_with_itself() -> None:
    symmetric = 0
    assert search([symmetric], [symmetric]) == set()
    assert search([], []) == set()


def test_result_is_independent_of_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    phashes = np.repeat(rng.integers(0, 2**64, 20, dtype=np.uint64), 3)
    phashes ^= np.uint64(1) << rng.integers(0, 64, 60, dtype=np.uint64)
    inners = rng.integers(0, 2**64, 60, dtype=np.uint64)
    expected = as_set(candidate_pairs(phashes, inners))
    monkeypatch.setattr(module, "ENTRIES_PER_BLOCK", 240)
    assert as_set(candidate_pairs(phashes, inners)) == expected == brute_force(phashes.tolist(), inners.tolist())


@pytest.mark.parametrize("all_pairs", [module.MAX_IMAGES_FOR_ALL_PAIRS, 0])
def test_number_of_pairs_per_image_is_limited(monkeypatch: pytest.MonkeyPatch, all_pairs: int) -> None:
    monkeypatch.setattr(module, "MAX_IMAGES_FOR_ALL_PAIRS", all_pairs)
    monkeypatch.setattr(module, "PAIRS", 20_000)
    phashes = np.random.default_rng(0).integers(0, 2, 3000, dtype=np.uint64)
    pairs = candidate_pairs(phashes, phashes)
    assert np.bincount(pairs.ones).max() == MIN_NEAREST
    assert pairs.distances.max() <= 1


def test_nearest_pairs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAIRS", 0)
    monkeypatch.setattr(module, "MIN_NEAREST", 6)
    phashes = [0, *(2**bits - 1 for bits in range(1, 14))]
    far = [int(n) for n in np.random.default_rng(0).integers(0, 2**64, len(phashes), dtype=np.uint64)]
    kept = {other for one, other, flipped, _ in search(phashes, far) if one == 0 and not flipped}
    assert kept == set(range(1, 7))


def test_sorted_search_finds_all_pairs_within_two_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    phashes = rng.integers(0, 2**64, 2000, dtype=np.uint64)
    inners = rng.integers(0, 2**64, 2000, dtype=np.uint64)
    changed = np.uint64(1) << rng.integers(0, 64, 400, dtype=np.uint64)  # one bit; `np.roll` below changes a second one
    sources = [
        phashes[:100],
        phashes[100:200] ^ np.uint64(FLIP_MASK),
        inners[200:300],
        inners[300:400] ^ np.uint64(FLIP_MASK),
    ]
    phashes[1000:1400] = np.concatenate(sources) ^ changed ^ np.roll(changed, 1)
    all_pairs = as_set(candidate_pairs(phashes, inners))
    near = {pair for pair in all_pairs if pair[-1] <= 2}
    monkeypatch.setattr(module, "MAX_IMAGES_FOR_ALL_PAIRS", 0)
    found = as_set(candidate_pairs(phashes, inners))
    assert len(near) == 400
    assert near <= found <= all_pairs


@pytest.mark.parametrize("flip", [False, True])
def test_screening_keeps_cropped_copies(flip: bool) -> None:
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


def test_screening_keeps_all_pairs_of_an_image_with_few() -> None:
    tiles = np.stack([small_gray(scene(seed), TILE) for seed in range(6)]).astype(np.uint8)
    ones, others = np.triu_indices(6, 1)
    assert screen(tiles, ones, others, np.zeros(len(ones), dtype=bool)).all()
