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
"""The fixture `write` of the readers: it writes a table and returns its path."""


def write_table(folder: Path, text: str, *, images: str = "1.jpg 2.jpg 3.jpg 4.jpg", name: str = "labels.csv") -> Path:
    """Write a table and empty image files in the same folder."""
    for image in images.split():
        (folder / image).parent.mkdir(parents=True, exist_ok=True)
        (folder / image).touch()
    (folder / name).write_bytes(text.encode())
    return folder / name


def states_of(records: Records) -> list[str]:
    """Return a text per image with one character per class: - absent, + present, ? unknown, ~ uncertain."""
    characters = np.array(list("-+?~"))  # in the order of the numbers of the states
    return ["".join(characters[row]) for row in records.states.dense()]


def labels_of(records: Records) -> list[set[str]]:
    """Return the names of the labels of each image."""
    return [_classes(records, row) for row in records.labels]


def unknown_of(records: Records) -> list[set[str]]:
    """Return the names of the unknown labels of each image."""
    return [_classes(records, ~row) for row in records.known]


def _classes(records: Records, marks: np.ndarray) -> set[str]:
    """Return the names of the classes that are marked in a row with one mark per class."""
    return {records.label_space.names[k] for k in np.flatnonzero(marks)}


def refused(path: Path, *parts: str, options: ReadOptions = ReadOptions()) -> str:
    """Check that reading a table is an error whose message has these parts; return the message."""
    with pytest.raises(DataError) as caught:
        read_table(path, options)
    message = str(caught.value)
    for part in parts:
        assert part in message
    return message


def asked(path: Path, *readings: dict[str, str], options: ReadOptions = ReadOptions()) -> Question:
    """Check that reading a table is a question with these answers, given as options; return the question."""
    with pytest.raises(Question) as caught:
        read_table(path, options)
    question = caught.value
    assert [dict(reading.options) for reading in question.readings] == list(readings)
    return question
