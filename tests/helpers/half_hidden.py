"""Tables in which about half of the labels are unknown, and reference metrics by slow loops over the known entries."""

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

LEVELS = [0.0, 0.25, 0.5, 0.75, 1.0]  # few values make ties common; 0.5 is also a threshold
INVALID_LABEL = 7

Entry = tuple[float, bool]
"""A score, and whether the label is present."""


class Table(NamedTuple):
    """Scores, labels and the mask of known labels, each of shape (images, classes)."""

    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    known: npt.NDArray[np.bool_]

    def of_class(self, c: int) -> list[Entry]:
        """Return the known entries of a class."""
        return [self.entry(n, c) for n in range(len(self.scores)) if self.known[n, c]]

    def of_image(self, n: int) -> list[Entry]:
        """Return the known entries of an image."""
        return [self.entry(n, c) for c in range(self.scores.shape[1]) if self.known[n, c]]

    def entry(self, n: int, c: int) -> Entry:
        """Return the entry of image n and class c."""
        return float(self.scores[n, c]), bool(self.labels[n, c] == 1)

    @property
    def classes(self) -> list[list[Entry]]:
        """The known entries of each class."""
        return [self.of_class(c) for c in range(self.scores.shape[1])]

    @property
    def images(self) -> list[list[Entry]]:
        """The known entries of each image."""
        return [self.of_image(n) for n in range(len(self.scores))]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Draw tables; unknown entries have invalid labels and NaN scores, so that using them changes the result."""
    shape = draw(st.tuples(st.integers(1, 12), st.integers(1, 5)))
    known = draw(arrays(np.bool_, shape))
    scores = draw(arrays(np.float64, shape, elements=st.sampled_from(LEVELS)))
    labels = draw(arrays(np.float32, shape, elements=st.sampled_from([0.0, 1.0])))
    return Table(np.where(known, scores, np.nan), np.where(known, labels, INVALID_LABEL), known)


def auroc(entries: list[Entry]) -> float:
    """Compute the AUROC from all pairs of a positive and a negative; a tie counts as half a win."""
    positives = [score for score, present in entries if present]
    negatives = [score for score, present in entries if not present]
    if not positives or not negatives:
        return float("nan")
    wins = Fraction(0)
    for positive in positives:
        for negative in negatives:
            if positive > negative:
                wins += 1
            elif positive == negative:
                wins += Fraction(1, 2)
    return float(wins / (len(positives) * len(negatives)))


def share(entries: list[bool]) -> float:
    """Return the share of true entries; NaN without entries."""
    if not entries:
        return float("nan")
    return float(Fraction(sum(entries), len(entries)))


def f1(entries: list[Entry], threshold: float) -> float:
    """Compute F1; NaN without known entries, 0 without positives and predicted positives."""
    if not entries:
        return float("nan")
    true_positives = sum(score > threshold and present for score, present in entries)
    errors = sum((score > threshold) != present for score, present in entries)
    if true_positives + errors == 0:
        return 0.0
    return float(Fraction(2 * true_positives, 2 * true_positives + errors))


def mean(values: list[float]) -> float:
    """Return the mean of the values that are not NaN; NaN without such values."""
    defined = [value for value in values if not np.isnan(value)]
    if not defined:
        return float("nan")
    return sum(defined) / len(defined)
