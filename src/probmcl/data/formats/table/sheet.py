"""Loads CSV, TSV and Parquet files as rows of text cells with line numbers, and finds columns by name."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from probmcl.errors import DataError, OptionError, suggestion

DELIMITERS: Mapping[str, tuple[str, ...]] = {".csv": (",", ";", "\t"), ".tsv": ("\t",)}
PARQUET = ".parquet"
SUFFIXES = (*DELIMITERS, PARQUET)
LIST_ITEM = "\x01"
"""Prefix of each item in a cell of a Parquet list column. It does not occur in ordinary text."""


class Cell(NamedTuple):
    """The text of a cell, with its line and column."""

    line: int
    column: str
    text: str


@dataclass(frozen=True)
class Table:
    """The cells of a file. `lines` has the line number of each row, as an editor shows it.

    If the rows come from several files, `path` is their common folder, and `files` has the first row of each file.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    files: tuple[tuple[int, Path], ...] = ()

    @property
    def folder(self) -> Path:
        """The folder that image paths are relative to, and that may contain `classes.txt`."""
        return self.path if self.files else self.path.parent

    def cells(self, column: str) -> list[Cell]:
        """Return the cells of a column."""
        return [Cell(line, column, text) for line, text in zip(self.lines, self.texts(column), strict=True)]

    def texts(self, column: str) -> list[str]:
        """Return the texts of a column."""
        index = self.columns.index(column)
        return [row[index] for row in self.rows]

    def where(self, row: int) -> str:
        """Return the file and line of a row, for messages.

        >>> Table(Path("labels.csv"), ("file",), (("1.jpg",), ("2.jpg",)), (2, 4)).where(1)
        'labels.csv, row 4'
        """
        files = [file for start, file in self.files if start <= row]
        return f"{files[-1] if files else self.path}, row {self.lines[row]}"


def load(path: Path, fits: Callable[[Sequence[str]], bool], *, row: str = "image") -> Table:
    """Load a table. `fits` tests column names to choose the delimiter; `row` names the unit of a row, for messages."""
    if path.suffix.lower() == PARQUET:
        return _load_parquet(path, row)
    delimiter, columns = _header(path, fits)
    _refuse_repeated_names(path, columns)
    rows, lines = [], []
    for line, cells in _numbered(path, delimiter):
        if len(cells) != len(columns):
            quotes = f"quote cells that contain {delimiter!r}"
            remedy = quotes if len(cells) > len(columns) else "add the missing cells"
            raise DataError(f"{path}, row {line}: {len(cells)} cells, but {len(columns)} columns; {remedy}")
        rows.append(tuple(cell.strip() for cell in cells))
        lines.append(line)
    if not rows:
        raise DataError(f"{path}: no rows below the header; expected one row per {row}")
    return Table(path, tuple(columns), tuple(rows), tuple(lines))


