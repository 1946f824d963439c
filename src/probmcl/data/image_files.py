"""Image files: which files are images, and whether a file has changed or equals another."""

from __future__ import annotations

import glob
import itertools
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probmcl.console import Console
from probmcl.data.records import Missing, Paths, Split
from probmcl.errors import LISTED, DataError, RunError, RunWarning, counted, listing
from probmcl.runtime.files import DAMAGED
from probmcl.runtime.tensor_files import content_digest, stream_digest
from probmcl.store.files import IMAGES
from probmcl.store.run_folder import RunFolder
from probmcl.store.run_metadata import ImageRow

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".ppm", ".pgm", ".pbm"),
    *(".jp2", ".avif", ".dcm", ".dicom"),
)
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "JPEG2000", "AVIF")
"""Pillow's names of the formats that are opened, whatever the suffix of a file; DICOM is read separately. Other formats
are refused, because Pillow starts Ghostscript for EPS, for example."""

SPLIT_FOLDERS: Mapping[str, Split] = {
    "train": "train",
    "training": "train",
    "validation": "val",
    "valid": "val",
    "val": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""The split for each folder name, in lower case."""
PIECE = 4096  # bytes compared at the start, middle and end of files of equal size, to rule out most of them
DICOM_HEAD = 132
"""Bytes at the start of a DICOM file: a preamble of 128 bytes and the prefix DICM."""

MISSING = (-1, -1)  # size and modification time of a file that does not exist


def is_image(name: str) -> bool:
    """Return whether a file name has an image suffix, ignoring case.

    >>> is_image("1.JPG"), is_image("labels.csv"), is_image("jpg")
    (True, False, False)
    """
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and dot + suffix.lower() in IMAGE_SUFFIXES


def walk(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every file below a folder: first the files directly in it, sorted by name, then the files in subfolders.

    Symlinks are followed, but each folder is visited only once. Names that start with a dot are skipped.
    """
    pending, visited = [str(root)], set()
    while pending:
        folder = pending.pop()
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        try:
            with os.scandir(folder) as scan:
                entries = [entry for entry in scan if not entry.name.startswith(".")]
        except OSError as error:
            raise DataError(f"{folder}: cannot be listed ({error.strerror}); check its permissions") from error
        entries.sort(key=lambda entry: entry.name, reverse=True)
        pending += [entry.path for entry in entries if is_folder(entry)]
        entries = [entry for entry in entries if not is_folder(entry)]
        while entries:
            yield entries.pop()  # `pop` frees each entry; a folder may have a million files


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one; `is_dir` raises an error for a link to itself."""
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()  # noqa: PTH112


def is_file(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a file or a link to one."""
    return os.path.isfile(entry.path) if entry.is_symlink() else entry.is_file()  # noqa: PTH113


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, without those that start with a dot or two underscores."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:  # gives the type of each entry without a system call per file
        names = [entry.name for entry in entries if not entry.name.startswith((".", "__")) and is_folder(entry)]
    return sorted(folder / name for name in names)


def images_below(folder: Path) -> Iterator[Path]:
    """Yield the images below a folder, in the order of `walk`."""
    return (Path(entry.path) for entry in walk(folder) if is_image(entry.name))


def named_images(
    folder: Path, names: Sequence[str], *, source: Path, remedy: str, missing: Missing = "error"
) -> list[Path]:
    """Return the paths of the named files in a folder. A missing file raises an error that cites `source` and `remedy`.

    With `missing="keep"`, an error is raised only if all files are missing, because the folder must then be wrong.
    """
    existing = {path.name for path in folder.iterdir()} if folder.is_dir() else set()  # faster than one stat per file
    absent = [name for name in names if name not in existing]
    refuse_absent(absent, len(names), folder, source=source, remedy=remedy, missing=missing)
    return [folder / name for name in names]


def refuse_absent(
    absent: Sequence[str], count: int, folder: Path, *, source: Path, remedy: str, missing: Missing
) -> None:
    """Raise `DataError` if any of the images is absent; with `missing="keep"`, only if all of them are."""
    if absent and (missing == "error" or len(absent) == count):
        share = f"{len(absent):,} of {count:,} missing"
        raise DataError(f"{source}: {absent[0]!r} is not in {folder} ({share}); {remedy}")


def split_folders(folder: Path) -> dict[Path, Split]:
    """Return the subfolders that have the name of a split, in the order of `SPLIT_FOLDERS`."""
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:  # faster than a path for each of a million images
        names = [entry.name for entry in entries if entry.name.lower() in SPLIT_FOLDERS and is_folder(entry)]
    names.sort(key=lambda name: (list(SPLIT_FOLDERS).index(name.lower()), name))
    return {folder / name: SPLIT_FOLDERS[name.lower()] for name in names}


def expand(source: str | Path) -> Iterator[Path]:
    """Yield the image files from a source: a file, a folder, a glob pattern or a `.txt` list of paths.

    A single file may have any suffix. A file with an image suffix need not exist.
    """
    path = Path(source)
    if path.is_dir():
        yield from images_below(path)
    elif path.suffix.lower() == ".txt" and path.is_file():
        yield from _listed(path)
    elif is_one_image(source) or path.exists():
        yield path
    elif glob.has_magic(str(source)):
        yield from _matching(str(source))


def is_one_image(source: str | Path) -> bool:
    """Return whether a source is a single image, judging by its name; the file need not exist."""
    return is_image(str(source)) and not glob.has_magic(str(source))


def refuse_without_image(source: str | Path) -> None:
    """Raise `DataError` if a folder, pattern or list yields no images."""
    if not str(source).strip():
        raise DataError("an empty path was given as an image; for the images in the current folder, use '.'")
    if next(expand(source), None) is not None:
        return
    path, suffixes = Path(source), f"{IMAGE_SUFFIXES[0]}, …, {IMAGE_SUFFIXES[-1]}"
    if path.is_dir():
        raise DataError(f"{path}: the folder and its subfolders contain no images (files ending in {suffixes})")
    if path.is_file():
        raise DataError(f"{path}: the list contains no images; write one path per line")
    if glob.has_magic(str(source)):
        raise DataError(f"{source}: no images match the pattern (files ending in {suffixes})")
    raise DataError(f"{source}: does not exist; expected an image, a folder, a pattern or a .txt list of paths")


def _listed(path: Path) -> Iterator[Path]:
    """Yield the paths in a list, relative to the working directory or, if not found there, to the list's folder."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for line in filter(None, map(str.strip, lines)):
            relative = path.parent / line
            listed = relative if not Path(line).exists() and relative.exists() else Path(line)
            yield from images_below(listed) if listed.is_dir() else (listed,)


def _matching(pattern: str) -> Iterator[Path]:
    """Yield matching images, sorted per folder, and images below matching folders unless `**` matches them anyway."""
    recursive = "**" in pattern
    matches = glob.iglob(pattern, recursive=True)  # noqa: PTH207  # pathlib does not support absolute patterns
    for _, names in itertools.groupby(matches, os.path.dirname):
        for name in sorted(names):
            if not recursive and Path(name).is_dir():
                yield from images_below(Path(name))
            elif is_image(name):
                yield Path(name)


def equal_files(*groups: Iterable[str]) -> list[dict[str, bytes]]:
    """Return, for each group, the files that are identical to another file, with a digest of their content.

    Files in a single group are compared with each other; with several groups, only files in different groups are.
    Only files of equal size are opened, and only files that agree in a few pieces are read in full. Missing and empty
    files are ignored.
    """
    keyed: list[dict[str, bytes]] = [dict.fromkeys(group, b"") for group in groups]
    for key in (_size, _pieces, file_digest):
        keyed = [{path: _or_empty(key, path) for path in group} for group in keyed]
        values = (group.values() if len(groups) == 1 else set(group.values()) for group in keyed)
        counts = Counter(itertools.chain.from_iterable(values))
        keyed = [{path: value for path, value in group.items() if value and counts[value] > 1} for group in keyed]
    return keyed


def file_digest(path: str | Path) -> bytes:
    """Return the digest of a file, or b"" if it cannot be read."""
    try:
        if not Path(path).is_file():
            return b""
        with Path(path).open("rb") as file:
            return stream_digest(file)
    except (OSError, ValueError):
        return b""


def _or_empty(key: Callable[[str], bytes], path: str) -> bytes:
    try:
        return key(path)
    except (OSError, ValueError):
        return b""


def _size(path: str) -> bytes:
    status = os.stat(path)  # noqa: PTH116
    return str(status.st_size).encode() if stat.S_ISREG(status.st_mode) and status.st_size else b""


def _pieces(path: str) -> bytes:
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        pieces = [str(size).encode()]
        for start in (0, size // 2, max(0, size - PIECE)):
            file.seek(start)
            pieces.append(file.read(PIECE))
    return content_digest(pieces)


def is_dicom(head: bytes) -> bool:
    """Return whether the first bytes of a file identify it as DICOM.

    >>> is_dicom(bytes(128) + b"DICM"), is_dicom(b"GIF89a")
    (True, False)
    """
    return head[128:132] == b"DICM"


class Signature(NamedTuple):
    """The size, modification time and digest of a file.

    A file is read again only if its size or modification time differs; then the digest decides.
    """

    size: int
    mtime_ns: int
    digest: str


def stamps(paths: Paths) -> list[tuple[int, int]]:
    """Return the size and modification time of each file."""
    return [_stamp(path) for path in paths.texts]


def sign(stamp_of: Iterable[tuple[int, int]], digests: Iterable[bytes]) -> list[Signature]:
    """Return signatures. The stamps must be older than the digests, so that a change in between is noticed later."""
    return [Signature(*stamp, digest.hex()) for stamp, digest in zip(stamp_of, digests, strict=True)]


def read_all(paths: Paths, console: Console) -> list[Signature]:
    """Return the signatures of files that no audit has read."""
    stamp_of = stamps(paths)
    return sign(stamp_of, _digests(paths, "reading the content of all images", console))


def write_signatures(folder: Path, paths: Paths, signatures: Sequence[Signature]) -> None:
    """Write the signature of every image to the folder of a run or a comparison."""
    RunFolder(folder).write_rows(IMAGES, signature_rows(paths, signatures))


def signature_rows(paths: Paths, signatures: Sequence[Signature]) -> Iterator[ImageRow]:
    """Yield the rows of the file with the signature of every image."""
    for path, signature in zip(paths.texts, signatures, strict=True):
        yield ImageRow(path, *signature)


def read_signatures(folder: Path, paths: Paths) -> list[Signature]:
    """Return the stored signature of every image."""
    run = RunFolder(folder)
    if not run.has(IMAGES):
        raise RunError(f"{folder} has no {IMAGES}, without which changed images are not detected; start a new run")
    rows = run.read_rows(IMAGES)
    if [row.path for row in rows] != list(paths.texts):
        raise RunError(f"{folder / IMAGES}: its paths are not those of the run; {DAMAGED}")
    return [Signature(row.size, row.mtime_ns, row.digest) for row in rows]


class Changes(NamedTuple):
    """The images whose content has changed, and the current signatures of all images."""

    changed: list[str]
    signatures: list[Signature]

    def warning(self) -> RunWarning:
        """Return the warning to store with a run that is resumed with the changed images."""
        number = f"{len(self.changed):,} of {counted(len(self.signatures), 'image')}"
        problem = f"{number} changed while the run was interrupted: {listing(self.changed, LISTED)}"
        consequence = "results from before use the old files, and the new ones were not searched for leaks"
        return RunWarning("data_changed", f"{problem}; {consequence}")


def accepted_changes(folder: Path, paths: Paths, console: Console, *, accept: bool) -> Changes | None:
    """Compare the images with those that a run started with; None if every file is as it was.

    A file that was only touched or copied is not a change. Changed images raise `RunError` unless they are accepted.
    The caller writes the new signatures, after everything else that a change requires.
    """
    stored = read_signatures(folder, paths)
    changes = find_changes(paths, stored, console)
    if changes.changed and not accept:
        number = len(changes.changed)
        have = f"{number:,} of {counted(len(paths), 'image')} {'has' if number == 1 else 'have'}"
        remedy = "restore the old files, start a new run, or use the new files with `accept_data_change=True`"
        files = listing(changes.changed, LISTED)
        raise RunError(f"{folder}: {have} changed since the run started: {files}; {remedy}")
    return None if changes.signatures == stored else changes


def find_changes(paths: Paths, stored: Sequence[Signature], console: Console) -> Changes:
    """Compare files with their stored signatures. Only files with another size or modification time are read."""
    current = stamps(paths)
    rows = np.array([row for row, stamp in enumerate(current) if stamp != stored[row][:2]], dtype=int)
    signatures = list(stored)
    digests = _digests(paths.take(rows), "comparing images with those of the run", console)
    for row, digest in zip(rows, digests, strict=True):
        size, mtime_ns = current[row]
        signatures[row] = Signature(size, mtime_ns, digest.hex())
    changed = [paths.texts[row] for row in rows if signatures[row].digest != stored[row].digest]
    return Changes(changed, signatures)


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 (three times as fast as Path.stat)
    except (OSError, ValueError):
        return MISSING
    return status.st_size, status.st_mtime_ns


def _digests(paths: Sequence[Path], title: str, console: Console) -> list[bytes]:
    if not paths:
        return []
    digests = []
    with console.progress(title, len(paths)) as bar:
        for path in paths:
            digests.append(file_digest(path))
            bar.advance(1)
    return digests
