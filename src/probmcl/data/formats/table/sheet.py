"""A CSV, TSV or Parquet file as rows of cells, each of which knows its line; columns are found by name."""

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
IN_A_LIST = "\x01"
"""What stands before each value of a cell that is a list in itself, as Parquet has them; no text holds it."""


class Cell(NamedTuple):
    """A value and where it stands."""

    line: int
    column: str
    text: str


@dataclass(frozen=True)
class Table:
    """The cells of a file; `lines` are the rows' numbers as an editor shows them.

    Rows of several files have the folder of these as `path`, and in `files` where those of each begin.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    files: tuple[tuple[int, Path], ...] = ()

    @property
    def folder(self) -> Path:
        """What paths are relative to, and where a list of the classes may be."""
        return self.path if self.files else self.path.parent

    def cells(self, column: str) -> list[Cell]:
        """One column, from top to bottom."""
        return [Cell(line, column, text) for line, text in zip(self.lines, self.texts(column), strict=True)]

    def texts(self, column: str) -> list[str]:
        """The same without the lines."""
        index = self.columns.index(column)
        return [row[index] for row in self.rows]

    def where(self, row: int) -> str:
        """The file and the line of a row, as a message names them.

        >>> Table(Path("labels.csv"), ("file",), (("1.jpg",), ("2.jpg",)), (2, 4)).where(1)
        'labels.csv: row 4'
        """
        files = [file for start, file in self.files if start <= row]
        return f"{files[-1] if files else self.path}: row {self.lines[row]}"


def load(path: Path, fits: Callable[[Sequence[str]], bool], *, row: str = "image") -> Table:
    """Read a file whose header fits; no two columns share a name, and `row` is what a row stands for."""
    if path.suffix.lower() == PARQUET:
        return _load_parquet(path, row)
    delimiter, columns = _header(path, fits)
    _refuse_repeated_names(path, columns)
    rows, lines = [], []
    for line, cells in _numbered(path, delimiter):
        if len(cells) != len(columns):
            quotes = f"put a cell that holds {delimiter!r} into quotes"
            remedy = quotes if len(cells) > len(columns) else "add the missing ones"
            raise DataError(f"{path}: row {line}: {len(cells)} cells for {len(columns)} columns; {remedy}")
        rows.append(tuple(cell.strip() for cell in cells))
        lines.append(line)
    if not rows:
        raise DataError(f"{path}: has no rows below its header; each {row} is a row")
    return Table(path, tuple(columns), tuple(rows), tuple(lines))


def names_of_columns(path: Path, fits: Callable[[Sequence[str]], bool]) -> list[str]:
    """The names of the columns alone; no row is read."""
    if path.suffix.lower() == PARQUET:
        return [str(name) for name in _parquet(path, "read_schema").names]
    return _header(path, fits)[1]


def _refuse_repeated_names(path: Path, columns: Sequence[str]) -> None:
    repeated = [name for name, times in Counter(columns).items() if name and times > 1]
    if repeated:
        raise DataError(f"{path}: row 1: two columns are named {repeated[0]!r}; rename one")


def _header(path: Path, fits: Callable[[Sequence[str]], bool]) -> tuple[str, list[str]]:
    """The delimiter and the names of the columns; of several delimiters, the one whose names fit."""
    if path.suffix.lower() not in DELIMITERS:
        raise DataError(f"{path}: a table ends in {' or '.join(SUFFIXES)}; this file does not")
    marks = DELIMITERS[path.suffix.lower()]
    first = next((line for line in io.StringIO(read_text(path), newline="") if line.strip()), "").strip("\r\n")
    cells = {mark: next(csv.reader([first], delimiter=mark), []) for mark in marks if mark in first}
    readings = {mark: [name.strip() for name in names] for mark, names in cells.items()}
    if len(readings) > 1:
        readings = {mark: names for mark, names in readings.items() if fits(names)}
        if len(readings) != 1:
            raise DataError(f"{path}: row 1: the header holds {quoted(cells)}; separate its columns by one of them")
    return next(iter(readings.items()), (marks[0], [first.strip().strip('"')]))


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, with its line ends as they are."""
    if not path.is_file():
        raise DataError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        where = f"byte {error.start} is 0x{error.object[error.start]:02x}"
        raise DataError(f"{path}: is not UTF-8 ({where}); save it as UTF-8") from error


def named(columns: Iterable[str], names: Sequence[str]) -> list[str]:
    """The columns that have one of these names, in any case and with spaces or hyphens for underscores.

    >>> named(["File Name", "labels"], ["file_name"])
    ['File Name']
    """
    return [column for column in columns if re.sub(r"[\s-]+", "_", column.strip()).lower() in names]


def only_column(table: Table, names: Sequence[str], taken: set[str], remedy: str) -> str | None:
    """The column that has one of these names and is not taken, if there is one."""
    found = named((column for column in table.columns if column not in taken), names)
    if len(found) > 1:
        raise DataError(f"{table.path}: columns {quoted(found)} could each be the {names[0]}; {remedy}")
    return found[0] if found else None


def refuse_wrong_columns(table: Table, given: Mapping[str, str | None]) -> set[str]:
    """The columns that options name: each exists, and none has two roles."""
    taken: dict[str, str] = {}
    for option, column in given.items():
        if not column:
            continue
        refuse_a_column_that_is_not_there(table, option, column)
        if column in taken:
            raise OptionError(option, column, f"is also `{taken[column]}`; a column of {table.path} has one role")
        taken[column] = option
    return set(taken)


def refuse_a_column_that_is_not_there(table: Table, option: str, column: str) -> None:
    """An error with the nearest that there is."""
    if column not in table.columns:
        near = suggestion(column, [name for name in table.columns if name])
        raise OptionError(option, column, f"is not a column of {table.path}; {near}")


def quoted(values: Iterable[str]) -> str:
    """Values as a message shows them."""
    return " and ".join(repr(value) for value in values)


def listing(values: Iterable[str]) -> str:
    """The first few of many values.

    >>> listing("abcdefghijk")
    'a, b, c, d, e, f, g, h and 3 more'
    """
    values = [value for value in values if value]
    return ", ".join(values[:8]) + (f" and {len(values) - 8:,} more" if len(values) > 8 else "")


def _numbered(path: Path, delimiter: str) -> Iterable[tuple[int, list[str]]]:
    """Each row below the header and the line on which it begins; a quoted cell may go over several lines."""
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
        raise DataError(f"{path}: row {line}: {error}; mend the quotes of this row") from error


def _load_parquet(path: Path, row: str) -> Table:
    """All cells as text: null is blank, a list stays a list, and rows are numbered from 1, as there are no lines."""
    _refuse_repeated_names(path, [str(name) for name in _parquet(path, "read_schema").names])
    table = _parquet(path, "read_table")
    if not table.num_rows:
        raise DataError(f"{path}: has no rows; each {row} is a row")
    columns = [[_text(value) for value in column.to_pylist()] for column in table.columns]
    names = tuple(str(name) for name in table.column_names)
    return Table(path, names, tuple(zip(*columns, strict=True)), tuple(range(1, table.num_rows + 1)))


def _text(value: Any) -> str:
    """A cell as the text that a CSV file would have.

    >>> _text(None), _text(True), _text(7), _text(1.0), _text(" cat "), _text(["cat|dog", "emu"])
    ('', 'true', '7', '1.0', 'cat', '\\x01cat|dog\\x01emu')
    """
    if isinstance(value, list):
        return "".join(f"{IN_A_LIST}{_text(item)}" for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value).strip()


def _parquet(path: Path, read: Literal["read_schema", "read_table"]) -> Any:
    """What pyarrow reads from a file; Any, since it has no types."""
    if not path.is_file():
        raise DataError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")
    try:
        return getattr(import_module("pyarrow.parquet"), read)(path)
    except ImportError:
        raise DataError(f"{path}: needs pyarrow; pip install 'probmcl[parquet]', or save it as CSV") from None
    except (ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: is no Parquet file that pyarrow reads ({reason}); save it anew") from error
