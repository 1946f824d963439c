"""Image files on disk: their suffixes, walking directories, and finding files with equal bytes."""

import glob
import itertools
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b, file_digest
from pathlib import Path

from probmcl.data.records import Missing
from probmcl.errors import DataError

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".ppm", ".pgm", ".pbm"),
    *(".jp2", ".avif", ".dcm", ".dicom"),
)
PIECE = 4096  # bytes at the start, in the middle and at the end of a file, which differ between most files of one size


def is_image(name: str) -> bool:
    """Return whether a file name has the suffix of an image, in upper or lower case.

    >>> is_image("1.JPG"), is_image("labels.csv"), is_image("jpg")
    (True, False, False)
    """
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and dot + suffix.lower() in IMAGE_SUFFIXES


def walk(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every file below a folder: those of a folder by name, then those of its subfolders.

    A folder that several links lead to is visited once, and names that begin with a dot are skipped.
    """
    waiting, visited = [str(root)], set()
    while waiting:
        folder = waiting.pop()
        status = Path(folder).stat()
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        try:
            with os.scandir(folder) as listed:
                entries = [entry for entry in listed if not entry.name.startswith(".")]
        except OSError as error:
            raise DataError(f"{folder}: cannot be listed ({error.strerror}); check its permissions") from error
        entries.sort(key=lambda entry: entry.name, reverse=True)
        waiting += [entry.path for entry in entries if entry.is_dir()]
        entries = [entry for entry in entries if not entry.is_dir()]
        while entries:
            yield entries.pop()  # frees memory as it goes, for folders of a million files


def images_below(folder: Path) -> Iterator[Path]:
    """Yield the images below a folder, in the order of `walk`."""
    return (Path(entry.path) for entry in walk(folder) if is_image(entry.name))


def named_images(
    folder: Path, names: Sequence[str], *, source: Path, remedy: str, missing: Missing = "error"
) -> list[Path]:
    """Return the paths of files in a folder that a source names; a missing one is an error with its remedy.

    With `missing="keep"` it is an error only if all are missing, since then the folder is wrong.
    """
    existing = {path.name for path in folder.iterdir()} if folder.is_dir() else set()  # far faster than one by one
    absent = [name for name in names if name not in existing]
    if absent and (missing == "error" or len(absent) == len(names)):
        share = f"{len(absent)} of {len(names)} missing"
        raise DataError(f"{source}: {absent[0]!r} is not in {folder} ({share}); {remedy}")
    return [folder / name for name in names]


def expand(source: str | Path) -> Iterator[Path]:
    """Yield the image files that a source names: a file, a folder, a pattern or a `.txt` list of paths.

    A file that is named itself may have any suffix, and need not exist.
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
    """Return whether a source is an image by its name, without looking for the file."""
    return is_image(str(source)) and not glob.has_magic(str(source))


def refuse_without_image(source: str | Path) -> None:
    """Refuse a folder, pattern or list without an image."""
    if next(expand(source), None) is not None:
        return
    path, suffixes = Path(source), f"{IMAGE_SUFFIXES[0]}, …, {IMAGE_SUFFIXES[-1]}"
    if path.is_dir():
        raise DataError(f"{path}: no image in this folder or its subfolders; looked for files that end in {suffixes}")
    if path.is_file():
        raise DataError(f"{path}: names no image; write one path per line")
    if glob.has_magic(str(source)):
        raise DataError(f"{source}: no image matches it; looked for files that end in {suffixes}")
    raise DataError(f"{source}: does not exist; name an image file, a folder, a pattern or a .txt list of paths")


def _listed(path: Path) -> Iterator[Path]:
    """Yield the paths of a list: relative to the working directory or, if no such file exists, to the list's folder."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for line in filter(None, map(str.strip, lines)):
            near = path.parent / line
            listed = near if not Path(line).exists() and near.exists() else Path(line)
            yield from images_below(listed) if listed.is_dir() else (listed,)


def _matching(pattern: str) -> Iterator[Path]:
    """Yield matching files, sorted within each folder; matching folders are searched, unless `**` does so already."""
    recursive = "**" in pattern
    matches = glob.iglob(pattern, recursive=True)  # noqa: PTH207  # pathlib's takes no pattern that begins with a folder
    for _, names in itertools.groupby(matches, os.path.dirname):
        for name in sorted(names):
            if not recursive and Path(name).is_dir():
                yield from images_below(Path(name))
            elif is_image(name):
                yield Path(name)


def equal_files(*groups: Iterable[str]) -> list[dict[str, bytes]]:
    """Return, for each group, the files with the bytes of another file, and a digest of these bytes.

    Files of one group are compared with each other, those of two groups only with the other group. Only files of equal
    size are opened, and only those that also agree in a few pieces are read. A missing or empty file equals none.
    """
    keyed: list[dict[str, bytes]] = [dict.fromkeys(group, b"") for group in groups]
    for key in (_size, _pieces, _digest):
        keyed = [{path: _or_nothing(key, path) for path in group} for group in keyed]
        counted = (group.values() if len(groups) == 1 else set(group.values()) for group in keyed)
        times = Counter(itertools.chain.from_iterable(counted))
        keyed = [{path: value for path, value in group.items() if value and times[value] > 1} for group in keyed]
    return keyed


def _or_nothing(key: Callable[[str], bytes], path: str) -> bytes:
    try:
        return key(path)
    except (OSError, ValueError):
        return b""


def _size(path: str) -> bytes:
    status = os.stat(path)  # noqa: PTH116
    return str(status.st_size).encode() if stat.S_ISREG(status.st_mode) and status.st_size else b""


def _pieces(path: str) -> bytes:
    """Return a digest of the size and of a few pieces."""
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest = blake2b(str(size).encode(), digest_size=16)
        for start in (0, size // 2, max(0, size - PIECE)):
            file.seek(start)
            digest.update(file.read(PIECE))
    return digest.digest()


def _digest(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).digest()
