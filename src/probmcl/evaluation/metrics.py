"""How good scores are: average precision of each class, and precision, recall and F1 by class and overall."""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

# Plain types, no shapes: arrays that do not fit together are the caller's data and deserve the ValueErrors below.
Array: TypeAlias = Tensor | npt.NDArray[Any]

_BLOCK = 2**22  # entries handled at once: a few tens of megabytes, however many classes there are


class Entries(NamedTuple):
    """What `checked` found to be sound."""

    scores: Float[Tensor, "N C"]
    labels: Shaped[Tensor, "N C"]
    known: Bool[Tensor, "N C"]


class Column(NamedTuple):
    """All images in one class."""

    scores: Float[np.ndarray, " N"]
    positive: Bool[np.ndarray, " N"]  # and known
    known: Bool[np.ndarray, " N"]


def average_precision(
    scores: Array, labels: Array, known: Array | None = None, *, kind: str = "area"
) -> Float64[Tensor, " C"]:
    """Average precision of each class, from scores and 0/1 labels of shape (N, C).

    With p(s) = TP(s) / (number of images that score s or more), one point for each distinct score s of a positive:

        area      mean over the positives of p at their own score, scikit-learn's `average_precision_score`
        envelope  the same with p̂(s) = max of p(s') over s' ≤ s, as in PASCAL VOC 2010 and SRN
        voc11     mean of p̂ at the first point with recall ≥ t / 10, t = 0 … 10, as in PASCAL VOC 2007

    Equal scores share one point, so that the order of the images never matters. Entries with `known` False take no
    part. A class without a known positive is NaN; `.nanmean()` is the mAP.

    Reference: Everingham et al., The PASCAL Visual Object Classes (VOC) Challenge, 2010.

    >>> scores = torch.tensor([[0.9], [0.6], [0.6], [0.1]])
    >>> labels = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
    >>> average_precision(scores, labels)  # (1 + 2/3) / 2
    tensor([0.8333], dtype=torch.float64)
    """
    _check_choice("kind", kind, ("area", "envelope", "voc11"))
    return average_precision_of(checked(scores, labels, known), kind)


def multilabel_metrics(
    scores: Array,
    labels: Array,
    known: Array | None = None,
    *,
    threshold: float | Array = 0.5,
    f1: str = "harmonic",
    top_k: int | None = None,
) -> dict[str, float]:
    """The numbers of a multi-label table, from scores and 0/1 labels of shape (N, C).

        CP = mean_c TP_c / D_c     CR = mean_c TP_c / P_c     OP = Σ_c TP_c / Σ_c D_c     OR = Σ_c TP_c / Σ_c P_c

    where D_c known entries of class c are decided, P_c are positive and TP_c are both; 0 / 0 is 0. An entry is decided
    if its score is above `threshold`, a number or one for each class (rounded to the precision of the scores: a float32
    0.8 is not above 0.8) and, with `top_k`, if it is also among the k best known entries of its image; of equal scores
    the lower class comes first.

    mAP (of kind "area"), CP, CR and CF1 are over the `classes_scored` classes with a known positive, NaN if there are
    none; OP and OR are over all classes. CF1 and OF1 are harmonic means of precision and recall, F1 = 2 P R / (P + R);
    with f1="per_class" CF1 is the mean of the F1 of each class, as in ASL and SRN.

    Reference: Chen et al., ML-GCN, 2019, evaluation metrics.

    >>> scores = torch.tensor([[0.9, 0.7], [0.6, 0.2]])
    >>> multilabel_metrics(scores, torch.tensor([[1, 0], [1, 1]]))["OR"]
    0.6666666666666666
    """
    entries = checked(scores, labels, known)
    area = average_precision_of(entries, "area").nanmean().item()
    return {"mAP": area} | decision_metrics(entries, threshold=threshold, f1=f1, top_k=top_k)


def decision_metrics(
    entries: Entries, *, threshold: float | Array = 0.5, f1: str = "harmonic", top_k: int | None = None
) -> dict[str, float]:
    """What `multilabel_metrics` says but for the mAP, which needs no decision."""
    _check_choice("f1", f1, ("harmonic", "per_class"))
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}: give a whole number from 1 up, or None to decide by the threshold alone")
    counts = _counts(entries, limits_of(threshold, entries.scores), top_k)
    by_class, overall = _precision_recall(counts[:, counts[2] > 0]), _precision_recall(counts.sum(1))
    mean = by_class.mean(1)
    values = {
        "CP": mean[0],
        "CR": mean[1],
        "CF1": _f1(mean) if f1 == "harmonic" else _f1(by_class).mean(),
        "OP": overall[0],
        "OR": overall[1],
        "OF1": _f1(overall),
    }
    return {name: value.item() for name, value in values.items()} | {"classes_scored": float(by_class.shape[1])}


def _precision_recall(counts: Int64[Tensor, "3 ..."]) -> Float64[Tensor, "2 ..."]:
    """The counts of `_counts` as precision and recall, 0 / 0 = 0."""
    return counts[0].double() / counts[1:].clamp(min=1)


def _f1(precision_recall: Float64[Tensor, "2 ..."]) -> Float64[Tensor, "..."]:
    """F1 = 2 P R / (P + R), 0 where both are 0."""
    total = precision_recall.sum(0)
    return torch.where(total == 0, 0.0, 2 * precision_recall.prod(0) / total)


def limits_of(threshold: float | Array, scores: Float[Tensor, "N C"]) -> Float[Tensor, " C"]:
    """The threshold of each class, in the precision of the scores."""
    classes = scores.shape[1]
    limits = _tensor(np.asarray(threshold) if isinstance(threshold, float) else threshold).to(scores.dtype)
    if limits.shape not in ((), (classes,)):
        given = f"threshold has shape {tuple(limits.shape)}"
        raise ValueError(f"{given}: expected a number, or ({classes},), one for each class")
    if limits.isnan().any():
        raise ValueError("threshold is NaN, which no score is above: give numbers")
    return limits.expand(classes)


