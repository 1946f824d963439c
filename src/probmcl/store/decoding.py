"""Typed reading and writing of the files of a run: the one place where their bytes become structs and rows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from probmcl.errors import RunError
from probmcl.runtime.conversion import convert, plain_values
from probmcl.runtime.files import (
    DAMAGED,
    convert_file,
    csv_content,
    json_bytes,
    json_line,
    read_csv_rows,
    read_json,
)
from probmcl.runtime.tensor_files import content_digest, load_tensors, read_metadata
from probmcl.store.files import METADATA, File, JsonFile, TableFile, TensorFile
from probmcl.version import __version__

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])

SCHEMA = 3
"""Version of all JSON files, the only one that is read."""

PLACE = re.compile(r"\[(\d+)\](?:\[(\d+)\])?: ")
"""The place of a problem in a list of rows: the index of the row and, if there is one, of the column."""


def read_struct(root: Path, file: JsonFile[T]) -> T:
    """Read a JSON file of a run or a comparison, given its folder.

    A newer schema version, a wrong checksum, and everything that does not match the class of the content raise
    `RunError` with the file and the place in it.
    """
    content = read_content(root, file)
    return convert_file(content, file.kind, root / file)


def read_content(root: Path, file: File) -> dict[str, Any]:
    """Read a JSON file without its schema version and checksum, which must be right."""
    path = root / file
    content = convert_file(read_json(path, root=root), dict[str, Any], path)
    _refuse_other_schema(content.pop("schema", None), path, root)
    if file.role == "checkpoint":
        stored_checksum = content.pop("checksum", None)  # it does not include itself
        if stored_checksum != _checksum(content):
            raise RunError(f"{path}: is damaged: its content does not match its checksum")
    return content


def encoded_struct(file: JsonFile[T], content: T) -> bytes:
    """Return the bytes of a JSON file, with the schema version first; a checkpoint has a checksum of its content."""
    values: dict[str, Any] = plain_values(content)
    head: dict[str, Any] = {"schema": SCHEMA}
    if file.role == "checkpoint":
        head["checksum"] = _checksum(values)
    return json_bytes({**head, **values})


def _checksum(content: dict[str, Any]) -> str:
    """Return the digest of the content of a JSON file, which does not depend on its indentation."""
    line = json_line(content).encode()
    return content_digest([line]).hex()


def _refuse_other_schema(schema: object, path: Path, root: Path) -> None:
    """Raise `RunError` if the schema version of the file `path` in the run folder `root` cannot be read."""
    if type(schema) is not int or schema < SCHEMA:  # `isinstance` would accept True
        raise RunError(f"{path}: schema version {schema!r} is not valid; {DAMAGED}")
    if schema > SCHEMA:
        newest = f"{SCHEMA}, the newest version that probmcl {__version__} can read"
        raise RunError(f"{path}: schema version {schema} is newer than {newest}; {_update_hint(root)}")


def _update_hint(root: Path) -> str:
    """Return how to read a run of a newer version, with the version that wrote it if the run names it."""
    with contextlib.suppress(RunError, OSError, KeyError, TypeError):
        version = read_json(root / METADATA, root=root)["versions"]["probmcl"]
        if isinstance(version, str) and len(version) < 30:  # another format may have any text here
            return f"it was written by probmcl {version}, so update to that version"
    return "update probmcl"


def read_tensors(root: Path, file: TensorFile[T]) -> tuple[dict[str, Tensor], T]:
    """Read the tensors and the metadata of a safetensors file. Damage raises `RunError`."""
    path = root / file
    tensors, metadata = load_tensors(path, root=root)
    return tensors, convert_file(metadata, file.kind, path)


def read_tensor_metadata(root: Path, file: TensorFile[T]) -> T:
    """Read the metadata of a safetensors file without its tensors."""
    path = root / file
    return convert_file(read_metadata(path, root=root), file.kind, path)


def read_rows(root: Path, file: TableFile[R]) -> list[R]:
    """Read a CSV file of a run or a comparison, given its folder. Errors name the row and the column."""
    path = root / file
    rows = read_csv_rows(path, root=root)
    columns = _columns(file)
    if next(rows, None) != columns:
        raise RunError(f"{path}, row 1: expected the columns {', '.join(columns)}; {DAMAGED}")
    try:
        return convert(list(rows), list[file.kind], strict=False)  # type: ignore[name-defined]
    except ValueError as error:
        raise RunError(f"{path}, {_row_and_column(str(error), columns)}; {DAMAGED}") from error


def _row_and_column(problem: str, columns: list[str]) -> str:
    """Return a problem with the row and the column of a table instead of its place in a list.

    >>> _row_and_column("[0][1]: invalid value 'trian'", ["path", "split"])
    "row 2, split: invalid value 'trian'"
    """
    found = PLACE.match(problem)
    if found is None:
        return problem
    row = f"row {int(found[1]) + 2}"  # the header is row 1
    place = row if found[2] is None else f"{row}, {columns[int(found[2])]}"
    return f"{place}: {problem[found.end() :]}"


def encoded_rows(file: TableFile[R], rows: Iterable[R]) -> bytes:
    """Return the bytes of a CSV file."""
    return csv_content(_columns(file), rows)


def _columns(file: TableFile[R]) -> list[str]:
    """Return the columns of a table: the fields of the named tuple of a row."""
    return list(file.kind._fields)  # type: ignore[attr-defined]
