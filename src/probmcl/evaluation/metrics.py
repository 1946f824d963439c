"""Metrics per class and over all classes: of rankings, and of decisions at a threshold."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from probmcl.evaluation.scores import Array, ClassEntries, Entries, blocks, checked, class_columns, to_tensor

DEFAULT_THRESHOLD = 0.5
"""Threshold of scores that are not calibrated."""


def average_precision(
    scores: Array, labels: Array, known: Array | None = None, *, kind: str = "area"
) -> Float64[Tensor, " C"]:
    """Return the average precision of each class, from scores and 0/1 labels of shape (N, C).

    With p(s) = TP(s) / (number of images that score s or more), one point for each distinct score s of a positive:

        area      mean over the positives of p at their own score, as in scikit-learn's `average_precision_score`
        envelope  the same with p̂(s) = max of p(s') over s' ≤ s, as in PASCAL VOC 2010 and SRN
        voc11     mean of p̂ at the first point with recall ≥ t / 10, t = 0 … 10, as in PASCAL VOC 2007

    Equal scores share one point, so the result does not depend on the order of the images. Entries where `known` is
    False are ignored. A class without a known positive or without a known negative is not scored: its result is NaN.
    Without negatives, every ranking would have an AP of 1. `.nanmean()` is the mAP.

    Reference: Everingham et al., The PASCAL Visual Object Classes (VOC) Challenge, 2010.

    >>> scores = torch.tensor([[0.9], [0.6], [0.6], [0.1]])
    >>> labels = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
    >>> average_precision(scores, labels)  # (1 + 2/3) / 2
    tensor([0.8333], dtype=torch.float64)
    """
    if kind not in ("area", "envelope", "voc11"):
        raise ValueError(f"kind={kind!r} must be 'area', 'envelope' or 'voc11'")
    averages = []
    for column in class_columns(checked(scores, labels, known)):
        average = np.nan
        if column.is_scored:
            precision = precision_at_positives(column.scores, column.positive, column.known)
            average = _average(precision, kind)
        averages.append(average)
    return torch.tensor(averages, dtype=torch.float64)


def precision_at_positives(
    scores: Float[np.ndarray, " N"], positive: Bool[np.ndarray, " N"], known: Bool[np.ndarray, " N"]
) -> Float64[np.ndarray, " P"]:
    """Return the precision at the score of each positive, in ascending order of scores.

    Other thresholds are not needed: between two positives, recall is constant and precision only falls. Sorting and
    counting values also makes the result independent of the order within ties.
    """
    all_scores = np.sort(scores[known])
    positive_scores = np.sort(scores[positive])
    # The numbers of positives, and of all known images, that score as high as each positive or higher.
    true_positives = len(positive_scores) - np.searchsorted(positive_scores, positive_scores)
    retrieved = len(all_scores) - np.searchsorted(all_scores, positive_scores)
    return true_positives / retrieved


def _average(precision: Float64[np.ndarray, " P"], kind: str) -> float:
    """Return the average precision of a class from `precision_at_positives`.

    `kind` is one of the kinds of `average_precision`: area, envelope or voc11.
    """
    if kind == "area":
        return float(precision.mean())
    envelope = np.maximum.accumulate(precision)
    if kind == "envelope":
        return float(envelope.mean())
    # Counted from the highest score, recall reaches t / 10 at the positive of rank ⌈t P / 10⌉, and 0 at the first.
    # Integers avoid 3 · 0.1 > 0.3 in floating point.
    tenths = np.arange(11)
    rank = (tenths * len(precision) + 9) // 10  # rounded up
    index_from_end = np.maximum(rank, 1)
    return float(envelope[-index_from_end].mean())


def area_under_roc(scores: Array, labels: Array, known: Array | None = None) -> Float64[Tensor, " C"]:
    """Return the area under the ROC curve of each class, from scores and 0/1 labels of shape (N, C).

        AUROC = (pairs in which the positive scores higher + half of the pairs with equal scores) / (P Q)

    where a class has P known positives and Q known negatives. Entries where `known` is False are ignored. The
    result is NaN for a class without positives or without negatives; `.nanmean()` is the macro AUROC.

    Reference: Hanley and McNeil, The meaning and use of the area under a ROC curve, 1982.

    >>> area_under_roc(torch.tensor([[0.9], [0.6], [0.6], [0.1]]), torch.tensor([[1], [0], [1], [0]]))  # 3.5 / 4
    tensor([0.8750], dtype=torch.float64)
    """
    areas = [_roc_area(column) for column in class_columns(checked(scores, labels, known))]
    return torch.tensor(areas, dtype=torch.float64)


def _roc_area(column: ClassEntries) -> float:
    """Return the area under the ROC curve of one class; NaN without a positive or without a negative."""
    if not column.is_scored:
        return float("nan")
    positives = np.sort(column.scores[column.positive])
    negatives = np.sort(column.scores[column.known & ~column.positive])
    # All values are integers until the final division, so the result does not depend on the order of the images.
    pairs = len(positives) * len(negatives)
    won = np.searchsorted(negatives, positives, side="left").sum()
    won_or_tied = np.searchsorted(negatives, positives, side="right").sum()
    return int(won + won_or_tied) / (2 * pairs)  # ties count half


def multilabel_metrics(
    scores: Array,
    labels: Array,
    known: Array | None = None,
    *,
    threshold: float | Array = 0.5,
    f1: str = "harmonic",
    top_k: int | None = None,
) -> dict[str, float]:
    """Return mAP and per-class and overall precision, recall and F1, from scores and 0/1 labels of shape (N, C).

        CP = mean_c TP_c / D_c     CR = mean_c TP_c / P_c     OP = Σ_c TP_c / Σ_c D_c     OR = Σ_c TP_c / Σ_c P_c

    where, among the known entries of class c, D_c are predicted positive, P_c are positive and TP_c are both; 0 / 0 is
    0. An entry is predicted positive if its score is above `threshold`, which is one number or one per class, rounded
    to the precision of the scores (a float32 0.8 is not above 0.8). With `top_k`, it must also be among the k highest
    known scores of its image; among equal scores, the lower class index comes first.

    mAP (kind "area"), CP, CR and CF1 are means over the `classes_scored` classes that have both a known positive and a
    known negative, or NaN if there are none; OP and OR include all classes. CF1 and OF1 are harmonic means of
    precision and recall, F1 = 2 P R / (P + R). With f1="per_class", CF1 is the mean of the per-class F1 scores, as in
    ASL and SRN.

    Reference: Chen et al., ML-GCN, 2019, evaluation metrics.

    >>> scores = torch.tensor([[0.9, 0.7], [0.6, 0.2]])
    >>> multilabel_metrics(scores, torch.tensor([[1, 0], [1, 1]]))["OR"]
    0.6666666666666666
    """
    entries = checked(scores, labels, known)
    mean_ap = average_precision(*entries).nanmean().item()
    return {"mAP": mean_ap} | precision_recall_f1(entries, threshold=threshold, f1=f1, top_k=top_k)


class DecisionCounts(NamedTuple):
    """Confusion counts of the known entries of each class or image, and the rates derived from them.

    A rate with a denominator of 0 is NaN. The exception is F1, which is 0 if any entry is known, as with
    `zero_division=0` in scikit-learn.
    """

    true_positives: Int64[Tensor, " K"]
    false_positives: Int64[Tensor, " K"]
    false_negatives: Int64[Tensor, " K"]
    known: Int64[Tensor, " K"]

    def of(self, selected: Bool[Tensor, " K"]) -> "DecisionCounts":
        """Return the counts of the selected classes or images."""
        return DecisionCounts(
            true_positives=self.true_positives[selected],
            false_positives=self.false_positives[selected],
            false_negatives=self.false_negatives[selected],
            known=self.known[selected],
        )

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
    def predicted(self) -> Int64[Tensor, " K"]:
        """Number of entries that are predicted positive."""
        return self.true_positives + self.false_positives

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
        return _rate(self.true_positives, self.predicted)

    @property
    def npv(self) -> Float64[Tensor, " K"]:
        """Negative predictive value, TN / (TN + FN)."""
        return _rate(self.true_negatives, self.true_negatives + self.false_negatives)

    @property
    def f1(self) -> Float64[Tensor, " K"]:
        """2 TP / (2 TP + FP + FN)."""
        f1 = _f1(self.true_positives, self.wrong)
        return f1.masked_fill(self.known == 0, torch.nan)


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

    Scores and 0/1 labels have shape (N, C); only entries in the mask `known` are counted. An entry is predicted
    positive if its score is above the threshold of its class. The counts of right and wrong decisions are tensors with
    one number per class or per image, and `counts.of(mask)` has only the numbers of the classes or images in the mask.

    >>> decisions = decisions_at(torch.tensor([[0.9, 0.1], [0.6, 0.9]]), torch.tensor([[1, 0], [0, 1]]))
    >>> decisions.hamming_loss, decisions.subset_accuracy
    (0.25, 0.5)
    """
    entries = checked(scores, labels, known)
    n_classes = entries.scores.shape[1]
    class_counts = _count(entries, threshold, axis=0)  # summed over images: one number per class
    image_counts = _count(entries, threshold, axis=1)  # summed over classes: one number per image

    has_both_labels = class_counts.is_scored  # (C,): classes with a known positive and a known negative
    counts_of_scored_classes = class_counts.of(has_both_labels)

    known_labels = image_counts.known  # (N,): the number of known labels of each image
    wrong_decisions = image_counts.wrong  # (N,)
    total_known = known_labels.sum()
    total_wrong = wrong_decisions.sum()
    micro_f1 = float("nan")
    if known_labels.any():
        micro_f1 = _f1(image_counts.true_positives.sum(), total_wrong).item()

    counts_of_labeled_images = image_counts.of(known_labels > 0)
    is_fully_known = known_labels == n_classes
    images_fully_known = is_fully_known.sum()
    images_without_error = (wrong_decisions[is_fully_known] == 0).sum()
    return Decisions(
        macro_f1=counts_of_scored_classes.f1.mean().item(),
        micro_f1=micro_f1,
        sample_f1=counts_of_labeled_images.f1.mean().item(),
        hamming_loss=_rate(total_wrong, total_known).item(),
        subset_accuracy=_rate(images_without_error, images_fully_known).item(),
        images_fully_known=int(images_fully_known),
        labels_predicted=counts_of_labeled_images.predicted.double().mean().item(),
        labels_true=counts_of_labeled_images.positives.double().mean().item(),
    )


def precision_recall_f1(
    entries: Entries, *, threshold: float | Array = 0.5, f1: str = "harmonic", top_k: int | None = None
) -> dict[str, float]:
    """Return precision, recall and F1, and `classes_scored`, the number of classes with a positive and a negative.

    CP and CR are the means of the precision and the recall of these classes, and OP and OR those of all entries
    together. OF1 is the harmonic mean of OP and OR. CF1 is that of CP and CR or, with f1="per_class", the mean F1 of
    these classes. `multilabel_metrics` has the formulas, and describes `threshold` and `top_k`.
    """
    if f1 not in ("harmonic", "per_class"):
        raise ValueError(f"f1={f1!r} must be 'harmonic' or 'per_class'")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1, or None to use only the threshold")
    counts = _count(entries, threshold, axis=0, top_k=top_k)  # one number per class
    has_both_labels = counts.is_scored  # (C,): classes with a known positive and a known negative
    scored = counts.of(has_both_labels)  # the counts of these classes only
    by_class = _precision_and_recall(scored.true_positives, scored.predicted, scored.positives)  # (2, scored classes)
    class_means = by_class.mean(1)
    class_f1 = _harmonic_mean(class_means) if f1 == "harmonic" else _harmonic_mean(by_class).mean()
    overall = _precision_and_recall(
        counts.true_positives.sum(),
        counts.predicted.sum(),
        counts.positives.sum(),
    )  # (2,)
    class_precision, class_recall = class_means.tolist()
    overall_precision, overall_recall = overall.tolist()
    return {
        "CP": class_precision,
        "CR": class_recall,
        "CF1": class_f1.item(),
        "OP": overall_precision,
        "OR": overall_recall,
        "OF1": _harmonic_mean(overall).item(),
        "classes_scored": float(by_class.shape[1]),
    }


def _count(entries: Entries, threshold: float | Array, *, axis: int = 0, top_k: int | None = None) -> DecisionCounts:
    """Count decisions per class, over the images (axis 0), or per image, over the classes (axis 1).

    With `top_k`, a predicted positive must also be among the k highest known scores of its image.
    """
    threshold_of_class = _threshold_of_class(threshold, entries.scores)
    block_counts = []
    for rows in blocks(*entries.scores.shape):
        scores = entries.scores[rows]
        known = entries.known[rows]
        positive = (entries.labels[rows] == 1) & known
        predicted = (scores > threshold_of_class) & known
        if top_k is not None:
            known_scores = scores.where(known, -torch.inf)
            predicted &= _is_among_highest(known_scores, min(top_k, scores.shape[1]))
        counts = DecisionCounts(
            true_positives=(predicted & positive).count_nonzero(axis),
            false_positives=(predicted & ~positive).count_nonzero(axis),
            false_negatives=(positive & ~predicted).count_nonzero(axis),
            known=known.count_nonzero(axis),
        )
        block_counts.append(torch.stack(counts))  # (4, K)
    if axis == 0:  # every block has all classes, so their counts are added
        return DecisionCounts(*torch.stack(block_counts).sum(0))
    return DecisionCounts(*torch.cat(block_counts, dim=1))


def _threshold_of_class(threshold: float | Array, scores: Float[Tensor, "N C"]) -> Float[Tensor, " C"]:
    """Return the threshold of each class, in the precision of the scores."""
    classes = scores.shape[1]
    if isinstance(threshold, float):
        threshold = np.asarray(threshold)  # torch would convert it to float32
    limits = to_tensor(threshold).to(scores.dtype)
    if limits.shape not in ((), (classes,)):
        shape = f"threshold has shape {tuple(limits.shape)}"
        raise ValueError(f"{shape}; expected one number, or one per class with shape ({classes},)")
    if limits.isnan().any():
        raise ValueError("threshold must not be NaN")
    return limits.expand(classes)


def _is_among_highest(scores: Float[Tensor, "N C"], k: int) -> Bool[Tensor, "N C"]:
    """Mark the k highest scores of each row; among equal scores, the first are marked."""
    lowest = scores.topk(k, dim=1).values[:, -1:]  # (N, 1): the k-th highest score
    is_above = scores > lowest
    is_tied = scores == lowest
    places_for_tied = k - is_above.sum(1, keepdim=True)  # (N, 1)
    place_among_tied = is_tied.cumsum(1, dtype=torch.int32)
    return is_above | (is_tied & (place_among_tied <= places_for_tied))


def _rate(numerator: Int64[Tensor, "..."], denominator: Int64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Return the quotient in double precision; 0 / 0 is NaN."""
    return numerator.double() / denominator.double()


def _f1(true_positives: Int64[Tensor, "..."], wrong: Int64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Return 2 TP / (2 TP + FP + FN), where `wrong` is FP + FN; 0 / 0 is 0."""
    denominator = 2 * true_positives + wrong
    return 2 * true_positives.double() / denominator.clamp(min=1)


def _precision_and_recall(
    true_positives: Int64[Tensor, "*K"], predicted: Int64[Tensor, "*K"], positives: Int64[Tensor, "*K"]
) -> Float64[Tensor, "2 *K"]:
    """Return the precision TP / predicted and the recall TP / positives; 0 / 0 is 0."""
    denominators = torch.stack([predicted, positives])
    return true_positives.double() / denominators.clamp(min=1)


def _harmonic_mean(precision_and_recall: Float64[Tensor, "2 ..."]) -> Float64[Tensor, "..."]:
    """Return 2 P R / (P + R); 0 / 0 is 0."""
    total = precision_and_recall.sum(0)
    return torch.where(total == 0, 0.0, 2 * precision_and_recall.prod(0) / total)