def _counts(entries: Entries, limits: Float[Tensor, " C"], top_k: int | None) -> Int64[Tensor, "3 C"]:
    """How many known entries of each class are decided rightly, decided, and positive."""
    images, classes = entries.scores.shape
    counts = torch.zeros(3, classes, dtype=torch.int64)
    for rows in blocks(images, classes):
        scores, labels, known = (entry[rows] for entry in entries)
        positive = (labels == 1) & known
        decided = (scores > limits) & known
        if top_k is not None:
            decided &= _best(scores.where(known, -torch.inf), min(top_k, classes))
        counts += torch.stack([mask.count_nonzero(0) for mask in (decided & positive, decided, positive)])
    return counts


def _best(scores: Float[Tensor, "N C"], k: int) -> Bool[Tensor, "N C"]:
    """Mark the k highest scores of each row, the first ones among equals."""
    last = scores.topk(k, dim=1).values[:, -1:]  # (N, 1)
    above, level = scores > last, scores == last
    return above | (level & (level.cumsum(1, dtype=torch.int32) <= k - above.sum(1, keepdim=True)))


def average_precision_of(entries: Entries, kind: str = "area") -> Float64[Tensor, " C"]:
    """`average_precision` of what was checked."""
    result = [
        _summary(precision_at_positives(*column), kind) if column.positive.any() else torch.nan
        for column in class_columns(entries)
    ]
    return torch.tensor(result, dtype=torch.float64)


def class_columns(entries: Entries) -> Iterator[Column]:
    """One class after the other, as NumPy arrays without gaps; half precision is raised to float32."""
    # NumPy sorts values with SIMD, without carrying an index: ten times faster than torch.sort. It lacks bfloat16.
    images, classes = entries.scores.shape
    dtype = torch.promote_types(entries.scores.dtype, torch.float32)
    for columns in blocks(classes, images):
        scores = entries.scores[:, columns].T.to(dtype).contiguous().numpy()  # (block, N)
        known = entries.known[:, columns].T.contiguous().numpy()
        positive = (entries.labels[:, columns].T == 1).contiguous().numpy() & known
        yield from map(Column, scores, positive, known)


def precision_at_positives(
    scores: Float[np.ndarray, " N"], positive: Bool[np.ndarray, " N"], known: Bool[np.ndarray, " N"]
) -> Float64[np.ndarray, " P"]:
    """Precision among the images that score as high as a positive, for each positive from the lowest score up.

    No other threshold matters: between two positives recall stands still and precision only falls. So it is enough to
    sort values and count from the top, and the order within a tie cannot enter.
    """
    everything, hits = np.sort(scores[known]), np.sort(scores[positive])
    found = len(hits) - np.searchsorted(hits, hits)
    shown = len(everything) - np.searchsorted(everything, hits)
    return found / shown


def _summary(precision: Float64[np.ndarray, " P"], kind: str) -> float:
    """One number from the precision at the positives, which come from the lowest score up."""
    if kind == "area":
        return float(precision.mean())
    envelope = np.maximum.accumulate(precision)
    if kind == "envelope":
        return float(envelope.mean())
    # Recall reaches t / 10 at the positive of rank ⌈t P / 10⌉ from the top: in integers, since in floats 3 · 0.1 > 0.3.
    rank = np.maximum(-(-np.arange(11) * len(envelope) // 10), 1)
    return float(envelope[-rank].mean())


def checked(scores: Array, labels: Array, known: Array | None) -> Entries:
    """The three arrays as tensors, or a ValueError that says which entry is wrong."""
    values, truth = _tensor(scores), _tensor(labels)
    if values.ndim != 2 or values.numel() == 0:
        raise ValueError(f"scores has shape {tuple(values.shape)}: expected (images, classes), at least one of each")
    seen = torch.ones(1, 1, dtype=torch.bool).expand_as(values) if known is None else _tensor(known)
    for name, other in {"labels": truth, "known": seen}.items():
        if other.shape != values.shape:
            raise ValueError(f"scores has shape {tuple(values.shape)}, {name} {tuple(other.shape)}: both must be equal")
    if seen.dtype != torch.bool:
        raise ValueError(f"known has type {seen.dtype}: expected torch.bool, True where the label is known")
    for rows in blocks(*values.shape):
        _check_none((truth[rows] != 0) & (truth[rows] != 1) & seen[rows], rows.start, "labels", truth, "0 or 1")
        _check_none(values[rows].isnan() & seen[rows], rows.start, "scores", values, "a number")
    return Entries(values if values.is_floating_point() else values.double(), truth, seen)


def _tensor(array: Array) -> Tensor:
    """A tensor on the CPU without gradient; memory is shared where possible."""
    if isinstance(array, np.ndarray):
        fits = array.flags.writeable and min(array.strides, default=0) >= 0
        array = array if fits else array.copy()  # torch refuses negative strides and warns of read-only memory
    return torch.as_tensor(array).detach().cpu()


def _check_none(wrong: Bool[Tensor, "N C"], start: int, name: str, array: Tensor, expected: str) -> None:
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        entry = f"{name}: row {start + row}, class {column} is {array[start + row, column].item()}"
        raise ValueError(f"{entry}: expected {expected}; known=False leaves an entry out")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: choose one of {', '.join(map(repr, choices))}")


def blocks(length: int, width: int) -> Iterator[slice]:
    """Slices that cover `length` lines of `width` entries, about `_BLOCK` entries each."""
    step = max(1, _BLOCK // width)
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
