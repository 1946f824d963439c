"""Tables in which about half of the labels are unknown, and reference metrics by slow loops over the known entries."""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

LEVELS = [0.0, 0.25, 0.5, 0.75, 1.0]  # few values make ties common; 0.5 is also a threshold

Entry = tuple[float, bool]


class Table(NamedTuple):
    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    known: npt.NDArray[np.bool_]

    def of_class(self, c: int) -> list[Entry]:
        """Return the score and label of each known entry of a class."""
        return [self.entry(n, c) for n in range(len(self.scores)) if self.known[n, c]]

    def of_image(self, n: int) -> list[Entry]:
        return [self.entry(n, c) for c in range(self.scores.shape[1]) if self.known[n, c]]

    def entry(self, n: int, c: int) -> Entry:
        return float(self.scores[n, c]), bool(self.labels[n, c] == 1)

    @property
    def classes(self) -> list[list[Entry]]:
        return [self.of_class(c) for c in range(self.scores.shape[1])]

    @property
    def images(self) -> list[list[Entry]]:
        return [self.of_image(n) for n in range(len(self.scores))]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Draw tables; unknown entries have invalid labels and NaN scores, so that using them changes the result."""
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 5)))
    known = draw(arrays(np.bool_, shape))
    scores = draw(arrays(np.float64, shape, elements=st.sampled_from(LEVELS)))
    labels = draw(arrays(np.float32, shape, elements=st.sampled_from([0.0, 1.0])))
    return Table(np.where(known, scores, np.nan), np.where(known, labels, 7), known)


def auroc(entries: list[Entry]) -> float:
    """Compute the AUROC from all pairs of a positive and a negative."""
    positives, negatives = ([score for score, label in entries if label is wanted] for wanted in (True, False))
    if not positives or not negatives:
        return float("nan")
    won = sum(Fraction(2 * (p > n) + (p == n), 2) for p in positives for n in negatives)
    return float(won / (len(positives) * len(negatives)))


def share(entries: list[bool]) -> float:
    return float(Fraction(sum(entries), len(entries))) if entries else float("nan")


def f1(entries: list[Entry], threshold: float) -> float:
    """Compute F1; NaN without known entries, 0 without positives and predicted positives."""
    if not entries:
        return float("nan")
    true_positives = sum(score > threshold and label for score, label in entries)
    errors = sum((score > threshold) != label for score, label in entries)
    return float(Fraction(2 * true_positives, 2 * true_positives + errors)) if true_positives + errors else 0.0


def mean(values: list[float]) -> float:
    kept = [value for value in values if value == value]
    return sum(kept) / len(kept) if kept else float("nan")
