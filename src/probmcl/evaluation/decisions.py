"""What decisions are worth: rates of each class, and F1, Hamming loss and subset accuracy over all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from probmcl.evaluation.metrics import Array, Entries, blocks, checked, limits_of


class Rates(NamedTuple):
    """Known entries of C classes by truth and decision, and the shares that are told of them.

    A share of nothing is NaN, but for F1: there 0 / 0 is 0 where anything of a class is known, as scikit-learn's
    `zero_division=0` has it.
    """

    known: Int64[Tensor, " C"]
    positives: Int64[Tensor, " C"]
    true_positives: Int64[Tensor, " C"]
    false_positives: Int64[Tensor, " C"]
    true_negatives: Int64[Tensor, " C"]
    false_negatives: Int64[Tensor, " C"]

    @property
    def sensitivity(self) -> Float64[Tensor, " C"]:
        """The share of positives that is decided for."""
        return _share(self.true_positives, self.positives)

    @property
    def specificity(self) -> Float64[Tensor, " C"]:
        """The share of negatives that is not."""
        return _share(self.true_negatives, self.known - self.positives)

    @property
    def ppv(self) -> Float64[Tensor, " C"]:
        """Positive predictive value: of what is decided for, the share that is positive."""
        return _share(self.true_positives, self.true_positives + self.false_positives)

    @property
    def npv(self) -> Float64[Tensor, " C"]:
        """Negative predictive value: of what is not, the share that is negative."""
        return _share(self.true_negatives, self.true_negatives + self.false_negatives)

    @property
    def f1(self) -> Float64[Tensor, " C"]:
        """2 TP / (2 TP + FP + FN)."""
        found = _f1(self.true_positives, self.false_positives + self.false_negatives)
        return found.masked_fill(self.known == 0, torch.nan)


class Decisions(NamedTuple):
    """Numbers over all classes; NaN where there is nothing to judge.

    Attributes:
        macro_f1: mean F1 of the classes of which anything is known.
        micro_f1: F1 of all known entries together.
        sample_f1: mean F1 of the images of which anything is known.
        hamming_loss: the share of known entries that is decided wrongly.
        subset_accuracy: the share of images without a wrong decision, among those that are known in every class.
        images_fully_known: how many those are.
    """

    macro_f1: float
    micro_f1: float
    sample_f1: float
    hamming_loss: float
    subset_accuracy: float
    images_fully_known: int


def rates_at(scores: Array, labels: Array, known: Array | None = None, threshold: float | Array = 0.5) -> Rates:
    """How the known entries of each class are decided: for it where the score is above the threshold.

    The threshold is a number, or one for each class, in the precision of the scores.

    >>> rates = rates_at(torch.tensor([[0.9], [0.6], [0.2]]), torch.tensor([[1], [0], [1]]))
    >>> rates.sensitivity.item(), rates.specificity.item(), rates.ppv.item(), rates.npv.item()
    (0.5, 0.0, 0.5, 0.0)
    """
    return rates_of(checked(scores, labels, known), threshold)


def decisions_at(scores: Array, labels: Array, known: Array | None = None, threshold: float | Array = 0.5) -> Decisions:
    """The same over all classes, with 0 / 0 = 0 in every F1.

    >>> decisions = decisions_at(torch.tensor([[0.9, 0.1], [0.6, 0.9]]), torch.tensor([[1, 0], [0, 1]]))
    >>> decisions.hamming_loss, decisions.subset_accuracy
    (0.25, 0.5)
    """
    entries = checked(scores, labels, known)
    return decisions_of(entries, rates_of(entries, threshold), threshold)


def rates_of(entries: Entries, threshold: float | Array) -> Rates:
    """`rates_at` of what was checked."""
    right, false, missed, known = _counts(entries, threshold, axis=0)
    positives = right + missed
    return Rates(known, positives, right, false, known - positives - false, missed)


def decisions_of(entries: Entries, rates: Rates, threshold: float | Array) -> Decisions:
    """`decisions_at` of what was checked, beside its rates at the same threshold."""
    classes = entries.scores.shape[1]
    right, false, missed, known = _counts(entries, threshold, axis=1)
    wrong, whole = false + missed, known == classes
    return Decisions(
        macro_f1=rates.f1.nanmean().item(),
        micro_f1=_f1(right.sum(), wrong.sum()).item() if known.any() else float("nan"),
        sample_f1=_f1(right, wrong)[known > 0].mean().item(),
        hamming_loss=_share(wrong.sum(), known.sum()).item(),
        subset_accuracy=_share((wrong[whole] == 0).sum(), whole.sum()).item(),
        images_fully_known=int(whole.sum()),
    )


def _counts(entries: Entries, threshold: float | Array, *, axis: int) -> Int64[Tensor, "4 K"]:
    """Known entries that are rightly and wrongly decided for, missed, and all: by class (axis 0) or image (axis 1)."""
    limits, found = limits_of(threshold, entries.scores), []
    for rows in blocks(*entries.scores.shape):
        scores, labels, known = (entry[rows] for entry in entries)
        decided, positive = (scores > limits) & known, (labels == 1) & known
        masks: tuple[Bool[Tensor, "N C"], ...] = (decided & positive, decided & ~positive, positive & ~decided, known)
        found.append(torch.stack([mask.count_nonzero(axis) for mask in masks]))
    return torch.stack(found).sum(0) if axis == 0 else torch.cat(found, dim=1)


def _share(part: Int64[Tensor, "..."], whole: Int64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """NaN where there is no whole."""
    return part.double() / whole.double()


def _f1(right: Int64[Tensor, "..."], wrong: Int64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """2 TP / (2 TP + FP + FN), 0 where there is nothing."""
    return 2 * right.double() / (2 * right + wrong).clamp(min=1)
