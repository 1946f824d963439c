"""Data that change between the end of an interrupted run and its resumption."""

import csv
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from faults.conftest import NO_REPORT, SMALL
from helpers import photographs
from helpers.faults import Commands, kill_after

pytestmark = pytest.mark.slow

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def original(command: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the photographs with a run that was killed after the frozen probe; read only."""
    folder = tmp_path_factory.mktemp("changing")
    shutil.copytree(photos, folder / "photos")
    words: list[str | Path] = ["train", folder / "photos", *SMALL, "--out", folder / "run"]
    ended = command(*words, prepare=kill_after("frozen*.safetensors"))
    assert ended.code == -signal.SIGKILL, ended.text
    shutil.copytree(folder, folder.with_name("changing-backup"))
    return folder


@pytest.fixture
def killed(original: Path) -> Path:
    """The folder of photographs and the run in it, as they were when the run was killed."""
    shutil.rmtree(original)
    for name in ("photos", "run"):
        shutil.copytree(original.with_name("changing-backup") / name, original / name)
    return original


def black(data: Path) -> None:
    """Replace all images of the test split with black ones."""
    for number in range(36, 48):
        Image.new("RGB", (120, 90)).save(data / f"{number}.jpg")


def replaced(data: Path) -> None:
    """Replace one image with another photograph."""
    photographs.photograph(999).save(data / "3.jpg", quality=90)


def same_size(data: Path) -> None:
    """Change one byte of a file, as a damaged disk does."""
    content = bytearray((data / "5.jpg").read_bytes())
    content[-100] ^= 1
    (data / "5.jpg").write_bytes(content)


@pytest.mark.parametrize(
    ("change", "number", "name"), [(black, 12, "36.jpg"), (replaced, 1, "3.jpg"), (same_size, 1, "5.jpg")]
)
def test_changed_images_are_refused(command: Commands, killed: Path, change: Change, number: int, name: str) -> None:
    change(killed / "photos")
    before = {path: path.read_bytes() for path in (killed / "run").rglob("[!.]*") if path.is_file()}
    ended = command("train", "--resume", killed / "run", *NO_REPORT)
    assert ended.code == 1, ended.text
    assert f"{killed / 'run'}: {number} of 48 images {'has' if number == 1 else 'have'} changed" in ended.stderr
    assert name in ended.stderr
    assert "--accept-data-change" in ended.stderr
    assert "Traceback" not in ended.text
    assert {path: path.read_bytes() for path in (killed / "run").rglob("[!.]*") if path.is_file()} == before


def test_accepted_images_are_used_everywhere(command: Commands, killed: Path) -> None:
    black(killed / "photos")
    ended = command("train", "--resume", killed / "run", *NO_REPORT, "--accept-data-change")
    assert ended.code == 0, ended.text
    assert "warning: 12 of 48 images changed while the run was interrupted" in ended.stdout
    warnings = json.loads((killed / "run" / "run.json").read_text())["warnings"]
    assert [warning["message"][:23] for warning in warnings if warning["kind"] == "data_changed"] == [
        "12 of 48 images changed"
    ]
    with np.load(killed / "run" / "predictions" / "test.npz") as test:  # of 12 images that are now equal
        assert (test["scores"] == test["scores"][0]).all()
    assert "plain views of train" in ended.stdout  # computed again, like all activations of the old files
    again = command("train", "--resume", killed / "run", *NO_REPORT)
    assert (again.code, "already finished" in again.stdout) == (0, True), again.text


@pytest.mark.parametrize("files", [["0.jpg"], [f"{number}.jpg" for number in range(48)]])
def test_touched_images_are_no_change(command: Commands, finished_run: Path, killed: Path, files: list[str]) -> None:
    for name in files:
        os.utime(killed / "photos" / name)
    ended = command("train", "--resume", killed / "run", *NO_REPORT)
    assert ended.code == 0, ended.text
    assert (killed / "run" / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()
    assert "plain views of train" not in ended.stdout
    assert "data_changed" not in (killed / "run" / "run.json").read_text()


def test_comparison_refuses_changed_images(command: Commands, killed: Path) -> None:
    options = [*SMALL[: SMALL.index("--method")], "--methods", "bce", "--seeds", "2", "--epochs", "1", *NO_REPORT]
    folder, in_seed_1 = killed / "comparison", kill_after("frozen.safetensors", count=2)
    words: list[str | Path] = ["compare", killed / "photos", *options, "--probe-epochs", "3", "--out", folder]
    ended = command(*words, prepare=in_seed_1)
    assert ended.code == -signal.SIGKILL, ended.text
    assert (folder / "seed-1").exists()
    replaced(killed / "photos")
    refused = command("compare", "--resume", folder, *NO_REPORT)
    assert refused.code == 1, refused.text
    assert f"{folder}: 1 of 48 images has changed since the run started" in refused.stderr
    accepted = command("compare", "--resume", folder, *NO_REPORT, "--accept-data-change")
    assert accepted.code == 0, accepted.text
    for file in (folder / "spec.json", folder / "seed-1" / "run.json"):
        assert "1 of 48 images changed while the run was interrupted" in file.read_text(), file
    assert "data_changed" not in (folder / "seed-0" / "run.json").read_text()  # it was finished before


def edit_table(data: Path, edit: Callable[[list[list[str]]], None]) -> None:
    """Change the rows of the table; the first is its header."""
    with (data / "labels.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    edit(rows)
    with (data / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def deleted(data: Path) -> None:
    """Delete an image that the table lists."""
    (data / "7.jpg").unlink()


def renamed(data: Path) -> None:
    """Rename an image in the folder and in the table."""
    (data / "7.jpg").rename(data / "seven.jpg")
    edit_table(data, lambda rows: rows[8].__setitem__(0, "seven.jpg"))


def added_row(data: Path) -> None:
    """Add an image to the folder and to the table."""
    photographs.photograph(999).save(data / "48.jpg")
    edit_table(data, lambda rows: rows.append(["48.jpg", "roof", "train"]))


def removed_row(data: Path) -> None:
    """Remove an image from the table."""
    edit_table(data, lambda rows: rows.__delitem__(8))


def changed_label(data: Path) -> None:
    """Change the labels of one image."""
    edit_table(data, lambda rows: rows[8].__setitem__(1, "sky" if rows[8][1] != "sky" else "roof"))


def changed_split(data: Path) -> None:
    """Move a training image to the test split. The run keeps the split that it has stored."""
    edit_table(data, lambda rows: rows[8].__setitem__(2, "test"))


def moved(data: Path) -> None:
    """Move the whole folder."""
    data.rename(data.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (deleted, "7.jpg"),
        (renamed, "7.jpg"),
        (added_row, "48.jpg"),
        (removed_row, "7.jpg"),
        (changed_label, "labels"),
        (moved, "photos"),
    ],
)
@pytest.mark.parametrize("accept", [[], ["--accept-data-change"]], ids=["", "accepted"])
def test_changed_table_is_refused(
    command: Commands, killed: Path, change: Change, named: str, accept: list[str]
) -> None:
    change(killed / "photos")
    ended = command("train", "--resume", killed / "run", *NO_REPORT, *accept)
    assert ended.code == 1, ended.text
    assert named in ended.stderr
    assert "Traceback" not in ended.text


def test_changed_split_column_does_not_change_the_run(command: Commands, killed: Path, finished_run: Path) -> None:
    changed_split(killed / "photos")
    ended = command("train", "--resume", killed / "run", *NO_REPORT)
    assert ended.code == 0, ended.text
    assert (killed / "run" / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()


def test_accepting_needs_a_run_to_resume(command: Commands, photos: Path, tmp_path: Path) -> None:
    ended = command("train", photos, *SMALL, "--out", tmp_path / "run", "--accept-data-change")
    assert ended.code == 1
    assert "--accept-data-change needs --resume" in ended.stderr
    assert not (tmp_path / "run").exists()
