"""The area under the receiver operating characteristic: how often a positive outscores a negative."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from probmcl.evaluation.metrics import Array, Column, Entries, checked, class_columns


def area_under_roc(scores: Array, labels: Array, known: Array | None = None) -> Float64[Tensor, " C"]:
    """The area under the ROC curve of each class, from scores and 0/1 labels of shape (N, C).

        AUROC = (pairs in which the positive scores higher + half of the pairs with equal scores) / (P Q)

    where a class has P known positives and Q known negatives. Entries with `known` False take no part. NaN for a class
    that lacks one of the two; `.nanmean()` is the macro AUROC.

    Reference: Hanley and McNeil, The meaning and use of the area under a ROC curve, 1982.

    >>> area_under_roc(torch.tensor([[0.9], [0.6], [0.6], [0.1]]), torch.tensor([[1], [0], [1], [0]]))  # 3.5 / 4
    tensor([0.8750], dtype=torch.float64)
    """
    return area_under_roc_of(checked(scores, labels, known))


def area_under_roc_of(entries: Entries) -> Float64[Tensor, " C"]:
    """`area_under_roc` of what was checked."""
    return torch.tensor([_area(column) for column in class_columns(entries)], dtype=torch.float64)


def _area(column: Column) -> float:
    """Whole numbers up to the last division, so that nothing depends on the order of the images."""
    positives = np.sort(column.scores[column.positive])
    negatives = np.sort(column.scores[column.known & ~column.positive])
    if not len(positives) or not len(negatives):
        return float("nan")
    below = np.searchsorted(negatives, positives, side="left").sum()
    not_above = np.searchsorted(negatives, positives, side="right").sum()
    return int(below + not_above) / (2 * len(positives) * len(negatives))
