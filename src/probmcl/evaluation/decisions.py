"""Decisions at a threshold: counts and rates per class, precision, recall and F1; the thresholds with the best F1."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from probmcl.evaluation.entries import Array, Column, Entries, blocks, checked, class_columns, to_tensor

DEFAULT_THRESHOLD = 0.5
"""The threshold of a class without a known positive; of thresholds with equal F1, the nearest to it is chosen."""


class DecisionCounts(NamedTuple):
    """Counts of known entries by truth and decision, for each class or image, and the rates that follow from them.

    A rate without cases is NaN. The exception is F1: it is 0 if anything is known, as with scikit-learn's
    `zero_division=0`.
    """

    true_positives: Int64[Tensor, " K"]
    false_positives: Int64[Tensor, " K"]
    false_negatives: Int64[Tensor, " K"]
    known: Int64[Tensor, " K"]

    @property
    def positives(self) -> Int64[Tensor, " K"]:
        """Entries whose label is 1."""
        return self.true_positives + self.false_negatives

    @property
    def wrong(self) -> Int64[Tensor, " K"]:
        """Entries whose decision differs from the label."""
        return self.false_positives + self.false_negatives

    @property
    def true_negatives(self) -> Int64[Tensor, " K"]:
        """Entries that are rightly not decided for."""
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
        macro_f1: mean F1 of the classes with known labels.
        micro_f1: F1 of all known entries together.
        sample_f1: mean F1 of the images with known labels.
        hamming_loss: share of known entries that are decided wrongly.
        subset_accuracy: share of images without a wrong decision, among those that are known in every class.
        images_fully_known: the number of these images.
    """

    macro_f1: float
    micro_f1: float
    sample_f1: float
    hamming_loss: float
    subset_accuracy: float
    images_fully_known: int


def rates_at(
    scores: Array, labels: Array, known: Array | None = None, threshold: float | Array = 0.5
) -> DecisionCounts:
    """Count the decisions of each class: an entry is decided for if its score is above the threshold.

    The threshold is a number or one per class, in the precision of the scores.

    >>> rates = rates_at(torch.tensor([[0.9], [0.6], [0.2]]), torch.tensor([[1], [0], [1]]))
    >>> rates.sensitivity.item(), rates.specificity.item(), rates.ppv.item(), rates.npv.item()
    (0.5, 0.0, 0.5, 0.0)
    """
    return _count(checked(scores, labels, known), threshold)


def decisions_at(scores: Array, labels: Array, known: Array | None = None, threshold: float | Array = 0.5) -> Decisions:
    """Summarize the decisions over all classes, with 0 / 0 = 0 in every F1.

    >>> decisions = decisions_at(torch.tensor([[0.9, 0.1], [0.6, 0.9]]), torch.tensor([[1, 0], [0, 1]]))
    >>> decisions.hamming_loss, decisions.subset_accuracy
    (0.25, 0.5)
    """
    entries = checked(scores, labels, known)
    images = _count(entries, threshold, axis=1)
    fully_known = images.known == entries.scores.shape[1]
    micro_f1 = _f1(images.true_positives.sum(), images.wrong.sum())
    return Decisions(
        macro_f1=_count(entries, threshold).f1.nanmean().item(),
        micro_f1=micro_f1.item() if images.known.any() else float("nan"),
        sample_f1=_f1(images.true_positives, images.wrong)[images.known > 0].mean().item(),
        hamming_loss=_rate(images.wrong.sum(), images.known.sum()).item(),
        subset_accuracy=_rate((images.wrong[fully_known] == 0).sum(), fully_known.sum()).item(),
        images_fully_known=int(fully_known.sum()),
    )


def precision_recall_f1(
    entries: Entries, *, threshold: float | Array = 0.5, f1: str = "harmonic", top_k: int | None = None
) -> dict[str, float]:
    """Return CP, CR, CF1, OP, OR and OF1 as `multilabel_metrics` defines them, and `classes_scored`."""
    if f1 not in ("harmonic", "per_class"):
        raise ValueError(f"f1 is {f1!r}: choose one of 'harmonic', 'per_class'")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}: give a whole number from 1 up, or None to decide by the threshold alone")
    right, false_positives, false_negatives, _ = _count(entries, threshold, top_k=top_k)
    counts = torch.stack([right, right + false_positives, right + false_negatives])  # (3, C)
    by_class, overall = _precision_recall(counts[:, counts[2] > 0]), _precision_recall(counts.sum(1))
    mean = by_class.mean(1)
    class_f1 = _harmonic_mean(mean) if f1 == "harmonic" else _harmonic_mean(by_class).mean()
    values = torch.stack([*mean, class_f1, *overall, _harmonic_mean(overall)]).tolist()
    names = ("CP", "CR", "CF1", "OP", "OR", "OF1")
    return dict(zip(names, values, strict=True)) | {"classes_scored": float(by_class.shape[1])}


def _count(entries: Entries, threshold: float | Array, *, axis: int = 0, top_k: int | None = None) -> DecisionCounts:
    """Count decisions per class (axis 0) or per image (axis 1).

    With `top_k`, an entry is decided for only if it is also among the k best known ones of its image.
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
        raise ValueError(f"{shape}: expected a number, or ({classes},), one for each class")
    if limits.isnan().any():
        raise ValueError("threshold is NaN, which no score is above: give numbers")
    return limits.expand(classes)


def _best(scores: Float[Tensor, "N C"], k: int) -> Bool[Tensor, "N C"]:
    """Mark the k highest scores of each row, the first ones among equals."""
    last = scores.topk(k, dim=1).values[:, -1:]  # (N, 1)
    above, level = scores > last, scores == last
    return above | (level & (level.cumsum(1, dtype=torch.int32) <= k - above.sum(1, keepdim=True)))


def _rate(part: Int64[Tensor, "..."], whole: Int64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    return part.double() / whole.double()  # NaN without cases


def _f1(right: Int64[Tensor, "..."], wrong: Int64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    return 2 * right.double() / (2 * right + wrong).clamp(min=1)  # 0 / 0 is 0


def _precision_recall(counts: Int64[Tensor, "3 ..."]) -> Float64[Tensor, "2 ..."]:
    """Precision and recall from true positives, decisions and positives, with 0 / 0 = 0."""
    return counts[0].double() / counts[1:].clamp(min=1)


def _harmonic_mean(precision_recall: Float64[Tensor, "2 ..."]) -> Float64[Tensor, "..."]:
    total = precision_recall.sum(0)
    return torch.where(total == 0, 0.0, 2 * precision_recall.prod(0) / total)


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
    lower, upper = np.array([_best_cut(column) for column in class_columns(entries)]).T
    low, threshold, high = (torch.from_numpy(x).to(entries.scores.dtype) for x in (lower, _middle(lower, upper), upper))
    return threshold.where(threshold < high, low)  # there may be no number between the two


def _best_cut(column: Column) -> tuple[float, float]:
    """Return the two neighboring scores between which F1 is best.

    The upper one is a positive's: moving down to a negative adds an image to D and none to TP.
    """
    if not column.positive.any():
        return DEFAULT_THRESHOLD, DEFAULT_THRESHOLD
    everything, upper = (np.sort(column.scores[mask]).astype(float) for mask in (column.known, column.positive))
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
