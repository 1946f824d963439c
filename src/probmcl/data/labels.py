"""The state of every class in every image, stored sparsely: only entries that differ from a class's usual state."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from numpy import ndarray

from probmcl.data.hierarchy import from_the_top

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ROWS_AT_ONCE = 4096  # images whose states are dense at the same time
LabelsAndKnown = tuple[Float[ndarray, "K C"], Bool[ndarray, "K C"]]


class State(IntEnum):
    """The state of a class in an image; an uncertain one counts as unknown unless its chance is given."""

    ABSENT = 0
    PRESENT = 1
    UNKNOWN = 2
    UNCERTAIN = 3


@dataclass(frozen=True, eq=False)
class LabelStates:
    """The states of C classes in N images, as sparse rows.

    `chance` is the probability that an uncertain label is present: NaN for unknown, 0 for absent, 1 for present; in
    between it is drawn whenever an image is trained on, and unknown in evaluation.

    >>> states = LabelStates.from_states(np.array([[1, 0, 0], [0, 0, 3], [0, 2, 0]], dtype=np.uint8))
    >>> labels, known = states.labels_and_known()
    >>> labels.tolist(), known[1].tolist()
    ([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [True, True, False])
    """

    usual: UInt8[ndarray, "C"]  # the state in images without an entry for the class
    starts: Int[ndarray, "N1"]  # the index of each image's first entry, and the number of entries
    classes: Int[ndarray, "E"]  # ascending within an image
    states: UInt8[ndarray, "E"]
    chance: Float[ndarray, "C"]

    def __post_init__(self) -> None:
        if self.chance.shape != self.usual.shape or self.classes.shape != self.states.shape:
            raise ValueError("a chance for every class and a state for every entry are needed")
        if len(self.starts) < 1 or self.starts[-1] != len(self.classes):
            raise ValueError(f"the last image's entries end at {self.starts[-1:]}, of {len(self.classes)}")
        wrong = (self.chance < 0) | (self.chance > 1)
        if wrong.any():
            raise ValueError(f"chance {self.chance[wrong][0]}: give a number from 0 to 1, or NaN for not known")

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of images and classes."""
        return len(self), len(self.usual)

    @classmethod
    def from_entries(
        cls,
        rows: Int[ndarray, "E"],
        classes: Int[ndarray, "E"],
        states: UInt8[ndarray, "E"],
        shape: tuple[int, int],
        *,
        usual: UInt8[ndarray, "C"] | None = None,
        chance: Float[ndarray, "C"] | None = None,
    ) -> LabelStates:
        """Build from entries in any order; a repeated entry counts once, a contradicting one is an error."""
        order = np.lexsort((classes, rows))
        rows, classes, states = rows[order], classes[order], states[order]
        again = (np.diff(rows, prepend=-1) == 0) & (np.diff(classes, prepend=-1) == 0)
        if (again & (np.diff(states.astype(np.int16), prepend=-1) != 0)).any():
            raise ValueError("a class has two states in one image; give one")
        rows, classes, states = rows[~again], classes[~again].astype(np.int32), states[~again]
        starts = np.concatenate([[0], np.bincount(rows, minlength=shape[0]).cumsum()])
        usual = np.full(shape[1], State.ABSENT, dtype=np.uint8) if usual is None else usual
        chance = np.full(shape[1], np.nan, dtype=np.float32) if chance is None else chance
        return cls(usual, starts, classes, states, chance)

    @classmethod
    def from_states(
        cls,
        states: UInt8[ndarray, "N C"],
        *,
        usual: UInt8[ndarray, "C"] | None = None,
        chance: Float[ndarray, "C"] | None = None,
    ) -> LabelStates:
        """Build from a matrix; the usual state of a class is by default its most frequent one."""
        if usual is None:
            usual = np.stack([(states == state).sum(axis=0) for state in State]).argmax(axis=0).astype(np.uint8)
        rows, classes = np.nonzero(states != usual)
        return cls.from_entries(rows, classes, states[rows, classes], states.shape, usual=usual, chance=chance)

    @classmethod
    def from_labels(cls, labels: Float[ndarray, "N C"], known: Bool[ndarray, "N C"] | None = None) -> LabelStates:
        """Build from labels 0 and 1 and the mask of known labels."""
        states = np.where(labels > 0, np.uint8(State.PRESENT), np.uint8(State.ABSENT))
        if known is not None:
            states[~known] = State.UNKNOWN
        return cls.from_states(states)

    @classmethod
    def joined(cls, parts: Sequence[LabelStates]) -> LabelStates:
        """Concatenate the images of several, which have the same classes and chances."""
        usual = parts[0].usual
        if all((part.usual == usual).all() for part in parts):
            starts = np.concatenate([[0], *(np.diff(part.starts) for part in parts)]).cumsum()
            classes, states = [part.classes for part in parts], [part.states for part in parts]
            return cls(usual, starts, np.concatenate(classes), np.concatenate(states), parts[0].chance)
        return cls.from_states(np.concatenate([part.dense() for part in parts]), chance=parts[0].chance)

    def take(self, rows: Int[ndarray, "K"]) -> LabelStates:
        """Return some images, in the given order."""
        entries, starts = self._entries(rows)
        return replace(self, starts=starts, classes=self.classes[entries], states=self.states[entries])

    def of_classes(self, classes: Int[ndarray, "K"]) -> LabelStates:
        """Return some classes, in the given order."""
        index = np.full(len(self.usual), -1)
        index[classes] = np.arange(len(classes))
        columns = index[self.classes]
        kept, shape = columns >= 0, (len(self), len(classes))
        rows = np.repeat(np.arange(len(self)), np.diff(self.starts))[kept]
        usual, chance = self.usual[classes], self.chance[classes]
        return LabelStates.from_entries(rows, columns[kept], self.states[kept], shape, usual=usual, chance=chance)

    def dense(self, rows: Int[ndarray, "K"] | None = None) -> UInt8[ndarray, "K C"]:
        """Return the states of some images, by default all, as a matrix."""
        rows = np.arange(len(self)) if rows is None else rows
        entries, starts = self._entries(rows)
        states = np.tile(self.usual, (len(rows), 1))
        states[np.repeat(np.arange(len(rows)), np.diff(starts)), self.classes[entries]] = self.states[entries]
        return states

    def labels_and_known(self, rows: Int[ndarray, "K"] | None = None) -> LabelsAndKnown:
        """Return labels 0 and 1 of some images, and which of them are known, for evaluation."""
        labels, known = self.targets_and_known(rows)
        soft = (labels > 0) & (labels < 1)
        labels[soft], known[soft] = 0.0, False
        return labels, known

    def targets_and_known(self, rows: Int[ndarray, "K"] | None = None) -> LabelsAndKnown:
        """Return the same for training: the target of an uncertain label with a chance is that chance, and is known."""
        states = self.dense(rows)
        uncertain = (states == State.UNCERTAIN) & ~np.isnan(self.chance)
        labels = (states == State.PRESENT).astype(np.float32)
        np.copyto(labels, np.broadcast_to(self.chance, labels.shape), where=uncertain)
        return labels, (states <= State.PRESENT) | uncertain

    def present(self) -> csr_array:
        """Return a sparse matrix that is True for labels known to be present."""
        from scipy.sparse import csr_array

        certain = self.chance == 1
        if ((self.usual == State.PRESENT) | ((self.usual == State.UNCERTAIN) & certain)).any():
            labels, known = self.labels_and_known()
            return csr_array((labels > 0) & known)
        kept = (self.states == State.PRESENT) | ((self.states == State.UNCERTAIN) & certain[self.classes])
        rows = np.repeat(np.arange(len(self)), np.diff(self.starts))[kept]
        return csr_array((np.ones(len(rows), dtype=bool), (rows, self.classes[kept])), shape=self.shape)

    def counts(self) -> Int[ndarray, "4 C"]:
        """Return how many images have each state, before any chance is applied."""
        images, classes = self.shape
        counts = np.stack([np.bincount(self.classes[self.states == state], minlength=classes) for state in State])
        counts[self.usual, np.arange(classes)] += images - counts.sum(axis=0)
        return counts

    def settled_counts(self) -> Int[ndarray, "4 C"]:
        """Return the same with a chance of 1 counted as present and a chance of 0 as absent."""
        counts = self.counts()
        for state, chance in ((State.PRESENT, 1), (State.ABSENT, 0)):
            settled = np.where(self.chance == chance, counts[State.UNCERTAIN], 0)
            counts[state] += settled
            counts[State.UNCERTAIN] -= settled
        return counts

    def known_share(self) -> float:
        """Return the share of labels that are known in evaluation."""
        counts = self.settled_counts()
        return float(counts[: State.UNKNOWN].sum() / max(counts.sum(), 1))

    def any_known(self) -> Bool[ndarray, "N"]:
        """Return whether any label of each image is known."""
        known = [self.labels_and_known(rows)[1].any(axis=1) for rows in self._blocks()]
        return np.concatenate([np.zeros(0, dtype=bool), *known])

    def digest(self) -> bytes:
        """Return a digest of states and chances that does not depend on how they are stored."""
        digest = hashlib.sha256(self.chance.astype("<f4").tobytes())
        for rows in self._blocks():
            digest.update(self.dense(rows).tobytes())
        return digest.digest()

    def with_parents(self, parents: Int[ndarray, "C"]) -> LabelStates:
        """Return the states that a hierarchy implies.

        A present label makes its parents present; unknown and uncertain children of absent parents become absent.
        """
        pairs = from_the_top(parents)
        if not pairs or not len(self):
            return self
        parts = []
        for states in map(self.dense, self._blocks()):
            present, _ = self._settled(states)
            for child, parent in reversed(pairs):
                states[present[:, child] & ~present[:, parent], parent] = State.PRESENT
                present[:, parent] |= present[:, child]
            _, absent = self._settled(states)
            for child, parent in pairs:
                states[absent[:, parent] & ~present[:, child] & ~absent[:, child], child] = State.ABSENT
                absent[:, child] |= absent[:, parent] & ~present[:, child]
            parts.append(LabelStates.from_states(states, usual=self.usual, chance=self.chance))
        return LabelStates.joined(parts)

    def contradicted(self, parents: Int[ndarray, "C"]) -> Int[ndarray, "K"]:
        """Return the rows in which a child is present and its parent absent."""
        pairs = from_the_top(parents)
        wrong = [np.zeros(0, dtype=np.int64)]
        for rows in self._blocks() if pairs else ():
            present, absent = self._settled(self.dense(rows))
            wrong.append(rows[np.any([present[:, child] & absent[:, parent] for child, parent in pairs], axis=0)])
        return np.concatenate(wrong)

    def _settled(self, states: UInt8[ndarray, "K C"]) -> tuple[Bool[ndarray, "K C"], Bool[ndarray, "K C"]]:
        """Return what is present and what is absent, including uncertain labels with a chance of 1 or 0."""
        uncertain = states == State.UNCERTAIN
        present = (states == State.PRESENT) | (uncertain & (self.chance == 1))
        return present, (states == State.ABSENT) | (uncertain & (self.chance == 0))

    def _blocks(self) -> Iterator[Int[ndarray, "K"]]:
        starts = range(0, len(self), ROWS_AT_ONCE)
        return (np.arange(start, min(start + ROWS_AT_ONCE, len(self))) for start in starts)

    def _entries(self, rows: Int[ndarray, "K"]) -> tuple[Int[ndarray, "F"], Int[ndarray, "K1"]]:
        """Return the entries of some images, and the index of each image's first one."""
        lengths = self.starts[rows + 1] - self.starts[rows]
        starts = np.concatenate([[0], lengths.cumsum()])
        return np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], lengths), starts


def drawn(targets: Float[ndarray, "*shape"], *seed: int) -> Float[ndarray, "*shape"]:
    """Return targets in which values between 0 and 1 are drawn: 1 with that chance, else 0.

    The expectation of a loss that is linear in the label is then that of a soft target (docs/decisions/0007).

    >>> drawn(np.array([0.0, 1.0, 0.5]), 3).tolist()
    [0.0, 1.0, 0.0]
    """
    soft = (targets > 0) & (targets < 1)
    if not soft.any():
        return targets
    lots = np.random.default_rng(seed).random(targets.shape)
    return np.where(soft, lots < targets, targets).astype(targets.dtype)
