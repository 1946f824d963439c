"""Folders that a stranger has made: changes to one file each, and the check that a command refuses them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from helpers.faults import Commands, Ended, edit, refused, relist

LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))"
"""Code that limits the memory of a command, so that a failing test does not exhaust the machine."""

MEMORY = 2 << 30
"""Peak memory of a refused command in bytes; importing torch takes a quarter of it."""

SECONDS = 60.0
"""Seconds after which a refused command is considered to hang; on an idle machine, most take less than one."""

DELETED = object()

Craft = Callable[[Path], object]
Words = tuple[str, ...]

# FOLDER, IMAGE and PHOTOS stand for the crafted folder, an image and the data.
PREDICT: Words = ("predict", "FOLDER", "IMAGE")
REPORT: Words = ("report", "FOLDER", "--no-images")
CALIBRATE: Words = ("calibrate", "FOLDER")
RESUME: Words = ("train", "--resume", "FOLDER", "--no-report")
START: Words = ("train", "PHOTOS", "--weights", "FOLDER", "--out", "NEW", "--no-report")
COMPARE: Words = ("compare", "--resume", "FOLDER", "--no-report")


class Crafted(NamedTuple):
    """A crafted folder: the change, a command that reads it, and parts of the message."""

    craft: Craft
    words: Words
    texts: tuple[str, ...]
    folder: Literal["run", "unfinished", "comparison"] = "run"


def change(name: str, key: str, value: Any) -> Craft:
    """Set a key of a JSON file, such as `jobs.0.method`; `DELETED` deletes it."""

    def craft(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        *parents, last = [int(part) if part.isdigit() else part for part in key.split(".")]
        inner = content
        for part in parents:
            inner = inner[part]
        if value is DELETED:
            del inner[last]
        else:
            inner[last] = value
        (folder / name).write_text(json.dumps(content))

    return craft


def changes(name: str, **values: Any) -> Craft:
    """Set keys of a JSON file."""
    return lambda folder: edit(folder / name, **values)


def content(name: str, text: str | bytes) -> Craft:
    """Replace a file."""
    return lambda folder: (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)


def cases(table: dict[str, Crafted], *sample: str) -> pytest.MarkDecorator:
    """Run a test for each row of a table; those that are not in the sample are exhaustive."""
    assert set(sample) <= table.keys()
    rows = []
    for name, case in table.items():
        marks = () if name in sample else (pytest.mark.exhaustive,)
        rows.append(pytest.param(case, id=name, marks=marks))
    return pytest.mark.parametrize("case", rows)


def check_refused(case: Crafted, command: Commands, folder: Path, photos: Path) -> Ended:
    """Check that a command refuses a crafted folder quickly, with the expected message."""
    case.craft(folder)
    for part in (folder, *folder.glob("seed-*")):
        relist(part)
    named = {"FOLDER": folder, "IMAGE": photos / "1.jpg", "PHOTOS": photos, "NEW": folder.parent / "new"}
    words = [named.get(word, word) for word in case.words]
    ended = command(*words, timeout=SECONDS, prepare=LIMITED)
    refused(ended, *case.texts)
    assert ended.peak < MEMORY
    return ended
