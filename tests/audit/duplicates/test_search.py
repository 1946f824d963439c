from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.scenes import scene
from probmcl.audit.duplicates import search as module
from probmcl.audit.duplicates.hashing import Fingerprint, SearchSettings, fingerprints
from probmcl.audit.duplicates.search import (
    CONFIRMED,
    DOUBTFUL,
    REMEDY,
    NearPair,
    exact_duplicates,
    find_leaks,
    leak_lines,
    near_duplicates,
    thresholds,
)
from probmcl.errors import ImageError

SCENES = 20


def near(paths: Sequence[Path], workers: int = 0) -> list[NearPair]:
    return near_duplicates(paths, fingerprints(paths), SearchSettings(workers=workers))


@pytest.fixture
def photographs(tmp_path: Path) -> list[Path]:
    """Files of different scenes."""
    paths = [tmp_path / f"{seed}.png" for seed in range(SCENES)]
    for seed, path in enumerate(paths):
        scene(seed).save(path)
    return paths


@pytest.fixture
def copies(tmp_path: Path, photographs: list[Path]) -> list[Path]:
    """All scenes, then copies of the first five: re-encoded, resized, flipped, cropped, and all of these."""
    flipped, box = Image.Transpose.FLIP_LEFT_RIGHT, (6, 5, 153, 116)
    made = [
        scene(0),
        scene(1).resize((90, 66)),
        scene(2).transpose(flipped),
        scene(3).crop(box),
        scene(4).transpose(flipped).crop(box).resize((100, 75)),
    ]
    paths = [tmp_path / f"copy {number}.jpg" for number in range(len(made))]
    for path, image in zip(paths, made, strict=True):
        image.save(path, quality=60)
    return [*photographs, *paths]


def test_exact_duplicates_ignores_unreadable_files() -> None:
    readable = [Fingerprint(None, content=content) for content in (b"a", b"b", b"a", b"c", b"b", b"a")]
    assert exact_duplicates([*readable, Fingerprint("does not exist"), Fingerprint("the file is empty")]) == [
        (0, 2, 5),
        (1, 4),
    ]


def test_exactly_the_planted_copies_are_confirmed(copies: list[Path]) -> None:
    pairs = near(copies)
    assert [(pair.one, pair.other, pair.confirmed) for pair in pairs] == [(k, SCENES + k, True) for k in range(5)]
    assert all(pair.correlation >= CONFIRMED for pair in pairs)
    assert [pair.distance <= 14 for pair in pairs] == [True] * 5


def test_workers_find_the_same_pairs(copies: list[Path]) -> None:
    assert near(copies, workers=2) == near(copies)


def test_different_scenes_have_no_candidates_to_read_again(photographs: list[Path]) -> None:
    prints = fingerprints(photographs)
    steps: list[int] = []
    for path in photographs:
        path.unlink()
    assert near_duplicates(photographs, prints, advance=steps.append) == []
    assert sum(steps) == SCENES


def test_progress_ends_at_the_number_of_images(copies: list[Path]) -> None:
    steps: list[int] = []
    near_duplicates(copies, fingerprints(copies), advance=steps.append)
    assert sum(steps) == len(copies)


def test_no_images_have_no_duplicates() -> None:
    assert near([]) == []


def test_identical_files_are_not_also_near_duplicates(copies: list[Path], tmp_path: Path) -> None:
    (tmp_path / "twin.png").write_bytes(copies[0].read_bytes())
    paths = [tmp_path / "twin.png", *copies]
    assert exact_duplicates(fingerprints(paths)) == [(0, 1)]
    pairs = [(pair.one, pair.other) for pair in near(paths)]
    assert pairs == [(0, SCENES + 1), *((k + 1, SCENES + k + 1) for k in range(1, 5))]  # only the first is compared


