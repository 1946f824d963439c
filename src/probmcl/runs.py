"""A run folder: begun empty, its files written whole or not at all."""

from __future__ import annotations

import csv
import datetime
import hashlib
import importlib.metadata
import io
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from probmcl import __version__
from probmcl.data.records import Records, Split
from probmcl.files import read_json, whole, write_json, write_text


def claim(folder: Path) -> None:
    """Make a folder for a run, or take an empty one; anything in it is somebody's, and refused."""
    refuse_used(folder)
    folder.mkdir(parents=True, exist_ok=True)


def refuse_used(folder: Path) -> None:
    """An error for a folder that has something in it."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: a file, not a folder; choose another name")
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder}: not empty; a run is never written over anything, choose another folder")


def new_folder(parent: Path, name: str) -> Path:
    """Make `parent/DATE-name`, with a number behind it where that exists already."""
    stem = f"{datetime.date.today():%Y-%m-%d}-{name}"
    for number in range(1, 10_000):
        folder = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{parent}: ten thousand runs of today; choose another folder")


def begin(
    folder: Path, records: Records, settings: Any, source: Mapping[str, Any] | None, alarms: Sequence[str]
) -> None:
    """Claim a folder and write down what a run starts from; `source` says how the records were read."""
    claim(folder)
    space = records.label_space
    write_json(folder / "config.json", settings)
    policy = "a label that is not known takes no part in anything"
    write_json(folder / "labels.json", {"names": space.names, "counts": space.counts.tolist(), "policy": policy})
    write_split(folder / "split.csv", records)
    about = circumstances(settings.seed)
    write_json(
        folder / "run.json",
        about
        | {"data": source, "records": fingerprint(records), "status": "running", "seconds": 0.0, "alarms": list(alarms)}
        | {"candidates": [], "kept": None, "model": None},
    )


def fingerprint(records: Records) -> str:
    """The same for the same images with the same labels in the same splits."""
    digest = hashlib.sha256()
    for part in (map(str, records.paths), records.split, records.label_space.names):
        digest.update("\n".join(part).encode())
    digest.update((records.labels * records.known).tobytes())
    digest.update(records.known.tobytes())
    return digest.hexdigest()


def refuse_other_records(folder: Path, records: Records) -> None:
    """A run goes on with the images and labels it began with, or not at all."""
    if fingerprint(records) != read_json(folder / "run.json")["records"]:
        raise ValueError(
            f"{folder}: its images, labels or splits have changed since it began; put them back, or start a new run"
        )


def write_split(path: Path, records: Records) -> None:
    """Which image belongs to which split: path, split."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["path", "split"])
    table.writerows(zip(records.paths, records.split, strict=True))
    write_text(path, text.getvalue())


def write_predictions(folder: Path, records: Records, split: Split, scores: Tensor) -> None:
    """What was predicted and what is true of every image of a split."""
    rows = records.rows(split)
    content = {
        "paths": np.array([str(records.paths[row]) for row in rows]),
        "scores": scores.numpy(),
        "labels": records.labels[rows],
        "known": records.known[rows],
    }

    def write(part: Path) -> None:
        with part.open("wb") as file:
            np.savez_compressed(file, **content)

    whole(folder / f"{split}.npz", write)


def circumstances(seed: int) -> dict[str, Any]:
    """What one needs to know to run it again."""
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
    """The commit of this source, where it runs from a checkout."""
    source = Path(__file__).parents[2]
    if not (source / ".git").exists():
        return None
    git = ["git", "-C", str(source), "rev-parse", "HEAD"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
