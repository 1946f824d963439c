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
"""The value of a key that `change` deletes."""

Craft = Callable[[Path], object]
"""A function that changes a folder."""

Words = tuple[str, ...]
"""The words of a command after `probmcl`."""

# FOLDER, IMAGE, PHOTOS, NEW and FINISHED stand for the crafted folder, an image, the data, a new folder and a finished
# comparison.
PREDICT: Words = ("predict", "FOLDER", "IMAGE")
REPORT: Words = ("report", "FOLDER", "--no-images")
CALIBRATE: Words = ("calibrate", "FOLDER")
RESUME: Words = ("train", "--resume", "FOLDER", "--no-report")
START: Words = ("train", "PHOTOS", "--weights", "FOLDER", "--out", "NEW", "--no-report")
COMPARE: Words = ("compare", "--resume", "FOLDER", "--no-report")
ADD: Words = ("compare", "--resume", "FINISHED", "--add", "FOLDER", "--no-report")
EVALUATE: Words = ("evaluate", "FOLDER")


class Crafted(NamedTuple):
    """A folder that a stranger has made, and how a command refuses it.

    Attributes:
        craft: changes the folder.
        words: a command that reads the folder.
        texts: parts of the message.
        folder: the fixture with the folder before the change.
    """

    craft: Craft
    words: Words
    texts: tuple[str, ...]
    folder: Literal["run", "unfinished", "comparison"] = "run"


def change(name: str, key: str, value: Any) -> Craft:
    """Return a change that sets a key of a JSON file, such as `jobs.0.method`; the value `DELETED` deletes it."""

    def craft(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        *outer_parts, last_part = key.split(".")
        container = content
        for part in outer_parts:
            container = container[_key_or_index(part)]
        last = _key_or_index(last_part)
        if value is DELETED:
            del container[last]
        else:
            container[last] = value
        (folder / name).write_text(json.dumps(content))

    return craft


def _key_or_index(part: str) -> str | int:
    """Return a part of a dotted key: digits are an index of an array, anything else is a key of an object."""
    if part.isdigit():
        return int(part)
    return part


def changes(name: str, **values: Any) -> Craft:
    """Return a change that sets keys of a JSON file at its top level."""
    return lambda folder: edit(folder / name, **values)


def content(name: str, text: str | bytes) -> Craft:
    """Return a change that replaces the content of a file."""
    new = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / name).write_bytes(new)


def cases(table: dict[str, Crafted], *sample: str) -> pytest.MarkDecorator:
    """Run a test for each row of a table; rows whose names are not in the sample are exhaustive."""
    assert set(sample) <= table.keys()
    rows = []
    for name, case in table.items():
        marks = () if name in sample else (pytest.mark.exhaustive,)
        rows.append(pytest.param(case, id=name, marks=marks))
    return pytest.mark.parametrize("case", rows)


def check_refused(
    case: Crafted, command: Commands, folder: Path, photos: Path, *, finished: Path | None = None
) -> Ended:
    """Check that a command refuses a crafted folder quickly, with the expected message.

    Args:
        case: the row of a table.
        command: runs commands.
        folder: the folder before the change.
        photos: the data of the run.
        finished: a finished comparison, if the command names one.
    """
    case.craft(folder)
    for part in (folder, *folder.glob("seed-*")):
        relist(part)
    paths = {"FOLDER": folder, "IMAGE": photos / "1.jpg", "PHOTOS": photos, "NEW": folder.parent / "new"}
    if finished is not None:
        paths["FINISHED"] = finished
    words = [paths.get(word, word) for word in case.words]
    ended = command(*words, timeout=SECONDS, prepare=LIMITED)
    refused(ended, *case.texts)
    assert ended.peak < MEMORY
    return ended
