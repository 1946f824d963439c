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
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from probmcl import __version__
from probmcl.data.labels import State
from probmcl.data.records import Records, Split
from probmcl.data.split import write_folds
from probmcl.files import atomic_write, read_json, write_json, write_text


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
    folder: Path,
    records: Records,
    settings: Any,
    source: Mapping[str, Any] | None,
    alarms: Sequence[str],
    fold_of: Int[ndarray, "N"] | None = None,
) -> None:
    """Claim a folder and write down what a run starts from; `source` says how the records were read."""
    claim(folder)
    write_json(folder / "config.json", settings)
    write_json(folder / "labels.json", labels_file(records, source or {}))
    write_split(folder / "split.csv", records)
    if fold_of is not None:
        write_folds(folder / "folds.csv", records, fold_of)
    about = circumstances(settings.seed)
    write_json(
        folder / "run.json",
        about
        | {"data": source, "records": fingerprint(records), "status": "running", "seconds": 0.0, "alarms": list(alarms)}
        | {"candidates": [], "kept": None, "model": None},
    )


def note_interrupt(folder: Path) -> None:
    """Write down that a run was stopped, if it was begun at all."""
    if (folder / "run.json").is_file():
        write_json(folder / "run.json", read_json(folder / "run.json") | {"status": "interrupted"})


def labels_file(records: Records, source: Mapping[str, Any]) -> dict[str, Any]:
    """What labels.json holds: the classes, how often each is positive in train, their parents, and the policy."""
    space, states = records.label_space, records.states
    chances = zip(space.names, states.chance.tolist(), strict=True)
    policy = {
        "unknown": "a label that is not known takes no part in anything",
        "blank": source.get("options", {}).get("blank"),
        "minus_one": source.get("options", {}).get("minus_one"),
        "chance_of_uncertain": {name: chance for name, chance in chances if chance == chance},  # not NaN: not unknown
        "labels": {state.name.lower(): int(n) for state, n in zip(State, states.counts().sum(axis=1), strict=True)},
    }
    hierarchy = None if space.hierarchy is None else dict(space.hierarchy)
    return {"names": space.names, "counts": space.counts.tolist(), "hierarchy": hierarchy, "policy": policy}


def fingerprint(records: Records) -> str:
    """The same for the same images with the same labels in the same splits."""
    digest = hashlib.sha256()
    for part in (map(str, records.paths), records.split, records.label_space.names):
        digest.update("\n".join(part).encode())
    digest.update(records.states.digest())
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

    atomic_write(folder / f"{split}.npz", write)


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
