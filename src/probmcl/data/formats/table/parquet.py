"""A Parquet file as a table of text, read with pyarrow where that is installed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from probmcl.data.formats.table.sheet import IN_A_LIST, Table, refuse_repeated_names
from probmcl.errors import DataError


def parquet_columns(path: Path) -> list[str]:
    """The names of the columns; no row is read."""
    try:
        return [str(name) for name in _pyarrow(path).read_schema(path).names]
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from error


def load_parquet(path: Path, *, row: str = "image") -> Table:
    """All cells as text: null is blank, and a list of values stays a list, whatever its values contain.

    Rows are numbered from 1, since the file has no lines. Truth is `true` and `false`, and a number as Python shows it.
    """
    parquet = _pyarrow(path)
    refuse_repeated_names(path, parquet_columns(path))
    try:
        found = parquet.read_table(path)
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from error
    if not found.num_rows:
        raise DataError(f"{path}: has no rows; each {row} is a row")
    columns = [[_text(value) for value in column.to_pylist()] for column in found.columns]
    names = tuple(str(name) for name in found.column_names)
    return Table(path, names, tuple(zip(*columns, strict=True)), tuple(range(1, found.num_rows + 1)))


def _text(value: Any) -> str:
    """A cell as the text that a CSV file would have.

    >>> _text(None), _text(True), _text(7), _text(1.0), _text(" cat "), _text(["cat|dog", "emu"])
    ('', 'true', '7', '1.0', 'cat', '\\x01cat|dog\\x01emu')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "".join(f"{IN_A_LIST}{_text(item)}" for item in value)
    return str(value).strip()


def _pyarrow(path: Path) -> Any:
    """The part of pyarrow that reads Parquet; Any, since it has no types."""
    if not path.is_file():
        raise DataError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    try:
        return import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(f"{path}: needs pyarrow; pip install 'probmcl[parquet]', or save it as CSV") from None


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: is no Parquet file that pyarrow reads ({str(error).splitlines()[0]}); save it anew")
