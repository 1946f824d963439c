"""A run folder: begun empty, its files written whole or not at all."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import importlib.metadata
import io
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from probmcl import __version__
from probmcl.data.records import Records, Split


def claim(folder: Path) -> None:
    """Make a folder for a run, or take an empty one; anything in it is somebody's, and refused."""
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder}: a file, not a folder; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
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


def write_json(path: Path, content: object) -> None:
    """Write JSON; dataclasses become objects, paths strings."""
    text = json.dumps(content, indent=2, default=_plain)
    _whole(path, lambda part: part.write_text(text + "\n", encoding="utf-8"))


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as safetensors."""
    state = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    _whole(path, lambda part: save_file(state, part))


def write_split(path: Path, records: Records) -> None:
    """Which image belongs to which split: path, split."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(["path", "split"])
    table.writerows(zip(records.paths, records.split, strict=True))
    _whole(path, lambda part: part.write_text(text.getvalue(), encoding="utf-8", newline=""))


def write_predictions(folder: Path, records: Records, split: Split, scores: Tensor) -> None:
    """What was predicted and what is true of every image of a split."""
    rows = records.rows(split)
    folder.mkdir(exist_ok=True)
    content = {
        "paths": np.array([str(records.paths[row]) for row in rows]),
        "scores": scores.numpy(),
        "labels": records.labels[rows],
        "known": records.known[rows],
    }

    def write(part: Path) -> None:
        with part.open("wb") as file:
            np.savez_compressed(file, **content)

    _whole(folder / f"{split}.npz", write)


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


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _whole(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_name(f".{path.name}.part")
    write(part)
    part.replace(path)
