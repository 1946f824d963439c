"""A CSV, TSV or Parquet file as rows of cells, each of which knows its line.

Columns are found by name. A file that gives two readings, or none, is refused with what decides.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
        place = self.columns.index(column)
        return [row[place] for row in self.rows]

    def where(self, row: int) -> str:
        """The file and the line of a row, as a message names them.

        >>> Table(Path("labels.csv"), ("file",), (("1.jpg",), ("2.jpg",)), (2, 4)).where(1)
        'labels.csv: row 4'
        """
        files = [file for start, file in self.files if start <= row]
        return f"{files[-1] if files else self.path}: row {self.lines[row]}"


def load(path: Path, fits: Callable[[Sequence[str]], bool], *, row: str = "image") -> Table:
    """Read a file whose header fits: every row has a cell for each column, and no two columns share a name.

    `row` is what a row stands for.
    """
    if path.suffix.lower() == PARQUET:
        from probmcl.data.formats.table.parquet import load_parquet

        return load_parquet(path, row=row)
    delimiter, columns = header(path, fits)
    refuse_repeated_names(path, columns)
    rows, lines = [], []
    for line, cells in _numbered(path, delimiter):
        if len(cells) != len(columns):
            raise DataError(_wrong_width(path, line, cells, columns, delimiter))
        rows.append(tuple(cell.strip() for cell in cells))
        lines.append(line)
    if not rows:
        raise DataError(f"{path}: has no rows below its header; each {row} is a row")
    return Table(path, tuple(columns), tuple(rows), tuple(lines))


def names_of_columns(path: Path, fits: Callable[[Sequence[str]], bool]) -> list[str]:
    """The names of the columns alone."""
    if path.suffix.lower() == PARQUET:
        from probmcl.data.formats.table.parquet import parquet_columns

        return parquet_columns(path)
    return header(path, fits)[1]


def refuse_repeated_names(path: Path, columns: Sequence[str]) -> None:
    """An error for two columns of one name."""
    repeated = [name for name, times in Counter(columns).items() if name and times > 1]
    if repeated:
        raise DataError(f"{path}: row 1: two columns are named {repeated[0]!r}; rename one")


def header(path: Path, fits: Callable[[Sequence[str]], bool]) -> tuple[str, list[str]]:
    """The delimiter and the names of the columns; of several delimiters, the one whose names fit."""
    if path.suffix.lower() not in DELIMITERS:
        raise DataError(f"{path}: a table ends in {' or '.join(SUFFIXES)}; this file does not")
    first = next((line for line in io.StringIO(read_text(path), newline="") if line.strip()), "").strip("\r\n")
    readings = {
        mark: [name.strip() for name in next(csv.reader([first], delimiter=mark), [])]
        for mark in DELIMITERS[path.suffix.lower()]
        if mark in first
    }
    if len(readings) > 1:
        fit = {mark: names for mark, names in readings.items() if fits(names)}
        if len(fit) != 1:
            raise DataError(f"{path}: row 1: the header holds {quoted(readings)}; separate its columns by one of them")
        readings = fit
    return next(iter(readings.items()), (DELIMITERS[path.suffix.lower()][0], [first.strip().strip('"')]))


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
            problem = f"is also `{taken[column]}`; a column of {table.path} has one role"
            raise OptionError(option, column, problem)
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


def _wrong_width(path: Path, line: int, row: Sequence[str], columns: Sequence[str], delimiter: str) -> str:
    remedy = f"put a cell that holds {delimiter!r} into quotes" if len(row) > len(columns) else "add the missing ones"
    return f"{path}: row {line}: {len(row)} cells for {len(columns)} columns; {remedy}"