def test_nearly_constant_images_are_not_duplicates(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.png" for number in range(30)]
    for path in paths:
        Image.fromarray(rng.integers(0, 3, (40, 40), dtype=np.uint8)).save(path)
    assert near(paths) == []


def test_unreadable_images_are_ignored(copies: list[Path]) -> None:
    copies[0].write_bytes(b"")
    copies[SCENES + 1].unlink()
    assert [(pair.one, pair.other) for pair in near(copies)] == [(k, SCENES + k) for k in range(2, 5)]


def test_image_deleted_during_the_search_is_an_error(copies: list[Path]) -> None:
    prints = fingerprints(copies)
    copies[2].unlink()
    with pytest.raises(ImageError, match=r"2\.png: does not exist"):
        near_duplicates(copies, prints)


def similar_scene(number: int) -> Image.Image:
    """Return a common scene with a few small rectangles that depend on `number`."""
    image = scene(0).copy()
    rng = np.random.default_rng((7, number))
    for _ in range(6):
        x, y = int(rng.integers(0, 150)), int(rng.integers(0, 110))
        image.paste(tuple(rng.integers(0, 256, 3).tolist()), (x, y, x + 9, y + 9))
    return image


def test_only_copies_are_confirmed_if_all_images_are_similar(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(45)]
    for number, path in enumerate(paths):
        similar_scene(number).save(path)
    copy = tmp_path / "copy.jpg"
    similar_scene(9).resize((140, 105)).save(copy, quality=95)
    confirmed = [(pair.one, pair.other) for pair in near([*paths, copy]) if pair.confirmed]
    assert confirmed == [(9, 45)]


def test_thresholds_rise_with_the_similarity_of_random_pairs() -> None:
    rng = np.random.default_rng(0)
    assert thresholds(np.zeros(0)) == (CONFIRMED, DOUBTFUL)
    assert thresholds(rng.normal(0.2, 0.1, 300)) == (CONFIRMED, DOUBTFUL)
    difference = np.exp(rng.normal(np.log(0.04), 0.4, 300))
    confirmed, doubtful = thresholds(1 - difference)
    assert confirmed == pytest.approx(1 - 0.04 * np.exp(-5.5 * 0.4), abs=2e-3)
    assert doubtful == pytest.approx(1 - 0.04 * np.exp(-4.5 * 0.4), abs=2e-3)
    assert max(thresholds(np.ones(300))) < 1  # a copy can be confirmed even if all images are the same


def test_number_of_doubtful_pairs_is_limited(copies: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "thresholds", lambda sample: (2.0, 0.5))  # nothing can be confirmed
    pairs = near(copies)
    assert [pair.confirmed for pair in pairs] == [False] * 5
    monkeypatch.setattr(module, "MAX_DOUBTFUL", 2)
    assert {pair.correlation for pair in near(copies)} == set(sorted(pair.correlation for pair in pairs)[-2:])


SPLIT = ("train", "train", "val", "test", "test")


def pair(one: int, other: int, *, confirmed: bool) -> NearPair:
    return NearPair(one, other, 3, 0.97, confirmed)


def test_leaks_are_in_more_than_one_split() -> None:
    certain, uncertain = pair(1, 2, confirmed=True), pair(2, 3, confirmed=False)
    within = [pair(0, 1, confirmed=True), pair(3, 4, confirmed=False)]
    leaks = find_leaks(SPLIT, ("a", "a", "b", "c", "b"), [(0, 1), (3, 4), (0, 1, 2)], [certain, uncertain, *within])
    assert leaks.exact == [(0, 1, 2)]
    assert leaks.groups == {"b": (2, 4)}
    assert leaks.confirmed == [certain]
    assert leaks.doubtful == [uncertain]


def test_doubtful_pairs_alone_do_not_block() -> None:
    assert find_leaks(SPLIT, None, [(0, 3)], []).blocks
    assert find_leaks(SPLIT, ("a", "b", "c", "a", "d"), [], []).blocks
    assert find_leaks(SPLIT, None, [], [pair(0, 3, confirmed=True)]).blocks
    assert not find_leaks(SPLIT, None, [], [pair(0, 3, confirmed=False)]).blocks
    assert not find_leaks(SPLIT, ("a", "a", "b", "c", "c"), [(0, 1)], [pair(3, 4, confirmed=True)]).blocks


def test_lines_list_the_files_and_splits_of_each_leak() -> None:
    names = [f"{row}.jpg" for row in range(5)]
    near = [pair(0, 4, confirmed=True), pair(1, 2, confirmed=False)]
    leaks = find_leaks(SPLIT, ("a", "b", "c", "c", "d"), [(1, 2, 3)], near)
    assert leak_lines(leaks.described(names.__getitem__)) == [
        "identical files in train and val: 1",
        "  1.jpg (train) and 2.jpg (val)",
        "identical files in train and test: 1",
        "  1.jpg (train) and 3.jpg (test)",
        "identical files in val and test: 1",
        "  2.jpg (val) and 3.jpg (test)",
        "same group in val and test: 1",
        "  2.jpg (val) and 3.jpg (test): group 'c'",
        "near-duplicates in train and test: 1",
        "  0.jpg (train) and 4.jpg (test): correlation 0.970",
    ]
    assert leak_lines(leaks.described_doubtful(names.__getitem__)) == [
        "possible near-duplicates in train and val: 1",
        "  1.jpg (train) and 2.jpg (val): correlation 0.970",
    ]
    for remedy in ("allow_leaks", "`group=COLUMN`", "drop the split column"):
        assert remedy in REMEDY


def test_doubtful_pairs_are_not_described_with_other_leaks() -> None:
    leaks = find_leaks(SPLIT, None, [], [pair(0, 3, confirmed=False)])
    assert leaks.described("abcde".__getitem__) == {}
    assert list(leaks.described_doubtful("abcde".__getitem__)) == ["possible near-duplicates in train and test"]
    assert find_leaks(SPLIT, None, [], []).described_doubtful("abcde".__getitem__) == {}


def test_only_the_first_few_leaks_are_listed() -> None:
    split = ["train"] * 2000 + ["test"] * 2000
    leaks = find_leaks(split, None, [(row, 2000 + row) for row in range(2000)], [])
    described = leaks.described(str)
    lines = leak_lines(described)
    assert lines[0] == "identical files in train and test: 2,000"
    assert lines[1:6] == [f"  {row} (train) and {2000 + row} (test)" for row in range(5)]
    assert lines[6:] == ["  and 1,995 more"]
    assert [len(leaks) for leaks in described.values()] == [2000]
