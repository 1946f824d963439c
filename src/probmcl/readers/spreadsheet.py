"""Loads the cells of table files as text, by column and with line numbers, and finds columns by name."""

import csv
import io
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from probmcl.errors import DataError, OptionError, counted, quoted, suggestion
from probmcl.tables import original_cell

DELIMITERS: Mapping[str, tuple[str, ...]] = {".csv": (",", ";", "\t"), ".tsv": ("\t",), ".txt": ("\t", ";", ",", "|")}
LIST_ITEM = "\x01"  # prefix of each item in a cell that contains a list; it does not occur in ordinary text
IMAGE_NAME = re.compile(r".+\.(jpe?g|png|tiff?|bmp|webp|gif|dcm)", re.IGNORECASE)
EXCEL_ROWS = 1_048_576
SAMPLE = 1 << 16  # characters from which the delimiter is detected
TITLES = 6  # lines in which the header is looked for
OPEN_CELL = re.compile(r'(?:^|[,;|\t]) *"(?:[^"]|"")*\Z')  # a quoted cell that continues on the next line
BLOCK = 2_000  # rows that are converted at once
csv.field_size_limit(1 << 30)  # a cell may contain the pixels of a mask

Fits = Callable[[Sequence[str]], bool]  # whether column names are those of the expected table
Rows = list[Sequence[str]]


class SpreadsheetCell(NamedTuple):
    """The text of a cell, with its line and column."""

    line: int
    column: str
    text: str


@dataclass(frozen=True)
class Spreadsheet:
    """The cells of a file, by column. `lines` has the line number of each row, as an editor shows it.

    If the rows come from several files, `path` is their common folder, and `files` has the first row of each file.
    """

    path: Path
    columns: tuple[str, ...]
    data: tuple[Sequence[str], ...] = field(repr=False)
    lines: Sequence[int] = field(repr=False)
    files: tuple[tuple[int, Path], ...] = ()

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def folder(self) -> Path:
        """The folder that image paths are relative to, and that may contain `classes.txt`."""
        return self.path if self.files else self.path.parent

    def cells(self, column: str) -> list[SpreadsheetCell]:
        """Return the cells of a column."""
        return [SpreadsheetCell(line, column, text) for line, text in zip(self.lines, self.texts(column), strict=True)]

    def texts(self, column: str) -> Sequence[str]:
        """Return the texts of a column."""
        return self.data[self.columns.index(column)]

    def where(self, row: int) -> str:
        """Return the file and line of a row, for messages, such as "labels.csv, row 4"."""
        files = [file for start, file in self.files if start <= row]
        return f"{files[-1] if files else self.path}, row {self.lines[row]}"