def names_of_columns(path: Path, fits: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return the column names without reading the rows."""
    if path.suffix.lower() == PARQUET:
        return [str(name) for name in _parquet(path, "read_schema").names]
    return _header(path, fits)[1]


def _refuse_repeated_names(path: Path, columns: Sequence[str]) -> None:
    repeated = [name for name, times in Counter(columns).items() if name and times > 1]
    if repeated:
        raise DataError(f"{path}, row 1: two columns have the name {repeated[0]!r}; rename one")


def _header(path: Path, fits: Callable[[Sequence[str]], bool]) -> tuple[str, list[str]]:
    """Return the delimiter and the column names. If several delimiters occur, the names of exactly one must fit."""
    if path.suffix.lower() not in DELIMITERS:
        raise DataError(f"{path}: the name of a table must end in {' or '.join(SUFFIXES)}")
    marks = DELIMITERS[path.suffix.lower()]
    first = next((line for line in io.StringIO(read_text(path), newline="") if line.strip()), "").strip("\r\n")
    cells = {mark: next(csv.reader([first], delimiter=mark), []) for mark in marks if mark in first}
    readings = {mark: [name.strip() for name in names] for mark, names in cells.items()}
    if len(readings) > 1:
        readings = {mark: names for mark, names in readings.items() if fits(names)}
        if len(readings) != 1:
            raise DataError(f"{path}, row 1: the header contains {quoted(cells)}; use only one of them as a delimiter")
    return next(iter(readings.items()), (marks[0], [first.strip().strip('"')]))


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file with its original line endings."""
    if not path.is_file():
        raise DataError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        where = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise DataError(f"{path} is not UTF-8 ({where}); save it as UTF-8") from error


def named(columns: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the columns with one of these names, ignoring case and treating spaces and hyphens as underscores.

    >>> named(["File Name", "labels"], ["file_name"])
    ['File Name']
    """
    return [column for column in columns if re.sub(r"[\s-]+", "_", column.strip()).lower() in names]


def only_column(table: Table, names: Sequence[str], taken: set[str], remedy: str) -> str | None:
    """Return the column that has one of these names and is not taken, or None. Several such columns are an error."""
    matches = named((column for column in table.columns if column not in taken), names)
    if len(matches) > 1:
        raise DataError(f"{table.path}: columns {quoted(matches)} could all be the {names[0]} column; {remedy}")
    return matches[0] if matches else None


def columns_of_options(table: Table, options: Mapping[str, str | None]) -> set[str]:
    """Return the columns that the options select. Each must exist and have only one role."""
    taken: dict[str, str] = {}
    for option, column in options.items():
        if not column:
            continue
        refuse_missing_column(table, option, column)
        if column in taken:
            raise OptionError(
                option, column, f"is already `{taken[column]}`; a column of {table.path} can have only one role"
            )
        taken[column] = option
    return set(taken)


def refuse_missing_column(table: Table, option: str, column: str) -> None:
    """Raise an error with a suggestion if a column does not exist."""
    if column not in table.columns:
        similar = suggestion(column, [name for name in table.columns if name])
        raise OptionError(option, column, f"is not a column of {table.path}; {similar}")


def quoted(values: Iterable[str]) -> str:
    """Return quoted values joined by "and", for messages."""
    return " and ".join(repr(value) for value in values)


def listing(values: Iterable[str]) -> str:
    """Return the first eight values and the number of remaining ones, for messages.

    >>> listing("abcdefghijk")
    'a, b, c, d, e, f, g, h and 3 more'
    """
    values = [value for value in values if value]
    return ", ".join(values[:8]) + (f" and {len(values) - 8:,} more" if len(values) > 8 else "")


def _numbered(path: Path, delimiter: str) -> Iterable[tuple[int, list[str]]]:
    """Yield each row below the header with the line on which it begins; quoted cells may span several lines."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True)
    in_header, line = True, 1
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                if not in_header:
                    yield line, row
                in_header = False
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, row {line}: {error}; correct the quotes in this row") from error


def _load_parquet(path: Path, row: str) -> Table:
    """Load all cells as text, with null as blank. Rows are numbered from 1, since there is no header line."""
    _refuse_repeated_names(path, [str(name) for name in _parquet(path, "read_schema").names])
    table = _parquet(path, "read_table")
    if not table.num_rows:
        raise DataError(f"{path}: no rows; expected one row per {row}")
    columns = [[_text(value) for value in column.to_pylist()] for column in table.columns]
    names = tuple(str(name) for name in table.column_names)
    return Table(path, names, tuple(zip(*columns, strict=True)), tuple(range(1, table.num_rows + 1)))


def _text(value: Any) -> str:
    """Return the text that a CSV file would have for a value; list items are prefixed with LIST_ITEM.

    >>> _text(None), _text(True), _text(7), _text(1.0), _text(" cat "), _text(["cat|dog", "emu"])
    ('', 'true', '7', '1.0', 'cat', '\\x01cat|dog\\x01emu')
    """
    if isinstance(value, list):
        return "".join(f"{LIST_ITEM}{_text(item)}" for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value).strip()


def _parquet(path: Path, read: Literal["read_schema", "read_table"]) -> Any:
    """Call a function of `pyarrow.parquet`, which has no type annotations."""
    if not path.is_file():
        raise DataError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    try:
        return getattr(import_module("pyarrow.parquet"), read)(path)
    except ImportError:
        raise DataError(f"{path}: needs pyarrow; run pip install 'probmcl[parquet]', or save it as CSV") from None
    except (ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: pyarrow cannot read this Parquet file ({reason}); write it again") from error
