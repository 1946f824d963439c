"""Stratified splits of units (images or groups) into parts, by class and by number of images.

As in the iterative stratification of Sechidis, Tsoumakas and Vlahavas (2011), the rarest class comes first. Here all
units of a class are assigned in one step, and a refinement then moves units if that reduces the imbalance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from probmcl.errors import counted

if TYPE_CHECKING:
    from scipy.sparse import csc_array, csr_array

UNASSIGNED = -1
CANDIDATES = 300  # number of units, chosen by largest gain, that a refinement pass tries to move
TOLERANCE = 1e-9  # smaller gains are rounding errors


def stratify(
    counts: csr_array,
    sizes: Int[ndarray, "U"],
    shares: Sequence[float],
    *,
    seed: int | Sequence[int],
    keep: int | None = 0,
    stay: Sequence[int] = (),
) -> Int[ndarray, "U"]:
    """Assign each of U units (an image, or images that must stay together) to a part; return the part numbers.

    `counts` (U, C) has the number of positives of each class in each unit, and `sizes` the number of images. Each part
    gets about its share of both. Part `keep` gets a positive of every class, unless that would leave another part
    empty. The units in `stay` are kept in part 0. If there are fewer units than parts, the last parts are empty.

    >>> from scipy.sparse import csr_array
    >>> counts = csr_array(np.repeat([[1, 0], [0, 1]], [5, 10], axis=0))  # five units of one class, ten of another
    >>> part = stratify(counts, np.ones(15, dtype=np.int64), [0.8, 0.2], seed=0)
    >>> np.bincount(part[:5]).tolist(), np.bincount(part[5:]).tolist()
    ([4, 1], [8, 2])
    """
    if counts.shape[0] != len(sizes) or (sizes < 1).any():
        raise ValueError(
            f"{counted(counts.shape[0], 'unit')}, but {counted(len(sizes), 'size')}; each size must be at least 1"
        )
    if not len(shares) or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"shares={list(shares)} must be positive and add up to 1")
    units = len(sizes) - max(0, len(stay) - 1)  # the units in `stay` fill only one part
    if min(units, len(shares)) < 2:
        return np.zeros(len(sizes), dtype=np.int64)
    rng = np.random.default_rng(seed)
    order = _sort_by_classes(counts, rng.permutation(len(sizes)))
    assignment = _Assignment.begin(counts[order], sizes[order], np.array(shares[:units]))
    free = np.isin(order, np.array(stay, dtype=np.int64), invert=True)
    assignment.assign(np.flatnonzero(~free), np.zeros(len(order) - int(free.sum()), dtype=np.int64))
    _assign_all(assignment, rng)
    _refine(assignment, free)
    if keep is not None:
        _keep_positives(assignment, keep, free)
    _fill_empty_parts(assignment, keep, free)
    part = np.empty_like(assignment.part)
    part[order] = assignment.part
    return part


@dataclass(frozen=True, eq=False)
class _Assignment:
    """The part of each unit so far, and every part's difference from its target.

    There is one column per class. The last column has the number of images; it determines the part of unlabeled units.
    """

    amounts: csr_array  # (U, C + 1)
    amounts_by_column: csc_array
    sizes: Int[ndarray, "U"]
    part: Int[ndarray, "U"]
    excess: Float[ndarray, "K C1"]  # amount minus target of each part
    remaining: Float[ndarray, "C1"]  # total of the unassigned units

    @classmethod
    def begin(cls, counts: csr_array, sizes: Int[ndarray, "U"], shares: Float[ndarray, "K"]) -> _Assignment:
        from scipy import sparse

        amounts = sparse.hstack([counts, sparse.csr_array(sizes[:, None])], format="csr").astype(np.float64)
        amounts.sum_duplicates()  # also sorts the indices, so the result does not depend on their order
        amounts.eliminate_zeros()
        total = amounts.sum(axis=0)
        target = np.outer(shares / shares.sum(), total)
        return cls(amounts, amounts.tocsc(), sizes, np.full(len(sizes), UNASSIGNED), -target, total)

    def members_of(self, column: int) -> tuple[Int[ndarray, "H"], Float[ndarray, "H"]]:
        """Return the units with a nonzero amount in a column, and these amounts."""
        span = slice(self.amounts_by_column.indptr[column], self.amounts_by_column.indptr[column + 1])
        return self.amounts_by_column.indices[span], self.amounts_by_column.data[span]

    def columns_of(self, unit: int) -> tuple[Int[ndarray, "H"], Float[ndarray, "H"]]:
        """Return the columns in which a unit has a nonzero amount, and these amounts."""
        span = slice(self.amounts.indptr[unit], self.amounts.indptr[unit + 1])
        return self.amounts.indices[span], self.amounts.data[span]

    def assign(self, units: Int[ndarray, "B"], parts: Int[ndarray, "B"]) -> None:
        self.part[units] = parts
        added = self.amounts[units]
        np.add.at(self.excess, (np.repeat(parts, np.diff(added.indptr)), added.indices), added.data)
        np.subtract.at(self.remaining, added.indices, added.data)

    def move(self, unit: int, part: int) -> None:
        columns, amounts = self.columns_of(unit)
        self.excess[self.part[unit], columns] -= amounts
        self.excess[part, columns] += amounts
        self.part[unit] = part


def _sort_by_classes(counts: csr_array, order: Int[ndarray, "U"]) -> Int[ndarray, "U"]:
    """Sort units by their most frequent classes, so interleaving a rare class also spreads the frequent ones."""
    rank = np.argsort(np.argsort(-counts.sum(axis=0), kind="stable"))
    return order[np.argsort((counts @ 0.5**rank)[order], kind="stable")]


def _assign_all(assignment: _Assignment, rng: np.random.Generator) -> None:
    """Assign column by column: first the rarest among unassigned units, and in each column the largest units first."""
    while assignment.remaining[-1] > 0:
        column = int(np.argmin(np.where(assignment.remaining > 0, assignment.remaining, np.inf)))
        units, amounts = assignment.members_of(column)
        unassigned = assignment.part[units] == UNASSIGNED
        units, amounts = units[unassigned], amounts[unassigned]
        for amount in np.unique(amounts)[::-1]:
            batch = units[amounts == amount]
            deficits, room = -assignment.excess[:, column] / amount, -assignment.excess[:, -1]
            quotas = _quotas(deficits, np.lexsort((rng.random(len(room)), -np.round(room, 6))), len(batch))
            assignment.assign(batch, _interleave(quotas, rng))


def _interleave(quotas: Int[ndarray, "K"], rng: np.random.Generator) -> Int[ndarray, "B"]:
    """Return a sequence of part numbers in which part k occurs `quotas[k]` times, evenly spread with random jitter."""
    parts = np.repeat(np.arange(len(quotas)), quotas)
    turn = np.arange(len(parts)) - np.repeat(np.cumsum(quotas) - quotas, quotas)
    positions = (turn + rng.random(len(parts))) / quotas[parts]
    return parts[np.argsort(positions)]


def _quotas(deficits: Float[ndarray, "K"], priority: Int[ndarray, "K"], count: int) -> Int[ndarray, "K"]:
    """Return how many of `count` equal units each part gets if every unit goes to the part with the largest deficit.

    The deficits are measured in units. Ties go to the part that comes first in `priority`.

    >>> _quotas(np.array([7.5, 2.5, 0.5]), np.array([2, 1, 0]), 8).tolist()
    [6, 2, 0]
    """
    descending = np.sort(deficits)[::-1]
    levels = (np.cumsum(descending) - count) / np.arange(1, len(deficits) + 1)
    level = levels[descending > levels][-1]  # the deficit that all parts with a quota end up with, before rounding
    quotas: Int[ndarray, "K"] = np.maximum(np.floor(deficits - level + TOLERANCE), 0).astype(np.int64)
    rest = count - int(quotas.sum())
    by_deficit = priority[np.argsort(-np.round(deficits - quotas, 6)[priority], kind="stable")]
    quotas[by_deficit[:rest]] += 1
    return quotas


def _refine(assignment: _Assignment, free: Bool[ndarray, "U"]) -> None:
    """Move units between parts if that reduces the sum of excess² / total over parts and columns.

    In the first passes (up to three), the image column weighs as much as one class; in the last, as much as all.
    """
    total = assignment.amounts.sum(axis=0)
    for importance, passes in ((1, 3), (len(total), 1)):
        weight = 1 / np.maximum(total, 1)
        weight[-1] *= importance
        for _ in range(passes):
            units = _candidates(assignment, weight, free)
            _move_improving(assignment, weight, units)
            if not len(units):
                break


def _candidates(assignment: _Assignment, weight: Float[ndarray, "C1"], free: Bool[ndarray, "U"]) -> Int[ndarray, "B"]:
    slope = np.ascontiguousarray((assignment.amounts @ (weight * assignment.excess).T).T)  # (K, U), for a fast minimum
    current = slope[assignment.part, np.arange(len(assignment.part))]
    change = slope.min(axis=0) - current + assignment.amounts.power(2) @ weight
    improving = np.flatnonzero(free & (change < -TOLERANCE))
    return improving[np.argsort(change[improving], kind="stable")[:CANDIDATES]]


def _move_improving(assignment: _Assignment, weight: Float[ndarray, "C1"], units: Int[ndarray, "B"]) -> None:
    for unit in units.tolist():
        columns, amounts = assignment.columns_of(unit)
        slope = assignment.excess[:, columns] @ (weight[columns] * amounts)
        best = int(np.argmin(slope))
        if slope[best] - slope[assignment.part[unit]] + amounts**2 @ weight[columns] < -TOLERANCE:
            assignment.move(unit, best)


def _keep_positives(assignment: _Assignment, keep: int, free: Bool[ndarray, "U"]) -> None:
    """For each class without a positive in part `keep`, move the smallest unit with a positive into it."""
    total = assignment.amounts[assignment.part == keep].sum(axis=0)
    for column in np.flatnonzero(total[:-1] == 0).tolist():
        units = assignment.members_of(column)[0]
        units = units[free[units]]
        if total[column] == 0 and len(units):
            unit = int(units[np.argmin(assignment.sizes[units])])
            assignment.move(unit, keep)
            total[assignment.columns_of(unit)[0]] += 1


def _fill_empty_parts(assignment: _Assignment, keep: int | None, free: Bool[ndarray, "U"]) -> None:
    """Move a small unit into each empty part, preferably without removing a class from part `keep`."""
    for part in range(len(assignment.excess)):
        units_per_part = np.bincount(assignment.part, minlength=len(assignment.excess))
        donors = np.flatnonzero(free & (units_per_part[assignment.part] > 1))
        if units_per_part[part] == 0 and len(donors):
            costs = np.zeros(len(donors)) if keep is None else _removes_class(assignment, keep, donors)
            assignment.move(int(donors[np.lexsort((assignment.sizes[donors], costs))[0]]), part)


def _removes_class(assignment: _Assignment, keep: int, units: Int[ndarray, "B"]) -> Bool[ndarray, "B"]:
    """Return which units are the only ones in part `keep` with positives of some class."""
    inside = assignment.part == keep
    total = assignment.amounts[inside].sum(axis=0)
    rows = assignment.amounts[units][:, :-1]
    only = rows.data == total[rows.indices]
    row = np.repeat(np.arange(len(units)), np.diff(rows.indptr))
    return np.asarray(inside[units] & (np.bincount(row, weights=only, minlength=len(units)) > 0))
