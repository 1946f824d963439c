"""Splits: made from train, by folds, or given by a file; what belongs together (a group, copies) is never divided."""

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped
from numpy import ndarray

from probmcl.data.formats.table.sheet import Cell, Table, load, names_of_columns, only_column, quoted
from probmcl.data.options import DataChecks
from probmcl.data.records import SPLITS, Records, Split
from probmcl.data.stratify import stratify
from probmcl.errors import DataError, OptionError

LISTED = 5
Sets = Sequence[Sequence[int]]  # of rows that belong together


class SplitRecords(NamedTuple):
    """Records in their splits, how these were made ('' if they were given), and the fold of every image."""

    records: Records
    note: str
    fold_of: Int[ndarray, "N"] | None = None


def divide(records: Records, checks: DataChecks, seed: int, together: Sets, left_out: Sequence[Path]) -> SplitRecords:
    """Split records by the file or the folds that the checks name, otherwise as `make_splits` does."""
    file = checks.split_file
    if checks.fold is not None:
        if file is not None:
            fold_of = given_folds(records, file, left_out=left_out)
        else:
            fold_of = folds(records, checks.folds or 0, seed=seed, together=together)
        divided = with_fold(records, fold_of, checks.fold, seed=seed, together=together)
        note = f"fold {checks.fold} of {fold_of.max()} is test, val taken from the others with seed {seed}"
        return SplitRecords(divided, note, fold_of)
    if file is None:
        divided = make_splits(records, seed=seed, together=together)
        return SplitRecords(divided, taken_from_train(records, divided, seed))
    columns = names_of_columns(file, lambda names: "path" in names)
    if "fold" in columns and "split" not in columns:
        raise OptionError("split_file", file, "has folds; `fold=K` says which of them is the test fold")
    return SplitRecords(given_split(records, file, left_out=left_out), f"split of {file}")


def make_splits(
    records: Records, *, seed: int = 0, val: float = 0.1, test: float = 0.2, together: Sets = ()
) -> Records:
    """Take a random part of train for test, and one for val, if they have no images.

    `val` and `test` are shares of the train images as given, and of each class. An image of val or test is never
    moved. Groups, and rows in one set of `together`, are not divided: if some of them are in val or test already, the
    others stay. Every class keeps a positive in train unless a split would stay empty for it.

    >>> records = Records.from_labels(["cat"], [Path(name) for name in "abcdefghij"], ["train"] * 10, np.ones((10, 1)))
    >>> [len(make_splits(records).rows(split)) for split in ("train", "val", "test")]
    [7, 1, 2]
    """
    if val < 0 or test < 0 or val + test >= 1:
        raise ValueError(f"val {val} and test {test} are shares of train, at least 0 and together below 1")
    wanted: dict[Split, float] = {"test": test, "val": val}
    missing = {name: share for name, share in wanted.items() if share > 0 and name not in records.split}
    split = np.array(records.split, dtype="<U5")
    train, unit = np.flatnonzero(split == "train"), units_of(records, together)
    stay = np.unique(unit[split != "train"]).tolist()
    shares = [1.0 - sum(missing.values()), *missing.values()]
    part = _assign(records, unit, train, shares, seed=seed, keep=0, stay=stay)
    split[train] = np.array(["train", *missing])[part]
    return with_split(records, split)


def taken_from_train(records: Records, divided: Records, seed: int) -> str:
    """Return a note on the splits that `make_splits` took from train, '' if all were given."""
    taken = [split for split in SPLITS if divided.split.count(split) > records.split.count(split)]
    return f"{' and '.join(taken)} taken from train with seed {seed}" if taken else ""


