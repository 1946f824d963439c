"""Splits taken from train or made from folds. Groups and sets of copies are never divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.data.records import SPLITS, Records, Split
from probmcl.data.stratify import stratify
from probmcl.errors import DataError, counted

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SHARES: Mapping[Split, float] = {"val": 0.1, "test": 0.2}  # of the images in train, unless shares are given
MIN_FOR_SHARES, HELD_OUT = 50, 5  # with fewer images in train, val and test get this number of images instead
MIN_TO_SPLIT = 20  # with fewer images in train, scores on five of them would mean nothing
NOT_SPLIT = "not split: too few images"

Sets = Sequence[Sequence[int]]  # sets of rows that must stay in one split


class TooFewImagesError(DataError):
    """Train has too few images to take val or test from it."""

    def __init__(self, images: int, missing: Sequence[Split]) -> None:
        splits = " and ".join(sorted(missing, key=SPLITS.index))
        problem = f"train has {counted(images, 'image')}, but taking {splits} from it needs {MIN_TO_SPLIT} or more"
        remedy = 'add images, or assign them to train, val and test in a split column or with `split_file="FILE.csv"`'
        super().__init__(f"{problem}; {remedy}")


def make_splits(
    records: Records, *, seed: int = 0, val: float | None = None, test: float | None = None, together: Sets = ()
) -> Records:
    """If test or val is empty, fill it with random images from train.

    `val` and `test` are shares of the original train split, both of all images and of each class. By default they are
    10 % and 20 %, or about five images each if train has fewer than 50. `TooFewImagesError` is raised if a default
    applies and train has fewer than 20 images.

    Images in val or test are never moved. Groups and the sets in `together` are not divided; if part of one is already
    in val or test, the rest stays in train. Every class keeps a positive in train unless that would leave a split
    empty.

    >>> from pathlib import Path
    >>> records = Records.from_labels(["cat"], [Path(f"{k}.jpg") for k in range(30)], ["train"] * 30, np.ones((30, 1)))
    >>> [len(make_splits(records).rows(split)) for split in ("train", "val", "test")]
    [20, 5, 5]
    """
    split = np.array(records.split, dtype="<U5")  # without a dtype, no images would give an array of numbers
    train_rows = np.flatnonzero(split == "train")
    unit_of_image = units_of(records, together)
    taken = _shares_taken_from_train(records, len(train_rows), {"test": test, "val": val})
    part_names = np.array(["train", *taken])
    part_shares = [1.0 - sum(taken.values()), *taken.values()]

    units = _count_units(records, unit_of_image, train_rows)
    units_outside_train = np.unique(unit_of_image[split != "train"])  # the rest of such a unit stays in train
    stay = np.flatnonzero(np.isin(units.numbers, units_outside_train)).tolist()
    part_of_unit = stratify(units.positives, units.sizes, part_shares, seed=seed, keep=0, stay=stay)
    split[train_rows] = part_names[part_of_unit[units.unit_of_row]]
    return records.with_split(split)


def _shares_taken_from_train(
    records: Records, train_images: int, given: Mapping[Split, float | None]
) -> dict[Split, float]:
    """Return, for each empty split that is to be filled, the share of the train images that it takes.

    `given` has the share that the caller wants for each split: 0 leaves it empty, and None stands for the default.
    """
    wanted = {}
    for name, share in given.items():
        wanted[name] = SHARES[name] if share is None else share
    if min(wanted.values()) < 0 or sum(wanted.values()) >= 1:
        val, test = wanted["val"], wanted["test"]
        raise ValueError(f"{val=} and {test=} must be at least 0 and add up to less than 1")
    taken = {name: share for name, share in wanted.items() if share > 0 and name not in records.split}
    if train_images == 0 or train_images >= MIN_FOR_SHARES:
        return taken

    # The default share of so few images would be too few to score on. A default is a number of images instead.
    by_default = [name for name in taken if given[name] is None]
    if by_default and train_images < MIN_TO_SPLIT:
        raise TooFewImagesError(train_images, by_default)
    for name in by_default:
        taken[name] = HELD_OUT / train_images
    return taken


def taken_from_train(records: Records, result: Records, seed: int) -> str:
    """Return a note on the splits that `make_splits` took from train, or '' if it took none."""
    taken = [split for split in SPLITS if result.split.count(split) > records.split.count(split)]
    if not taken:
        return ""
    return f"{' and '.join(taken)} taken from train with seed {seed}"


def folds(records: Records, k: int, *, seed: int = 0, together: Sets = ()) -> Int[ndarray, "N"]:
    """Assign every image to one of `k` folds, numbered from 1, with equal shares of images and of each class.

    The splits of the records are ignored. Groups and the sets in `together` are not divided.

    >>> from pathlib import Path
    >>> records = Records.from_labels(["cat"], [Path(name) for name in "abcdef"], ["train"] * 6, np.ones((6, 1)))
    >>> np.bincount(folds(records, 3)).tolist()
    [0, 2, 2, 2]
    """
    unit_of_image = units_of(records, together)
    count = len(np.unique(unit_of_image))
    if not 2 <= k <= count:
        remedy = f"choose 2 to {count} folds" if count > 1 else "cross-validation needs at least 2 units"
        reason = f"{counted(len(records), 'image')} in {counted(count, 'unit')} (groups and duplicates are not divided)"
        raise DataError(f"cannot split {reason} into {counted(k, 'fold')}; {remedy}")
    units = _count_units(records, unit_of_image, np.arange(len(records)))
    equal_shares = [1 / k] * k
    fold_of_unit = 1 + stratify(units.positives, units.sizes, equal_shares, seed=seed, keep=None)
    fold_of_image: Int[ndarray, "N"] = fold_of_unit[units.unit_of_row]
    return fold_of_image


def with_fold(
    records: Records,
    fold_of: Int[ndarray, "N"],
    fold: int,
    *,
    seed: int = 0,
    val: float | None = None,
    together: Sets = (),
) -> Records:
    """Use one fold as test, a share `val` of the other images as val, and the rest as train.

    The default for `val` is that of `make_splits`, applied to the images outside the test fold: they are what val is
    taken from, so a small dataset gets the same number of validation images with and without folds.

    >>> from pathlib import Path
    >>> records = Records.from_labels(["cat"], [Path(name) for name in "abcdef"], ["train"] * 6, np.ones((6, 1)))
    >>> with_fold(records, np.array([1, 1, 2, 2, 2, 2]), 1, val=0.25).split.count("val")
    1
    """
    if fold not in fold_of:
        raise ValueError(f"fold {fold} does not exist; expected {min(fold_of)} to {max(fold_of)}")
    split = np.where(fold_of == fold, "test", "train")
    try:
        return make_splits(records.with_split(split), seed=seed, val=val, test=0.0, together=together)
    except TooFewImagesError as error:
        error.args = (f"test is fold {fold}, so {error}",)
        raise


def units_of(records: Records, together: Sets) -> Int[ndarray, "N"]:
    """Return the unit number of each image; images joined by groups or `together`, even indirectly, form one unit."""
    if records.group is None and not together:
        return np.arange(len(records))
    wrong = [row for rows in together for row in rows if not 0 <= row < len(records)]
    if wrong:
        raise ValueError(f"together: row {wrong[0]} does not exist; the records have {counted(len(records), 'image')}")
    first_row_of_group: dict[str, int] = {}
    pairs = []  # each image with the first one of its group, which connects all images of the group
    for row, group in enumerate(records.group or ()):
        first_row = first_row_of_group.setdefault(group, row)
        pairs.append((first_row, row))
    return connected_sets(len(records), [*together, *pairs])


def connected_sets(count: int, sets: Sets) -> Int[ndarray, "N"]:
    """Return the connected component of each of `count` rows, where every set connects its rows.

    >>> connected_sets(6, [(0, 3), (3, 5), (1, 2)]).tolist()
    [0, 1, 1, 0, 2, 0]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # Each row is linked to the first row of its set. Without any set, `reshape` gives the empty list two columns.
    links = np.array([(rows[0], row) for rows in sets for row in rows], dtype=np.int64).reshape(-1, 2)
    first_rows, linked_rows = links.T
    graph = coo_array((np.ones(len(links), dtype=bool), (first_rows, linked_rows)), shape=(count, count))
    _, component_of_row = connected_components(graph, directed=False)
    return np.asarray(component_of_row, dtype=np.int64)


