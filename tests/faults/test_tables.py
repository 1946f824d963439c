"""Tables with degenerate labels: every one is refused with a reason, or trained without claiming undefined scores."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from faults.conftest import SMALL, SPLITS
from helpers.faults import Commands, Ended

pytestmark = pytest.mark.slow

Rows = list[list[str]]
NAMES = ("roof", "petal", "sky")


def plain_rows(count: int = 48) -> Rows:
    """Return a header and rows with varied labels."""
    labels = ["|".join(name for k, name in enumerate(NAMES) if (number // (k + 1)) % 2) for number in range(count)]
    return [["filename", "labels"], *([f"{number}.jpg", labels[number]] for number in range(count))]


def with_splits(rows: Rows) -> Rows:
    """Add a split column."""
    return [[*rows[0], "split"], *([*row, split] for row, split in zip(rows[1:], SPLITS, strict=True))]


def relabeled(label: Callable[[int, str], str], splits: bool = True, count: int = 48) -> Rows:
    """Return rows whose labels are changed by a function of the number of the row and its labels."""
    header, *rows = plain_rows(count)
    rows = [[name, label(number, labels)] for number, (name, labels) in enumerate(rows)]
    return with_splits([header, *rows]) if splits else [header, *rows]


def train_on(command: Commands, photos: Path, rows: Rows, tmp_path: Path) -> Ended:
    """Write a table and train on it."""
    with (tmp_path / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return command("train", tmp_path / "labels.csv", "--images", photos, *SMALL, "--out", tmp_path / "run")


TRAINED = {
    "one_class_always": (relabeled(lambda number, labels: f"everything|{labels}".rstrip("|")), "over 3 of 4 classes"),
    "only_class_always": (relabeled(lambda number, labels: "everything"), "undefined"),
    "own_class_each": (relabeled(lambda number, labels: f"class-{number}"), "over 12 of 48 classes"),
    "own_class_each_no_splits": (relabeled(lambda number, labels: f"class-{number}", splits=False), "undefined"),
    "no_positive_in_test": (relabeled(lambda n, labels: "" if SPLITS[n] == "test" else labels or "sky"), "undefined"),
    "no_positive_in_val": (relabeled(lambda n, labels: "" if SPLITS[n] == "val" else labels or "sky"), "chance"),
    "all_positive_in_test": (relabeled(lambda n, x: "|".join(NAMES) if SPLITS[n] == "test" else x), "undefined"),
    "line_end_in_header": (with_splits([["file\nname", "lab\nels"], *plain_rows()[1:]]), "chance"),
}
"""Tables, and a part of the line with the test score. A mAP needs a class with a positive and a negative."""

REFUSED = {
    "three_images": (relabeled(lambda number, labels: f"class-{number}", splits=False, count=3), "needs 20 or more"),
    "one_image": (relabeled(lambda number, labels: "roof", splits=False, count=1), "needs 20 or more"),
    "no_label": (relabeled(lambda number, labels: ""), "column 'labels' is blank in every row"),
    "header_only": ([["filename", "labels"]], "no rows below the header"),
    "empty_file": ([], "no rows below the header"),
    "no_header": (plain_rows()[1:], "row 1: '0.jpg' is an image; add a first row"),
    "empty_split": ([with_splits(plain_rows())[0], *with_splits(plain_rows())[25:]], "no image is in the train split"),
    "unknown_split": ([[*row, "split" if not n else "half"] for n, row in enumerate(plain_rows())], "row 2: split"),
    "no_image_exists": (
        [[row[0], row[1]] if not n else [f"no-{row[0]}", row[1]] for n, row in enumerate(plain_rows())],
        "row 2: 'no-0.jpg' does not exist",
    ),
    "group_in_two_splits": (
        [[*row, "patient" if not n else str(n % 7)] for n, row in enumerate(with_splits(plain_rows()))],
        "same group in train and val: 7",
    ),
    "contradicting_rows": ([*plain_rows(), ["0.jpg", "petal"]], "0.jpg"),
    "column_twice": ([[*row, "x"] if n else [*row, "labels"] for n, row in enumerate(plain_rows())], "two columns"),
}
"""Tables that are refused, and a part of the reason."""


@pytest.mark.parametrize(
    "name",
    [
        name if number % 2 == 0 else pytest.param(name, marks=pytest.mark.exhaustive)
        for number, name in enumerate(TRAINED)
    ],
)
def test_degenerate_table_claims_no_undefined_score(command: Commands, photos: Path, tmp_path: Path, name: str) -> None:
    rows, claim = TRAINED[name]
    ended = train_on(command, photos, rows, tmp_path)
    assert ended.code == 0, ended.text
    kept = next(line for line in ended.stdout.splitlines() if line.startswith("kept: "))
    assert claim in kept
    assert not re.search(r"mAP (100\.0|1\.0+|0\.0+)\b", ended.stdout)
    test = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert (test["mAP"] is None) == (claim == "undefined")


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_table_is_refused_with_the_reason(command: Commands, photos: Path, tmp_path: Path, name: str) -> None:
    rows, reason = REFUSED[name]
    ended = train_on(command, photos, rows, tmp_path)
    assert ended.code == 1, ended.text
    assert reason in ended.stderr
    assert "Traceback" not in ended.text
    assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_thousands_of_classes_claim_no_undefined_score(command: Commands, photos: Path, tmp_path: Path) -> None:
    rows = relabeled(lambda number, labels: "|".join(f"class-{number * 133 + k}" for k in range(133)))
    ended = train_on(command, photos, rows, tmp_path)
    assert ended.code == 0, ended.text
    kept = next(line for line in ended.stdout.splitlines() if line.startswith("kept: "))
    assert "over 1,596 of 6,384 classes" in kept


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.exhaustive)])
def test_thousands_of_bad_files_give_a_short_message(command: Commands, tmp_path: Path, count: int) -> None:
    rows = [["filename", "labels"], *([f"{number}.jpg", NAMES[number % 3]] for number in range(count))]
    with (tmp_path / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    for row in rows[1:]:
        (tmp_path / row[0]).touch()
    ended = command("train", tmp_path, *SMALL, "--out", tmp_path / "run")
    assert ended.code == 1, ended.text
    assert f"{count:,} of {count:,} images" in ended.stderr
    assert len(ended.stderr) < 2_000
    assert ended.peak < 600_000_000


# Copies of a training image in the test split.


def exact_copy(source: Path, target: Path) -> None:
    """Copy the file."""
    shutil.copy(source, target)


def encoded_again(source: Path, target: Path) -> None:
    """Save with another quality."""
    with Image.open(source) as image:
        image.save(target, quality=60)


def resized(source: Path, target: Path) -> None:
    """Save at another size."""
    with Image.open(source) as image:
        image.resize((80, 60)).save(target, quality=90)


def flipped(source: Path, target: Path) -> None:
    """Save the mirror image."""
    with Image.open(source) as image:
        ImageOps.mirror(image).save(target, quality=90)


def cropped(source: Path, target: Path) -> None:
    """Cut off 3 % at each side."""
    with Image.open(source) as image:
        image.crop((4, 3, 116, 87)).save(target, quality=90)


@pytest.mark.parametrize("copy", [exact_copy, encoded_again, resized, flipped, cropped])
def test_planted_leak_is_refused(
    command: Commands, photos: Path, tmp_path: Path, copy: Callable[[Path, Path], None]
) -> None:
    data = Path(shutil.copytree(photos, tmp_path / "data"))
    for number in (0, 1, 2):
        copy(data / f"{number}.jpg", data / f"{45 + number}.jpg")
    ended = command("train", data, *SMALL, "--out", tmp_path / "run")
    assert ended.code == 1, ended.text
    for number in (0, 1, 2, 45, 46, 47):
        assert f"{number}.jpg" in ended.stderr
    assert "--allow-leaks" in ended.stderr
    assert not (tmp_path / "run").exists()