def folds(records: Records, k: int, *, seed: int = 0, together: Sets = ()) -> Int[ndarray, "N"]:
    """Return the fold of every image, from 1 to `k`, whatever its split: equal shares of images and of each class.

    Groups, and rows in one set of `together`, are in one fold.

    >>> records = Records.from_labels(["cat"], [Path(name) for name in "abcdef"], ["train"] * 6, np.ones((6, 1)))
    >>> np.bincount(folds(records, 3)).tolist()
    [0, 2, 2, 2]
    """
    unit = units_of(records, together)
    number = len(np.unique(unit))
    if not 2 <= k <= number:
        remedy = f"choose 2 to {number}" if number > 1 else "they cannot be divided"
        units = f"which form {number} indivisible units (a group is not divided)"
        raise DataError(f"{k} folds of {len(records)} images, {units}; {remedy}")
    return 1 + _assign(records, unit, np.arange(len(records)), [1 / k] * k, seed=seed, keep=None)


def with_fold(
    records: Records, fold_of: Int[ndarray, "N"], fold: int, *, seed: int = 0, val: float = 0.1, together: Sets = ()
) -> Records:
    """Return records in which one fold is test, a share of the other images val, and the rest train.

    >>> records = Records.from_labels(["cat"], [Path(name) for name in "abcdef"], ["train"] * 6, np.ones((6, 1)))
    >>> with_fold(records, np.array([1, 1, 2, 2, 2, 2]), 1, val=0.25).split.count("val")
    1
    """
    if fold not in fold_of:
        raise ValueError(f"no image is in fold {fold}; folds go from {min(fold_of)} to {max(fold_of)}")
    split = np.where(fold_of == fold, "test", "train")
    return make_splits(with_split(records, split), seed=seed, val=val, test=0.0, together=together)


def given_split(records: Records, path: Path, *, left_out: Collection[Path] = ()) -> Records:
    """Return records in the splits of a file with the columns path and split, as runs write it.

    A relative path starts at the folder of the file or at the working directory. The file may name `left_out` images.
    """
    cells = _cells_of_images(records, path, "split", left_out)
    for cell in cells:
        if cell.text not in SPLITS:
            raise DataError(f"{path}: row {cell.line}: split {cell.text!r} is none of {', '.join(SPLITS)}; write one")
    return with_split(records, np.array([cell.text for cell in cells]))


def given_folds(records: Records, path: Path, *, left_out: Collection[Path] = ()) -> Int[ndarray, "N"]:
    """Return the fold of every image from a file with the columns path and fold, a whole number from 1."""
    cells = _cells_of_images(records, path, "fold", left_out)
    for cell in cells:
        if not re.fullmatch("[1-9][0-9]{0,5}", cell.text):
            raise DataError(f"{path}: row {cell.line}: fold {cell.text!r} is not a whole number from 1; write one")
    fold_of = np.array([int(cell.text) for cell in cells])
    absent = sorted({*range(1, max(2, fold_of.max()) + 1)} - {*fold_of.tolist()})
    if absent:
        raise DataError(f"{path}: no image is in fold {absent[0]}; number two folds or more from 1 without a gap")
    return fold_of


def with_split(records: Records, split: Shaped[ndarray, "N"]) -> Records:
    """Return the same images in other splits; the label space counts the new train."""
    return replace(records, split=tuple(split.tolist())).take(np.arange(len(records)))  # counts again


def units_of(records: Records, together: Sets) -> Int[ndarray, "N"]:
    """Return the unit of each image: a set that groups and `together` join, directly or through others."""
    if records.group is None and not together:
        return np.arange(len(records))
    wrong = [row for rows in together for row in rows if not 0 <= row < len(records)]
    if wrong:
        raise ValueError(f"row {wrong[0]} is to stay together with others, but there are {len(records)} images")
    first: dict[str, int] = {}
    groups = [(first.setdefault(group, row), row) for row, group in enumerate(records.group or ())]
    return connected_sets(len(records), [*together, *groups])


