import csv
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float
from numpy import ndarray
from PIL import Image
from sklearn.datasets import load_digits

from probmcl.data.records import SPLITS, Records, Split
from probmcl.demo.digits import (
    NAMES,
    Box,
    Handwriting,
    Scene,
    draw_scene,
    load_handwriting,
    overlap,
    write_digits,
)

COUNTS: dict[Split, int] = {"train": 500, "val": 60, "test": 60}
SEED = 7


@pytest.fixture(scope="module")
def train() -> Handwriting:
    return load_handwriting()["train"]


@pytest.fixture(scope="module")
def scenes(train: Handwriting) -> list[Scene]:
    return [draw_scene(train, np.random.default_rng(seed)) for seed in range(400)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Records]:
    folder = tmp_path_factory.mktemp("digits")
    return folder, write_digits(folder, train=500, val=60, test=60, seed=SEED)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def lift(labels: Float[ndarray, "N C"], a: int, b: int) -> tuple[float, float]:
    """Return the lift of two labels (1 if they are independent) and the chi-squared statistic of their table."""
    n, first, second = len(labels), labels[:, a].sum(), labels[:, b].sum()
    both = (labels[:, a] * labels[:, b]).sum()
    chi = n * (n * both - first * second) ** 2 / (first * second * (n - first) * (n - second))
    return n * both / (first * second), chi


def test_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_digits(tmp_path / name, train=4, val=2, test=2, seed=seed)
    first, repeated, other = (contents(tmp_path / name) for name in "abc")
    assert first == repeated
    assert first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first if name.endswith(".png"))


def test_larger_set_starts_with_the_scenes_of_a_smaller_one(tmp_path: Path) -> None:
    write_digits(tmp_path / "small", train=2, val=1, test=2)
    write_digits(tmp_path / "large", train=5, val=3, test=2)
    small, large = contents(tmp_path / "small" / "images"), contents(tmp_path / "large" / "images")
    assert small.items() <= large.items()
    assert len(small) == 5
    assert len(large) == 10


def test_splits_share_no_samples() -> None:
    samples = load_handwriting()
    rows = np.concatenate([samples[split].rows for split in SPLITS])
    assert len(set(rows.tolist())) == len(rows) == len(load_digits().target)
    glyphs = [{glyph.tobytes() for glyph in samples[split].glyphs} for split in SPLITS]
    assert all(a.isdisjoint(b) for a, b in combinations(glyphs, 2))


def test_every_split_has_samples_of_every_digit() -> None:
    assert all(set(samples.digits.tolist()) == set(range(10)) for samples in load_handwriting().values())


def test_placed_digits_match_their_samples(scenes: list[Scene]) -> None:
    target = load_digits().target
    for scene in scenes:
        assert [target[item.row] for item in scene.placed] == [item.digit for item in scene.placed]


def test_every_labeled_digit_is_visible(scenes: list[Scene]) -> None:
    """The image must be brighter on the ink of a sample than around it, even if digits overlap."""
    images = load_digits().images
    for scene in scenes:
        for item in scene.placed:
            box = item.box
            patch = scene.pixels[box.top : box.top + box.side, box.left : box.left + box.side].mean(axis=2)
            glyph = Image.fromarray(np.pad(images[item.row], 1).astype(np.uint8) * 15)
            ink = np.asarray(glyph.resize((box.side, box.side))) / 240
            contrast = np.average(patch, weights=ink**2) - np.average(patch, weights=(1 - ink) ** 2)
            assert contrast > 20, (item, contrast)


def test_digits_hardly_overlap(scenes: list[Scene]) -> None:
    pairs = [pair for scene in scenes for pair in combinations([item.box for item in scene.placed], 2)]
    assert len(pairs) > 400
    for a, b in pairs:
        shared = len(squares(a) & squares(b))
        assert shared <= 0.12 * min(a.side, b.side) ** 2
        assert overlap(a, b) == overlap(b, a) == shared / min(a.side, b.side) ** 2


