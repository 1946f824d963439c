"""Splits taken from train or made from folds. Groups and sets of copies are never divided."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.data.records import SPLITS, Records, Split
from probmcl.data.stratify import stratify
from probmcl.errors import DataError, counted

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
    split = np.array(records.split, dtype="<U5")
    train, unit = np.flatnonzero(split == "train"), units_of(records, together)
    missing = _missing_shares(records, len(train), {"test": test, "val": val})
    stay = np.unique(unit[split != "train"]).tolist()
    shares = [1.0 - sum(missing.values()), *missing.values()]
    part = _assign(records, unit, train, shares, seed=seed, keep=0, stay=stay)
    split[train] = np.array(["train", *missing])[part]
    return records.with_split(split)


def _missing_shares(records: Records, available: int, given: Mapping[Split, float | None]) -> dict[Split, float]:
    """Return the share of the available images for each empty split; raise an error if they do not suffice."""
    shares = {name: SHARES[name] if share is None else share for name, share in given.items()}
    if min(shares.values()) < 0 or sum(shares.values()) >= 1:
        val, test = shares["val"], shares["test"]
        raise ValueError(f"{val=} and {test=} must be at least 0 and add up to less than 1")
    missing = {name: share for name, share in shares.items() if share > 0 and name not in records.split}
    by_default = [name for name in missing if given[name] is None]
    if by_default and 0 < available < MIN_TO_SPLIT:
        raise TooFewImagesError(available, by_default)
    if 0 < available < MIN_FOR_SHARES:
        missing |= dict.fromkeys(by_default, HELD_OUT / available)
    return missing


def taken_from_train(records: Records, result: Records, seed: int) -> str:
    """Return a note on the splits that `make_splits` took from train, or '' if it took none."""
    taken = [split for split in SPLITS if result.split.count(split) > records.split.count(split)]
    return f"{' and '.join(taken)} taken from train with seed {seed}" if taken else ""


def folds(records: Records, k: int, *, seed: int = 0, together: Sets = ()) -> Int[ndarray, "N"]:
    """Assign every image to one of `k` folds, numbered from 1, with equal shares of images and of each class.

    The splits of the records are ignored. Groups and the sets in `together` are not divided.

    >>> from pathlib import Path
    >>> records = Records.from_labels(["cat"], [Path(name) for name in "abcdef"], ["train"] * 6, np.ones((6, 1)))
    >>> np.bincount(folds(records, 3)).tolist()
    [0, 2, 2, 2]
    """
    unit = units_of(records, together)
    count = len(np.unique(unit))
    if not 2 <= k <= count:
        remedy = f"choose 2 to {count} folds" if count > 1 else "cross-validation needs at least 2 units"
        reason = f"{counted(len(records), 'image')} in {counted(count, 'unit')} (groups and duplicates are not divided)"
        raise DataError(f"cannot split {reason} into {counted(k, 'fold')}; {remedy}")
    return 1 + _assign(records, unit, np.arange(len(records)), [1 / k] * k, seed=seed, keep=None)


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
    first: dict[str, int] = {}
    groups = [(first.setdefault(group, row), row) for row, group in enumerate(records.group or ())]
    return connected_sets(len(records), [*together, *groups])


def connected_sets(count: int, sets: Sets) -> Int[ndarray, "N"]:
    """Return the connected component of each of `count` rows, where every set connects its rows.

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
    """Return a sparse matrix of columns to stratify by: the labels, and whether an image has any known label."""
    from scipy.sparse import csr_array, hstack

    present, known = records.states.present().astype(np.int64), records.states.any_known()
    if known.all() or not known.any():
        return present
    return csr_array(hstack([present, csr_array(known[:, None].astype(np.int64))], format="csr"))