def connected_sets(count: int, sets: Sets) -> Int[ndarray, "N"]:
    """Return a number for each of `count` rows, equal for rows that sets join, directly or through others.

    >>> connected_sets(6, [(0, 3), (3, 5), (1, 2)]).tolist()
    [0, 1, 1, 0, 2, 0]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = np.array([(rows[0], row) for rows in sets for row in rows], dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(links.shape[1], dtype=bool), (links[0], links[1])), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


def _assign(
    records: Records,
    unit: Int[ndarray, "N"],
    rows: Int[ndarray, "R"],
    shares: Sequence[float],
    *,
    seed: int,
    keep: int | None,
    stay: Sequence[int] = (),
) -> Int[ndarray, "R"]:
    from scipy.sparse import csr_array

    names, index, sizes = np.unique(unit[rows], return_inverse=True, return_counts=True)
    member = csr_array((np.ones(len(rows), dtype=np.int64), (index, np.arange(len(rows)))), (len(names), len(rows)))
    counts = member @ _stratified_columns(records)[rows]
    staying = np.flatnonzero(np.isin(names, stay)).tolist()
    return stratify(counts, sizes, shares, seed=seed, keep=keep, stay=staying)[index]


def _stratified_columns(records: Records) -> Any:
    """Return a sparse matrix of what every part gets its share of: labels and, to be scored, known images."""
    from scipy.sparse import csr_array, hstack

    present, known = records.states.present().astype(np.int64), records.states.any_known()
    if known.all() or not known.any():
        return present
    return csr_array(hstack([present, csr_array(known[:, None].astype(np.int64))], format="csr"))


def _cells_of_images(records: Records, path: Path, column: str, left_out: Collection[Path]) -> list[Cell]:
    """Return the cell of a column for each image; the file names every image, and no others but left-out ones."""
    gone = {os.path.realpath(image) for image in left_out}
    table = load(path, lambda columns: {"path", column} <= set(columns))
    names, values = (table.cells(_column(table, name)) for name in ("path", column))
    cells: dict[int, Cell] = {}
    for name, value, rows in zip(names, values, _rows(records, path, names), strict=True):
        if not rows and gone.intersection(_possible_paths(name, path)):
            continue
        if not rows:
            remedy = "remove the row, or write the path as the data has it"
            raise DataError(f"{path}: row {name.line}: {name.text!r} is none of the {len(records):,} images; {remedy}")
        for row in rows:
            before = cells.setdefault(row, value)
            if before.text != value.text:
                both = f"{before.text!r} in row {before.line}, but {value.text!r} in row {value.line}"
                raise DataError(f"{path}: {column} of {name.text!r} is {both}; remove one of them")
    unnamed = [str(image) for row, image in enumerate(records.paths) if row not in cells]
    if unnamed:
        listed = ", ".join(unnamed[:LISTED]) + (", …" if unnamed[LISTED:] else "")
        remedy = f"add a row for each, with its {column}"
        raise DataError(f"{path}: {len(unnamed):,} of {len(records):,} images are not named: {listed}; {remedy}")
    return [cells[row] for row in range(len(records))]


def _column(table: Table, name: str) -> str:
    column = only_column(table, [name], set(), "rename one")
    if column is None:
        raise DataError(f"{table.path}: row 1: no column of {quoted(table.columns)} is named {name!r}; name one so")
    return column


def _rows(records: Records, path: Path, names: Sequence[Cell]) -> list[list[int]]:
    written = _rows_by_name(map(str, records.paths))
    rows = [written.get(name.text, []) for name in names]
    if all(rows):  # a million files take a minute to resolve
        return rows
    real = _rows_by_name(map(os.path.realpath, records.paths))
    return [
        known or next((real[at] for at in _possible_paths(name, path) if at in real), [])
        for known, name in zip(rows, names, strict=True)
    ]


def _possible_paths(name: Cell, path: Path) -> list[str]:
    return [os.path.realpath(start / name.text) for start in (path.parent, Path())]


def _rows_by_name(names: Iterable[str]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        rows[name].append(row)
    return rows
