"""Splits and folds that are read from a CSV file, such as the one of another run."""

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
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
    empty = sorted({*range(1, max(2, fold_of.max()) + 1)} - {*fold_of.tolist()})
    if empty:
        raise DataError(f"{path}: no image is in fold {empty[0]}; use two or more folds, numbered from 1 without gaps")
    return fold_of


def _cells_of_images(records: Records, path: Path, column: str, left_out: Collection[Path]) -> list[SpreadsheetCell]:
    """Return each image's cell in a column. The file must list every image, and no others except `left_out`."""
    ignored = {os.path.realpath(image) for image in left_out}
    table = load_spreadsheet(path, lambda columns: {"path", column} <= set(columns))
    names, values = (table.cells(_column(table, name)) for name in ("path", column))
    cells: dict[int, SpreadsheetCell] = {}
    for name, value, rows in zip(names, values, _rows(records, path, names), strict=True):
        if not rows and ignored.intersection(_possible_paths(name, path)):
            continue
        if not rows:
            problem = f"{name.text!r} is not in the data ({counted(len(records), 'image')})"
            raise DataError(f"{path}, row {name.line}: {problem}; remove the row or correct the path")
        for row in rows:
            first = cells.setdefault(row, value)
            if first.text != value.text:
                conflict = f"{first.text!r} in row {first.line}, but {value.text!r} in row {value.line}"
                raise DataError(f"{path}: {column} of {name.text!r} is {conflict}; remove one of these rows")
    missing = [str(image) for row, image in enumerate(records.paths) if row not in cells]
    if missing:
        problem = f"{len(missing):,} of {counted(len(records), 'image')} {'is' if len(missing) == 1 else 'are'} missing"
        raise DataError(f"{path}: {problem}: {listing(missing, LISTED)}; add a row with the {column} of each")
    return [cells[row] for row in range(len(records))]


def _column(table: Spreadsheet, name: str) -> str:
    column = only_column(table, [name], set(), "rename one")
    if column is None:
        raise DataError(f"{table.path}, row 1: there is no column {name!r}, only {quoted(table.columns)}; rename one")
    return column


def _rows(records: Records, path: Path, names: Sequence[SpreadsheetCell]) -> list[list[int]]:
    verbatim = _rows_by_name(map(str, records.paths))
    rows = [verbatim.get(name.text, []) for name in names]
    if all(rows):  # resolving a million paths takes a minute
        return rows
    resolved = _rows_by_name(map(os.path.realpath, records.paths))
    return [
        exact or next((resolved[file] for file in _possible_paths(name, path) if file in resolved), [])
        for exact, name in zip(rows, names, strict=True)
    ]


def _possible_paths(name: SpreadsheetCell, path: Path) -> list[str]:
    return [os.path.realpath(folder / name.text) for folder in (path.parent, Path())]


def _rows_by_name(names: Iterable[str]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        rows[name].append(row)
    return rows
