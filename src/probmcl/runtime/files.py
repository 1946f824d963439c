"""Durable, atomic file output, and safe reading of files in folders that may come from a stranger.

After a crash, a file has either its old or its new content. Below the folder `root` of a run, symlinks are not
followed (`folders`).
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from probmcl.errors import RunError
from probmcl.runtime.conversion import TypeForm, convert, plain_values
from probmcl.runtime.folders import explained_no_space, is_link, link_problem, open_folder

NOT_ON_WINDOWS = re.compile(r'[<>:"/\\|?*\x00-\x1f]')
"""Characters that a file name cannot have on Windows. The colon would name a hidden stream of another file."""

DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)\s*(\..*)?", re.IGNORECASE)
"""Names that stand for a device on Windows, with any suffix."""

T = TypeVar("T")

DAMAGED = "the file is damaged or was edited"

MAX_DEPTH = 64
"""Largest nesting depth of JSON that is read."""

MAX_JSON, MAX_TEXT, MAX_TABLE = 100_000_000, 500_000_000, 4_000_000_000
"""Largest size of a JSON file, a log and a CSV file that are read, in bytes; parsed JSON takes up to 30 times its size,
and a table is read row by row."""

MAX_ROW = 1_000_000
"""Largest length of a row of a CSV file, in characters; a file may be a single long line."""


def file_name(name: str) -> str:
    """Return a name as part of a file name. It changes only on Windows, where some characters are not allowed.

    The name of a method, for example, may be `probmcl:paper`.
    """
    if sys.platform != "win32":
        return name
    allowed = NOT_ON_WINDOWS.sub("-", name).rstrip(". ")  # Windows removes dots and spaces at the end of a name
    if DEVICE.fullmatch(allowed):
        return f"-{allowed}"
    return allowed


def atomic_write(path: Path, content: bytes | memoryview, *, root: Path | None = None) -> None:
    """Write a file atomically: fill a temporary file in the same folder, then rename it.

    File and folder are flushed to disk, so a power failure cannot leave an empty file. Missing folders are created.

    Args:
        path: the final file. If it is a symlink, the link is replaced, not its target.
        content: the complete content of the file.
        root: the folder below which symlinks are not followed (default: the folder of the file).
    """
    temporary = f".{path.name}.part"
    if root is None:
        root = path.parent
    root.mkdir(parents=True, exist_ok=True)
    with explained_no_space(path, len(content)), open_folder(root, path.parent, create=True) as folder:
        with suppress(FileNotFoundError):
            folder.delete(temporary)  # a leftover of a crash, or a planted symlink
        try:
            descriptor = folder.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            folder.replace(temporary, path.name)
        except BaseException:
            with suppress(OSError):
                folder.delete(temporary)
            raise
        folder.flush()  # the rename itself is durable only once the folder is flushed


def durable_rename(temporary: Path, path: Path) -> None:
    """Rename a complete file in its folder, and flush the file and the folder to disk."""
    with temporary.open("r+b") as file:  # Windows flushes only files that are open for writing
        os.fsync(file.fileno())
    with open_folder(path.parent, path.parent) as folder:
        folder.replace(temporary.name, path.name)
        folder.flush()


def append_text(path: Path, text: str) -> None:
    """Append text to a file, which is created if it does not exist and must not be a symlink."""
    content = text.encode()
    with explained_no_space(path, len(content)):
        with open_folder(path.parent, path.parent) as folder:
            descriptor = folder.open(path.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as file:
            file.write(content)


def refuse_special_files(root: Path) -> None:
    """Raise `RunError` if anything below a folder is not a regular file or a folder, for example a symlink or a pipe.

    The folder itself may be a symlink.
    """
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if is_link(entry):
                    raise RunError(link_problem(Path(entry.path)))
                if entry.is_dir():
                    pending.append(Path(entry.path))
                elif not entry.is_file():
                    raise RunError(f"{entry.path} is not a regular file; delete it")


@contextmanager
def open_for_update(path: Path, *, root: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading and writing, without following symlinks below `root`; it is created if it is missing."""
    with open_folder(root, path.parent, create=True) as folder:
        descriptor = folder.open(path.name, os.O_RDWR | os.O_CREAT)
    with os.fdopen(descriptor, "r+b") as file:
        yield file


