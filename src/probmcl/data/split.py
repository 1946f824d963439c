"""Validation and test images, taken from train where none are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Int, Shaped
from numpy import ndarray

from probmcl.data.records import Records, Split


def carve(records: Records, *, seed: int = 0, val: float = 0.1, test: float = 0.2) -> Records:
    """Take a seeded part of train for test, and one for val, where no image belongs to them.

    `val` and `test` are shares of the train images as given. What was given to val or test is never moved, and groups
    stay together: one that is already in val or test gives no more images away. Every class keeps a positive in train
    unless a split would stay empty for it; with too few images or groups one may stay empty. The counts of the label
    space are those of the new train.

    >>> from pathlib import Path
    >>> records = Records.from_labels(["cat"], [Path(name) for name in "abcdefghij"], ["train"] * 10, np.ones((10, 1)))
    >>> [len(carve(records).rows(split)) for split in ("train", "val", "test")]
    [7, 1, 2]
    """
    if val < 0 or test < 0 or val + test >= 1:
        raise ValueError(f"val {val} and test {test} are shares of train, at least 0 and together below 1")
    given = records.rows("train")
    shares: dict[Split, float] = {"test": test, "val": val}
    split = np.array(records.split, dtype="<U5")
    for number, (name, share) in enumerate(shares.items()):
        if share > 0 and not (split == name).any():
            rng = np.random.default_rng((seed, number))
            split[_part(records, split, max(1, round(share * len(given))), rng)] = name
    return replace(records, split=tuple(split.tolist())).take(np.arange(len(records)))  # counted anew


def _part(records: Records, split: Shaped[ndarray, "N"], target: int, rng: np.random.Generator) -> list[int]:
    """Rows of train, of at most `target` images, that can go without taking a class from train.

    Where no unit fits, the smallest goes, one that costs no class before others, so that the split is not empty.
    """
    units = _units(records, split)
    if len(units) < 2:
        return []
    order = [units[i] for i in rng.permutation(len(units))]
    present = (records.labels > 0) & records.known
    left = present[split == "train"].sum(axis=0)
    taken: list[int] = []
    for unit in order:
        if len(taken) + len(unit) <= target and not _costs_a_class(present, unit, left):
            taken += unit.tolist()
            left = left - present[unit].sum(axis=0)
    return taken or min(order, key=lambda unit: (_costs_a_class(present, unit, left), len(unit))).tolist()


def _costs_a_class(present: Bool[ndarray, "N C"], unit: Int[ndarray, "K"], left: Int[ndarray, "C"]) -> bool:
    loses = present[unit].sum(axis=0)
    return bool(((loses > 0) & (loses == left)).any())


def _units(records: Records, split: Shaped[ndarray, "N"]) -> Sequence[Int[ndarray, "K"]]:
    """What may leave train as a whole: an image, or a group of which nothing is outside train."""
    train = np.flatnonzero(split == "train")
    if records.group is None:
        return [train[i : i + 1] for i in range(len(train))]
    outside = {records.group[row] for row in np.flatnonzero(split != "train")}
    members: dict[str, list[int]] = {}
    for row in train.tolist():
        members.setdefault(records.group[row], []).append(row)
    return [np.array(rows) for group, rows in members.items() if group not in outside]
