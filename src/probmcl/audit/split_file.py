"""Splits and folds that are read from a CSV file, such as the one of another run."""

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.data.records import SPLITS, Records
from probmcl.errors import LISTED, DataError, counted, listing, quoted
from probmcl.readers.spreadsheet import Spreadsheet, SpreadsheetCell, load_spreadsheet, only_column


def read_splits(records: Records, path: Path, *, left_out: Collection[Path] = ()) -> Records:
    """Return records with splits from a CSV file that has the columns path and split, such as the split.csv of a run.

    Paths are relative to the file's folder or to the working directory. Rows for `left_out` images are ignored.
    """
    cells = _cells_of_images(records, path, "split", left_out)
    for cell in cells:
        if cell.text not in SPLITS:
            raise DataError(f"{path}, row {cell.line}: split {cell.text!r} must be train, val or test")
    return records.with_split(np.array([cell.text for cell in cells]))


def read_folds(records: Records, path: Path, *, left_out: Collection[Path] = ()) -> Int[ndarray, "N"]:
    """Read the fold of every image from a CSV file with the columns path and fold. Folds are numbered from 1."""
    cells = _cells_of_images(records, path, "fold", left_out)
    for cell in cells:
        if not re.fullmatch("[1-9][0-9]{0,5}", cell.text):
            raise DataError(f"{path}, row {cell.line}: fold {cell.text!r} must be an integer of at least 1")
    fold_of = np.array([int(cell.text) for cell in cells])
    folds = max(2, fold_of.max())  # with one fold, nothing would be left to train on
    empty = sorted(set(range(1, folds + 1)) - set(fold_of.tolist()))
    if empty:
        raise DataError(f"{path}: no image is in fold {empty[0]}; use two or more folds, numbered from 1 without gaps")
    return fold_of


def _cells_of_images(records: Records, path: Path, column: str, left_out: Collection[Path]) -> list[SpreadsheetCell]:
    """Return each image's cell in a column. The file must list every image, and no others except `left_out`."""
    ignored = {os.path.realpath(image) for image in left_out}
    table = load_spreadsheet(path, lambda columns: {"path", column} <= set(columns))
    names = table.cells(_column(table, "path"))
    values = table.cells(_column(table, column))
    cells: dict[int, SpreadsheetCell] = {}
    for name, value, rows in zip(names, values, _rows_of_names(records, path, names), strict=True):
        if not rows and ignored.isdisjoint(_possible_paths(name, path)):
            problem = f"{name.text!r} is not in the data ({counted(len(records), 'image')})"
            raise DataError(f"{path}, row {name.line}: {problem}; remove the row or correct the path")
        for row in rows:
            first = cells.setdefault(row, value)
            if first.text != value.text:
                conflict = f"{first.text!r} in row {first.line}, but {value.text!r} in row {value.line}"
                raise DataError(f"{path}: {column} of {name.text!r} is {conflict}; remove one of these rows")
    _refuse_missing_images(records, path, column, cells)
    return [cells[row] for row in range(len(records))]


def _refuse_missing_images(records: Records, path: Path, column: str, cells: Mapping[int, SpreadsheetCell]) -> None:
    """Raise `DataError` if the file `path` has no cell for an image; `cells` has the cells by row of the records."""
    missing = [str(image) for row, image in enumerate(records.paths) if row not in cells]
    if not missing:
        return
    verb = "is" if len(missing) == 1 else "are"
    problem = f"{len(missing):,} of {counted(len(records), 'image')} {verb} missing"
    raise DataError(f"{path}: {problem}: {listing(missing, LISTED)}; add a row with the {column} of each")


def _column(table: Spreadsheet, name: str) -> str:
    """Return the column with this name, which may differ in case, or raise `DataError`."""
    column = only_column(table, [name], set(), "rename one")
    if column is None:
        raise DataError(f"{table.path}, row 1: there is no column {name!r}, only {quoted(table.columns)}; rename one")
    return column


def _rows_of_names(records: Records, path: Path, names: Sequence[SpreadsheetCell]) -> list[list[int]]:
    """Return, for each image name in the file `path`, the rows of the records with this image; often exactly one."""
    verbatim = _rows_by_path(map(str, records.paths))
    rows = [verbatim.get(name.text, []) for name in names]
    if all(rows):  # resolving a million paths takes a minute
        return rows
    resolved = _rows_by_path(map(os.path.realpath, records.paths))

    def resolved_rows(name: SpreadsheetCell) -> list[int]:
        for image in _possible_paths(name, path):
            if image in resolved:
                return resolved[image]
        return []

    return [exact or resolved_rows(name) for exact, name in zip(rows, names, strict=True)]


def _possible_paths(name: SpreadsheetCell, path: Path) -> list[str]:
    """Return the absolute paths that an image name in the file `path` may stand for, the most likely first."""
    return [os.path.realpath(folder / name.text) for folder in (path.parent, Path())]


def _rows_by_path(paths: Iterable[str]) -> dict[str, list[int]]:
    """Return the rows of each path; several rows may have the same image."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(paths):
        rows[path].append(row)
    return rows
