from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.scenes import scene
from probmcl.data.duplicates import search as module
from probmcl.data.duplicates.hashing import Fingerprint, fingerprints
from probmcl.data.duplicates.search import (
    CONFIRMED,
    DOUBTFUL,
    REMEDY,
    NearPair,
    exact_duplicates,
    leaks,
    near_duplicates,
    thresholds,
)
from probmcl.errors import ImageError

SCENES = 20


def near(paths: Sequence[Path], workers: int = 0) -> list[NearPair]:
    return near_duplicates(paths, fingerprints(paths), workers=workers)


@pytest.fixture
def photographs(tmp_path: Path) -> list[Path]:
    """Scenes, none of which is there twice."""
    paths = [tmp_path / f"{seed}.png" for seed in range(SCENES)]
    for seed, path in enumerate(paths):
        scene(seed).save(path)
    return paths


@pytest.fixture
def copies(tmp_path: Path, photographs: list[Path]) -> list[Path]:
    """The first five again: encoded anew, smaller, flipped, cropped, and all of it."""
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


def test_equal_files_are_found_and_bad_ones_left_out() -> None:
    found = [Fingerprint(None, content=content) for content in (b"a", b"b", b"a", b"c", b"b", b"a")]
    assert exact_duplicates([*found, Fingerprint("does not exist"), Fingerprint("the file is empty")]) == [
        (0, 2, 5),
        (1, 4),
    ]


def test_every_planted_copy_is_confirmed_and_nothing_else(copies: list[Path]) -> None:
    found = near(copies)
    assert [(pair.one, pair.other, pair.confirmed) for pair in found] == [(k, SCENES + k, True) for k in range(5)]
    assert all(pair.correlation >= CONFIRMED for pair in found)
    assert [pair.distance <= 14 for pair in found] == [True] * 5


def test_processes_find_the_same(copies: list[Path]) -> None:
    assert near(copies, workers=2) == near(copies)


def test_different_scenes_give_nothing_and_nothing_is_read_twice(photographs: list[Path]) -> None:
    found = fingerprints(photographs)
    steps: list[int] = []
    for path in photographs:
        path.unlink()
    assert near_duplicates(photographs, found, advance=steps.append) == []
    assert sum(steps) == SCENES


def test_progress_ends_at_the_number_of_images(copies: list[Path]) -> None:
    steps: list[int] = []
    near_duplicates(copies, fingerprints(copies), advance=steps.append)
    assert sum(steps) == len(copies)


def test_no_images_have_no_duplicates() -> None:
    assert near([]) == []


def test_equal_files_are_not_near_duplicates_as_well(copies: list[Path], tmp_path: Path) -> None:
    (tmp_path / "twin.png").write_bytes(copies[0].read_bytes())
    paths = [tmp_path / "twin.png", *copies]
    assert exact_duplicates(fingerprints(paths)) == [(0, 1)]
    pairs = [(pair.one, pair.other) for pair in near(paths)]
    assert pairs == [(0, SCENES + 1), *((k + 1, SCENES + k + 1) for k in range(1, 5))]  # the first stands for both


def test_images_that_show_nothing_are_copies_of_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.png" for number in range(30)]
    for path in paths:
        Image.fromarray(rng.integers(0, 3, (40, 40), dtype=np.uint8)).save(path)
    assert near(paths) == []


def test_images_that_cannot_be_read_take_no_part(copies: list[Path]) -> None:
    copies[0].write_bytes(b"")
    copies[SCENES + 1].unlink()
    assert [(pair.one, pair.other) for pair in near(copies)] == [(k, SCENES + k) for k in range(2, 5)]


def test_an_image_that_goes_in_between_is_named(copies: list[Path]) -> None:
    found = fingerprints(copies)
    copies[2].unlink()
    with pytest.raises(ImageError, match=r"2\.png: does not exist"):
        near_duplicates(copies, found)


def alike(number: int) -> Image.Image:
    """One scene for all; each has a few small things of its own."""
    image = scene(0).copy()
    rng = np.random.default_rng((7, number))
    for _ in range(6):
        x, y = int(rng.integers(0, 150)), int(rng.integers(0, 110))
        image.paste(tuple(rng.integers(0, 256, 3).tolist()), (x, y, x + 9, y + 9))
    return image


def test_where_all_images_are_alike_only_real_copies_are_confirmed(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(45)]
    for number, path in enumerate(paths):
        alike(number).save(path)
    copy = tmp_path / "copy.jpg"
    alike(9).resize((140, 105)).save(copy, quality=95)
    confirmed = [(pair.one, pair.other) for pair in near([*paths, copy]) if pair.confirmed]
    assert confirmed == [(9, 45)]


