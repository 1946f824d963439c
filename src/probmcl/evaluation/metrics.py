"""Average precision and area under the ROC curve per class, and the usual multi-label metrics."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from probmcl.evaluation.decisions import precision_recall_f1
from probmcl.evaluation.entries import Array, ClassEntries, checked, class_columns


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
    columns = class_columns(checked(scores, labels, known))
    areas = [_summary(precision_at_positives(*column), kind) if column.is_scored else np.nan for column in columns]
    return torch.tensor(areas, dtype=torch.float64)


def precision_at_positives(
    scores: Float[np.ndarray, " N"], positive: Bool[np.ndarray, " N"], known: Bool[np.ndarray, " N"]
) -> Float64[np.ndarray, " P"]:
    """Return the precision at the score of each positive, in ascending order of scores.

    Other thresholds are not needed: between two positives, recall is constant and precision only falls. Sorting and
    counting values also makes the result independent of the order within ties.
    """
    all_scores, positive_scores = np.sort(scores[known]), np.sort(scores[positive])
    true_positives = len(positive_scores) - np.searchsorted(positive_scores, positive_scores)
    retrieved = len(all_scores) - np.searchsorted(all_scores, positive_scores)
    return true_positives / retrieved


def _summary(precision: Float64[np.ndarray, " P"], kind: str) -> float:
    if kind == "area":
        return float(precision.mean())
    envelope = np.maximum.accumulate(precision)
    if kind == "envelope":
        return float(envelope.mean())
    # Recall reaches t / 10 at the positive of rank ⌈t P / 10⌉. Integers avoid 3 · 0.1 > 0.3 in floating point.
    rank = np.maximum(-(-np.arange(11) * len(envelope) // 10), 1)
    return float(envelope[-rank].mean())


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
    # All values are integers until the final division, so the result does not depend on the order of the images.
    positives = np.sort(column.scores[column.positive])
    negatives = np.sort(column.scores[column.known & ~column.positive])
    if not column.is_scored:
        return float("nan")
    below, not_above = (np.searchsorted(negatives, positives, side=side).sum() for side in ("left", "right"))
    return int(below + not_above) / (2 * len(positives) * len(negatives))


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
