"""Run folders that version 0.1 (commit 7043fdd) wrote, as a user of that version still has them.

They lie in tests/fixtures/v0_1, made by make.py there. Two things differ from a folder on a user's disk, and `restore`
undoes both: absolute paths are placeholders, and the tensors of a folder share one archive, because the weights of its
candidates are largely the same bytes. Only views.png, a picture that nothing reads, is missing.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).parent.parent / "fixtures" / "v0_1"
TENSORS = "tensors.tar.xz"
TEXT = (".bib", ".csv", ".json", ".jsonl", ".md", ".svg", ".tex", ".txt")
PHOTOS, RUN, RECORDS = "{PHOTOS}", "{RUN}", re.compile(r"\{RECORDS:([0-9a-f]{64})\}")


def expected() -> dict[str, Any]:
    """Return the numbers that version 0.1 itself got from these folders."""
    numbers: dict[str, Any] = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))
    return numbers


def restore(name: str, tmp_path: Path) -> Path:
    """Copy a version 0.1 run folder into tmp_path and point it at the copied photos.

    The photos are copied to tmp_path/photos unless they are there already, the folder to tmp_path/name.

    Args:
        name: `finished`, `interrupted` or `comparison`.
        tmp_path: A folder that may hold other restored folders.

    Returns:
        The run folder.
    """
    photos, folder = tmp_path.resolve() / "photos", tmp_path.resolve() / name
    shutil.copytree(FIXTURES / "photos", photos, dirs_exist_ok=True)
    shutil.copytree(FIXTURES / name, folder)
    with tarfile.open(folder / TENSORS) as archive:
        archive.extractall(folder, filter="data")
    (folder / TENSORS).unlink()
    replace_words(folder, {PHOTOS: str(photos), RUN: str(folder)})
    for about in folder.rglob("run.json"):
        text = about.read_text(encoding="utf-8")
        for found in RECORDS.finditer(text):
            text = text.replace(found[0], records_hash(about.parent, found[1]))
        about.write_text(text, encoding="utf-8")
    return folder


def replace_words(folder: Path, words: dict[str, str]) -> None:
    """Replace words by others in every text file of a folder, and in the paths of every file of predictions."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in TEXT:
            text = path.read_bytes().decode()  # line ends stay as they are
            path.write_bytes(_replaced(text, words).encode())
        elif path.suffix == ".npz":
            with np.load(path) as file:
                content = dict(file)
            content["paths"] = np.array([_replaced(str(image), words) for image in content["paths"]])
            np.savez_compressed(path, allow_pickle=False, **content)


def _replaced(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


def records_hash(folder: Path, states: str) -> str:
    """Return the hash by which version 0.1 knows the images, splits and labels that a run began with.

    It depends on absolute paths, so a folder that moves together with its images needs another one.

    Args:
        folder: The run folder, with its split.csv and labels.json.
        states: The hash of the label states, in hexadecimal digits.
    """
    with (folder / "split.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = json.loads((folder / "labels.json").read_text(encoding="utf-8"))["names"]
    digest = hashlib.sha256()
    for part in ([row["path"] for row in rows], [row["split"] for row in rows], names):
        digest.update("\n".join(part).encode())
    digest.update(bytes.fromhex(states))
    return digest.hexdigest()