@contextmanager
def open_file(path: Path, *, root: Path | None = None, limit: int | None = None) -> Iterator[io.BufferedReader]:
    """Open a regular file for reading, without following symlinks below `root` (default: the folder of the file).

    A file of more than `limit` bytes raises `RunError`, so that it cannot exhaust the memory.
    """
    if root is None:
        root = path.parent
    with open_folder(root, path.parent) as folder:
        descriptor = folder.open(path.name, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if limit is not None and size > limit:
            raise RunError(f"{path} has {size:,} bytes; the limit is {limit:,}")
        yield file


def write_text(path: Path, text: str, *, root: Path | None = None) -> None:
    """Write text as UTF-8, without translating line endings; undecodable bytes of file names stay unchanged."""
    atomic_write(path, text.encode("utf-8", "surrogateescape"), root=root)


def write_json(path: Path, content: object, *, root: Path | None = None) -> None:
    """Write indented JSON; dataclasses and structs become objects, and paths become strings.

    NaN and infinity are rejected.
    """
    atomic_write(path, json_bytes(content), root=root)


def json_bytes(content: object) -> bytes:
    """Return indented JSON as it is stored in a file."""
    text = json.dumps(plain_values(content), indent=2, allow_nan=False) + "\n"
    return text.encode()


def json_line(content: object) -> str:
    """Return JSON on one line. Keys are sorted, so equal content gives equal text."""
    return json.dumps(plain_values(content), sort_keys=True, allow_nan=False)


def read_json(path: Path, *, root: Path | None = None) -> Any:
    """Read a JSON file. Invalid or too deeply nested content raises `RunError` with the file and the position."""
    with open_file(path, root=root, limit=MAX_JSON) as file:
        return parse_json(file.read(), path)


def convert_file(content: Any, kind: TypeForm[T], path: Path) -> T:
    """Convert the content of a JSON file to a class; see `convert`. Errors are `RunError` with the file."""
    try:
        return convert(content, kind)
    except ValueError as error:
        raise RunError(f"{path}: {error}; {DAMAGED}") from error


def read_text(path: Path, *, root: Path | None = None) -> str:
    """Read a UTF-8 text file, such as a log with one JSON object per line."""
    with open_file(path, root=root, limit=MAX_TEXT) as file:
        try:
            return file.read().decode()
        except UnicodeDecodeError as error:
            raise RunError(f"{path}: is not UTF-8 text; the file is damaged") from error


def read_csv_rows(path: Path, *, root: Path | None = None) -> Iterator[list[str]]:
    """Yield the rows of a CSV file; undecodable bytes of file names become surrogates."""
    with open_file(path, root=root, limit=MAX_TABLE) as file:
        text = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="")
        lines = _Lines(text)
        rows = csv.reader(lines)
        try:
            for row in rows:
                lines.length = 0  # the row is complete; the next line begins another one
                yield row
        except csv.Error as error:
            raise RunError(f"{path}, line {rows.line_num}: {error}; {DAMAGED}") from error


class _Lines(Iterator[str]):
    """The lines of a CSV file. `length` is the length of the current row, which may have several lines."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self.text = text
        self.length = 0

    def __next__(self) -> str:
        """Return the next line. A row that is too long or contains NUL raises `csv.Error`."""
        line = self.text.readline(MAX_ROW)  # at most this many characters, so that a long line does not fill the memory
        self.length += len(line)
        if not line:
            raise StopIteration
        if "\0" in line:
            raise csv.Error("the row contains NUL")
        if self.length >= MAX_ROW:
            raise csv.Error(f"the row has {MAX_ROW:,} characters or more")
        return line


def parse_json(text: bytes, path: Path) -> Any:
    """Return the content of JSON from a file. Invalid or too deeply nested content raises `RunError` with the file."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise RunError(f"{path}, {position}; {DAMAGED}") from error
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: is not UTF-8 text; the file is damaged") from error
    except RecursionError as error:
        raise RunError(f"{path}: JSON is nested more than {MAX_DEPTH} levels deep") from error
    except ValueError as error:  # an integer with thousands of digits
        raise RunError(f"{path}: {error}; {DAMAGED}") from error
    _refuse_deep_or_infinite(content, path)
    return content


def _refuse_deep_or_infinite(content: Any, path: Path) -> None:
    """Raise `RunError` if values are nested too deeply, or if a number is NaN or infinite, which JSON does not have."""
    # The values are visited level by level, because a function that calls itself for each level could exceed the stack.
    level = [content]
    for _ in range(MAX_DEPTH):
        next_level: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                next_level += value.values()
            elif isinstance(value, list):
                next_level += value
            elif isinstance(value, float) and not math.isfinite(value):
                raise RunError(f"{path}: has NaN or infinite numbers; {DAMAGED}")
        if not next_level:
            return
        level = next_level
    raise RunError(f"{path}: JSON is nested more than {MAX_DEPTH} levels deep")


def csv_content(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """Return the content of a CSV file; undecodable bytes of file names stay unchanged."""
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(header)
    table.writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def arrays_file(arrays: Mapping[str, Any]) -> bytes:
    """Return the bytes of a compressed .npz file."""
    import numpy as np

    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def nan_to_none(x: float | int) -> float | int | None:
    """Return None for NaN, which is not valid JSON, and other numbers unchanged."""
    is_nan = x != x
    return None if is_nan else x


def user_cache_folder() -> Path:
    """Return the folder `probmcl` in the user's cache folder. Everything in it can be computed again."""
    configured = os.environ.get("XDG_CACHE_HOME")
    caches = Path(configured) if configured else Path.home() / ".cache"
    return caches / "probmcl"
