"""What a table says of an image beside its labels: split, group, weight, and columns that are kept as they are."""

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
    """N images of a table of R rows: the first row of each, and the image of every row."""

    first: Int[ndarray, "N"]
    of_row: Int[ndarray, "R"]


def images_of(paths: Sequence[str]) -> Images:
    """Rows that have the same path are one image.

    >>> images_of(["a.jpg", "b.jpg", "a.jpg"]).of_row.tolist()
    [0, 1, 0]
    """
    place: dict[str, int] = {}
    of_row = np.array([place.setdefault(path, len(place)) for path in paths], dtype=np.int64)
    return Images(np.unique(of_row, return_index=True)[1], of_row)


class RepeatedRowsError(DataError):
    """Rows that name an image which an earlier row has named: lines of both, where they say the same and where not."""

    def __init__(self, message: str, same: list[tuple[int, int]], different: list[tuple[int, int]]) -> None:
        super().__init__(message)
        self.same, self.different = same, different


def repeated(table: Table, images: Images, path: str, remedy: str) -> RepeatedRowsError:
    """An error for rows that name an image again; `path` is the column that names it."""
    firsts = images.first[images.of_row].tolist()
    again = [(first, row) for row, first in enumerate(firsts) if row != first]
    place = table.columns.index(path)
    rows = [(*cells[:place], *cells[place + 1 :]) for cells in table.rows]
    same = [(table.lines[one], table.lines[other]) for one, other in again if rows[one] == rows[other]]
    different = [(table.lines[one], table.lines[other]) for one, other in again if rows[one] != rows[other]]
    first, row = again[0]
    both = f"rows {table.lines[first]} and {table.lines[row]}: both are {table.rows[row][place]!r}"
    counts = f" ({len(again):,} rows name an image again, {len(same):,} of them say just the same)"
    more = counts if len(again) > 1 else ""
    return RepeatedRowsError(f"{table.path}: {both}{more}{remedy}", same, different)


def values_of(table: Table, column: str, images: Images) -> list[str]:
    """One value an image, which all its rows have."""
    texts = table.texts(column)
    for row, first in enumerate(images.first[images.of_row].tolist()):
        if texts[row] != texts[first]:
            raise DataError(
                f"{table.where(first)} and row {table.lines[row]}: are one image, but column {column!r} holds "
                f"{texts[first]!r} and {texts[row]!r}; write one of them in both"
            )
    return [texts[row] for row in images.first.tolist()]


def splits_of(table: Table, column: str | None, images: Images) -> tuple[Split, ...]:
    """The split of each image, train without a column."""
    if column is None:
        train: Split = "train"
        return (train,) * len(images.first)
    texts = table.texts(column)
    strange = sorted(text for text in set(texts) if text.lower() not in SPLIT_VALUES)
    if strange:
        listed = quoted(strange[:5]) + (f" and {len(strange) - 5} more" if len(strange) > 5 else "")
        first = next(row for row, text in enumerate(texts) if text in strange)
        raise DataError(
            f"{table.where(first)}: column {column!r} holds {listed}; a split is one of {', '.join(SPLIT_VALUES)}; "
            f"`split_column=COLUMN` names another column, `split_column=''` none"
        )
    return tuple(SPLIT_VALUES[text.lower()] for text in values_of(table, column, images))


def groups_of(table: Table, column: str | None, images: Images) -> tuple[str, ...] | None:
    """The group of each image."""
    if column is None:
        return None
    texts = table.texts(column)
    if "" in texts:
        where = table.where(texts.index(""))
        raise DataError(f"{where}: group {column!r} is blank; give every image a group; `group=''` does without groups")
    return tuple(values_of(table, column, images))


def weights_of(table: Table, column: str | None, images: Images) -> Float64[ndarray, "N"] | None:
    """The weight of each image: numbers from 0 on, of which one is above."""
    if column is None:
        return None
    numbers = {text: _number(text) for text in set(table.texts(column))}
    for row, text in enumerate(table.texts(column)):
        if not 0 <= numbers[text] < np.inf:
            raise DataError(
                f"{table.where(row)}: weight {column!r} is {text!r}; a weight is a number from 0 on, such as 0.5; "
                f"`weight_column=''` does without weights"
            )
    weights = np.array([numbers[text] for text in values_of(table, column, images)])
    if not weights.any():
        raise DataError(f"{table.path}: weight {column!r} is 0 in every row; an image of weight 0 is never trained on")
    return weights


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan
