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
IMAGES = -1  # position of the column with the number of images, after the columns of the classes
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
    units = counts.shape[0]
    if units != len(sizes) or (sizes < 1).any():
        raise ValueError(f"{counted(units, 'unit')}, but {counted(len(sizes), 'size')}; each size must be at least 1")
    if not len(shares) or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"shares={list(shares)} must be positive and add up to 1")
    most_parts = units - max(0, len(stay) - 1)  # the units in `stay` fill only one part
    if min(most_parts, len(shares)) < 2:
        return np.zeros(units, dtype=np.int64)

    # Until the parts are returned, the units are numbered by their positions in `order`.
    rng = np.random.default_rng(seed)
    order = _sort_by_classes(counts, rng.permutation(units))
    assignment = _Assignment.begin(counts[order], sizes[order], np.array(shares[:most_parts]))
    free = np.isin(order, np.array(stay, dtype=np.int64), invert=True)  # whether a unit may leave part 0
    staying = np.flatnonzero(~free)
    assignment.assign(staying, np.zeros(len(staying), dtype=np.int64))

    _assign_all(assignment, rng)
    _refine(assignment, free)
    if keep is not None:
        _keep_positives(assignment, keep, free)
    _fill_empty_parts(assignment, keep, free)

    part_of_unit = np.empty_like(assignment.part)
    part_of_unit[order] = assignment.part
    return part_of_unit


@dataclass(frozen=True, eq=False)
class _Assignment:
    """The part of each of U units so far, and the difference of each of K parts from its target.

    There is a column per class with the number of positives. The last column, `IMAGES`, has the number of images; it
    determines the part of unlabeled units.
    """

    amounts: csr_array  # (U, C + 1), without explicit zeros
    amounts_by_column: csc_array  # the same numbers
    sizes: Int[ndarray, "U"]  # images per unit
    part: Int[ndarray, "U"]  # or `UNASSIGNED`
    excess: Float[ndarray, "K C1"]  # amount minus target of each part
    remaining: Float[ndarray, "C1"]  # total of the unassigned units

    @classmethod
    def begin(cls, counts: csr_array, sizes: Int[ndarray, "U"], shares: Float[ndarray, "K"]) -> _Assignment:
        """Return the state in which no unit is assigned and every part lacks its share of everything."""
        from scipy import sparse

        amounts = sparse.hstack([counts, sparse.csr_array(sizes[:, None])], format="csr").astype(np.float64)
        amounts.sum_duplicates()  # also sorts the indices, so the result does not depend on their order
        amounts.eliminate_zeros()
        total = amounts.sum(axis=0)
        target = np.outer(shares / shares.sum(), total)
        return cls(
            amounts=amounts,
            amounts_by_column=amounts.tocsc(),
            sizes=sizes,
            part=np.full(len(sizes), UNASSIGNED),
            excess=-target,
            remaining=total,
        )

    def members_of(self, column: int) -> tuple[Int[ndarray, "H"], Float[ndarray, "H"]]:
        """Return the units with a nonzero amount in a column, and these amounts."""
        span = slice(self.amounts_by_column.indptr[column], self.amounts_by_column.indptr[column + 1])
        return self.amounts_by_column.indices[span], self.amounts_by_column.data[span]

    def columns_of(self, unit: int) -> tuple[Int[ndarray, "H"], Float[ndarray, "H"]]:
        """Return the columns in which a unit has a nonzero amount, and these amounts."""
        span = slice(self.amounts.indptr[unit], self.amounts.indptr[unit + 1])
        return self.amounts.indices[span], self.amounts.data[span]

    def assign(self, units: Int[ndarray, "B"], parts: Int[ndarray, "B"]) -> None:
        """Assign unassigned units to parts, one part for each unit."""
        self.part[units] = parts
        added = self.amounts[units]  # sparse, with one row per unit
        entries_per_unit = np.diff(added.indptr)
        part_of_entry = np.repeat(parts, entries_per_unit)
        np.add.at(self.excess, (part_of_entry, added.indices), added.data)
        np.subtract.at(self.remaining, added.indices, added.data)

    def move(self, unit: int, part: int) -> None:
        """Move an assigned unit to another part."""
        columns, amounts = self.columns_of(unit)
        self.excess[self.part[unit], columns] -= amounts
        self.excess[part, columns] += amounts
        self.part[unit] = part


def _sort_by_classes(counts: csr_array, order: Int[ndarray, "U"]) -> Int[ndarray, "U"]:
    """Sort units by their most frequent classes, so interleaving a rare class also spreads the frequent ones.

    Equal units keep their order in `order`.
    """
    by_frequency = np.argsort(-counts.sum(axis=0), kind="stable")
    rank = np.argsort(by_frequency)  # of each class; 0 is the most frequent
    # A class outweighs all rarer classes together, like a digit of a binary number.
    key = counts @ 0.5**rank
    return order[np.argsort(key[order], kind="stable")]


