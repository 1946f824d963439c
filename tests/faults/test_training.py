"""Training survives damaged caches and checkpoints, full disks, kills and batches with NaN, or says what is wrong."""

import csv
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.conftest import NO_REPORT, SMALL
from helpers.faults import Commands, Ended, kill_after

pytestmark = pytest.mark.slow

EVERY_STEP = """
from probmcl.training import Checkpoint
create = Checkpoint.__init__
def start(self, *args, **kwargs):
    create(self, *args, **kwargs)
    self.seconds_apart = 0.0
Checkpoint.__init__ = start
"""
"""Saves a checkpoint after every step."""


def kill_at_step(step: int) -> str:
    """Return code that kills the process with SIGKILL after a training step, once its checkpoint is saved."""
    return f"""{EVERY_STEP}
import os, signal
after = Checkpoint.after
def kill(self, step, state):
    after(self, step, state)
    if step == {step}:
        os.kill(os.getpid(), signal.SIGKILL)
Checkpoint.after = kill
"""


def options(**changes: str) -> list[str]:
    """Return the options of a small training with some of them changed or, if the value is empty, removed."""
    words = list(SMALL)
    for name, value in changes.items():
        if f"--{name}" in words:
            start = words.index(f"--{name}")
            del words[start : start + 2]
        words += [f"--{name}", value] if value else []
    return words


LONGER = options(epochs="6")
"""Options of a training of 18 steps."""


