"""What is judged: scores beside labels, image by image, or group by group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

Aggregate = Literal["mean", "max"]
AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Scores, labels and which of them are known, of N images or groups of images.

    Attributes:
        group: what each belongs to (a patient, a slide); images of one group are no independent evidence.
        images: how many images each row stands for.
    """

    scores: Float[ndarray, "N C"]
    labels: Float[ndarray, "N C"]
    known: Bool[ndarray, "N C"]
    group: tuple[str, ...] | None
    images: Int[ndarray, "N"]

    @classmethod
    def of_images(
        cls,
        scores: Float[ndarray, "N C"],
        labels: Float[ndarray, "N C"],
        known: Bool[ndarray, "N C"],
        group: tuple[str, ...] | None = None,
    ) -> ScoredRows:
        """Each row is an image."""
        return cls(scores, labels, known, group, np.ones(len(scores), dtype=np.int64))

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def groups(self) -> int | None:
        """How many groups there are."""
        return None if self.group is None else len(set(self.group))

    @property
    def units(self) -> int:
        """How many things a resample draws from."""
        return len(self) if self.groups is None else self.groups

    def take(self, rows: Int[ndarray, "K"]) -> ScoredRows:
        """Some rows alone."""
        group = None if self.group is None else tuple(self.group[row] for row in rows)
        return ScoredRows(self.scores[rows], self.labels[rows], self.known[rows], group, self.images[rows])


def aggregated(judged: ScoredRows, how: Aggregate) -> ScoredRows:
    """One row a group, in the order of their names: what is said of a patient or a slide from all of its images.

    A score is the mean or the maximum of the images'. A label is present where it is present in any image; absent where
    it is known in any image, and absent in all in which it is known; else unknown.

    >>> labels, known = np.array([[0.0], [1.0], [0.0]]), np.array([[True], [True], [False]])
    >>> slides = Judged.of_images(np.array([[0.2], [0.6], [0.9]]), labels, known, ("a", "a", "b"))
    >>> whole = aggregated(slides, "mean")
    >>> whole.scores.tolist(), whole.labels.tolist(), whole.known.tolist()
    ([[0.4], [0.9]], [[1.0], [0.0]], [[True], [False]])
    """
    if how not in AGGREGATES:
        raise ValueError(f"aggregate is {how!r}: choose one of {', '.join(AGGREGATES)}")
    if judged.group is None:
        raise ValueError("scores are aggregated over groups, and there are none; name the column of groups (--group)")
    names, member = np.unique(np.array(judged.group), return_inverse=True)
    order = np.argsort(member, kind="stable")
    starts = np.searchsorted(member[order], np.arange(len(names)))
    scores, rows = judged.scores[order].astype(np.float64), np.bincount(member)
    return ScoredRows(
        scores=np.maximum.reduceat(scores, starts) if how == "max" else np.add.reduceat(scores, starts) / rows[:, None],
        labels=np.maximum.reduceat(np.where(judged.known, judged.labels, 0)[order], starts),
        known=np.logical_or.reduceat(judged.known[order], starts),
        group=tuple(names.tolist()),
        images=np.add.reduceat(judged.images[order], starts),
    )


def value_of_groups(group: tuple[str, ...], values: tuple[str, ...], column: str) -> tuple[str, ...]:
    """The value that all images of a group have in a column, in the order of the groups' names.

    >>> value_of_groups(("b", "a", "b"), ("north", "south", "north"), "site")
    ('south', 'north')
    """
    found: dict[str, str] = {}
    for name, value in zip(group, values, strict=True):
        if found.setdefault(name, value) != value:
            both = f"{found[name]!r} and {value!r}"
            raise ValueError(
                f"group {name!r} has images with {both} in column {column!r}, so that it has no place of its own under "
                f"--by {column}; leave out --aggregate, or --by"
            )
    return tuple(found[name] for name in sorted(found))