def load_spreadsheet(path: Path, fits: Fits, *, row: str = "image", most: int | None = None) -> Spreadsheet:
    """Load a table, or at least its first `most` rows.

    `fits` chooses the delimiter or sheet; `row` names the unit of a row, for messages.
    """
    refuse_missing_file(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: the name of a table must end in {' or '.join(SUFFIXES)}")
    table = LOADERS[suffix](path, fits) if suffix in LOADERS else _load_text(path, fits, most)
    repeated = [name for name, times in Counter(table.columns).items() if times > 1]
    if repeated:
        raise DataError(f"{path}, row 1: two columns have the name {repeated[0]!r}; rename one")
    if not len(table) and most != 0:
        raise DataError(f"{path}: no rows below the header; expected one row per {row}")
    return table


def refuse_missing_file(path: Path) -> None:
    """Raise an error if a file does not exist or is a folder."""
    if not path.is_file():
        raise DataError(f"{path} does not exist" if not path.exists() else f"{path} is not a file")


def _table(
    path: Path,
    names: Sequence[str],
    blocks: Iterable[tuple[Iterable[int], Rows]],
    clean: Callable[[str], str] = str.strip,
) -> Spreadsheet:
    """Build a table from blocks of rows with their line numbers. Columns without a name are dropped."""
    names = [clean(name) for name in names]
    if names and IMAGE_NAME.fullmatch(names[0]):
        raise DataError(f"{path}, row 1: {names[0]!r} is an image; add a first row with the names of the columns")
    kept = [index for index, name in enumerate(names) if name]
    columns: list[list[str]] = [[] for _ in kept]
    lines = array("q")
    for numbers, rows in blocks:
        lines.extend(numbers)
        by_column = list(zip(*rows, strict=True))
        for column, index in zip(columns, kept if rows else (), strict=False):
            texts = by_column[index]
            if len({*texts[:1000]}) > 900:
                column.extend(map(clean, texts))
            else:  # equal cells become one string
                column.extend(map({text: clean(text) for text in {*texts}}.__getitem__, texts))
    return Spreadsheet(path, tuple(names[index] for index in kept), tuple(columns), lines)


def _clean_cell(text: str) -> str:
    """Strip a cell that a spreadsheet may have edited, and remove a ' that keeps it from being a formula."""
    return original_cell(text.strip())


def _load_text(path: Path, fits: Fits, most: int | None) -> Spreadsheet:
    with path.open(encoding=_encoding(path), newline="") as file:
        delimiter, names = _header(path, file.readline() + file.read(SAMPLE), fits)
        file.seek(0)
        blocks = _blocks(path, csv.reader(file, delimiter=delimiter, strict=True), names, delimiter)
        return _table(path, names, islice(blocks, most and -(-most // BLOCK)), _clean_cell)


def _encoding(path: Path) -> str:
    """Return the encoding of a text file: UTF-16 by its byte order mark, UTF-8, or Windows-1252."""
    with path.open("rb") as file:
        marked = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
    for encoding in ("utf-16",) if marked else ("utf-8-sig", "cp1252"):
        try:
            with path.open(encoding=encoding, newline="") as text:
                while text.read(1 << 20):
                    pass
        except UnicodeDecodeError as error:
            byte = f"byte 0x{error.object[error.start]:02x}"
        else:
            return encoding
    tried = "not valid UTF-16" if marked else "neither UTF-8 nor Windows-1252"
    raise DataError(f"{path} is {tried} ({byte}); save it as UTF-8")


def _header(path: Path, sample: str, fits: Fits) -> tuple[str, list[str]]:
    """Return the delimiter and the column names. Comments and lines without a delimiter above them are skipped.

    If several delimiters occur in the header, the names of one must fit, or one must divide all rows equally.
    """
    marks = DELIMITERS[path.suffix.lower()]
    lines = [line.strip("\r\n") for line in _records(sample) if line.strip()]
    comments = next((number for number, line in enumerate(lines) if line[0] != "#"), 0)
    lines = lines[comments if comments > 1 else 0 :]  # a single one may be the header
    first = next((line for line in lines[:TITLES] if {*line} & {*marks}), lines[0] if lines else "")
    start = sample.index(first)
    readings = {mark: rows for mark in marks if mark in first and (rows := _first_rows(sample[start:], mark))}
    fitting = {mark: rows for mark, rows in readings.items() if fits(rows[0])}
    regular = {mark: rows for mark, rows in (fitting or readings).items() if len({len(row) for row in rows}) == 1}
    chosen = fitting if len(fitting) == 1 else regular or fitting
    if len(readings) > 1 and len(chosen) != 1:
        raise DataError(f"{path}, row 1: the header contains {quoted(readings)}; use only one of them as a delimiter")
    mark, rows = next(iter((chosen or readings).items()), (marks[0], [[first.strip().strip('"')]]))
    return mark, rows[0]


def _records(sample: str) -> Iterator[str]:
    """Yield the lines of a text. Lines that a quoted cell spans are joined, unless it spans more than `TITLES`."""
    lines, start = list(io.StringIO(sample, newline="")), 0
    while start < len(lines):
        ends = range(start + 1, min(start + TITLES, len(lines)) + 1)
        end = next((end for end in ends if not OPEN_CELL.search("".join(lines[start:end]))), start + 1)
        yield "".join(lines[start:end])
        start = end


def _first_rows(sample: str, delimiter: str) -> list[list[str]]:
    reader = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter)
    rows = [[cell.strip() for cell in row] for row in reader if any(map(str.strip, row))]
    return rows if len(sample) < SAMPLE else rows[:1] + rows[1:-1]  # the last one may be incomplete


def _blocks(path: Path, reader: Any, names: Sequence[str], delimiter: str) -> Iterator[tuple[Sequence[int], Rows]]:
    """Yield the rows below the header, with the line on which each begins; quoted cells may span several lines."""
    header = (row for row in reader if [*map(str.strip, row)] == names)
    while True:
        line, rows, problem = reader.line_num + 1, Rows(), None
        try:
            if line == 1:
                next(header, None)
                line = reader.line_num + 1
            rows.extend(islice(reader, BLOCK))
        except csv.Error as error:
            problem = error
        lines: Sequence[int] = range(line, line + len(rows) + 1)
        if problem or reader.line_num != lines[-1] - 1:
            heights = (1 + sum(len(re.findall(r"\r\n?|\n", cell)) for cell in row) for row in rows)
            lines = list(accumulate(heights, initial=line))
        if problem:
            raise DataError(f"{path}, row {lines[-1]}: {problem}; correct the quotes in this row") from problem
        if not rows:
            return
        if {*map(len, rows)} != {len(names)} or not all(row[0] for row in rows):
            filled = [(line, row) for line, row in zip(lines, rows, strict=False) if any(map(str.strip, row))]
            lines = [line for line, _ in filled]
            rows = [_with_width(f"{path}, row {line}", row, names, delimiter) for line, row in filled]
        yield lines[: len(rows)], rows


def _with_width(where: str, row: Sequence[str], names: Sequence[str], delimiter: str) -> Sequence[str]:
    """Return a row with as many cells as columns. A delimiter at the end of the row or header makes no difference."""
    width = len(names)
    if len(row) == width - 1 and not names[-1]:
        return [*row, ""]
    if len(row) < width or any(map(str.strip, row[width:])):
        remedy = f"quote cells that contain {delimiter!r}" if len(row) > width else "add the missing cells"
        raise DataError(f"{where}: {counted(len(row), 'cell')}, but {counted(width, 'column')}; {remedy}")
    return row[:width]


def _load_parquet(path: Path, fits: Fits) -> Spreadsheet:
    try:
        table = import_module("pyarrow.parquet").read_table(path)
    except ImportError:
        raise DataError(f"{path}: needs pyarrow; run pip install 'probmcl[parquet]', or save it as CSV") from None
    except (ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: pyarrow cannot read this Parquet file ({reason}); write it again") from error
    columns = tuple([_text(value) for value in column.to_pylist()] for column in table.columns)
    return Spreadsheet(path, tuple(map(str, table.column_names)), columns, range(1, table.num_rows + 1))


def _load_excel(path: Path, fits: Fits) -> Spreadsheet:
    """Load the only sheet whose header has fitting names, or the only sheet with cells."""
    calamine = import_module("python_calamine")
    try:
        workbook = calamine.CalamineWorkbook.from_path(path)
        sheets = {name: workbook.get_sheet_by_name(name).to_python() for name in workbook.sheet_names}
    except (calamine.CalamineError, OSError) as error:
        raise DataError(f"{path}: cannot be read as an Excel workbook ({error}); save it again") from error
    filled = {name: [[*map(_text, row)] for row in rows] for name, rows in sheets.items() if any(map(any, rows))}
    tops = {name: [sum(map(bool, row)) > 1 for row in rows[:TITLES]] for name, rows in filled.items()}
    starts = {name: top.index(True) if True in top else 0 for name, top in tops.items()}  # below titles
    fitting = {name: rows for name, rows in filled.items() if fits(rows[starts[name]])} or filled
    if len(fitting) > 1:
        raise DataError(f"{path}: sheets {quoted(fitting)} both fit; delete one, or save the right one as CSV")
    name, rows = next(iter(fitting.items()), ("", [[]]))
    start = starts.get(name, 0)
    lines = [line for line, row in enumerate(rows, start=1) if any(row) and line > start + 1]
    return _table(path, rows[start], [(lines, [rows[line - 1] for line in lines])], _clean_cell)


def _load_json(path: Path, fits: Fits) -> Spreadsheet:
    """Load a list of objects, an object with the labels of each file, or one object per line (.jsonl)."""
    data, by_line = path.read_bytes().removeprefix(b"\xef\xbb\xbf"), dict[int, Any]()
    one_per_line = path.suffix.lower() == ".jsonl"
    for line, text in enumerate(data.splitlines() if one_per_line else [data], start=1):
        try:
            by_line |= {line: msgspec.json.decode(text)} if text.strip() else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            where = f"{path}, row {line}" if one_per_line else str(path)
            raise DataError(f"{where}: not valid JSON ({error}); correct the file") from error
    content: Any = by_line.get(1)
    kinds = {*map(type, content.values())} if not one_per_line and isinstance(content, dict) else {None}
    if kinds <= {list, str} or kinds == {dict}:
        content = [{"file": name, **(value if dict in kinds else {"labels": value})} for name, value in content.items()]
    if not one_per_line and isinstance(content, list):
        by_line = dict(enumerate(content, start=1))
    for line, value in by_line.items():
        if not isinstance(value, dict):
            raise DataError(f'{path}, row {line}: expected an object such as {{"file": "1.jpg", "labels": ["cat"]}}')
    names = list(dict.fromkeys(name for value in by_line.values() for name in value))
    return _table(path, names, [(by_line, [[_text(value.get(name)) for name in names] for value in by_line.values()])])


def _text(value: Any) -> str:
    """Return the text that a CSV file would have for a value; list items are prefixed with LIST_ITEM."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
        return msgspec.json.encode(value).decode()
    if isinstance(value, list):
        return "".join(f"{LIST_ITEM}{_text(item)}" for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value).strip()


LOADERS: Mapping[str, Callable[[Path, Fits], Spreadsheet]] = {
    ".xlsx": _load_excel,
    ".parquet": _load_parquet,
    **dict.fromkeys((".json", ".jsonl"), _load_json),
}
SUFFIXES = (*DELIMITERS, *LOADERS)


def read_encoded_text(path: Path) -> str:
    """Return the text of a file with its original line endings."""
    refuse_missing_file(path)
    with path.open(encoding=_encoding(path), newline="") as file:
        return file.read()


def named(columns: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the columns with one of these names, ignoring case and treating spaces and hyphens as underscores."""
    return [column for column in columns if re.sub(r"[\s-]+", "_", column.strip()).lower() in names]


def only_column(table: Spreadsheet, names: Sequence[str], taken: set[str], remedy: str) -> str | None:
    """Return the column that has one of these names and is not taken, or None. Several such columns are an error."""
    matches = named((column for column in table.columns if column not in taken), names)
    if len(matches) > 1:
        raise DataError(f"{table.path}: columns {quoted(matches)} could all be the {names[0]} column; {remedy}")
    return matches[0] if matches else None


def refuse_missing_column(table: Spreadsheet, option: str, column: str) -> None:
    """Raise an error with a suggestion if a column does not exist."""
    if column not in table.columns:
        raise OptionError(option, column, f"is not a column of {table.path}; {suggestion(column, table.columns)}")
