"""Run folders that version 0.1 (commit 7043fdd) wrote.

They are in tests/fixtures/v0_1 and were made by make.py. To keep them small and portable, absolute paths are
placeholders, and the tensors of a folder are in one archive, which compresses the similar weights of its candidates;
`restore` undoes both. The file views.png, which is never read, is missing.
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
    """Return the scores that version 0.1 computed from these folders."""
    numbers: dict[str, Any] = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))
    return numbers


def restore(name: str, tmp_path: Path) -> Path:
    """Copy a run folder of version 0.1 to tmp_path/name and its photos to tmp_path/photos.

    Args:
        name: `finished`, `interrupted` or `comparison`.
        tmp_path: A folder, which may contain other restored folders.

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
    for path in folder.rglob("run.json"):
        text = path.read_text(encoding="utf-8")
        for match in RECORDS.finditer(text):
            text = text.replace(match[0], records_hash(path.parent, match[1]))
        path.write_text(text, encoding="utf-8")
    return folder


def replace_words(folder: Path, words: dict[str, str]) -> None:
    """Replace words in all text files of a folder, and in the paths stored in its predictions."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in TEXT:
            text = path.read_bytes().decode()  # without translating line endings
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
    """Return the hash with which version 0.1 identifies the images, splits and labels of a run.

    It depends on absolute paths, so it must be computed again if the folder and its images are moved.

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