def _assign_all(assignment: _Assignment, rng: np.random.Generator) -> None:
    """Assign all units, column by column: first the column with the least left among the units that are not assigned.

    A column is a class, with the number of positives in each unit, or `IMAGES`, with the number of images, which
    unlabeled units have too. In each column, the units with the largest amount come first.
    """
    while assignment.remaining[IMAGES] > 0:
        rarest = int(np.argmin(np.where(assignment.remaining > 0, assignment.remaining, np.inf)))
        members, member_amounts = assignment.members_of(rarest)
        unassigned = assignment.part[members] == UNASSIGNED
        units, amounts = members[unassigned], member_amounts[unassigned]
        for amount in np.unique(amounts)[::-1]:
            batch = units[amounts == amount]
            deficits = -assignment.excess[:, rarest] / amount  # how many such units each part lacks
            quotas = _quotas(deficits, _by_room(assignment, rng), len(batch))
            assignment.assign(batch, _interleave(quotas, rng))


def _by_room(assignment: _Assignment, rng: np.random.Generator) -> Int[ndarray, "K"]:
    """Return the parts by the number of images that they lack, largest first; ties are in random order."""
    room = np.round(-assignment.excess[:, IMAGES], 6)  # rounding errors must not decide a tie
    return np.lexsort((rng.random(len(room)), -room))  # the last key is the first criterion


def _interleave(quotas: Int[ndarray, "K"], rng: np.random.Generator) -> Int[ndarray, "B"]:
    """Return a sequence of part numbers in which part k occurs `quotas[k]` times, evenly spread with random jitter."""
    parts = np.repeat(np.arange(len(quotas)), quotas)
    first_of_part = np.cumsum(quotas) - quotas  # position of each part's first number in `parts`
    turn = np.arange(len(parts)) - np.repeat(first_of_part, quotas)  # 0, 1, 2, … for each part
    positions = (turn + rng.random(len(parts))) / quotas[parts]  # between 0 and 1 for each part
    return parts[np.argsort(positions)]


def _quotas(deficits: Float[ndarray, "K"], priority: Int[ndarray, "K"], count: int) -> Int[ndarray, "K"]:
    """Return how many of `count` equal units each part gets if every unit goes to the part that then lacks the most.

    `deficits` has the number of units that each part lacks. Ties go to the part that comes first in `priority`.

    >>> _quotas(np.array([7.5, 2.5, 0.5]), np.array([2, 1, 0]), 8).tolist()
    [6, 2, 0]
    """
    # If the units could be divided, they would lower the m largest deficits to the same number, the level:
    #     level_m = (sum of the m largest deficits − count) / m
    # The right m is the largest one for which all of these deficits are above the level.
    descending = np.sort(deficits)[::-1]
    levels = (np.cumsum(descending) - count) / np.arange(1, len(deficits) + 1)
    level = levels[descending > levels][-1]
    quotas: Int[ndarray, "K"] = np.maximum(np.floor(deficits - level + TOLERANCE), 0).astype(np.int64)

    # Rounding down leaves less than one unit for each of these parts. They go to the largest remaining deficits.
    rest = count - int(quotas.sum())
    remaining_deficits = np.round(deficits - quotas, 6)  # rounding errors must not decide a tie
    by_deficit = priority[np.argsort(-remaining_deficits[priority], kind="stable")]
    quotas[by_deficit[:rest]] += 1
    return quotas


def _refine(assignment: _Assignment, free: Bool[ndarray, "U"]) -> None:
    """Move units from one part to another if that reduces the imbalance of the parts.

        imbalance = Σ_k Σ_c weight_c · excess_kc²

    where c is a column: a class, or `IMAGES`, the last column; and excess_kc is the number of positives of the class,
    or of images, by which part k exceeds its target (negative if it has too few). `free` marks the units that may move.

    The weight of a class is 1 / its number of positives. In the first passes, all images together count as much as one
    class, so the classes become balanced. In the last pass, they count as much as all columns together, which corrects
    the sizes of the parts.
    """
    total = assignment.amounts.sum(axis=0)
    columns = len(total)
    for importance_of_images, most_passes in ((1, 3), (columns, 1)):
        weight = 1 / np.maximum(total, 1)
        weight[IMAGES] *= importance_of_images
        for _ in range(most_passes):
            units = _promising_units(assignment, weight, free)
            if not len(units):
                break
            _move_improving(assignment, weight, units)


