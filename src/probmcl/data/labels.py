"""What is said of every class in every image, in four states, and held where it differs from what is usual.

A million images with ten thousand classes are ten thousand million states; what is said of them is a few millions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from numpy import ndarray

from probmcl.data.hierarchy import from_the_top

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ROWS_AT_ONCE = 4096
"""Images that are laid out densely at once where a rule looks at whole rows."""


class State(IntEnum):
    """What is said of a class in an image."""

    ABSENT = 0
    PRESENT = 1
    UNKNOWN = 2
    UNCERTAIN = 3
    """Somebody looked and could not say. Counts as unknown unless a chance is given."""


@dataclass(frozen=True, eq=False)
class LabelStates:
    """The states of C classes in N images, in rows that name only what is not usual.

    Attributes:
        usual: the state of each class in an image that says nothing else of it.
        starts: where each image's entries begin among all, and where the last ones end.
        classes: the class of each entry, ascending within an image.
        states: its state.
        chance: how likely an uncertain label is present: NaN for not known at all, 0 for absent, 1 for present; in
            between it is drawn whenever an image is trained on, and not known wherever images are judged.

    >>> states = LabelStates.from_states(np.array([[1, 0, 0], [0, 0, 3], [0, 2, 0]], dtype=np.uint8))
    >>> labels, known = states.labels_and_known()
    >>> labels.tolist(), known[1].tolist()
    ([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [True, True, False])
    """

    usual: UInt8[ndarray, "C"]
    starts: Int[ndarray, "N1"]
    classes: Int[ndarray, "E"]
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
        """Images and classes."""
        return len(self), len(self.usual)

    @property
    def nbytes(self) -> int:
        """Memory that is held."""
        return sum(array.nbytes for array in (self.usual, self.starts, self.classes, self.states, self.chance))

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
        """Entries in any order; one that is said twice counts once, and one that is said in two ways is an error."""
        order = np.lexsort((classes, rows))
        rows, classes, states = rows[order], classes[order], states[order]
        again = (np.diff(rows, prepend=-1) == 0) & (np.diff(classes, prepend=-1) == 0)
        if (again & (np.diff(states.astype(np.int16), prepend=-1) != 0)).any():
            raise ValueError("a class is said to be in two states in one image; say one")
        rows, classes, states = rows[~again], classes[~again].astype(np.int32), states[~again]
        starts = np.zeros(shape[0] + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=shape[0]), out=starts[1:])
        usual = np.full(shape[1], State.ABSENT, dtype=np.uint8) if usual is None else usual
        return cls(usual, starts, classes, states, _no_chance(shape[1]) if chance is None else chance)

    @classmethod
    def from_states(cls, states: UInt8[ndarray, "N C"], *, chance: Float[ndarray, "C"] | None = None) -> LabelStates:
        """All states as a matrix; what is usual in each class is the state that most images have."""
        counts = np.stack([(states == state).sum(axis=0) for state in State])
        usual = counts.argmax(axis=0).astype(np.uint8)
        rows, classes = np.nonzero(states != usual)
        entries = states[rows, classes]
        return cls.from_entries(rows, classes, entries, states.shape, usual=usual, chance=chance)

    @classmethod
    def from_labels(cls, labels: Float[ndarray, "N C"], known: Bool[ndarray, "N C"] | None = None) -> LabelStates:
        """Labels 0 and 1 as matrices; what is not known is unknown."""
        states = np.where(labels > 0, np.uint8(State.PRESENT), np.uint8(State.ABSENT))
        if known is not None:
            states[~known] = State.UNKNOWN
        return cls.from_states(states)

    @classmethod
    def joined(cls, parts: Sequence[LabelStates]) -> LabelStates:
        """The images of several, which have the same classes and the same chances, one after the other."""
        usual = parts[0].usual
        if all((part.usual == usual).all() for part in parts):
            starts = np.concatenate([[0], *(np.diff(part.starts) for part in parts)]).cumsum()
            classes, states = (
                np.concatenate(arrays) for arrays in zip(*((p.classes, p.states) for p in parts), strict=True)
            )
            return cls(usual, starts, classes, states, parts[0].chance)
        return cls.from_states(np.concatenate([part.dense() for part in parts]), chance=parts[0].chance)

    def take(self, rows: Int[ndarray, "K"]) -> LabelStates:
        """Some images, in the order given."""
        entries, starts = self._entries(rows)
        return replace(self, starts=starts, classes=self.classes[entries], states=self.states[entries])

    def of_classes(self, classes: Int[ndarray, "K"]) -> LabelStates:
        """Some classes, in the order given."""
        place = np.full(len(self.usual), -1)
        place[classes] = np.arange(len(classes))
        kept = place[self.classes] >= 0
        rows = np.repeat(np.arange(len(self)), np.diff(self.starts))[kept]
        return LabelStates.from_entries(
            rows,
            place[self.classes][kept],
            self.states[kept],
            (len(self), len(classes)),
            usual=self.usual[classes],
            chance=self.chance[classes],
        )

    def dense(self, rows: Int[ndarray, "K"] | None = None) -> UInt8[ndarray, "K C"]:
        """The states of some images as a matrix, by default of all."""
        rows = np.arange(len(self)) if rows is None else rows
        entries, starts = self._entries(rows)
        states = np.tile(self.usual, (len(rows), 1))
        states[np.repeat(np.arange(len(rows)), np.diff(starts)), self.classes[entries]] = self.states[entries]
        return states

    def labels_and_known(
        self, rows: Int[ndarray, "K"] | None = None
    ) -> tuple[Float[ndarray, "K C"], Bool[ndarray, "K C"]]:
        """Labels 0 and 1 of some images, and which of them are known: what images are judged by."""
        labels, known = self.targets_and_known(rows)
        soft = (labels > 0) & (labels < 1)
        labels[soft], known[soft] = 0.0, False
        return labels, known

    def targets_and_known(
        self, rows: Int[ndarray, "K"] | None = None
    ) -> tuple[Float[ndarray, "K C"], Bool[ndarray, "K C"]]:
        """The same for training: an uncertain label that has a chance is known, and that is its number."""
        states = self.dense(rows)
        uncertain = (states == State.UNCERTAIN) & ~np.isnan(self.chance)
        labels = (states == State.PRESENT).astype(np.float32)
        np.copyto(labels, np.broadcast_to(self.chance, labels.shape), where=uncertain)
        return labels, (states <= State.PRESENT) | uncertain

    def present(self) -> csr_array:
        """Where a label is known to be present, as a sparse matrix of True."""
        from scipy.sparse import csr_array

        if (self._state_of_usual() == State.PRESENT).any():
            labels, known = self.labels_and_known()
            return csr_array((labels > 0) & known)
        sure = (self.states == State.UNCERTAIN) & (self.chance[self.classes] == 1)
        kept = (self.states == State.PRESENT) | sure
        rows = np.repeat(np.arange(len(self)), np.diff(self.starts))[kept]
        found: csr_array = csr_array((np.ones(len(rows), dtype=bool), (rows, self.classes[kept])), shape=self.shape)
        return found

    def counts(self) -> Int[ndarray, "4 C"]:
        """How many images have each state, as they were read and before any chance is applied."""
        classes, named = self.shape[1], np.diff(self.starts)
        found = np.stack([np.bincount(self.classes[self.states == state], minlength=classes) for state in State])
        silent = len(named) - found.sum(axis=0)
        found[self.usual, np.arange(classes)] += silent
        return found

    def settled_counts(self) -> Int[ndarray, "4 C"]:
        """The same once a chance of 1 counts as present and a chance of 0 as absent."""
        counts = self.counts()
        for state, chance in ((State.PRESENT, 1), (State.ABSENT, 0)):
            settled = np.where(self.chance == chance, counts[State.UNCERTAIN], 0)
            counts[state] += settled
            counts[State.UNCERTAIN] -= settled
        return counts

    def known_share(self) -> float:
        """The share of all labels that are known where images are judged."""
        counts = self.settled_counts()
        return float(counts[: State.UNKNOWN].sum() / max(counts.sum(), 1))

    def any_known(self) -> Bool[ndarray, "N"]:
        """Whether anything at all is known of each image."""
        blocks = range(0, len(self), ROWS_AT_ONCE)
        found = [self.labels_and_known(_block(start, len(self)))[1].any(axis=1) for start in blocks]
        return np.concatenate(found) if found else np.zeros(0, dtype=bool)

    def digest(self) -> bytes:
        """The same for the same states and chances, however they are held."""
        digest = hashlib.sha256(self.chance.astype("<f4").tobytes())
        for start in range(0, len(self), ROWS_AT_ONCE):
            digest.update(self.dense(_block(start, len(self))).tobytes())
        return digest.digest()

    def with_parents(self, parents: Int[ndarray, "C"]) -> LabelStates:
        """The same with what a hierarchy implies: who has a child has its parents, who lacks a parent lacks its kin.

        A label that is present makes its parents present, whatever was said of them; of a parent that is then absent,
        children that are unknown or uncertain are absent.
        """
        pairs = from_the_top(parents)
        if not pairs or not len(self):
            return self
        blocks = range(0, len(self), ROWS_AT_ONCE)
        return LabelStates.joined([self._implied(_block(start, len(self)), pairs) for start in blocks])

    def contradicted(self, parents: Int[ndarray, "C"]) -> Int[ndarray, "K"]:
        """Rows of images of which a child is said to be present and its parent absent."""
        pairs = from_the_top(parents)
        found = [np.zeros(0, dtype=np.int64)]
        for start in range(0, len(self) if pairs else 0, ROWS_AT_ONCE):
            rows = _block(start, len(self))
            present, absent = self._settled(self.dense(rows))
            found.append(rows[np.any([present[:, child] & absent[:, parent] for child, parent in pairs], axis=0)])
        return np.concatenate(found)

    def _implied(self, rows: Int[ndarray, "K"], pairs: Sequence[tuple[int, int]]) -> LabelStates:
        states = self.dense(rows)
        present, _ = self._settled(states)
        for child, parent in reversed(pairs):
            states[present[:, child] & ~present[:, parent], parent] = State.PRESENT
            present[:, parent] |= present[:, child]
        _, absent = self._settled(states)
        for child, parent in pairs:
            states[absent[:, parent] & ~present[:, child] & ~absent[:, child], child] = State.ABSENT
            absent[:, child] |= absent[:, parent] & ~present[:, child]
        places, classes = np.nonzero(states != self.usual)
        entries = states[places, classes]
        shape = (len(rows), len(self.usual))
        return LabelStates.from_entries(places, classes, entries, shape, usual=self.usual, chance=self.chance)

    def _settled(self, states: UInt8[ndarray, "K C"]) -> tuple[Bool[ndarray, "K C"], Bool[ndarray, "K C"]]:
        """What is present for certain and what is absent: as it was read, or because a chance of 1 or 0 says so."""
        uncertain = states == State.UNCERTAIN
        present = (states == State.PRESENT) | (uncertain & (self.chance == 1))
        return present, (states == State.ABSENT) | (uncertain & (self.chance == 0))

    def _state_of_usual(self) -> UInt8[ndarray, "C"]:
        certain = np.where(self.chance == 1, State.PRESENT, State.UNKNOWN).astype(np.uint8)
        return np.where(self.usual == State.UNCERTAIN, certain, self.usual)

    def _entries(self, rows: Int[ndarray, "K"]) -> tuple[Int[ndarray, "F"], Int[ndarray, "K1"]]:
        """Which entries belong to some images, and where each image's begin among those."""
        lengths = self.starts[rows + 1] - self.starts[rows]
        starts = np.concatenate([[0], lengths.cumsum()])
        return np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], lengths), starts


def drawn(targets: Float[ndarray, "*shape"], *seed: int) -> Float[ndarray, "*shape"]:
    """Targets in which whatever lies between 0 and 1 is drawn: 1 with that chance, else 0; the same for the same seed.

    The expected loss is that of the chance as a soft target wherever a loss is linear in the label, as cross-entropies
    are, and what is drawn is a label like any other for everything else (docs/decisions/0007).

    >>> drawn(np.array([0.0, 1.0, 0.5]), 3).tolist()
    [0.0, 1.0, 0.0]
    """
    soft = (targets > 0) & (targets < 1)
    if not soft.any():
        return targets
    lots = np.random.default_rng(seed).random(targets.shape)
    found: ndarray[Any, Any] = np.where(soft, lots < targets, targets).astype(targets.dtype)
    return found


def _no_chance(classes: int) -> Float[ndarray, "C"]:
    return np.full(classes, np.nan, dtype=np.float32)


def _block(start: int, end: int) -> Int[ndarray, "K"]:
    return np.arange(start, min(start + ROWS_AT_ONCE, end))
