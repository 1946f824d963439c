"""Where the files are that a table names: as written or, where that leads nowhere, with an ending or in a sub-folder.

Folders are listed once: asking for each of a million files by itself takes far longer, above all on a network disk.
"""

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from probmcl.data.formats.table.sheet import Table, listing
from probmcl.data.image_files import is_image, walk
from probmcl.data.records import Missing
from probmcl.errors import DataError, OptionError

BACKWARD = "'\\' in paths read as '/'"
Listed = Callable[[str], frozenset[str]]
"""The names of the files in a folder, which is listed only once."""


class _Reading(NamedTuple):
    """The file of each distinct text, None where there is none, and what had to be understood."""

    root: Path
    files: dict[str, str | None]
    notes: list[str]

    def lacking(self) -> int:
        return sum(file is None for file in self.files.values())


def find_places(table: Table, column: str, images: Path | None, missing: Missing) -> tuple[list[str], list[str]]:
    """The image of each row under `images`, else under the table's folder or its `images/`; and how they were found.

    An image that is not there is an error; with `missing="keep"` only if none is there.
    """
    texts = table.texts(column)
    _refuse_what_is_no_path(table, column, texts)
    here, own = table.folder, _named(table.folder)
    if images and not images.is_dir():
        raise OptionError("images", images, "is not a folder")
    roots = [images] if images else _roots(here, texts)
    distinct, listed = list(dict.fromkeys(texts)), cache(_files_in)
    readings = [_under(root, distinct, table, texts, listed) for root in roots]
    best = min(readings, key=_Reading.lacking)
    if not best.lacking() or missing == "keep":
        _refuse_two_roots(table, readings, best.lacking())
    if best.lacking():
        best = _in_sub_folders(best, images or here, table, texts)
    absent = [row for row, text in enumerate(texts) if best.files[text] is None]
    if absent and (missing == "error" or best.lacking() == len(best.files)):
        raise DataError(_what_is_missing(table, texts, absent, roots if len(absent) == len(texts) else [best.root]))
    written = _slashed if BACKWARD in best.notes else str
    paths = [best.files[text] or _joined(best.root, written(text)) for text in texts]
    above = [] if images or best.root != own.parent else [f"paths begin at the folder above {own.name}/"]
    return paths, [*above, *best.notes]


def _roots(here: Path, texts: Sequence[str]) -> list[Path]:
    """Where paths may begin: the table's folder, its `images/`, or above it where all begin with that folder's name."""
    roots = [here, here / "images"] if (here / "images").is_dir() else [here]
    start = f"{_named(here).name}/"
    return [*roots, _named(here).parent] if all(_slashed(text).startswith(start) for text in texts) else roots


def _named(folder: Path) -> Path:
    """A folder by its name; without one, as the working folder, by its whole path."""
    return folder.resolve() if folder.name in ("", "..") else folder


def _refuse_what_is_no_path(table: Table, column: str, texts: Sequence[str]) -> None:
    for row, text in enumerate(texts):
        if not text:
            raise DataError(f"{table.where(row)}: column {column!r} is blank; name the image's file")
        if "\0" in text:
            raise DataError(f"{table.where(row)}: column {column!r} holds {text!r}, which names no file; mend it")
        if ".." in text and _slashed(text).split("/")[0] == "..":
            raise DataError(
                f"{table.where(row)}: {text!r} leads out of the folder of the images; write paths from a folder that "
                f"contains them all, and name it with `images=FOLDER`"
            )


