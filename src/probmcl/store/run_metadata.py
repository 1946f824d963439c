"""The content of run.json: the environment in which a run was started, its state, its candidates and its model."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from probmcl.errors import RunWarning, check_range
from probmcl.version import __version__

S = TypeVar("S")

Head = Literal["frozen", "own head", "re-probed"]
"""The head of a candidate: a probe on the frozen encoder, the method's own head, or a probe on its encoder."""

MAX_LAYERS = 100
"""Largest number of layers that a setting can list; building a model with millions would take hours."""

NO_FILE_NAME = re.compile(r"[/\\\x00\ud800-\udfff]")
"""Characters that the name of a file cannot contain: separators, NUL and lone surrogates."""

PACKAGES = ("torch", "timm", "torchvision", "numpy", "pillow")
"""Libraries that affect scores."""


class CandidateEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A candidate of a run; `gain` is its lead over the frozen probe in validation mAP."""

    method: str
    head: Head
    trial: int
    name: str
    validation_mAP: float | None  # noqa: N815
    gain: float | None = None
    gain_interval: tuple[float, float] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        check_range(at_least=1, trial=self.trial)
        if NO_FILE_NAME.search(self.method):
            raise ValueError(f"method {self.method!r} is not valid")


class KeptModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The method of the model that a run has saved, and its settings."""

    method: str
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        for key, value in self.settings.items():
            if isinstance(value, list) and len(value) > MAX_LAYERS:
                raise ValueError(f"{key} has {len(value):,} values; the limit is {MAX_LAYERS}")


RunStatus = Literal["running", "interrupted", "failed", "finished"]


class RunMetadata(
    msgspec.Struct, Generic[S], frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """The content of run.json.

    Attributes:
        command: the program and its arguments.
        seed: the seed of the settings.
        versions: versions of Python, probmcl and the libraries that affect scores.
        commit: the commit of the source tree; None for an installed package.
        started: the time when the run started.
        data: the data, as a class of a later package; None for records in memory.
        records: hash of the images and labels.
        duplicates: the numbers of exact and near duplicates, if they were counted.
        status: whether the run is finished.
        seconds: duration over all attempts.
        warnings: problems that did not stop the run.
        candidates: all candidates so far.
        kept: the name of the candidate that the model is from.
        model: the method of the model and its settings.
        test_mAP: the mAP on the test split of every tested candidate, by its name.
    """

    command: tuple[str, ...]
    seed: int
    versions: dict[str, str]
    commit: str | None
    started: str
    data: S | None
    records: str
    duplicates: dict[str, int] | None
    status: RunStatus
    seconds: float
    warnings: tuple[RunWarning, ...]
    candidates: tuple[CandidateEntry, ...]
    kept: str | None
    model: KeptModel | None
    test_mAP: dict[str, float | None] | None = None  # noqa: N815

    def __post_init__(self) -> None:
        check_range(at_least=0, seconds=self.seconds)
        names = [entry.name for entry in self.candidates]
        if len(set(names)) < len(names):
            raise ValueError("the names of the candidates must be unique")
        if self.kept not in (None, *names) or (self.status == "finished" and (self.kept is None or self.model is None)):
            raise ValueError(f"kept={self.kept!r} is not the name of a candidate")


class Environment(NamedTuple):
    """The information needed to repeat a run, apart from its seed and settings."""

    command: tuple[str, ...]
    versions: dict[str, str]
    commit: str | None
    started: str


def environment() -> Environment:
    """Return the command, the versions, the commit of the source tree and the time."""
    command = (Path(sys.argv[0]).name, *sys.argv[1:])
    versions = {"python": platform.python_version(), "probmcl": __version__}
    for name in PACKAGES:
        versions[name] = importlib.metadata.version(name)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Environment(command, versions, _commit(), started)


def _commit() -> str | None:
    source = Path(__file__).parents[3]
    if not (source / ".git").exists():
        return None
    git = ["git", "-C", str(source), "rev-parse", "HEAD"]
    try:
        return subprocess.run(git, capture_output=True, encoding="utf-8", check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
