"""Functions that write the files of a layout, and summarize the records read from it."""

import json
from pathlib import Path
from typing import Any

from helpers.tables import states_of
from probmcl.data.records import Records


def write_layout(folder: Path, images: str, files: dict[str, Any]) -> Path:
    """Write empty images and files into a folder, and return it.

    Args:
        folder: the folder; missing parent folders of images and files are created.
        images: paths of the images, separated by spaces.
        files: contents by path; content that is not text becomes JSON.
    """
    empty_images = dict.fromkeys(images.split(), "")
    for name, content in {**empty_images, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def summary(records: Records, folder: Path) -> dict[str, str]:
    """Return the split and the states of each image (- absent, + present, ? unknown) by its path in a folder."""
    described = {}
    for path, split, states in zip(records.paths, records.split, states_of(records), strict=True):
        described[path.relative_to(folder).as_posix()] = f"{split} {states}"
    return described