def _files_in(folder: str) -> frozenset[str]:
    """Names of the files in a folder; none where there is no such folder, or no right to see it."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_file())
    except OSError:
        return frozenset()


def _slashed(text: str) -> str:
    """A path with / for \\, and without turns."""
    return os.path.normpath(text.replace("\\", "/"))


def _joined(root: Path, text: str) -> str:
    text = os.path.normpath(text)
    return text if text.startswith("/") else f"{str(root).rstrip('/')}/{text}"


def _under(root: Path, distinct: Sequence[str], table: Table, texts: Sequence[str], listed: Listed) -> _Reading:
    """The texts as paths below a root; those that lead nowhere with / for \\, or with an ending."""
    files = {text: _file(_joined(root, text), listed) for text in distinct}
    notes = []
    backward = [text for text in distinct if "\\" in text]
    if backward and not any(files[text] for text in backward):
        slashed = {text: _file(_joined(root, _slashed(text)), listed) for text in backward}
        if any(slashed.values()):
            files |= slashed
            notes.append(BACKWARD)
    bare = [text for text in distinct if files[text] is None and not is_image(text)]
    if bare:
        ended = _by_ending(root, bare, table, texts, listed)
        files |= ended
        notes += _counted(ended, "found by adding an ending")
    return _Reading(root, files, notes)


def _file(path: str, listed: Listed) -> str | None:
    folder, _, name = path.rpartition("/")
    return path if name in listed(folder or "/") else None


def _by_ending(root: Path, bare: Sequence[str], table: Table, texts: Sequence[str], listed: Listed) -> dict[str, str]:
    """Files that are named like the texts but for an ending."""
    by_stem = cache(lambda folder: _by_stem((name, name) for name in listed(folder)))
    found: dict[str, str] = {}
    for text in bare:
        folder, _, stem = _joined(root, text).rpartition("/")
        fitting = sorted(by_stem(folder or "/").get(stem, ()))
        if len(fitting) > 1:
            both = f"{fitting[0]} and {fitting[1]}"
            raise DataError(f"{table.where(texts.index(text))}: {text!r} may be {both} in {folder}; write the ending")
        if fitting:
            found[text] = f"{folder}/{fitting[0]}"
    return found


def _by_stem(named: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """What images of each stem there are, of pairs (name, what)."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, what in named:
        if is_image(name):
            found[name.rpartition(".")[0]].append(what)
    return found


def _in_sub_folders(reading: _Reading, root: Path, table: Table, texts: Sequence[str]) -> _Reading:
    """Bare names that lead nowhere, looked for in the whole tree."""
    bare = [text for text, file in reading.files.items() if file is None and "/" not in text]
    if not bare or not root.is_dir():
        return reading
    entries = [(entry.name, entry.path) for entry in walk(root) if entry.is_file()]  # a link may lead nowhere
    by_name: dict[str, list[str]] = defaultdict(list)
    for name, path in entries:
        by_name[name].append(path)
    by_stem = _by_stem(entries)
    found: dict[str, str] = {}
    for text in bare:
        fitting = by_name.get(text) or ([] if is_image(text) else by_stem.get(text, []))
        if len(fitting) > 1:
            raise DataError(
                f"{table.where(texts.index(text))}: {text!r} may be {fitting[0]} or {fitting[1]}; put the folder into "
                f"the column, or name one folder with `images=FOLDER`"
            )
        if fitting:
            found[text] = fitting[0]
    notes = [*reading.notes, *_counted(found, f"found in sub-folders of {root.name or root}/")]
    return _Reading(reading.root, {**reading.files, **found}, notes)


def _counted(found: dict[str, str], how: str) -> list[str]:
    return [f"{len(found):,} {'image' if len(found) == 1 else 'images'} {how}"] if found else []


def _refuse_two_roots(table: Table, found: Sequence[_Reading], fewest: int) -> None:
    """Two folders that have as many of the images, unless those are the same files, as with absolute paths."""
    best = [reading for reading in found if reading.lacking() == fewest]
    if fewest < len(best[0].files) and any(reading.files != best[0].files for reading in best):
        where = listing(str(reading.root) for reading in best)
        raise DataError(f"{table.path}: its images exist under {where}; `images=FOLDER` says which")


def _what_is_missing(table: Table, texts: Sequence[str], absent: Sequence[int], roots: Sequence[Path]) -> str:
    """The first row whose image is not there, how many more there are, and the remedy."""
    text = texts[absent[0]]
    others = f", nor do {len(absent) - 1:,} more" if len(absent) > 1 else ""
    where = " or ".join(f"{root}/" for root in roots)
    return f"{table.where(absent[0])}: {text!r} does not exist under {where}{others}; {_remedy(text, roots)}"


def _remedy(text: str, roots: Sequence[Path]) -> str:
    if re.match(r"[A-Za-z]:[\\/]", text):
        return (
            f"{text[:2]!r} is a drive of another system: write paths from a folder on that contains all images, and "
            f"name that with `images=FOLDER`"
        )
    for root in roots:
        near = _only_alike(root, text)
        if near is not None:
            how = "case" if _normal(near) != _normal(text) else "Unicode normal form (é as one character or as two)"
            return f"there is {near!r}, which differs only by {how}: rename one of them"
    return "`images=FOLDER` says where the images are"


def _only_alike(root: Path, text: str) -> str | None:
    """The one file below a root whose path differs from the text by case or Unicode normal form alone."""
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