def rows(run: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv without the speed."""
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [
            {key: value for key, value in row.items() if key != "images_per_second"} for row in csv.DictReader(file)
        ]


def warnings(run: Path) -> list[Any]:
    stored: list[Any] = json.loads((run / "run.json").read_text(encoding="utf-8"))["warnings"]
    return stored


def assert_same(run: Path, other: Path) -> None:
    """Assert that two runs have the same model, scores, log and warnings."""
    for name in ("model.safetensors", "evaluation.json"):
        assert (run / name).read_bytes() == (other / name).read_bytes(), name
    with np.load(run / "predictions/test.npz") as ours, np.load(other / "predictions/test.npz") as theirs:
        np.testing.assert_array_equal(ours["scores"], theirs["scores"])
    assert rows(run) == rows(other)
    assert warnings(run) == warnings(other)


def resume(command: Commands, run: Path, *options: str, prepare: str = "") -> Ended:
    """Resume a run, which must succeed."""
    ended = command("train", "--resume", run, *NO_REPORT, *options, prepare=prepare)
    assert ended.code == 0, ended.text
    assert "Traceback" not in ended.text
    return ended


def flip(path: Path, share: float) -> None:
    """Invert a byte at a position between the start (0) and the end (1) of a file."""
    content = bytearray(path.read_bytes())
    content[round(share * (len(content) - 1))] ^= 0xFF
    path.write_bytes(content)


def cut(path: Path, share: float) -> None:
    """Truncate a file to a share of its size."""
    os.truncate(path, round(share * path.stat().st_size))


def cut_all(*paths: Path) -> None:
    """Truncate several files."""
    for path in paths:
        cut(path, 0.7)


# Cached activations.


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


CACHE_DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda folder: cut(only(folder, "train*.npy"), 0.2), "were damaged"),
    "emptied": (lambda folder: cut(only(folder, "train*.npy"), 0), "were damaged"),
    "flipped": (lambda folder: flip(only(folder, "train*.npy"), 0.3), "were damaged"),
    "header flipped": (lambda folder: flip(only(folder, "train*.npy"), 0.001), ""),
    "deleted": (lambda folder: only(folder, "val*.npy").unlink(), "were damaged"),
    "manifest cut": (lambda folder: cut(only(folder, "train*.json"), 0.5), "is damaged"),
    "manifest emptied": (lambda folder: cut(only(folder, "train*.json"), 0), "is damaged"),
    "manifest deleted": (lambda folder: only(folder, "train*.json").unlink(), ""),
    "manifest of a list": (lambda folder: only(folder, "train*.json").write_text("[1, 2]"), "is damaged"),
    "other checksums": (lambda folder: change_numbers(only(folder, "train*.json")), "damaged"),
}


def change_numbers(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace("1", "2"), encoding="utf-8")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(name, marks=pytest.mark.exhaustive) if "emptied" in name or "deleted" in name else name
        for name in CACHE_DAMAGES
    ],
)
def test_damaged_activations_are_computed_again(
    command: Commands, unfinished: Path, finished_run: Path, damage: str
) -> None:
    apply, note = CACHE_DAMAGES[damage]
    apply(unfinished / "checkpoints" / "activations")
    ended = resume(command, unfinished)
    assert_same(unfinished, finished_run)
    assert note in ended.text


# Checkpoints of training.


@pytest.fixture(scope="session")
def longer_run(command: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with more steps; read only."""
    run = tmp_path_factory.mktemp("runs") / "longer"
    ended = command("train", photos, *LONGER, "--out", run)
    assert ended.code == 0, ended.text
    return run


@pytest.fixture(scope="session")
def stopped_run(command: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, killed during training, after the checkpoint of step 13 of 18; read only."""
    run = tmp_path_factory.mktemp("runs") / "stopped"
    ended = command("train", photos, *LONGER, "--out", run, prepare=kill_at_step(13))
    assert ended.code == -signal.SIGKILL, ended.text
    return run


@pytest.fixture
def stopped(stopped_run: Path, tmp_path: Path) -> Path:
    """A copy of the run that was killed during training."""
    return Path(shutil.copytree(stopped_run, tmp_path / "stopped"))


def newest(run: Path) -> Path:
    return run / "checkpoints" / "bce.training.safetensors"


def previous(run: Path) -> Path:
    return run / "checkpoints" / "previous.bce.training.safetensors"


CHECKPOINT_DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda run: cut(newest(run), 0.7), "previous checkpoint, step 12"),
    "emptied": (lambda run: cut(newest(run), 0), "previous checkpoint, step 12"),
    "flipped": (lambda run: flip(newest(run), 0.6), "previous checkpoint, step 12"),
    "header flipped": (lambda run: flip(newest(run), 0), "previous checkpoint, step 12"),
    "deleted": (lambda run: newest(run).unlink(), ""),
    "both cut": (lambda run: cut_all(newest(run), previous(run)), "training starts over"),
}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(damage, marks=pytest.mark.exhaustive) if damage in ("emptied", "header flipped") else damage
        for damage in CHECKPOINT_DAMAGES
    ],
)
def test_a_damaged_checkpoint_falls_back(command: Commands, stopped: Path, longer_run: Path, damage: str) -> None:
    apply, note = CHECKPOINT_DAMAGES[damage]
    apply(stopped)
    ended = resume(command, stopped)
    assert_same(stopped, longer_run)
    assert note in ended.text
    assert not list((stopped / "checkpoints").glob("*training*"))


@pytest.mark.parametrize("damage", [cut, pytest.param(flip, marks=pytest.mark.exhaustive)])
def test_a_damaged_trained_method_is_trained_again(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, damage: Callable[[Path, float], None]
) -> None:
    run = tmp_path / "run"
    ended = command("train", photos, *SMALL, "--out", run, prepare=kill_after("bce.outcome.json"))
    assert ended.code == -signal.SIGKILL, ended.text
    damage(run / "checkpoints" / "bce.trained.safetensors", 0.5)
    ended = resume(command, run)
    assert "bce is trained again" in ended.text
    assert_same(run, finished_run)


# Kills during training.


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (18, ("--workers", "1")),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in ((7, ("--workers", "2")), (13, ()))),
    ],
)
def test_a_run_killed_during_training_has_the_log_of_an_uninterrupted_one(
    command: Commands, photos: Path, longer_run: Path, tmp_path: Path, step: int, options: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    ended = command("train", photos, *LONGER, "--out", run, prepare=kill_at_step(step))
    assert ended.code == -signal.SIGKILL, ended.text
    resume(command, run, *options)
    assert_same(run, longer_run)


COLLAPSING = "import probmcl.methods.contrast as contrast; contrast.SMALLEST_GAP = 9.0"
"""Makes every contrastive training count as collapsed, so that there is a warning."""


def test_a_collapse_before_the_kill_is_reported_after_the_resume(
    command: Commands, photos: Path, tmp_path: Path
) -> None:
    words = options(method="supcon", epochs="10")
    ended = command("train", photos, *words, "--out", tmp_path / "full", prepare=COLLAPSING)
    assert ended.code == 0, ended.text
    assert [warning["kind"] for warning in warnings(tmp_path / "full")][:1] == ["collapse"]
    run = tmp_path / "run"
    ended = command("train", photos, *words, "--out", run, prepare=COLLAPSING + "\n" + kill_at_step(29))
    assert ended.code == -signal.SIGKILL, ended.text
    resume(command, run)  # from step 29 of 30: the last row alone would not be a collapse
    assert_same(run, tmp_path / "full")


# NaN and inf.

LOSSES = """
import sys
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

def count():  # a few steps are timed before the training, which has 18 steps
    count.calls += 1
    return count.calls
count.calls = 0

def nan(logits, labels, known):
    return logits.sum() * float("nan")
def inf(logits, labels, known):
    return logits.sum() * float("inf")
def once(logits, labels, known):
    return bce(logits, labels) * (float("nan") if count() == 12 else 1.0)
def late(logits, labels, known):
    return bce(logits, labels) * (float("nan") if count() > 12 else 1.0)
def bad_gradient(logits, labels, known):  # the loss is finite
    return bce(logits, labels) + ((logits.sum() * 0).sqrt() if count() == 12 else 0)
def raises(logits, labels, known):
    raise RuntimeError("the loss has a bug")
def vector(logits, labels, known):
    return bce(logits, labels, reduction="none").mean(1)
def leaves(logits, labels, known):
    sys.exit()
"""


@pytest.fixture(scope="session")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("losses") / "losses.py"
    path.write_text(LOSSES, encoding="utf-8")
    return path


def train_with(command: Commands, photos: Path, out: Path, loss: str, prepare: str = "") -> Ended:
    words = options(method="", epochs="6")
    return command("train", photos, *words, "--loss", loss, "--out", out, prepare=prepare)


def candidates(run: Path) -> list[str]:
    return [entry["name"] for entry in json.loads((run / "run.json").read_text(encoding="utf-8"))["candidates"]]


@pytest.mark.parametrize("name", ["once", "bad_gradient"])
def test_one_batch_with_nan_is_skipped_and_named(
    command: Commands, photos: Path, losses: Path, tmp_path: Path, name: str
) -> None:
    ended = train_with(command, photos, tmp_path / "run", f"{losses}:{name}")
    assert ended.code == 0, ended.text
    (line,) = [line for line in ended.text.splitlines() if "; skipped " in line]
    names = line.partition("; skipped ")[2].split(", ")
    assert len(names) == 8  # the batch
    assert all((photos / name).is_file() for name in names)
    assert candidates(tmp_path / "run") == ["frozen probe", f"{name}, own head", f"{name}, re-probed"]
    assert [w["kind"] for w in warnings(tmp_path / "run")][:1] == ["skipped"]
    assert "1 batch was skipped" in warnings(tmp_path / "run")[0]["message"]


def test_training_stops_after_five_batches_with_nan_and_keeps_the_method(
    command: Commands, photos: Path, losses: Path, tmp_path: Path
) -> None:
    ended = train_with(command, photos, tmp_path / "run", f"{losses}:late")
    assert ended.code == 0, ended.text
    assert candidates(tmp_path / "run") == ["frozen probe", "late, own head", "late, re-probed"]
    assert "late stopped early" in ended.text
    assert ended.text.count("the loss is nan; skipped ") == 5
    assert "5 batches is NaN or inf" in warnings(tmp_path / "run")[0]["message"]


@pytest.mark.parametrize("name", ["nan", "inf"])
def test_a_method_without_a_finite_loss_is_left_out(
    command: Commands, photos: Path, losses: Path, tmp_path: Path, name: str
) -> None:
    ended = train_with(command, photos, tmp_path / "run", f"{losses}:{name}")
    assert ended.code == 0, ended.text
    assert f"{name} is left out" in ended.text
    assert "the last at step 5" in ended.text
    assert candidates(tmp_path / "run") == ["frozen probe"]


@pytest.mark.parametrize(
    ("name", "message"), [("raises", "the loss has a bug"), ("vector", "scalar"), ("leaves", "sys.exit")]
)
def test_a_loss_with_a_bug_is_an_error(
    command: Commands, photos: Path, losses: Path, tmp_path: Path, name: str, message: str
) -> None:
    ended = train_with(command, photos, tmp_path / "run", f"{losses}:{name}")
    assert ended.code == 1, ended.text
    assert message in ended.text


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf", "-inf"])
def test_a_learning_rate_that_is_not_positive_and_finite_is_refused(
    command: Commands, photos: Path, tmp_path: Path, rate: str
) -> None:
    ended = command("train", photos, *SMALL, f"--lr={rate}", "--out", tmp_path / "run")
    assert ended.code == 1, ended.text
    assert "learning_rate=" in ended.text
    assert "above 0" in ended.text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("supcon", "temperature=inf"),
        ("supcon", "temperature=nan"),
        ("asl", "gamma_negative=inf"),
        ("kmcl", "classification_weight=inf"),
    ],
)
def test_settings_that_are_nan_or_infinite_are_refused(
    command: Commands, photos: Path, tmp_path: Path, method: str, setting: str
) -> None:
    ended = command("train", photos, *options(method=method), "--set", setting, "--out", tmp_path / "run")
    assert ended.code == 1, ended.text
    assert "finite" in ended.text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("line", ["weight_decay = inf", "learning_rate = nan", "head_factor = inf"])
def test_recipes_with_nan_or_infinity_are_refused(command: Commands, photos: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "recipe.toml").write_text(f'method = "bce"\n[training]\n{line}\n', encoding="utf-8")
    words = ("--encoder", "test_convnext", "--weights", "none", "--recipe", tmp_path / "recipe.toml")
    ended = command("train", photos, *words, "--out", tmp_path / "run")
    assert ended.code == 1, ended.text
    assert "finite" in ended.text


@pytest.mark.parametrize("rate", ["1e6", pytest.param("1e30", marks=pytest.mark.exhaustive)])
def test_a_learning_rate_that_is_far_too_high_never_gives_a_model_with_nan(
    command: Commands, photos: Path, tmp_path: Path, rate: str
) -> None:
    ended = command("train", photos, *SMALL, "--lr", rate, "--out", tmp_path / "run")
    assert ended.code == 0, ended.text
    with np.load(tmp_path / "run" / "predictions" / "test.npz") as stored:
        assert np.isfinite(stored["scores"]).all()


# Full disks.


def test_a_file_size_limit_is_reported_and_the_run_can_be_resumed(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    limit = """
import resource, sys
def limit(event, args):
    if event == "open" and ".npy" in str(args[0]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, -1))
sys.addaudithook(limit)
"""
    ended = command("train", photos, *SMALL, "--out", run, prepare=limit)
    assert ended.code == 1, ended.text
    assert "train.npy" in ended.text
    assert "bytes needed" in ended.text
    resume(command, run)
    assert_same(run, finished_run)


def on_small_disk(folder: Path) -> str:
    """Return code that mounts a small disk for this process only, and fills it once the file of the cache exists."""
    return f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x00020000) == 0  # CLONE_NEWNS
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0  # MS_REC | MS_PRIVATE
assert libc.mount(b"tmpfs", {str(folder)!r}.encode(), b"tmpfs", 0, b"size=8m") == 0
def fill(event, args):
    cache = {str(folder / "run" / "checkpoints" / "activations" / "train.npy")!r}
    if event == "open" and str(args[0]).endswith(".npy") and os.path.exists(cache) and os.path.getsize(cache) > 999:
        other = os.open({str(folder / "other")!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            while os.write(other, bytes(4096)):
                pass
        except OSError:
            os.close(other)
sys.addaudithook(fill)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_a_disk_that_fills_up_behind_the_cache_is_reported(command: Commands, photos: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    words = options(**{"image-size": "160"})  # so that the file is larger than a page
    ended = command("train", photos, *words, "--out", disk / "run", prepare=on_small_disk(disk))
    assert ended.code == 1, f"{ended.code} {ended.text}"
    assert "train.npy" in ended.text
    assert "bytes needed, 0 bytes free" in ended.text
    assert "Traceback" not in ended.text
