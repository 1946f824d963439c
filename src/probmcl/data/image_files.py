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
from probmcl.data.records import Missing, Paths
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

PIECE = 4096  # bytes compared at the start, middle and end of files of equal size, to rule out most of them
DICOM_HEAD = 132
"""Bytes at the start of a DICOM file: a preamble of 128 bytes and the prefix DICM."""

MISSING = (-1, -1)  # size and modification time of a file that does not exist


def is_image(name: str) -> bool:
    """Return whether a file name has an image suffix, ignoring case.

    >>> is_image("1.JPG"), is_image("labels.csv"), is_image("jpg")
    (True, False, False)
    """
    stem, _, suffix = name.rpartition(".")
    return stem != "" and f".{suffix.lower()}" in IMAGE_SUFFIXES


def walk(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every file below a folder: first the files directly in it, sorted by name, then the files in subfolders.

    Symlinks are followed, but each folder is visited only once. Names that start with a dot are skipped.
    """
    pending = [str(root)]
    visited = set()
    while pending:
        folder = pending.pop()
        status = Path(folder).stat()
        identity = (status.st_dev, status.st_ino)
        if identity in visited:
            continue
        visited.add(identity)
        entries = _visible_entries(folder)
        entries.sort(key=lambda entry: entry.name, reverse=True)  # both lists below are emptied from their ends
        pending += [entry.path for entry in entries if is_folder(entry)]
        files = [entry for entry in entries if not is_folder(entry)]
        del entries
        while files:
            yield files.pop()  # `pop` frees each entry; a folder may have a million files


def _visible_entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder whose names do not start with a dot, in any order."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror}); check its permissions") from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one."""
    if entry.is_symlink():  # `entry.is_dir` raises an error for a link to itself
        return os.path.isdir(entry.path)  # noqa: PTH112
    return entry.is_dir()


def is_file(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a file or a link to one."""
    if entry.is_symlink():  # `entry.is_file` raises an error for a link to itself
        return os.path.isfile(entry.path)  # noqa: PTH113
    return entry.is_file()


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
    existing: set[str] = set()
    if folder.is_dir():
        existing = {path.name for path in folder.iterdir()}  # faster than one stat per file
    absent = [name for name in names if name not in existing]
    refuse_absent(absent, len(names), folder, source=source, remedy=remedy, missing=missing)
    return [folder / name for name in names]


def refuse_absent(
    absent: Sequence[str], count: int, folder: Path, *, source: Path, remedy: str, missing: Missing
) -> None:
    """Raise `DataError` if any of the images is absent; with `missing="keep"`, only if all of them are."""
    if not absent:
        return
    some_exist = len(absent) < count
    if missing == "keep" and some_exist:
        return
    share = f"{len(absent):,} of {count:,} missing"
    raise DataError(f"{source}: {absent[0]!r} is not in {folder} ({share}); {remedy}")


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
    path = Path(source)
    suffixes = f"{IMAGE_SUFFIXES[0]}, …, {IMAGE_SUFFIXES[-1]}"
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
        for line in lines:
            text = line.strip()
            if not text:
                continue
            listed = Path(text)
            next_to_list = path.parent / text
            if not listed.exists() and next_to_list.exists():
                listed = next_to_list
            if listed.is_dir():
                yield from images_below(listed)
            else:
                yield listed


def _matching(pattern: str) -> Iterator[Path]:
    """Yield matching images, sorted per folder, and images below matching folders unless `**` matches them anyway."""
    recursive = "**" in pattern
    matches = glob.iglob(pattern, recursive=True)  # noqa: PTH207  # pathlib does not support absolute patterns
    for _, matches_in_folder in itertools.groupby(matches, os.path.dirname):
        for match in sorted(matches_in_folder):
            if not recursive and Path(match).is_dir():
                yield from images_below(Path(match))
            elif is_image(match):
                yield Path(match)


def equal_files(*groups: Iterable[str]) -> list[dict[str, bytes]]:
    """Return, for each group, the files that are identical to another file, with a digest of their content.

    Files in a single group are compared with each other; with several groups, only files in different groups are.
    Only files of equal size are opened, and only files that agree in a few pieces are read in full. Missing and empty
    files are ignored.
    """
    candidates = [dict.fromkeys(group, b"") for group in groups]
    for key in (_size, _pieces, file_digest):  # from the fastest to the only one that is certain
        keys_of_groups = [_keys(group, key) for group in candidates]
        candidates = _repeated(keys_of_groups)  # only files with the same key as another one are read further
    return candidates


def _keys(paths: Iterable[str], key: Callable[[str], bytes]) -> dict[str, bytes]:
    """Return the key of each file, or b"" if it cannot be read."""
    keys = {}
    for path in paths:
        try:
            keys[path] = key(path)
        except (OSError, ValueError):
            keys[path] = b""
    return keys


def _repeated(groups: Sequence[Mapping[str, bytes]]) -> list[dict[str, bytes]]:
    """Return, for each group, the files whose key is not empty and occurs again.

    With several groups, the key must occur in another group; a repetition within a group does not count.
    """
    counts: Counter[bytes] = Counter()
    for group in groups:
        counts.update(group.values() if len(groups) == 1 else set(group.values()))
    return [{path: key for path, key in group.items() if key and counts[key] > 1} for group in groups]


def file_digest(path: str | Path) -> bytes:
    """Return the digest of a file, or b"" if it cannot be read."""
    try:
        if not Path(path).is_file():
            return b""
        with Path(path).open("rb") as file:
            return stream_digest(file)
    except (OSError, ValueError):
        return b""


def _size(path: str) -> bytes:
    """Return the size of a file as a key, or b"" if it is empty or not a regular file."""
    status = os.stat(path)  # noqa: PTH116
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return b""
    return str(status.st_size).encode()


def _pieces(path: str) -> bytes:
    """Return a digest of the size of a file and of three pieces: its start, middle and end."""
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

    @property
    def stamp(self) -> tuple[int, int]:
        """The size and modification time, which can be compared without reading the file."""
        return self.size, self.mtime_ns


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
        images = f"{number:,} of {counted(len(paths), 'image')}"
        have = "has" if number == 1 else "have"
        remedy = "restore the old files, start a new run, or use the new files with `accept_data_change=True`"
        files = listing(changes.changed, LISTED)
        raise RunError(f"{folder}: {images} {have} changed since the run started: {files}; {remedy}")
    if changes.signatures == stored:
        return None
    return changes


def find_changes(paths: Paths, stored: Sequence[Signature], console: Console) -> Changes:
    """Compare files with their stored signatures. Only files with another size or modification time are read."""
    current = stamps(paths)
    restamped = np.array([row for row, stamp in enumerate(current) if stamp != stored[row].stamp], dtype=int)
    digests = _digests(paths.take(restamped), "comparing images with those of the run", console)

    signatures = list(stored)
    changed = []
    for row, digest in zip(restamped, digests, strict=True):
        size, mtime_ns = current[row]
        signatures[row] = Signature(size, mtime_ns, digest.hex())
        if signatures[row].digest != stored[row].digest:
            changed.append(paths.texts[row])
    return Changes(changed, signatures)


def _stamp(path: str) -> tuple[int, int]:
    """Return the size and modification time of a file, or `MISSING`, a pair of −1, if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116 (three times as fast as Path.stat)
    except (OSError, ValueError):
        return MISSING
    return status.st_size, status.st_mtime_ns


def _digests(paths: Sequence[Path], title: str, console: Console) -> list[bytes]:
    """Return the digest of each file, with a progress bar; b"" stands for a file that cannot be read."""
    if not paths:
        return []
    digests = []
    with console.progress(title, len(paths)) as bar:
        for path in paths:
            digests.append(file_digest(path))
            bar.advance(1)
    return digests