def test_what_is_beyond_doubt_rises_with_how_alike_a_set_is() -> None:
    rng = np.random.default_rng(0)
    assert thresholds(np.zeros(0)) == (CONFIRMED, DOUBTFUL)
    assert thresholds(rng.normal(0.2, 0.1, 300)) == (CONFIRMED, DOUBTFUL)
    unlike = np.exp(rng.normal(np.log(0.04), 0.4, 300))
    confirmed, doubtful = thresholds(1 - unlike)
    assert confirmed == pytest.approx(1 - 0.04 * np.exp(-5.5 * 0.4), abs=2e-3)
    assert doubtful == pytest.approx(1 - 0.04 * np.exp(-4.5 * 0.4), abs=2e-3)
    assert max(thresholds(np.ones(300))) < 1  # all equal, yet a copy can still be confirmed


def test_doubtful_pairs_are_the_most_alike_and_not_too_many(
    copies: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "thresholds", lambda sample: (2.0, 0.5))  # nothing can be confirmed
    every = near(copies)
    assert [pair.confirmed for pair in every] == [False] * 5
    monkeypatch.setattr(module, "MAX_DOUBTFUL", 2)
    assert {pair.correlation for pair in near(copies)} == set(sorted(pair.correlation for pair in every)[-2:])


SPLIT = ("train", "train", "val", "test", "test")


def pair(one: int, other: int, *, confirmed: bool) -> NearPair:
    return NearPair(one, other, 3, 0.97, confirmed)


def test_only_what_stands_in_two_splits_leaks() -> None:
    sure, unsure = pair(1, 2, confirmed=True), pair(2, 3, confirmed=False)
    inside = [pair(0, 1, confirmed=True), pair(3, 4, confirmed=False)]
    found = leaks(SPLIT, ("a", "a", "b", "c", "b"), [(0, 1), (3, 4), (0, 1, 2)], [sure, unsure, *inside])
    assert found.exact == [(0, 1, 2)]
    assert found.groups == {"b": (2, 4)}
    assert found.confirmed == [sure]
    assert found.doubtful == [unsure]


def test_equal_files_groups_and_confirmed_pairs_block_and_doubtful_ones_do_not() -> None:
    assert leaks(SPLIT, None, [(0, 3)], []).blocks
    assert leaks(SPLIT, ("a", "b", "c", "a", "d"), [], []).blocks
    assert leaks(SPLIT, None, [], [pair(0, 3, confirmed=True)]).blocks
    assert not leaks(SPLIT, None, [], [pair(0, 3, confirmed=False)]).blocks
    assert not leaks(SPLIT, ("a", "a", "b", "c", "c"), [(0, 1)], [pair(3, 4, confirmed=True)]).blocks


def test_a_leak_is_told_with_splits_files_and_remedies() -> None:
    names = [f"{row}.jpg" for row in range(5)]
    near = [pair(0, 4, confirmed=True), pair(1, 2, confirmed=False)]
    lines = leaks(SPLIT, ("a", "b", "c", "c", "d"), [(1, 2, 3)], near).lines(names)
    assert lines == [
        "equal files in train and val: 1",
        "  1.jpg (train) and 2.jpg (val)",
        "equal files in train and test: 1",
        "  1.jpg (train) and 3.jpg (test)",
        "equal files in val and test: 1",
        "  2.jpg (val) and 3.jpg (test)",
        "one group in val and test: 1",
        "  2.jpg (val) and 3.jpg (test): group 'c'",
        "the same picture in train and test: 1",
        "  0.jpg (train) and 4.jpg (test): correlation 0.970",
        "perhaps the same picture in train and val: 1",
        "  1.jpg (train) and 2.jpg (val): correlation 0.970",
    ]
    for remedy in ("allow_leaks", "`group=COLUMN`", "drop the split column"):
        assert remedy in REMEDY


def test_a_doubtful_pair_is_told_and_nothing_else_is() -> None:
    assert leaks(SPLIT, None, [], []).lines([]) == []
    lines = leaks(SPLIT, None, [], [pair(0, 3, confirmed=False)]).lines(list("abcde"))
    assert lines == ["perhaps the same picture in train and test: 1", "  a (train) and d (test): correlation 0.970"]


def test_many_leaks_are_counted_and_the_first_few_shown() -> None:
    split = ["train"] * 2000 + ["test"] * 2000
    lines = leaks(split, None, [(row, 2000 + row) for row in range(2000)], []).lines([str(row) for row in range(4000)])
    assert lines[0] == "equal files in train and test: 2,000"
    assert lines[1:4] == [f"  {row} (train) and {2000 + row} (test)" for row in range(3)]
    assert len(lines) == 4
