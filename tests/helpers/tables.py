"""Functions that write tables with empty images, and compare the records, errors and questions with expected ones."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from probmcl.data.records import Records
from probmcl.errors import DataError, Question
from probmcl.readers.options import ReadOptions
from probmcl.readers.table.table import read_table

Write = Callable[..., Path]


def write_table(folder: Path, text: str, *, images: str = "1.jpg 2.jpg 3.jpg 4.jpg", name: str = "labels.csv") -> Path:
    """Write a table and empty image files in the same folder."""
    for image in images.split():
        (folder / image).parent.mkdir(parents=True, exist_ok=True)
        (folder / image).touch()
    (folder / name).write_bytes(text.encode())
    return folder / name


def states_of(records: Records) -> list[str]:
    """Return a string per image with one character per class: - absent, + present, ? unknown, ~ uncertain."""
    return ["".join("-+?~"[state] for state in row) for row in records.states.dense()]


def labels_of(records: Records) -> list[set[str]]:
    """Return the names of the labels of each image."""
    return [{records.label_space.names[k] for k in np.flatnonzero(row)} for row in records.labels]


def unknown_of(records: Records) -> list[set[str]]:
    """Return the names of the unknown labels of each image."""
    return [{records.label_space.names[k] for k in np.flatnonzero(~row)} for row in records.known]


def refused(path: Path, *parts: str, options: ReadOptions = ReadOptions()) -> str:
    """Return the message of the error for a table, which must contain some parts."""
    with pytest.raises(DataError) as caught:
        read_table(path, options)
    for part in parts:
        assert part in str(caught.value)
    return str(caught.value)


def asked(path: Path, *readings: dict[str, str], options: ReadOptions = ReadOptions()) -> Question:
    """Return the question about a table, whose readings must be chosen by some options."""
    with pytest.raises(Question) as caught:
        read_table(path, options)
    assert [dict(reading.options) for reading in caught.value.readings] == [*readings]
    return caught.value
