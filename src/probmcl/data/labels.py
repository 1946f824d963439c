"""Label states, stored sparsely, and class hierarchies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from numpy import ndarray

from probmcl.runtime.tensor_files import content_digest
from probmcl.store.run_metadata import refuse_cycles

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ROWS_AT_ONCE = 4096  # rows per dense block, which bounds memory
LabelsAndKnown = tuple[Float[ndarray, "K C"], Bool[ndarray, "K C"]]


def parents_of(names: Sequence[str], hierarchy: Mapping[str, str] | None) -> Int[ndarray, "C"]:
    """Return the parent index of each class, or −1 if it has no parent among the classes.

    >>> parents_of(["E", "E.M", "C"], {"E.M": "E"}).tolist()
    [-1, 0, -1]
    """
    parent_names = hierarchy or {}
    refuse_cycles(names, parent_names)
    index = {name: k for k, name in enumerate(names)}
    return np.array([index.get(parent_names.get(name, ""), -1) for name in names], dtype=np.int64)


def levels_of(parents: Int[ndarray, "C"]) -> Int[ndarray, "C"]:
    """Return the level of each class: 1 for a root, otherwise one more than the level of its parent.

    >>> levels_of(np.array([-1, 0, 1, -1])).tolist()
    [1, 2, 3, 1]
    """
    # The level of a class is the number of classes on the path from the class up to its root, both included.
    on_path = np.ones(len(parents), dtype=np.int64)  # how many of them are counted so far: the class itself
    next_on_path = parents  # the first class on the path that is not counted yet; −1 if the whole path is counted
    while (next_on_path >= 0).any():
        is_unfinished = next_on_path >= 0
        # The next class has counted a part of its own path. This part continues the path of the class, so it is added
        # as a whole. The counted parts double each time: even a deep hierarchy takes only a few rounds.
        on_path += np.where(is_unfinished, on_path[next_on_path], 0)
        next_on_path = np.where(is_unfinished, next_on_path[next_on_path], -1)
    return on_path


def child_parent_pairs(parents: Int[ndarray, "C"]) -> list[tuple[int, int]]:
    """Return all pairs (child, parent), ordered from the roots to the leaves.

    >>> child_parent_pairs(np.array([1, -1, 0]))
    [(0, 1), (2, 0)]
    """
    from_the_roots = np.argsort(levels_of(parents), kind="stable")
    return [(child, int(parents[child])) for child in from_the_roots.tolist() if parents[child] >= 0]


def cap_at_parents(scores: Float[ndarray, "N C"], parents: Int[ndarray, "C"]) -> Float[ndarray, "N C"]:
    """Cap the score of each class at the lowest score among its ancestors.

    >>> cap_at_parents(np.array([[0.3, 0.9, 0.5]]), np.array([-1, 0, -1])).tolist()
    [[0.3, 0.3, 0.5]]
    """
    capped = scores.copy()
    for child, parent in child_parent_pairs(parents):
        np.minimum(capped[:, child], capped[:, parent], out=capped[:, child])
    return capped


class State(IntEnum):
    """The state of a class in an image. Uncertain labels are treated as unknown unless their class has a `chance`."""

    ABSENT = 0
    PRESENT = 1
    UNKNOWN = 2
    UNCERTAIN = 3


@dataclass(frozen=True, eq=False)
class LabelStates:
    """The states of C classes in N images, stored as sparse rows of the entries that differ from a default.

    `chance` is the probability that an uncertain label of a class is present (NaN: unknown). If it is between 0 and 1,
    the label is sampled each time the image is used in training, and is unknown in evaluation.

    >>> states = LabelStates.from_states(np.array([[1, 0, 0], [0, 0, 3], [0, 2, 0]], dtype=np.uint8))
    >>> labels, known = states.labels_and_known()
    >>> labels.tolist(), known[1].tolist()
    ([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [True, True, False])
    """

    default: UInt8[ndarray, "C"]  # state of a class in images without an entry for it
    starts: Int[ndarray, "N1"]  # index of the first entry of each image, then the number of entries
    classes: Int[ndarray, "E"]  # ascending within an image
    states: UInt8[ndarray, "E"]
    chance: Float[ndarray, "C"]

    def __post_init__(self) -> None:
        fits = self.chance.shape == self.default.shape and self.classes.shape == self.states.shape
        if not fits:
            raise ValueError("`chance` needs a value for every class, and `states` one for every entry")
        if len(self.starts) < 1 or self.starts[-1] != len(self.classes):
            raise ValueError(f"`starts` ends with {self.starts[-1:]}, but the number of entries is {len(self.classes)}")
        wrong = (self.chance < 0) | (self.chance > 1)
        if wrong.any():
            raise ValueError(f"chance {self.chance[wrong][0]} must be between 0 and 1, or NaN for unknown")

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """The number of images and the number of classes."""
        return len(self), len(self.default)

    @classmethod
    def from_entries(
        cls,
        rows: Int[ndarray, "E"],
        classes: Int[ndarray, "E"],
        states: UInt8[ndarray, "E"],
        shape: tuple[int, int],
        *,
        default: UInt8[ndarray, "C"] | None = None,
        chance: Float[ndarray, "C"] | None = None,
    ) -> LabelStates:
        """Build the states from entries in any order. Equal duplicates are merged; conflicting ones are an error."""
        n_images, n_classes = shape
        if default is None:
            default = np.full(n_classes, State.ABSENT, dtype=np.uint8)
        if chance is None:
            chance = np.full(n_classes, np.nan, dtype=np.float32)

        order = np.lexsort((classes, rows))  # by row, then by class
        rows, classes, states = rows[order], classes[order], states[order]
        # Compare each entry with the one before. The first one differs from −1 in everything.
        same_label = (np.diff(rows, prepend=-1) == 0) & (np.diff(classes, prepend=-1) == 0)
        other_state = np.diff(states.astype(np.int16), prepend=-1) != 0
        if (same_label & other_state).any():
            raise ValueError("a class has two different states in one image")
        is_kept = ~same_label
        entries_per_image = np.bincount(rows[is_kept], minlength=n_images)
        starts = np.concatenate([[0], entries_per_image.cumsum()])
        return cls(default, starts, classes[is_kept].astype(np.int32), states[is_kept], chance)

    @classmethod
    def from_states(
        cls,
        states: UInt8[ndarray, "N C"],
        *,
        default: UInt8[ndarray, "C"] | None = None,
        chance: Float[ndarray, "C"] | None = None,
    ) -> LabelStates:
        """Build the states from a matrix. Unless given, the default state of a class is its most frequent state."""
        if default is None:
            images_per_state = np.stack([(states == state).sum(axis=0) for state in State])  # (4, C)
            default = images_per_state.argmax(axis=0).astype(np.uint8)
        rows, classes = np.nonzero(states != default)
        return cls.from_entries(rows, classes, states[rows, classes], states.shape, default=default, chance=chance)

    @classmethod
    def from_labels(cls, labels: Float[ndarray, "N C"], known: Bool[ndarray, "N C"] | None = None) -> LabelStates:
        """Build the states from binary labels and a mask of known labels (default: all known)."""
        states = np.where(labels > 0, np.uint8(State.PRESENT), np.uint8(State.ABSENT))
        if known is not None:
            states[~known] = State.UNKNOWN
        return cls.from_states(states)

    @classmethod
    def concatenate(cls, parts: Sequence[LabelStates]) -> LabelStates:
        """Concatenate the images of several objects that have the same classes and the same `chance`."""
        default, chance = parts[0].default, parts[0].chance
        same_default = all((part.default == default).all() for part in parts)
        if not same_default:  # their entries have different meanings
            return cls.from_states(np.concatenate([part.dense() for part in parts]), chance=chance)
        entries_per_image = [np.diff(part.starts) for part in parts]
        starts = np.concatenate([[0], *entries_per_image]).cumsum()
        classes = np.concatenate([part.classes for part in parts])
        states = np.concatenate([part.states for part in parts])
        return cls(default, starts, classes, states, chance)

    def take(self, rows: Int[ndarray, "K"]) -> LabelStates:
        """Return the given rows in the given order."""
        entries, starts = self._entries(rows)
        return replace(self, starts=starts, classes=self.classes[entries], states=self.states[entries])

    def select_classes(self, classes: Int[ndarray, "K"]) -> LabelStates:
        """Return the given classes in the given order."""
        new_index = np.full(len(self.default), -1)  # of each old class; −1: not selected
        new_index[classes] = np.arange(len(classes))
        new_classes = new_index[self.classes]  # of each entry
        kept = new_classes >= 0
        return LabelStates.from_entries(
            self._row_of_entry()[kept],
            new_classes[kept],
            self.states[kept],
            (len(self), len(classes)),
            default=self.default[classes],
            chance=self.chance[classes],
        )

    def dense(self, rows: Int[ndarray, "K"] | None = None) -> UInt8[ndarray, "K C"]:
        """Return the states of the given rows (default: all) as a matrix."""
        if rows is None:
            rows = np.arange(len(self))
        entries, starts = self._entries(rows)
        row_of_entry = np.repeat(np.arange(len(rows)), np.diff(starts))
        states = np.tile(self.default, (len(rows), 1))
        states[row_of_entry, self.classes[entries]] = self.states[entries]
        return states

    def labels_and_known(self, rows: Int[ndarray, "K"] | None = None) -> LabelsAndKnown:
        """Return binary labels of the given rows (default: all) and the mask of known labels, for evaluation."""
        labels, known = self.targets_and_known(rows)
        soft = (labels > 0) & (labels < 1)
        labels[soft] = 0.0
        known[soft] = False
        return labels, known

    def targets_and_known(self, rows: Int[ndarray, "K"] | None = None) -> LabelsAndKnown:
        """Return training targets and the mask of known labels. The target of an uncertain label is its `chance`."""
        states = self.dense(rows)
        has_chance = (states == State.UNCERTAIN) & ~np.isnan(self.chance)
        labels = (states == State.PRESENT).astype(np.float32)
        np.copyto(labels, np.broadcast_to(self.chance, labels.shape), where=has_chance)
        is_certain = states <= State.PRESENT  # absent or present
        return labels, is_certain | has_chance

    def present(self) -> csr_array:
        """Return a sparse Boolean matrix of the labels that are known to be present."""
        from scipy.sparse import csr_array

        sure = self.chance == 1  # an uncertain label of such a class counts as present
        present_by_default = (self.default == State.PRESENT) | ((self.default == State.UNCERTAIN) & sure)
        if present_by_default.any():
            labels, known = self.labels_and_known()
            return csr_array((labels > 0) & known)
        is_present = (self.states == State.PRESENT) | ((self.states == State.UNCERTAIN) & sure[self.classes])
        rows, classes = self._row_of_entry()[is_present], self.classes[is_present]
        return csr_array((np.ones(len(rows), dtype=bool), (rows, classes)), shape=self.shape)

    def counts(self) -> Int[ndarray, "4 C"]:
        """Return the number of images per state and class, before `chance` is applied."""
        images, classes = self.shape
        entries = [np.bincount(self.classes[self.states == state], minlength=classes) for state in State]
        counts = np.stack(entries)
        # An image without an entry for a class has the default state of the class.
        without_entry = images - counts.sum(axis=0)
        counts[self.default, np.arange(classes)] += without_entry
        return counts

    def settled_counts(self) -> Int[ndarray, "4 C"]:
        """Return the counts, with uncertain labels counted as present if `chance` is 1 and as absent if it is 0."""
        counts = self.counts()
        for state, chance in ((State.PRESENT, 1), (State.ABSENT, 0)):
            settled = np.where(self.chance == chance, counts[State.UNCERTAIN], 0)
            counts[state] += settled
            counts[State.UNCERTAIN] -= settled
        return counts

    def known_share(self) -> float:
        """Return the share of labels that evaluation treats as known."""
        counts = self.settled_counts()
        known = counts[[State.ABSENT, State.PRESENT]].sum()
        return float(known / max(counts.sum(), 1))

    def any_known(self) -> Bool[ndarray, "N"]:
        """Return, for each image, whether any of its labels is known."""
        any_known = [np.zeros(0, dtype=bool)]  # there may be no block
        for rows in self._blocks():
            _, known = self.labels_and_known(rows)
            any_known.append(np.any(known, axis=1))
        return np.concatenate(any_known)

    def digest(self) -> bytes:
        """Return a hash of the states and of `chance` that does not depend on the default states."""
        chance = self.chance.astype("<f4").tobytes()
        states = (self.dense(rows).tobytes() for rows in self._blocks())
        return content_digest(chain([chance], states))

    def with_parents(self, parents: Int[ndarray, "C"]) -> LabelStates:
        """Return the states after applying a hierarchy.

        A present class makes its ancestors present. An absent class makes its unknown and uncertain children absent.
        """
        pairs = child_parent_pairs(parents)
        if not pairs or not len(self):
            return self
        parts = []
        for rows in self._blocks():
            states = self.dense(rows)
            self._make_ancestors_present(states, pairs)
            self._make_children_absent(states, pairs)
            parts.append(LabelStates.from_states(states, default=self.default, chance=self.chance))
        return LabelStates.concatenate(parts)

    def _make_ancestors_present(self, states: UInt8[ndarray, "K C"], pairs: list[tuple[int, int]]) -> None:
        """Make every ancestor of a present class present, in place; the (child, parent) pairs start at the roots."""
        present, _ = self._settled(states)
        for child, parent in reversed(pairs):  # from the leaves, so that each parent is decided before its own parent
            becomes_present = present[:, child] & ~present[:, parent]
            states[becomes_present, parent] = State.PRESENT
            present[:, parent] |= becomes_present

    def _make_children_absent(self, states: UInt8[ndarray, "K C"], pairs: list[tuple[int, int]]) -> None:
        """Make the unknown and uncertain children of an absent class absent, in place; the pairs start at the roots."""
        present, absent = self._settled(states)
        for child, parent in pairs:
            becomes_absent = absent[:, parent] & ~present[:, child] & ~absent[:, child]
            states[becomes_absent, child] = State.ABSENT
            absent[:, child] |= becomes_absent

    def contradicted(self, parents: Int[ndarray, "C"]) -> Int[ndarray, "K"]:
        """Return the rows in which a class is present and its parent is absent."""
        pairs = child_parent_pairs(parents)
        wrong = [np.zeros(0, dtype=np.int64)]  # there may be no block
        if not pairs:
            return wrong[0]
        for rows in self._blocks():
            present, absent = self._settled(self.dense(rows))
            contradictions = [present[:, child] & absent[:, parent] for child, parent in pairs]
            is_wrong = np.any(contradictions, axis=0)
            wrong.append(rows[is_wrong])
        return np.concatenate(wrong)

    def _settled(self, states: UInt8[ndarray, "K C"]) -> tuple[Bool[ndarray, "K C"], Bool[ndarray, "K C"]]:
        """Return the masks of present and absent labels, including uncertain labels whose `chance` is 1 or 0."""
        uncertain = states == State.UNCERTAIN
        present = (states == State.PRESENT) | (uncertain & (self.chance == 1))
        absent = (states == State.ABSENT) | (uncertain & (self.chance == 0))
        return present, absent

    def _blocks(self) -> Iterator[Int[ndarray, "K"]]:
        """Yield the rows of each block of `ROWS_AT_ONCE` images."""
        for start in range(0, len(self), ROWS_AT_ONCE):
            yield np.arange(start, min(start + ROWS_AT_ONCE, len(self)))

    def _row_of_entry(self) -> Int[ndarray, "E"]:
        """Return the row of each stored entry."""
        entries_per_row = np.diff(self.starts)
        return np.repeat(np.arange(len(self)), entries_per_row)

    def _entries(self, rows: Int[ndarray, "K"]) -> tuple[Int[ndarray, "F"], Int[ndarray, "K1"]]:
        """Return the indices of the entries of the given rows, one row after the other, and where each row starts.

        The second array has the position of each row's first entry in the first array, then its length, like `starts`.
        """
        first_entry = self.starts[rows]
        entries_per_row = self.starts[rows + 1] - first_entry
        starts = np.concatenate([[0], entries_per_row.cumsum()])
        # The entries of a row are adjacent, here and in the result. So for all entries of a row, the index here and the
        # position in the result differ by the same number.
        position = np.arange(starts[-1])
        index_minus_position = np.repeat(first_entry - starts[:-1], entries_per_row)
        return position + index_minus_position, starts


def sample_labels(targets: Float[ndarray, "*shape"], *seed: int) -> Float[ndarray, "*shape"]:
    """Replace each soft target p by a random label: 1 with probability p, otherwise 0.

    For a loss that is linear in the label, the expected loss equals the loss of the soft target (docs/decisions/0007).

    >>> sample_labels(np.array([0.0, 1.0, 0.5]), 3).tolist()
    [0.0, 1.0, 0.0]
    """
    soft = (targets > 0) & (targets < 1)
    if not soft.any():
        return targets
    samples = np.random.default_rng(seed).random(targets.shape)
    return np.where(soft, samples < targets, targets).astype(targets.dtype)
