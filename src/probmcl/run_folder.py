"""The files of a run: their names, their schema version, and functions that read and write them.

The names of these files are defined only here. `probmcl.legacy` upgrades files from older versions.
"""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import io
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probmcl import __version__, legacy
from probmcl.errors import RunError
from probmcl.files import atomic_write, read_json, write_json, write_text

SCHEMA = 2
"""Version of the files below. Version 0.1 of the package wrote schema 1 and did not store the number."""

CONFIG, LABELS, PREPROCESSING, METADATA = "config.json", "labels.json", "preprocessing.json", "run.json"
SPLIT, FOLDS = "split.csv", "folds.csv"
MODEL, VIEWS, METRICS = "model.safetensors", "views.png", "metrics.jsonl"
EVALUATION, RETRIEVAL = "evaluation.json", "retrieval.json"
PREDICTIONS, CHECKPOINTS, CALIBRATION = "predictions", "checkpoints", "calibration.json"
NEIGHBORS, REPORT, REPORT_DATA = "neighbors.safetensors", "report.html", "report.json"
OUT_OF_FOLD, OTHER_IMAGES = "out_of_fold", "calibration"
"""Predictions that are not of a split: out-of-fold scores of the frozen probe, and images from outside of the run."""

FROZEN, CANDIDATES, CONTRASTIVE = "frozen", "candidates", "contrastive"
COMPARISON = "spec.json"
"""The file that identifies a folder as a comparison."""


@dataclass(frozen=True)
class RunFolder:
    """A folder that holds a run."""

    path: Path

    @classmethod
    def existing(cls, path: Path | str) -> RunFolder:
        """Return a run folder. Raise `RunError` if it does not hold a run or was written by a newer version."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise RunError(f"{path} is not a folder; pass a run folder written by `probmcl.train()`")
        folder.read(METADATA)
        folder.read(CONFIG)
        return folder

    @property
    def checkpoints(self) -> Path:
        """The folder with the checkpoints of an unfinished run."""
        return self.path / CHECKPOINTS

    def has(self, name: str) -> bool:
        """True if the run has a file with this name."""
        return (self.path / name).is_file()

    @property
    def schema(self) -> int:
        """The schema version that the run was written with."""
        config = _read_object(self.path / CONFIG) if self.has(CONFIG) else {}
        schema = config.get("schema", 1)
        if not isinstance(schema, int) or schema > SCHEMA:
            newest = f"{SCHEMA}, the newest version that probmcl {__version__} can read; update probmcl"
            raise RunError(f"{self.path / CONFIG}: schema version {schema!r} is newer than {newest}")
        return schema

    def read(self, name: str) -> Any:
        """Read one of the run's JSON files and upgrade it to the current schema version."""
        if not self.has(name):
            raise RunError(f"{self.path} is not a run folder: it has no {name}; pass one written by `probmcl.train()`")
        content = _read_object(self.path / name)
        return legacy.upgrade(name, content) if self.schema == 1 else content

    def write(self, name: str, content: object) -> None:
        """Write one of the run's JSON files atomically."""
        write_json(self.path / name, content)

    def note_interrupt(self) -> None:
        """Record that the run was interrupted, if it had started."""
        if self.has(METADATA):
            write_json(self.path / METADATA, read_json(self.path / METADATA) | {"status": "interrupted"})

    def upgrade(self) -> None:
        """Upgrade the files of a run to the current schema version so that it can be resumed."""
        if self.schema < SCHEMA:
            legacy.upgrade_folder(self.path, SCHEMA)

    def results(self, candidate: str) -> Path:
        """Return the folder with the predictions and metrics of a candidate that was tested but not kept."""
        return self.path / FROZEN if candidate == FROZEN else self.path / CANDIDATES / candidate

    def read_split(self) -> dict[str, str]:
        """Return the split of every image, keyed by path."""
        path = self.path / SPLIT
        if not path.is_file():
            raise RunError(
                f"{self.path} has no {SPLIT}; without it, training images cannot be excluded from the scores"
            )
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            rows = list(csv.DictReader(file))
        for number, row in enumerate(rows, start=2):
            if not row.get("path") or row.get("split") not in ("train", "val", "test"):
                raise RunError(f"{path}, row {number}: expected a path and a split (train, val or test), got {row}")
        return {row["path"]: row["split"] for row in rows}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except ValueError as error:
        raise RunError(f"{path}: {error}; the file is damaged or was edited") from error
    if not isinstance(content, dict):
        raise RunError(f"{path}: expected a JSON object; the file is damaged or was edited")
    return content


def is_run(folder: Path) -> bool:
    """True if a folder holds a run or a comparison."""
    return any((folder / name).is_file() for name in (METADATA, COMPARISON, legacy.COMPARISON))


def refuse_used(folder: Path | str | None) -> None:
    """Raise an error if an output folder is not empty. None and missing folders are accepted."""
    if folder is None or not Path(folder).exists():
        return
    if not Path(folder).is_dir():
        raise FileExistsError(f"{folder} is a file, not a folder; choose another name")
    if any(Path(folder).iterdir()):
        raise FileExistsError(f"{folder} is not empty, and existing files are never overwritten; choose another folder")


def new_folder(parent: Path, name: str) -> Path:
    """Create the folder `parent/DATE-name`, with a number appended if it already exists."""
    stem = f"{datetime.date.today():%Y-%m-%d}-{name}"
    for number in range(1, 10_000):
        folder = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{parent} has too many runs with today's date; choose another folder")


def write_rows(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Write a CSV file atomically."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(header)
    table.writerows(rows)
    write_text(path, text.getvalue())


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays to a compressed .npz file atomically."""
    import numpy as np

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    atomic_write(path, write)


def environment(seed: int) -> dict[str, Any]:
    """Return the information needed to repeat a run: command, seed, versions, commit and start time."""
    packages = ("torch", "timm", "torchvision", "numpy", "pillow")
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "seed": seed,
        "versions": {"python": platform.python_version(), "probmcl": __version__}
        | {name: importlib.metadata.version(name) for name in packages},
        "commit": _commit(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    source = Path(__file__).parents[2]
    if not (source / ".git").exists():
        return None
    git = ["git", "-C", str(source), "rev-parse", "HEAD"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
