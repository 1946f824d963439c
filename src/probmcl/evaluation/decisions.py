"""Decisions at a threshold: counts, rates, precision, recall and F1."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from probmcl.evaluation.entries import Array, Entries, blocks, checked, to_tensor

DEFAULT_THRESHOLD = 0.5
"""Threshold of scores that are not calibrated."""


class DecisionCounts(NamedTuple):
    """Confusion counts of the known entries of each class or image, and the rates derived from them.

    A rate with a denominator of 0 is NaN. The exception is F1, which is 0 if any entry is known, as with
    `zero_division=0` in scikit-learn.
    """

    true_positives: Int64[Tensor, " K"]
    false_positives: Int64[Tensor, " K"]
    false_negatives: Int64[Tensor, " K"]
    known: Int64[Tensor, " K"]

    @property
    def positives(self) -> Int64[Tensor, " K"]:
        """Number of entries with label 1."""
        return self.true_positives + self.false_negatives

    @property
    def prevalence(self) -> Float64[Tensor, " K"]:
        """Fraction of entries with label 1."""
        return _rate(self.positives, self.known)

    @property
    def is_scored(self) -> Bool[Tensor, " K"]:
        """True if there is an entry with label 1 and one with label 0."""
        return (self.positives > 0) & (self.positives < self.known)

    @property
    def wrong(self) -> Int64[Tensor, " K"]:
        """Number of entries whose decision differs from the label."""
        return self.false_positives + self.false_negatives

    @property
    def true_negatives(self) -> Int64[Tensor, " K"]:
        """Number of entries with label 0 that are predicted negative."""
        return self.known - self.positives - self.false_positives

    @property
    def sensitivity(self) -> Float64[Tensor, " K"]:
        """TP / (TP + FN)."""
        return _rate(self.true_positives, self.positives)

    @property
    def specificity(self) -> Float64[Tensor, " K"]:
        """TN / (TN + FP)."""
        return _rate(self.true_negatives, self.true_negatives + self.false_positives)

    @property
    def ppv(self) -> Float64[Tensor, " K"]:
        """Positive predictive value, TP / (TP + FP)."""
        return _rate(self.true_positives, self.true_positives + self.false_positives)

    @property
    def npv(self) -> Float64[Tensor, " K"]:
        """Negative predictive value, TN / (TN + FN)."""
        return _rate(self.true_negatives, self.true_negatives + self.false_negatives)

    @property
    def f1(self) -> Float64[Tensor, " K"]:
        """2 TP / (2 TP + FP + FN)."""
        return _f1(self.true_positives, self.wrong).masked_fill(self.known == 0, torch.nan)


class Decisions(NamedTuple):
    """Means over classes, entries and images; NaN if nothing is known.

    Attributes:
        macro_f1: mean F1 of the classes with a known positive and a known negative.
        micro_f1: F1 of all known entries together.
        sample_f1: mean F1 of the images with known labels.
        hamming_loss: fraction of known entries with a wrong decision.
        subset_accuracy: fraction of images without a wrong decision, among images whose labels are all known.
        images_fully_known: number of images whose labels are all known.
        labels_predicted: mean number of predicted labels, among the known ones, of the images with known labels.
        labels_true: mean number of positive labels of these images.
    """

    macro_f1: float
    micro_f1: float
    sample_f1: float
    hamming_loss: float
    subset_accuracy: float
    images_fully_known: int
    labels_predicted: float
    labels_true: float


def rates_at(
    scores: Array, labels: Array, known: Array | None = None, threshold: float | Array = 0.5
) -> DecisionCounts:
    """Count the decisions for each class; an entry is predicted positive if its score is above the threshold.

    The threshold is one number or one per class, and is rounded to the precision of the scores.

    >>> rates = rates_at(torch.tensor([[0.9], [0.6], [0.2]]), torch.tensor([[1], [0], [1]]))
    >>> rates.sensitivity.item(), rates.specificity.item(), rates.ppv.item(), rates.npv.item()
    (0.5, 0.0, 0.5, 0.0)
    """
    return _count(checked(scores, labels, known), threshold)


def decisions_at(scores: Array, labels: Array, known: Array | None = None, threshold: float | Array = 0.5) -> Decisions:
    """Summarize the decisions over all classes. In every F1, 0 / 0 is 0.

    >>> decisions = decisions_at(torch.tensor([[0.9, 0.1], [0.6, 0.9]]), torch.tensor([[1, 0], [0, 1]]))
    >>> decisions.hamming_loss, decisions.subset_accuracy
    (0.25, 0.5)
    """
    entries = checked(scores, labels, known)
    classes, images = _count(entries, threshold), _count(entries, threshold, axis=1)
    fully_known = images.known == entries.scores.shape[1]
    micro_f1, predicted = (
        _f1(images.true_positives.sum(), images.wrong.sum()),
        images.true_positives + images.false_positives,
    )
    return Decisions(
        macro_f1=classes.f1[classes.is_scored].mean().item(),
        micro_f1=micro_f1.item() if images.known.any() else float("nan"),
        sample_f1=_f1(images.true_positives, images.wrong)[images.known > 0].mean().item(),
        hamming_loss=_rate(images.wrong.sum(), images.known.sum()).item(),
        subset_accuracy=_rate((images.wrong[fully_known] == 0).sum(), fully_known.sum()).item(),
        images_fully_known=int(fully_known.sum()),
        labels_predicted=predicted[images.known > 0].double().mean().item(),
        labels_true=images.positives[images.known > 0].double().mean().item(),
    )


def precision_recall_f1(
    entries: Entries, *, threshold: float | Array = 0.5, f1: str = "harmonic", top_k: int | None = None
) -> dict[str, float]:
    """Return CP, CR, CF1, OP, OR and OF1 as defined in `multilabel_metrics`, and `classes_scored`."""
    if f1 not in ("harmonic", "per_class"):
        raise ValueError(f"f1={f1!r} must be 'harmonic' or 'per_class'")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1, or None to use only the threshold")
    decisions = _count(entries, threshold, top_k=top_k)
    predicted = decisions.true_positives + decisions.false_positives
    counts = torch.stack([decisions.true_positives, predicted, decisions.positives])  # (3, C)
    by_class, overall = _precision_recall(counts[:, decisions.is_scored]), _precision_recall(counts.sum(1))
    mean = by_class.mean(1)
    class_f1 = _harmonic_mean(mean) if f1 == "harmonic" else _harmonic_mean(by_class).mean()
    values = torch.stack([*mean, class_f1, *overall, _harmonic_mean(overall)]).tolist()
    names = ("CP", "CR", "CF1", "OP", "OR", "OF1")
    return dict(zip(names, values, strict=True)) | {"classes_scored": float(by_class.shape[1])}


def _count(entries: Entries, threshold: float | Array, *, axis: int = 0, top_k: int | None = None) -> DecisionCounts:
    """Count decisions per class (axis 0) or per image (axis 1).

    With `top_k`, a predicted positive must also be among the k highest known scores of its image.
    """
    limits, counts = _limits(threshold, entries.scores), []
    for rows in blocks(*entries.scores.shape):
        scores, labels, known = (entry[rows] for entry in entries)
        decided, positive = (scores > limits) & known, (labels == 1) & known
        if top_k is not None:
            decided &= _best(scores.where(known, -torch.inf), min(top_k, scores.shape[1]))
        masks = (decided & positive, decided & ~positive, positive & ~decided, known)
        counts.append(torch.stack([mask.count_nonzero(axis) for mask in masks]))
    return DecisionCounts(*(torch.stack(counts).sum(0) if axis == 0 else torch.cat(counts, dim=1)))


def _limits(threshold: float | Array, scores: Float[Tensor, "N C"]) -> Float[Tensor, " C"]:
    """Return the threshold of each class, in the precision of the scores."""
    classes = scores.shape[1]
    limits = to_tensor(np.asarray(threshold) if isinstance(threshold, float) else threshold).to(scores.dtype)
    if limits.shape not in ((), (classes,)):
        shape = f"threshold has shape {tuple(limits.shape)}"
        raise ValueError(f"{shape}; expected one number, or one per class with shape ({classes},)")
    if limits.isnan().any():
        raise ValueError("threshold must not be NaN")
    return limits.expand(classes)


def _best(scores: Float[Tensor, "N C"], k: int) -> Bool[Tensor, "N C"]:
    """Mark the k highest scores of each row; among equal scores, the first are marked."""
    lowest = scores.topk(k, dim=1).values[:, -1:]  # (N, 1)
    above, tied = scores > lowest, scores == lowest
    return above | (tied & (tied.cumsum(1, dtype=torch.int32) <= k - above.sum(1, keepdim=True)))


def _rate(numerator: Int64[Tensor, "..."], denominator: Int64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    return numerator.double() / denominator.double()  # 0 / 0 is NaN


def _f1(true_positives: Int64[Tensor, "..."], wrong: Int64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    return 2 * true_positives.double() / (2 * true_positives + wrong).clamp(min=1)  # 0 / 0 is 0


def _precision_recall(counts: Int64[Tensor, "3 ..."]) -> Float64[Tensor, "2 ..."]:
    """Return precision and recall from true positives, predicted positives and positives, with 0 / 0 = 0."""
    return counts[0].double() / counts[1:].clamp(min=1)


def _harmonic_mean(precision_recall: Float64[Tensor, "2 ..."]) -> Float64[Tensor, "..."]:
    total = precision_recall.sum(0)
    return torch.where(total == 0, 0.0, 2 * precision_recall.prod(0) / total)
