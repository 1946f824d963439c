"""The threshold of each class with the best F1."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from probmcl.evaluation.entries import Array, Column, checked, class_columns

DEFAULT_THRESHOLD = 0.5
"""The threshold of a class without a known positive; of thresholds with equal F1, the nearest to it is chosen."""


def best_thresholds(scores: Array, labels: Array, known: Array | None = None) -> Float[Tensor, " C"]:
    """Return the threshold of each class with the best F1, from scores and 0/1 labels of shape (N, C).

        F1(t) = 2 TP(t) / (D(t) + P)

    where D(t) known images score above t, P are positive and TP(t) are both. F1 changes only where t passes a score, so
    t is the middle between two neighboring scores; below the lowest score m it is the middle between m and 0 or, if
    m ≤ 0, between m and 2m − 1. Of thresholds with equal F1 it is the one nearest 0.5, of two as near the lower. A
    class without a known positive has 0.5. Entries with `known` False take no part.

    Thresholds have the precision of the scores, and decide on them as they were chosen, however close two scores are.
    Choose them on other images than those that are scored: `multilabel_metrics(..., threshold=thresholds)`.

    >>> scores = torch.tensor([[0.9], [0.4], [0.2], [0.1]])
    >>> best_thresholds(scores, torch.tensor([[1], [1], [0], [0]]))
    tensor([0.3000])
    """
    entries = checked(scores, labels, known)
    chosen = [
        _best_cut(column) if column.positive.any() else (DEFAULT_THRESHOLD,) * 2 for column in class_columns(entries)
    ]
    lower, upper = np.array(chosen).T
    low, threshold, high = (torch.from_numpy(x).to(entries.scores.dtype) for x in (lower, _middle(lower, upper), upper))
    return threshold.where(threshold < high, low)  # there may be no number between the two


def _best_cut(column: Column) -> tuple[float, float]:
    """Return the two neighboring scores between which F1 is best.

    The upper one is a positive's: moving down to a negative adds an image to D and none to TP.
    """
    everything, hits = np.sort(column.scores[column.known]).astype(float), np.sort(column.scores[column.positive])
    upper = hits.astype(float)
    below = np.searchsorted(everything, upper)
    f1 = 2 * (len(upper) - np.searchsorted(upper, upper)) / (len(everything) - below + len(upper))
    lower = np.where(below > 0, everything[below - 1], np.where(upper > 0, 0, 2 * upper - 1))
    threshold = _middle(lower, upper)
    f1 = np.where(threshold < upper, f1, 0)  # no threshold is below minus infinity
    best = np.lexsort((threshold, np.abs(threshold - DEFAULT_THRESHOLD), -f1))[0]
    return lower[best], upper[best]


def _middle(lower: Float[np.ndarray, " K"], upper: Float[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
    """A number t with lower ≤ t < upper, in the middle if possible."""
    with np.errstate(invalid="ignore"):
        middle = lower / 2 + upper / 2
    return np.where((lower <= middle) & (middle < upper), middle, lower)