def _promising_units(
    assignment: _Assignment, weight: Float[ndarray, "C1"], free: Bool[ndarray, "U"]
) -> Int[ndarray, "B"]:
    """Return up to `CANDIDATES` free units whose move to another part reduces the imbalance, largest reduction first.

    The imbalance is Σ_k Σ_c weight_c · excess_kc², where excess_kc is how far part k is above its target in column c (a
    class, or the number of images). If a unit with the amounts a_c moves from part p to part q, half of the change is

        cost_q − cost_p + Σ_c weight_c · a_c²,   cost_k = Σ_c weight_c · a_c · excess_kc

    so the best part is the one with the lowest cost.
    """
    weighted_excess = weight * assignment.excess
    cost = np.ascontiguousarray((assignment.amounts @ weighted_excess.T).T)  # (K, U), contiguous for a fast minimum
    current_cost = cost[assignment.part, np.arange(len(assignment.part))]
    half_change = cost.min(axis=0) - current_cost + assignment.amounts.power(2) @ weight
    improving = np.flatnonzero(free & (half_change < -TOLERANCE))
    by_reduction = np.argsort(half_change[improving], kind="stable")
    return improving[by_reduction[:CANDIDATES]]


def _move_improving(assignment: _Assignment, weight: Float[ndarray, "C1"], units: Int[ndarray, "B"]) -> None:
    """Move each of the units to its best part if that still reduces the imbalance when its turn comes.

    The imbalance is Σ_k Σ_c weight_c · excess_kc², where excess_kc is how far part k is above its target in column c (a
    class, or the number of images). If a unit with the amounts a_c moves from part p to part q, half of the change is

        cost_q − cost_p + Σ_c weight_c · a_c²,   cost_k = Σ_c weight_c · a_c · excess_kc

    so the best part is the one with the lowest cost.
    """
    for unit in units.tolist():
        columns, amounts = assignment.columns_of(unit)  # only the columns with a nonzero amount
        cost = assignment.excess[:, columns] @ (weight[columns] * amounts)  # (K,)
        best = int(np.argmin(cost))
        current = assignment.part[unit]
        half_change = cost[best] - cost[current] + amounts**2 @ weight[columns]
        if half_change < -TOLERANCE:
            assignment.move(unit, best)


def _keep_positives(assignment: _Assignment, keep: int, free: Bool[ndarray, "U"]) -> None:
    """For each class without a positive in part `keep`, move the smallest free unit with a positive into it.

    `free` marks the units that may move. There is no move for a class if no free unit has a positive.
    """
    in_part = assignment.amounts[assignment.part == keep].sum(axis=0)
    positives_in_part = in_part[:IMAGES]  # without the last column, which counts the images
    for column in np.flatnonzero(positives_in_part == 0).tolist():
        if positives_in_part[column] != 0:  # a unit that was moved for an earlier class has this class too
            continue
        members, _ = assignment.members_of(column)
        movable = members[free[members]]
        if not len(movable):
            continue
        smallest = int(movable[np.argmin(assignment.sizes[movable])])
        assignment.move(smallest, keep)
        columns, _ = assignment.columns_of(smallest)
        in_part[columns] += 1  # any number above 0; `positives_in_part` is a view of it


def _fill_empty_parts(assignment: _Assignment, keep: int | None, free: Bool[ndarray, "U"]) -> None:
    """Move a small free unit into each empty part, preferably without removing a class from part `keep`.

    No other part becomes empty by that.
    """
    parts = len(assignment.excess)
    for part in range(parts):
        units_per_part = np.bincount(assignment.part, minlength=parts)
        if units_per_part[part] > 0:
            continue
        movable = np.flatnonzero(free & (units_per_part[assignment.part] > 1))
        if not len(movable):
            continue
        removes_class = np.zeros(len(movable), dtype=np.bool_)
        if keep is not None:
            removes_class = _removes_class(assignment, keep, movable)
        by_preference = np.lexsort((assignment.sizes[movable], removes_class))  # the last key is the first criterion
        assignment.move(int(movable[by_preference[0]]), part)


def _removes_class(assignment: _Assignment, keep: int, units: Int[ndarray, "B"]) -> Bool[ndarray, "B"]:
    """Return for each unit whether it is the only one in part `keep` with positives of some class."""
    is_inside = assignment.part == keep
    total_inside = assignment.amounts[is_inside].sum(axis=0)
    # A sparse matrix with one row per unit, without the last column, which counts the images. The arrays below have an
    # element for each of its entries, so for each class that a unit has.
    positives = assignment.amounts[units][:, :IMAGES]
    unit_has_all = positives.data == total_inside[positives.indices]
    entries_per_unit = np.diff(positives.indptr)
    unit_of_entry = np.repeat(np.arange(len(units)), entries_per_unit)
    classes_it_has_alone = np.bincount(unit_of_entry, weights=unit_has_all, minlength=len(units))
    return np.asarray(is_inside[units] & (classes_it_has_alone > 0))
