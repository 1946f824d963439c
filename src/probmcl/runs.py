"""A run folder: files that are written whole or not at all, and never over anything that is there."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import importlib.metadata
import json
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from probmcl import __version__
from probmcl.data.records import Records, Split


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
    with path.open("x", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "split"])
        table.writerows(zip(records.paths, records.split, strict=True))


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
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _whole(path: Path, write: Any) -> None:
    part = path.with_name(f".{path.name}.part")
    write(part)
    part.replace(path)