class _Units(NamedTuple):
    """U units (images that must stay together) of R rows, with the numbers that `stratify` needs.

    The arrays for each unit are ordered by the number of the unit, which is that of `units_of`.
    """

    numbers: Int[ndarray, "U"]
    sizes: Int[ndarray, "U"]  # images per unit
    positives: csr_array  # (U, columns), number of images with a 1 in each column of `_stratified_columns`
    unit_of_row: Int[ndarray, "R"]  # position of each row's unit in the other arrays


def _count_units(records: Records, unit_of_image: Int[ndarray, "N"], rows: Int[ndarray, "R"]) -> _Units:
    """Count the images and the positives of each unit, in the given rows only."""
    from scipy.sparse import csr_array

    numbers, unit_of_row, sizes = np.unique(unit_of_image[rows], return_inverse=True, return_counts=True)
    ones = np.ones(len(rows), dtype=np.int64)
    membership = csr_array((ones, (unit_of_row, np.arange(len(rows)))), shape=(len(numbers), len(rows)))
    positives = membership @ _stratified_columns(records)[rows]
    return _Units(numbers, sizes, positives, unit_of_row)


def _stratified_columns(records: Records) -> Any:
    """Return a sparse matrix (N, C or C + 1) of columns to stratify by.

    There is a column per class, which is 1 if the class is present. If some images have no known label, the last column
    is 1 for all other images, so that every split gets its share of them.
    """
    from scipy.sparse import csr_array, hstack

    present = records.states.present().astype(np.int64)
    has_known = records.states.any_known()
    if has_known.all() or not has_known.any():
        return present
    known_column = csr_array(has_known[:, None].astype(np.int64))
    return csr_array(hstack([present, known_column], format="csr"))
