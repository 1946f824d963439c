"""Stratification: units are assigned to parts so that every part gets its share of each class and of the images.

As in the iterative stratification of Sechidis, Tsoumakas and Vlahavas (2011) the rarest class comes first. Here all of
its units are assigned at once, and units that fit better elsewhere are moved afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

if TYPE_CHECKING:
    from scipy.sparse import csc_array, csr_array

UNASSIGNED = -1
CANDIDATES = 300  # units with the largest gain, which one pass of refinement considers one by one
TOLERANCE = 1e-9  # a gain below this is due to rounding


def stratify(
    counts: csr_array,
    sizes: Int[ndarray, "U"],
    shares: Sequence[float],
    *,
    seed: int | Sequence[int],
    keep: int | None = 0,
    stay: Sequence[int] = (),
) -> Int[ndarray, "U"]:
    """Return the part of each of U units: an image, or several that must stay together.

    `counts` (U, C) has the positives of each class in each unit, `sizes` the images, and `shares` what each part wants
    of both. Every class has a positive in part `keep`, unless another part had no unit then. The units of `stay` are in
    part 0 beforehand. No part is empty; where there are fewer units than parts, the last parts are.

    >>> from scipy.sparse import csr_array
    >>> counts = csr_array(np.repeat([[1, 0], [0, 1]], [5, 10], axis=0))  # five units of one class, ten of another
    >>> part = stratify(counts, np.ones(15, dtype=np.int64), [0.8, 0.2], seed=0)
    >>> np.bincount(part[:5]).tolist(), np.bincount(part[5:]).tolist()
    ([4, 1], [8, 2])
    """
    if counts.shape[0] != len(sizes) or (sizes < 1).any():
        raise ValueError(f"counts of {counts.shape[0]} units, but {len(sizes)} sizes; each unit has at least an image")
    if not len(shares) or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"shares {list(shares)} are not above 0 and together 1")
    units = len(sizes) - max(0, len(stay) - 1)  # those that stay are one part's, however many
    if min(units, len(shares)) < 2:
        return np.zeros(len(sizes), dtype=np.int64)
    rng = np.random.default_rng(seed)
    order = _similar_together(counts, rng.permutation(len(sizes)))
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
    """The part of each unit so far, and how far the parts are from their shares.

    Columns are the classes and, last, the images, by which units without a label are assigned.
    """

    held: csr_array  # (U, C + 1)
    holders: csc_array  # the same by columns
    sizes: Int[ndarray, "U"]
    part: Int[ndarray, "U"]
    excess: Float[ndarray, "K C1"]  # what a part has beyond what it wants; below 0 what it lacks
    left: Float[ndarray, "C1"]  # what the open units hold

    @classmethod
    def begin(cls, counts: csr_array, sizes: Int[ndarray, "U"], shares: Float[ndarray, "K"]) -> _Assignment:
        from scipy import sparse

        held = sparse.hstack([counts, sparse.csr_array(sizes[:, None])], format="csr").astype(np.float64)
        held.sum_duplicates()  # in one order, however they were stored
        held.eliminate_zeros()
        total = held.sum(axis=0)
        wanted = np.outer(shares / shares.sum(), total)
        return cls(held, held.tocsc(), sizes, np.full(len(sizes), UNASSIGNED), -wanted, total)

    def members_of(self, column: int) -> tuple[Int[ndarray, "H"], Float[ndarray, "H"]]:
        """Return the units with something in a column, and how much."""
        span = slice(self.holders.indptr[column], self.holders.indptr[column + 1])
        return self.holders.indices[span], self.holders.data[span]

    def columns_of(self, unit: int) -> tuple[Int[ndarray, "H"], Float[ndarray, "H"]]:
        """Return the columns in which a unit has something, and how much."""
        span = slice(self.held.indptr[unit], self.held.indptr[unit + 1])
        return self.held.indices[span], self.held.data[span]

    def assign(self, units: Int[ndarray, "B"], parts: Int[ndarray, "B"]) -> None:
        self.part[units] = parts
        held = self.held[units]
        np.add.at(self.excess, (np.repeat(parts, np.diff(held.indptr)), held.indices), held.data)
        np.subtract.at(self.left, held.indices, held.data)

    def move(self, unit: int, part: int) -> None:
        columns, amounts = self.columns_of(unit)
        self.excess[self.part[unit], columns] -= amounts
        self.excess[part, columns] += amounts
        self.part[unit] = part


def _similar_together(counts: csr_array, order: Int[ndarray, "U"]) -> Int[ndarray, "U"]:
    """Return units sorted by the most frequent class, then by the next, so that a class spreads these as well."""
    rank = np.argsort(np.argsort(-counts.sum(axis=0), kind="stable"))
    return order[np.argsort((counts @ 0.5**rank)[order], kind="stable")]


def _assign_all(assignment: _Assignment, rng: np.random.Generator) -> None:
    """Assign column after column, the rarest among unassigned units first, and in it the largest units first."""
    while assignment.left[-1] > 0:
        column = int(np.argmin(np.where(assignment.left > 0, assignment.left, np.inf)))
        units, amounts = assignment.members_of(column)
        still = assignment.part[units] == UNASSIGNED
        units, amounts = units[still], amounts[still]
        for amount in np.unique(amounts)[::-1]:
            alike = units[amounts == amount]
            wants, room = -assignment.excess[:, column] / amount, -assignment.excess[:, -1]
            numbers = _quotas(wants, np.lexsort((rng.random(len(room)), -np.round(room, 6))), len(alike))
            assignment.assign(alike, _interleaved(numbers, rng))


def _interleaved(numbers: Int[ndarray, "K"], rng: np.random.Generator) -> Int[ndarray, "B"]:
    """Return each part as often as its number says, at a random place in each of as many equal intervals."""
    parts = np.repeat(np.arange(len(numbers)), numbers)
    turn = np.arange(len(parts)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    places = (turn + rng.random(len(parts))) / numbers[parts]
    return parts[np.argsort(places)]


def _quotas(wants: Float[ndarray, "K"], first: Int[ndarray, "K"], number: int) -> Int[ndarray, "K"]:
    """Return how many of `number` equal units each part gets if each goes to the part that wants most at that moment.

    All wants sink to one level; of parts that want alike, the one that is earlier in `first` comes first.

    >>> _quotas(np.array([7.5, 2.5, 0.5]), np.array([2, 1, 0]), 8).tolist()
    [6, 2, 0]
    """
    highest = np.sort(wants)[::-1]
    levels = (np.cumsum(highest) - number) / np.arange(1, len(wants) + 1)
    level = levels[highest > levels][-1]
    numbers: Int[ndarray, "K"] = np.maximum(np.floor(wants - level + TOLERANCE), 0).astype(np.int64)
    rest = number - int(numbers.sum())
    most = first[np.argsort(-np.round(wants - numbers, 6)[first], kind="stable")]
    numbers[most[:rest]] += 1
    return numbers


def _refine(assignment: _Assignment, free: Bool[ndarray, "U"]) -> None:
    """Move units if that lessens the sum over parts and columns of excess² / total.

    Up to three passes count the images as one class, the last as much as all classes.
    """
    total = assignment.held.sum(axis=0)
    for importance, passes in ((1, 3), (len(total), 1)):
        weight = 1 / np.maximum(total, 1)
        weight[-1] *= importance
        for _ in range(passes):
            units = _candidates(assignment, weight, free)
            _move_improving(assignment, weight, units)
            if not len(units):
                break


def _candidates(assignment: _Assignment, weight: Float[ndarray, "C1"], free: Bool[ndarray, "U"]) -> Int[ndarray, "B"]:
    pull = np.ascontiguousarray((assignment.held @ (weight * assignment.excess).T).T)  # (K, U), for a fast minimum
    own = pull[assignment.part, np.arange(len(assignment.part))]
    rise = pull.min(axis=0) - own + assignment.held.power(2) @ weight
    gaining = np.flatnonzero(free & (rise < -TOLERANCE))
    return gaining[np.argsort(rise[gaining], kind="stable")[:CANDIDATES]]


def _move_improving(assignment: _Assignment, weight: Float[ndarray, "C1"], units: Int[ndarray, "B"]) -> None:
    for unit in units.tolist():
        columns, amounts = assignment.columns_of(unit)
        pull = assignment.excess[:, columns] @ (weight[columns] * amounts)
        best = int(np.argmin(pull))
        if pull[best] - pull[assignment.part[unit]] + amounts**2 @ weight[columns] < -TOLERANCE:
            assignment.move(unit, best)


def _keep_positives(assignment: _Assignment, keep: int, free: Bool[ndarray, "U"]) -> None:
    """Move the smallest unit of each class that part `keep` lacks into it."""
    has = assignment.held[assignment.part == keep].sum(axis=0)
    for column in np.flatnonzero(has[:-1] == 0).tolist():
        units = assignment.members_of(column)[0]
        units = units[free[units]]
        if has[column] == 0 and len(units):
            unit = int(units[np.argmin(assignment.sizes[units])])
            assignment.move(unit, keep)
            has[assignment.columns_of(unit)[0]] += 1


def _fill_empty_parts(assignment: _Assignment, keep: int | None, free: Bool[ndarray, "U"]) -> None:
    """Give an empty part a small unit of another, if possible one without which `keep` loses no class."""
    for part in range(len(assignment.excess)):
        crowd = np.bincount(assignment.part, minlength=len(assignment.excess))
        donors = np.flatnonzero(free & (crowd[assignment.part] > 1))
        if crowd[part] == 0 and len(donors):
            costs = np.zeros(len(donors)) if keep is None else _loses_a_class(assignment, keep, donors)
            assignment.move(int(donors[np.lexsort((assignment.sizes[donors], costs))[0]]), part)


def _loses_a_class(assignment: _Assignment, keep: int, units: Int[ndarray, "B"]) -> Bool[ndarray, "B"]:
    """Return which units hold all that part `keep` has of some class."""
    inside = assignment.part == keep
    has = assignment.held[inside].sum(axis=0)
    rows = assignment.held[units][:, :-1]
    alone = rows.data == has[rows.indices]
    row = np.repeat(np.arange(len(units)), np.diff(rows.indptr))
    return np.asarray(inside[units] & (np.bincount(row, weights=alone, minlength=len(units)) > 0))
