"""Functions that write the files of a layout, and summarize the records read from it."""

import json
from pathlib import Path
from typing import Any

from helpers.tables import states_of
from probmcl.data.records import Records


def write_layout(folder: Path, images: str, files: dict[str, Any]) -> Path:
    """Write empty images, whose paths are separated by spaces, and files; content that is not text becomes JSON."""
    for name, content in {**dict.fromkeys(images.split(), ""), **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def summary(records: Records, folder: Path) -> dict[str, str]:
    """Return the split and the states of each image (- absent, + present, ? unknown) by its path in a folder."""
    states = zip(records.split, states_of(records), strict=True)
    return {
        path.relative_to(folder).as_posix(): f"{split} {row}"
        for path, (split, row) in zip(records.paths, states, strict=True)
    }
