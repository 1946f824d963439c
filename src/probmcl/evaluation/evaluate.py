"""Predictions and metrics of a model on one split, as stored in `evaluation.json`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from torch import Tensor

from probmcl.data.hierarchy import levels_of, parents_of
from probmcl.data.loader import Batch
from probmcl.data.records import Records, Split
from probmcl.evaluation.decisions import DecisionCounts, decisions_at, precision_recall_f1, rates_at
from probmcl.evaluation.entries import Array, Entries, checked
from probmcl.evaluation.metrics import area_under_roc, average_precision
from probmcl.methods.base import Classifier
from probmcl.runtime import distributed
from probmcl.runtime.files import nan_to_none

THRESHOLDS = (0.5, 0.8)
"""Both are reported, since the paper uses 0.5 and its authors' earlier code uses 0.8 (decision 0001, point 19)."""

ROUNDING = 1e-9
"""A smaller change of an AP is due to rounding."""


@torch.inference_mode()
def predict(
    classifier: Classifier,
    batches: Iterable[Batch],
    *,
    device: torch.device | str = "cpu",
    done: Callable[[int], None] | None = None,
) -> Float[Tensor, "N C"]:
    """Return the probability of every class for every image, using the first view of each image.

    `done` is called with the number of images in each finished batch. With several processes, `batches` is the
    `distributed.shard` of this process, and all processes receive the scores of all images in the original order.
    """
    classifier.to(device).eval()
    scores = []
    for batch in batches:
        scores.append(classifier.logits(batch.views[0].to(device)).float().sigmoid().cpu())
        if done is not None:
            done(len(batch.labels))
    gathered = distributed.unshard(scores)
    if not len(gathered):
        raise ValueError("there are no images to score; choose a split that is not empty")
    return gathered


def evaluate(
    scores: Array,
    labels: Array,
    known: Array | None,
    *,
    names: Sequence[str],
    split: str,
    note: str = "",
    levels: Sequence[int] = (),
    raw: Array | None = None,
    thresholds: Float64[ndarray, " C"] | None = None,
) -> dict[str, Any]:
    """Return all reported metrics of a split as fractions; undefined metrics are None.

    A class is scored if it has a known positive and a known negative. `chance` is the mAP of a model that has learned
    nothing: the mean prevalence of the scored classes. `note` is the classifier's note on its mAP; an empty note is
    omitted. If `levels` gives the level of each class in the class hierarchy, means are also reported per level.

    If `scores` are calibrated, `raw` are the scores before calibration, to which 0.5 and 0.8 are applied as in the
    paper. If `thresholds` has the chosen threshold of each class, decisions are reported at these thresholds.

    >>> result = evaluate(torch.tensor([[0.9], [0.1]]), torch.tensor([[1.0], [0.0]]), None, names=["cat"], split="test")
    >>> result["mAP"], result["chance"], result["at"]["0.8"]["CF1"], result["auroc"]
    (1.0, 0.5, 1.0, {'cat': 1.0})
    """
    entries = checked(scores, labels, known)
    uncalibrated = entries if raw is None else checked(raw, labels, known)
    limits = np.full(len(names), THRESHOLDS[0]) if thresholds is None else thresholds
    ap, auroc, counts = average_precision(*entries), area_under_roc(*entries), rates_at(*entries, limits)
    at = {str(threshold): _decision_scores(uncalibrated, threshold) for threshold in THRESHOLDS}
    at |= {} if thresholds is None else {"chosen": _decision_scores(entries, thresholds)}
    all_positive = (counts.positives > 0) & ~counts.is_scored
    summary = decisions_at(*entries, limits)._asdict()
    decisions = {key.replace("f1", "F1"): nan_to_none(value) for key, value in summary.items()}
    return {
        "split": split,
        "images": len(scores),
        "classes": len(names),
        "classes_without_negatives": [name for name, flag in zip(names, all_positive, strict=True) if flag],
        **class_means(ap, auroc, counts),
        "ap": dict(zip(names, map(nan_to_none, ap.tolist()), strict=True)),
        "auroc": dict(zip(names, map(nan_to_none, auroc.tolist()), strict=True)),
        "at": at,
        "top3": _decision_scores(uncalibrated, THRESHOLDS[0], top_k=3),
        "decisions": {"threshold": THRESHOLDS[0] if thresholds is None else "chosen", **decisions},
        "per_class": _per_class(names, counts, limits),
        **({} if raw is None else {"ap_changes": _changes(names, average_precision(*uncalibrated), ap)}),
        **({"levels": _by_level(levels, ap, auroc, counts)} if levels else {}),
        **({"note": note} if note else {}),
    }


def evaluate_split(records: Records, split: Split, scores: Float[Tensor, "N C"], note: str = "") -> dict[str, Any]:
    """Return `evaluate` for the images in a split of the records, including levels if the classes have parents."""
    space, (labels, known) = records.label_space, records.states.labels_and_known(records.rows(split))
    levels = () if space.hierarchy is None else levels_of(parents_of(space.names, space.hierarchy)).tolist()
    return evaluate(scores, labels, known, names=space.names, split=split, note=note, levels=levels)


def _decision_scores(
    entries: Entries, threshold: float | Float64[ndarray, " C"], *, top_k: int | None = None
) -> dict[str, float | None]:
    """Return CP, CR, CF1, OP, OR, OF1 and macro F1 at a threshold, or at one per class."""
    scores = precision_recall_f1(entries, threshold=threshold, top_k=top_k)
    macro_f1 = precision_recall_f1(entries, threshold=threshold, top_k=top_k, f1="per_class")["CF1"]
    del scores["classes_scored"]
    return {key: nan_to_none(value) for key, value in {**scores, "macro_F1": macro_f1}.items()}


def _changes(names: Sequence[str], before: Float64[Tensor, " C"], after: Float64[Tensor, " C"]) -> dict[str, float]:
    """Return how calibration changed the AP of each class whose ranking it changed."""
    changes = dict(zip(names, (after - before).tolist(), strict=True))
    return {name: change for name, change in changes.items() if abs(change) > ROUNDING}


def _per_class(
    names: Sequence[str], counts: DecisionCounts, thresholds: Float64[ndarray, " C"]
) -> dict[str, dict[str, Any]]:
    rates = ("positives", "sensitivity", "specificity", "ppv", "npv", "f1")
    columns = {"n": counts.known.tolist()} | {rate: getattr(counts, rate).tolist() for rate in rates}
    return {
        name: {key: nan_to_none(column[c]) for key, column in columns.items()} | {"threshold": float(thresholds[c])}
        for c, name in enumerate(names)
    }


def _by_level(
    levels: Sequence[int], ap: Float64[Tensor, " C"], auroc: Float64[Tensor, " C"], counts: DecisionCounts
) -> dict[str, dict[str, Any]]:
    result = {}
    for level in sorted(set(levels)):
        member = torch.tensor(levels) == level
        members = DecisionCounts(*(count[member] for count in counts))
        result[str(level)] = {"classes": int(member.sum()), **class_means(ap[member], auroc[member], members)}
    return result


def class_means(
    ap: Float64[Tensor, " C"], auroc: Float64[Tensor, " C"], counts: DecisionCounts
) -> dict[str, float | int | None]:
    """Return the number of scored classes, their mAP and macro AUROC, and the chance level of the mAP."""
    means = {"mAP": ap, "chance": counts.prevalence.where(counts.is_scored, torch.nan), "macro_auroc": auroc}
    scored = int(counts.is_scored.sum())
    return {"classes_scored": scored} | {key: nan_to_none(values.nanmean().item()) for key, values in means.items()}
