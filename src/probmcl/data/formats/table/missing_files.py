"""What a message says of a file that is not there: where it was looked for, and what may be meant."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from probmcl.data.formats.table.sheet import Table

DRIVE = re.compile(r"[A-Za-z]:[\\/]")


def what_is_missing(table: Table, texts: Sequence[str], absent: Sequence[int], roots: Sequence[Path]) -> str:
    """The first row whose image is not there, how many more there are, and the remedy."""
    text = texts[absent[0]]
    more = len(absent) - 1
    others = f", nor do {more:,} more" if more else ""
    where = " or ".join(f"{root}/" for root in roots)
    return f"{table.where(absent[0])}: {text!r} does not exist under {where}{others}; {_remedy(text, roots)}"


def _remedy(text: str, roots: Sequence[Path]) -> str:
    if DRIVE.match(text):
        return (
            f"{text[:2]!r} is a drive of another system: write paths from a folder on that contains all images, and "
            f"name that with `images=FOLDER`"
        )
    for root in roots:
        near = only_alike(root, text)
        if near is not None:
            how = "case" if _normal(near) != _normal(text) else "Unicode normal form (é as one character or as two)"
            return f"there is {near!r}, which differs only by {how}: rename one of them"
    return "`images=FOLDER` says where the images are"


def only_alike(root: Path, text: str) -> str | None:
    """The one file below a root whose path differs from the text by case or Unicode normal form alone.

    >>> only_alike(Path("nowhere"), "1.jpg") is None
    True
    """
    if text.startswith("/"):
        return None
    found = [""]
    for part in os.path.normpath(text).split("/"):
        found = [f"{path}/{name}" for path in found for name in _alike(root / path.lstrip("/"), part)]
    files = [path.lstrip("/") for path in found if (root / path.lstrip("/")).is_file()]
    return files[0] if len(files) == 1 else None


def _alike(folder: Path, name: str) -> list[str]:
    try:
        return [other.name for other in folder.iterdir() if _folded(other.name) == _folded(name)]
    except OSError:
        return []


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", os.path.normpath(text))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
