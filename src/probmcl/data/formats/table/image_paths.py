"""Finds the image files listed in a table: by path, by path without suffix, or by file name in a subfolder.

Each folder is listed only once: checking a million files one by one is much slower, especially on a network drive.
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

BACKSLASH_NOTE = "'\\' in paths read as '/'"
ListFiles = Callable[[str], frozenset[str]]
"""Returns the names of the files in a folder, from a cache."""


class _Matches(NamedTuple):
    """The file for each distinct text under a root (None if it does not exist), and notes on how files were found."""

    root: Path
    files: dict[str, str | None]
    notes: list[str]

    def missing(self) -> int:
        return sum(file is None for file in self.files.values())


def find_images(table: Table, column: str, images: Path | None, missing: Missing) -> tuple[list[str], list[str]]:
    """Return the image file of each row, and notes on how the files were found.

    Files are searched for in `images`, by default in the table's folder and in `images/` there. A missing file is an
    error; with `missing="keep"`, it is an error only if all files are missing.
    """
    texts = table.texts(column)
    _refuse_invalid_paths(table, column, texts)
    here, own = table.folder, _with_name(table.folder)
    if images and not images.is_dir():
        raise OptionError("images", images, "is not a folder")
    roots = [images] if images else _roots(here, texts)
    distinct, list_files = list(dict.fromkeys(texts)), cache(_files_in)
    candidates = [_match(root, distinct, table, texts, list_files) for root in roots]
    best = min(candidates, key=_Matches.missing)
    if not best.missing() or missing == "keep":
        _refuse_two_roots(table, candidates, best.missing())
    if best.missing():
        best = _search_subfolders(best, images or here, table, texts)
    absent = [row for row, text in enumerate(texts) if best.files[text] is None]
    if absent and (missing == "error" or best.missing() == len(best.files)):
        raise DataError(_missing_message(table, texts, absent, roots if len(absent) == len(texts) else [best.root]))
    convert = _with_slashes if BACKSLASH_NOTE in best.notes else str
    paths = [best.files[text] or _join(best.root, convert(text)) for text in texts]
    above = [] if images or best.root != own.parent else [f"paths are relative to the parent folder of {own.name}/"]
    return paths, [*above, *best.notes]


def _roots(here: Path, texts: Sequence[str]) -> list[Path]:
    """Return the table's folder, its `images/`, and its parent if all paths start with the folder's name."""
    roots = [here, here / "images"] if (here / "images").is_dir() else [here]
    start = f"{_with_name(here).name}/"
    return [*roots, _with_name(here).parent] if all(_with_slashes(text).startswith(start) for text in texts) else roots


def _with_name(folder: Path) -> Path:
    """Return a folder, resolved if its path does not end with its name, as for the working directory."""
    return folder.resolve() if folder.name in ("", "..") else folder


def _refuse_invalid_paths(table: Table, column: str, texts: Sequence[str]) -> None:
    for row, text in enumerate(texts):
        if not text:
            raise DataError(f"{table.where(row)}: column {column!r} is blank; enter the path of the image")
        if "\0" in text:
            raise DataError(f"{table.where(row)}: {text!r} in column {column!r} is not a valid path; correct it")
        if ".." in text and _with_slashes(text).split("/")[0] == "..":
            raise DataError(
                f"{table.where(row)}: {text!r} is outside the image folder; make all paths relative to one folder "
                f"and pass it as `images=FOLDER`"
            )


def _files_in(folder: str) -> frozenset[str]:
    """Return the names of the files in a folder, or an empty set if it does not exist or cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_file())
    except OSError:
        return frozenset()


def _with_slashes(text: str) -> str:
    """Return a normalized path with / instead of \\."""
    return os.path.normpath(text.replace("\\", "/"))


def _join(root: Path, text: str) -> str:
    text = os.path.normpath(text)
    return text if text.startswith("/") else f"{str(root).rstrip('/')}/{text}"


def _match(root: Path, distinct: Sequence[str], table: Table, texts: Sequence[str], list_files: ListFiles) -> _Matches:
    """Look up the texts as paths under a root, then with / instead of \\, then without suffix."""
    files = {text: _file(_join(root, text), list_files) for text in distinct}
    notes = []
    backslashed = [text for text in distinct if "\\" in text]
    if backslashed and not any(files[text] for text in backslashed):
        converted = {text: _file(_join(root, _with_slashes(text)), list_files) for text in backslashed}
        if any(converted.values()):
            files |= converted
            notes.append(BACKSLASH_NOTE)
    bare = [text for text in distinct if files[text] is None and not is_image(text)]
    if bare:
        matched = _match_stems(root, bare, table, texts, list_files)
        files |= matched
        notes += _count_note(matched, "found by adding the suffix")
    return _Matches(root, files, notes)


