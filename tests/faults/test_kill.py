"""A killed run resumes with the same result as one that was never interrupted."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from faults.conftest import NO_REPORT, SMALL
from helpers.faults import Commands, kill_after

pytestmark = pytest.mark.slow

KILL_AT_RENAME = """
import os, signal
replace, renamed = os.replace, []
def kill(*args, **kwargs):
    renamed.append(args)
    if len(renamed) == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*args, **kwargs)
os.replace = kill
"""
"""Code that kills the process just before it gives a file its final name, for the given time."""

RENAMES, SAMPLED = 48, (6, 37)
"""Files that a small run writes, and the numbers of those before which it is killed in every test run."""

FILES = ("model.safetensors", "evaluation.json", "calibration.json", "split.csv", "labels.json", "preprocessing.json")


def assert_same(run: Path, other: Path) -> None:
    for name in FILES:
        assert (run / name).read_bytes() == (other / name).read_bytes(), name
    with np.load(run / "predictions/test.npz") as ours, np.load(other / "predictions/test.npz") as theirs:
        np.testing.assert_array_equal(ours["scores"], theirs["scores"])


@pytest.mark.parametrize(
    "moment", ["bce*trained*", *(pytest.param(m, marks=pytest.mark.exhaustive) for m in ("plan*", "bce*own?head*"))]
)
def test_killed_run_resumes_bit_identical(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, moment: str
) -> None:
    run = tmp_path / "run"
    assert command("train", photos, *SMALL, "--out", run, prepare=kill_after(moment)).code == -signal.SIGKILL
    if (run / "model.safetensors").exists():
        predicted = command("predict", run, photos / "0.jpg")  # with the frozen probe or a better candidate
        assert predicted.code == 0, predicted.text
    assert command("train", "--resume", run, *NO_REPORT).code == 0
    assert_same(run, finished_run)


@pytest.mark.parametrize(
    "number",
    [n if n in SAMPLED else pytest.param(n, marks=pytest.mark.exhaustive) for n in range(1, RENAMES + 1)],
)
def test_run_killed_before_any_rename_resumes_bit_identical(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, number: int
) -> None:
    run = tmp_path / "run"
    ended = command("train", photos, *SMALL, "--out", run, prepare=KILL_AT_RENAME.format(number=number))
    assert ended.code == -signal.SIGKILL, ended.text
    if not (run / "run.json").exists():  # the run had not started, so there is nothing to resume
        shutil.rmtree(run)
        assert command("train", photos, *SMALL, "--out", run).code == 0
    else:
        again = command("train", "--resume", run, *NO_REPORT)
        assert again.code == 0, again.text
    assert_same(run, finished_run)


@pytest.mark.parametrize("number", [3, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (1, 2, 4))])
@pytest.mark.parametrize(("name", "next_name"), [("calibrate", "report"), ("report", "calibrate")])
def test_killed_update_of_a_finished_run_leaves_it_valid(
    command: Commands, run: Path, photos: Path, name: str, next_name: str, number: int
) -> None:
    options = ["--thresholds", "f1"] if name == "calibrate" else []
    assert command(name, run, *options, prepare=KILL_AT_RENAME.format(number=number)).code == -signal.SIGKILL
    for ended in (
        command(next_name, run),
        command("predict", run, photos / "0.jpg"),
        command("train", "--resume", run, *NO_REPORT),
    ):
        assert ended.code == 0, ended.text
    assert not (run / ".lock").exists()


COMPARISON = [*SMALL[: SMALL.index("--method")], "--methods", "bce", "--seeds", "2", "--epochs", "2"]
COMPARISON += ["--batch-size", "8", "--probe-epochs", "3", *NO_REPORT]


@pytest.fixture(scope="module")
def full_comparison(command: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that was never interrupted."""
    folder = tmp_path_factory.mktemp("comparisons") / "full"
    assert command("compare", photos, *COMPARISON, "--out", folder).code == 0
    return folder


@pytest.mark.parametrize(
    "number",  # with 8, the folder of the first seed is being created
    [8, *(pytest.param(number, marks=pytest.mark.exhaustive) for number in (*range(1, 8), *range(9, 90, 9)))],
)
def test_killed_comparison_resumes_with_the_same_results(
    command: Commands, photos: Path, full_comparison: Path, tmp_path: Path, number: int
) -> None:
    folder = tmp_path / "killed"
    ended = command("compare", photos, *COMPARISON, "--out", folder, prepare=KILL_AT_RENAME.format(number=number))
    assert ended.code == -signal.SIGKILL, ended.text
    if not (folder / "spec.json").exists():
        shutil.rmtree(folder)
        again = command("compare", photos, *COMPARISON, "--out", folder)
    else:
        again = command("compare", "--resume", folder, *NO_REPORT)
    assert again.code == 0, again.text
    assert scores(folder) == scores(full_comparison)


def scores(folder: Path) -> list[tuple[str, int, float]]:
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [(line["name"], line["seed"], line["test"]["mAP"]) for line in lines]


# Power failures, as far as they can be tested: nothing is renamed before it is on the disk.

RECORD_FLUSHES = """
import os, stat
fsync, replace, log = os.fsync, os.replace, open({log!r}, "w", buffering=1)
def record_flush(descriptor):
    fsync(descriptor)
    log.write("folder\\n" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file\\n")
def record_rename(*args, **kwargs):
    replace(*args, **kwargs)
    log.write("rename\\n")
os.fsync, os.replace = record_flush, record_rename
"""


@pytest.mark.parametrize("name", ["train", "predict"])
def test_files_are_flushed_before_and_folders_after_each_rename(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, name: str
) -> None:
    words: list[str | Path] = ["predict", finished_run, photos, "--workers", "0", "--out", tmp_path / "out.csv"]
    if name == "train":
        words = ["train", photos, *SMALL, "--out", tmp_path / "run"]
    ended = command(*words, prepare=RECORD_FLUSHES.format(log=str(tmp_path / "log")))
    assert ended.code == 0, ended.text
    events = (tmp_path / "log").read_text().split()
    assert "rename" in events
    for index in (index for index, event in enumerate(events) if event == "rename"):
        assert (events[index - 1], events[index + 1]) == ("file", "folder")