def squares(box: Box) -> set[tuple[int, int]]:
    return {(box.left + x, box.top + y) for x in range(box.side) for y in range(box.side)}


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(32, 128))
def test_digits_are_different_and_stay_inside_the_scene(train: Handwriting, seed: int, size: int) -> None:
    scene = draw_scene(train, np.random.default_rng(seed), size)
    assert scene.pixels.shape == (size, size, 3)
    assert len(set(scene.digits)) == len(scene.placed) <= 5
    assert scene.digits == tuple(sorted(scene.digits))
    for item in scene.placed:
        assert min(item.box.left, item.box.top) >= 0
        assert max(item.box.left, item.box.top) + item.box.side <= size
        assert 0.2 * size <= item.box.side <= 0.5 * size


def test_some_scenes_are_empty_and_some_are_full(scenes: list[Scene]) -> None:
    share = np.bincount([len(scene.placed) for scene in scenes], minlength=6) / len(scenes)
    assert 0.01 < share[0] < 0.08
    assert share[1:].min() > 0.04


def test_labels_match_the_drawn_scenes(written: tuple[Path, Records]) -> None:
    folder, records = written
    samples = load_handwriting()
    row = 0
    for number, split in enumerate(SPLITS):
        for i in range(COUNTS[split]):
            scene = draw_scene(samples[split], np.random.default_rng((SEED, number, i)))
            with Image.open(folder / "images" / f"{split}_{i:05d}.png") as image:
                assert np.array_equal(np.asarray(image), scene.pixels)
            assert np.flatnonzero(records.labels[row]).tolist() == list(scene.digits)
            assert records.split[row] == split
            row += 1
    assert row == len(records)


def test_tables_match_the_records(written: tuple[Path, Records]) -> None:
    folder, records = written
    assert (folder / "classes.txt").read_text().split() == list(NAMES) == list(records.label_space.names)
    with (folder / "labels.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == ["filename", "split", "labels"]
    assert [folder / "images" / line["filename"] for line in table] == list(records.paths)
    assert [line["split"] for line in table] == list(records.split)
    for line, labels in zip(table, records.labels, strict=True):
        assert line["labels"].split() == [name for name, label in zip(NAMES, labels, strict=True) if label]


def test_records_are_complete(written: tuple[Path, Records]) -> None:
    _, records = written
    assert all(path.is_file() for path in records.paths)
    assert records.known.all()
    assert records.group is None
    assert {split: len(records.rows(split)) for split in SPLITS} == COUNTS
    in_train = records.labels[records.rows("train")]
    assert np.array_equal(records.label_space.counts, in_train.sum(axis=0))
    assert records.label_space.cooccurrence[3, 4] == (in_train[:, 3] * in_train[:, 4]).sum()


def test_every_split_has_every_class(written: tuple[Path, Records]) -> None:
    _, records = written
    for split in SPLITS:
        assert (records.labels[records.rows(split)].sum(axis=0) > 0).all()


@pytest.mark.parametrize(("a", "b"), [(1, 2), (4, 5), (7, 8), (8, 9)])
def test_digits_of_one_group_cooccur(written: tuple[Path, Records], a: int, b: int) -> None:
    times, chi = lift(written[1].labels, a, b)
    assert times > 1.4
    assert chi > 11  # p < 0.001 if they were independent


@pytest.mark.parametrize(("a", "b"), [(0, 5), (3, 7), (1, 6), (2, 8)])
def test_digits_of_distant_groups_rarely_cooccur(written: tuple[Path, Records], a: int, b: int) -> None:
    times, chi = lift(written[1].labels, a, b)
    assert times < 0.6
    assert chi > 11


def test_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".notes").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty"):
        write_digits(tmp_path, train=1, val=0, test=0)
    assert contents(tmp_path) == {".notes": b"mine"}


def test_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "digits").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file"):
        write_digits(tmp_path / "digits", train=1, val=0, test=0)


@pytest.mark.parametrize(
    ("train", "val", "size", "message"), [(0, 1, 64, "train=0"), (1, -1, 64, "val=-1"), (1, 1, 16, "16 pixels")]
)
def test_invalid_arguments_are_refused_before_writing(
    tmp_path: Path, train: int, val: int, size: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write_digits(tmp_path / "new", train=train, val=val, test=1, size=size)
    assert not (tmp_path / "new").exists()


def test_progress_counts_the_scenes(tmp_path: Path) -> None:
    seen: list[int] = []
    write_digits(tmp_path / "deep" / "new", train=3, val=1, test=0, size=48, progress=seen.append)
    assert seen == [1, 2, 3, 4]
