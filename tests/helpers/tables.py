"""Functions that write tables with empty images, and summarize the records read from them."""

from pathlib import Path

import numpy as np

from probmcl.data.records import Records
from probmcl.errors import Question


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


def options_of(question: Question) -> list[dict[str, str]]:
    """Return the options that choose each reading of a question."""
    return [dict(reading.options) for reading in question.readings]