def _file(path: str, list_files: ListFiles) -> str | None:
    folder, _, name = path.rpartition("/")
    return path if name in list_files(folder or "/") else None


def _match_stems(
    root: Path, stems: Sequence[str], table: Table, texts: Sequence[str], list_files: ListFiles
) -> dict[str, str]:
    """Return the files whose path without suffix is one of the texts."""
    by_stem = cache(lambda folder: _group_by_stem((name, name) for name in list_files(folder)))
    matched: dict[str, str] = {}
    for text in stems:
        folder, _, stem = _join(root, text).rpartition("/")
        matches = sorted(by_stem(folder or "/").get(stem, ()))
        if len(matches) > 1:
            both = f"{matches[0]} and {matches[1]}"
            raise DataError(f"{table.where(texts.index(text))}: {text!r} matches {both} in {folder}; add the suffix")
        if matches:
            matched[text] = f"{folder}/{matches[0]}"
    return matched


def _group_by_stem(entries: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group the values of (file name, value) pairs by the stem of the file name; only images are kept."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, value in entries:
        if is_image(name):
            groups[name.rpartition(".")[0]].append(value)
    return groups


def _search_subfolders(candidate: _Matches, root: Path, table: Table, texts: Sequence[str]) -> _Matches:
    """Search the whole tree for missing files whose text is a bare file name."""
    bare = [text for text, file in candidate.files.items() if file is None and "/" not in text]
    if not bare or not root.is_dir():
        return candidate
    entries = [(entry.name, entry.path) for entry in walk(root) if entry.is_file()]  # false for broken links
    by_name: dict[str, list[str]] = defaultdict(list)
    for name, path in entries:
        by_name[name].append(path)
    by_stem = _group_by_stem(entries)
    matched: dict[str, str] = {}
    for text in bare:
        matches = by_name.get(text) or ([] if is_image(text) else by_stem.get(text, []))
        if len(matches) > 1:
            raise DataError(
                f"{table.where(texts.index(text))}: {text!r} matches {matches[0]} and {matches[1]}; add the folder to "
                f"the path, or choose one folder with `images=FOLDER`"
            )
        if matches:
            matched[text] = matches[0]
    notes = [*candidate.notes, *_count_note(matched, f"found in subfolders of {root.name or root}/")]
    return _Matches(candidate.root, {**candidate.files, **matched}, notes)


def _count_note(matched: dict[str, str], how: str) -> list[str]:
    return [f"{len(matched):,} {'image' if len(matched) == 1 else 'images'} {how}"] if matched else []


def _refuse_two_roots(table: Table, candidates: Sequence[_Matches], fewest: int) -> None:
    """Refuse different files under two roots that match equally well; absolute paths match the same files."""
    best = [candidate for candidate in candidates if candidate.missing() == fewest]
    if fewest < len(best[0].files) and any(candidate.files != best[0].files for candidate in best):
        where = listing(str(candidate.root) for candidate in best)
        raise DataError(f"{table.path}: the images exist in several folders: {where}; choose one with `images=FOLDER`")


def _missing_message(table: Table, texts: Sequence[str], absent: Sequence[int], roots: Sequence[Path]) -> str:
    text = texts[absent[0]]
    others = f" ({len(absent) - 1:,} more are missing)" if len(absent) > 1 else ""
    where = " or ".join(f"{root}/" for root in roots)
    return f"{table.where(absent[0])}: {text!r} does not exist in {where}{others}; {_remedy(text, roots)}"


def _remedy(text: str, roots: Sequence[Path]) -> str:
    if re.match(r"[A-Za-z]:[\\/]", text):
        return f"{text[:2]!r} is a Windows drive; make all paths relative to one folder and pass it as `images=FOLDER`"
    for root in roots:
        similar = _similar_file(root, text)
        if similar is not None:
            how = (
                "case"
                if _normalize(similar) != _normalize(text)
                else "Unicode normalization (é as one or two characters)"
            )
            return f"{similar!r} differs only in {how}; rename one of them"
    return "use `images=FOLDER` if the images are in another folder"


def _similar_file(root: Path, text: str) -> str | None:
    """Return the file under a root whose path differs only in case or Unicode normalization, if there is just one."""
    if text.startswith("/"):
        return None
    paths = [""]
    for part in os.path.normpath(text).split("/"):
        paths = [f"{path}/{name}" for path in paths for name in _similar_names(root / path.lstrip("/"), part)]
    files = [path.lstrip("/") for path in paths if (root / path.lstrip("/")).is_file()]
    return files[0] if len(files) == 1 else None


def _similar_names(folder: Path, name: str) -> list[str]:
    try:
        return [other.name for other in folder.iterdir() if _fold(other.name) == _fold(name)]
    except OSError:
        return []


def _normalize(text: str) -> str:
    return unicodedata.normalize("NFC", os.path.normpath(text))


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
