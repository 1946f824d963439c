"""Columns of a table that describe an image apart from its labels: split, group, weight and kept columns."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int
from numpy import ndarray

from probmcl.data.formats.table.sheet import Table, quoted
from probmcl.data.records import Split
from probmcl.errors import DataError

SPLIT_VALUES: Mapping[str, Split] = {
    "train": "train",
    "trainval": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}


class Images(NamedTuple):
    """The N images of a table with R rows: the first row of each image, and the image of each row."""

    first: Int[ndarray, "N"]
    of_row: Int[ndarray, "R"]


def images_of(paths: Sequence[str]) -> Images:
    """Group rows with the same path into one image.

    >>> images_of(["a.jpg", "b.jpg", "a.jpg"]).of_row.tolist()
    [0, 1, 0]
    """
    index: dict[str, int] = {}
    of_row = np.array([index.setdefault(path, len(index)) for path in paths], dtype=np.int64)
    return Images(np.unique(of_row, return_index=True)[1], of_row)


class RepeatedRowsError(DataError):
    """Repeated paths in a table. `same` and `different` list the lines of row pairs with equal or different cells."""

    def __init__(self, message: str, same: list[tuple[int, int]], different: list[tuple[int, int]]) -> None:
        super().__init__(message)
        self.same, self.different = same, different


def repeated(table: Table, images: Images, path: str, remedy: str) -> RepeatedRowsError:
    """Return an error for rows with the path of an earlier row; `path` is the path column."""
    firsts = images.first[images.of_row].tolist()
    repeats = [(first, row) for row, first in enumerate(firsts) if row != first]
    column = table.columns.index(path)
    rows = [(*cells[:column], *cells[column + 1 :]) for cells in table.rows]
    same = [(table.lines[one], table.lines[other]) for one, other in repeats if rows[one] == rows[other]]
    different = [(table.lines[one], table.lines[other]) for one, other in repeats if rows[one] != rows[other]]
    first, row = repeats[0]
    both = f"rows {table.lines[first]} and {table.lines[row]}: both have the path {table.rows[row][column]!r}"
    counts = f" ({len(repeats):,} rows repeat a path, {len(same):,} of them with equal cells)"
    more = counts if len(repeats) > 1 else ""
    return RepeatedRowsError(f"{table.path}, {both}{more}{remedy}", same, different)


def values_of(table: Table, column: str, images: Images) -> list[str]:
    """Return each image's value in a column. Rows of the same image must agree."""
    texts = table.texts(column)
    for row, first in enumerate(images.first[images.of_row].tolist()):
        if texts[row] != texts[first]:
            raise DataError(
                f"{table.where(first)} and row {table.lines[row]}: these rows describe the same image, but column "
                f"{column!r} has {texts[first]!r} and {texts[row]!r}; make them equal"
            )
    return [texts[row] for row in images.first.tolist()]


def splits_of(table: Table, column: str | None, images: Images) -> tuple[Split, ...]:
    """Return the split of each image; without a split column, all are in train."""
    if column is None:
        train: Split = "train"
        return (train,) * len(images.first)
    texts = table.texts(column)
    invalid = sorted(text for text in set(texts) if text.lower() not in SPLIT_VALUES)
    if invalid:
        listed = quoted(invalid[:5]) + (f" and {len(invalid) - 5} more" if len(invalid) > 5 else "")
        first = next(row for row, text in enumerate(texts) if text in invalid)
        raise DataError(
            f"{table.where(first)}: split column {column!r} has {listed}; expected {', '.join(SPLIT_VALUES)}. "
            f"Choose another column with `split_column=COLUMN`, or none with `split_column=''`"
        )
    return tuple(SPLIT_VALUES[text.lower()] for text in values_of(table, column, images))


def groups_of(table: Table, column: str | None, images: Images) -> tuple[str, ...] | None:
    """Return the group of each image, or None without a group column."""
    if column is None:
        return None
    texts = table.texts(column)
    if "" in texts:
        where = table.where(texts.index(""))
        raise DataError(f"{where}: group {column!r} is blank; every image needs a group (or use `group=''`)")
    return tuple(values_of(table, column, images))


def weights_of(table: Table, column: str | None, images: Images) -> Float64[ndarray, "N"] | None:
    """Return the weight of each image, or None without a weight column. At least one weight must be positive."""
    if column is None:
        return None
    numbers = {text: _number(text) for text in set(table.texts(column))}
    for row, text in enumerate(table.texts(column)):
        if not 0 <= numbers[text] < np.inf:
            raise DataError(
                f"{table.where(row)}: weight {column!r} is {text!r}, but must be a number of at least 0; "
                f"use `weight_column=''` for no weights"
            )
    weights = np.array([numbers[text] for text in values_of(table, column, images)])
    if not weights.any():
        raise DataError(f"{table.path}: weight {column!r} is 0 in every row; at least one must be positive")
    return weights


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan
