"""Commands that start fast, a small dataset, and runs on it that tests copy and damage."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers import photographs
from helpers.crafted import Crafted
from helpers.faults import Commands, kill_after, open_commands

NO_REPORT = ["--no-report"]
SMALL = [
    *("--encoder", "test_convnext", "--weights", "none", "--image-size", "32", "--workers", "0", "--method", "bce"),
    *("--probe-epochs", "3", "--epochs", "2", "--batch-size", "8"),
    *NO_REPORT,
]
"""Options of a training that takes about a second."""

SPLITS = ["train"] * 24 + ["val"] * 12 + ["test"] * 12
"""The split of each photograph."""

CopyRun = Callable[[], Path]


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """A function that runs `probmcl` in a process of its own."""
    with open_commands(tmp_path_factory.mktemp("commands")) as commands:
        yield commands


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 48 photographs with a table; read only."""
    return photographs.folder(tmp_path_factory.mktemp("data") / "photos", count=48, splits=SPLITS).parent


@pytest.fixture(scope="session")
def finished_run(command: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the photographs; read only."""
    run = tmp_path_factory.mktemp("runs") / "finished"
    ended = command("train", photos, *SMALL, "--out", run)
    assert ended.code == 0, ended.text
    return run


@pytest.fixture(scope="session")
def interrupted_run(command: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after the frozen probe; read only."""
    run = tmp_path_factory.mktemp("runs") / "interrupted"
    ended = command("train", photos, *SMALL, "--out", run, prepare=kill_after("frozen*.safetensors"))
    assert ended.code == -signal.SIGKILL, ended.text
    return run


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished_run, tmp_path / "run", symlinks=True))


@pytest.fixture
def unfinished(interrupted_run: Path, tmp_path: Path) -> Path:
    """A copy of the interrupted run."""
    return Path(shutil.copytree(interrupted_run, tmp_path / "unfinished", symlinks=True))


@pytest.fixture(scope="session")
def finished_comparison(command: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison on the photographs; read only."""
    folder = tmp_path_factory.mktemp("comparisons") / "finished"
    options = [word for word in SMALL if word not in ("--method", "bce")]  # a comparison has --methods
    ended = command("compare", photos, *options, "--methods", "bce", "--seeds", "1", "--out", folder)
    assert ended.code == 0, ended.text
    return folder


@pytest.fixture
def comparison(finished_comparison: Path, tmp_path: Path) -> Path:
    """A copy of the finished comparison."""
    return Path(shutil.copytree(finished_comparison, tmp_path / "comparison"))


@pytest.fixture
def folder(case: Crafted, request: pytest.FixtureRequest) -> Path:
    """The copy of a folder that a case of `helpers.crafted` changes: `run`, `unfinished` or `comparison`."""
    copy: Path = request.getfixturevalue(case.folder)
    return copy
