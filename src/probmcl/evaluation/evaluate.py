"""How good a model is on one split: the dictionary that evaluation.json holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from probmcl.data.loader import Batch
from probmcl.evaluation.decisions import Decisions, Rates, decisions_of, rates_of
from probmcl.evaluation.metrics import average_precision_of, checked, decision_metrics
from probmcl.evaluation.roc import area_under_roc_of
from probmcl.methods.base import Classifier
from probmcl.runtime import distributed

THRESHOLDS = (0.5, 0.8)
"""The paper's text says 0.5, its authors' earlier code uses 0.8 (decision 0001, point 19): both are reported."""


@torch.inference_mode()
def predict(
    classifier: Classifier,
    batches: Iterable[Batch],
    *,
    device: torch.device | str = "cpu",
    done: Callable[[int], None] | None = None,
) -> Float[Tensor, "N C"]:
    """Probability of every class for every image, from its first view; `done` hears of each batch.

    Several processes each go through their `distributed.shard` of the batches, and all get the scores of all images, in
    the order in which one process would have them.
    """
    classifier.to(device).eval()
    scores = []
    for batch in batches:
        scores.append(classifier.logits(batch.views[0].to(device)).float().sigmoid().cpu())
        if done is not None:
            done(len(batch.labels))
    gathered = distributed.unshard(scores)
    if not len(gathered):
        raise ValueError("there are no images to score; choose a split that has some")
    return gathered


def evaluate(
    scores: Float[Tensor, "N C"],
    labels: Float[Tensor, "N C"],
    known: Bool[Tensor, "N C"] | None,
    *,
    names: Sequence[str],
    split: str,
    note: str = "",
    levels: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Everything that is reported of one split, as fractions; None where there is nothing to judge.

    `note` is what the classifier has to say of its mAP, and only there if it says something. Where classes have
    parents, `levels` has the level of each, and every level its own means. `classes_without_negatives` are those whose
    AP is 1 by definition, and which are part of the mAP.

    >>> result = evaluate(torch.tensor([[0.9], [0.1]]), torch.tensor([[1.0], [0.0]]), None, names=["cat"], split="test")
    >>> result["mAP"], result["at"]["0.8"]["CF1"], result["auroc"]
    (1.0, 1.0, {'cat': 1.0})
    """
    entries = checked(scores, labels, known)
    ap, auroc = average_precision_of(entries), area_under_roc_of(entries)
    rates = rates_of(entries, THRESHOLDS[0])
    at = {str(t): decision_metrics(entries, threshold=t) for t in THRESHOLDS}
    return (
        {
            "split": split,
            "images": len(scores),
            "classes": len(names),
            "classes_scored": int(at[str(THRESHOLDS[0])]["classes_scored"]),
            "classes_without_negatives": _without_negatives(names, rates),
            "mAP": _number(ap.nanmean().item()),
            "macro_auroc": _number(auroc.nanmean().item()),
            "ap": _by_name(names, ap),
            "auroc": _by_name(names, auroc),
            "at": {threshold: _decided(metrics) for threshold, metrics in at.items()},
            "top3": _decided(decision_metrics(entries, top_k=3)),
            "decisions": _decisions(decisions_of(entries, rates, THRESHOLDS[0])),
            "per_class": _per_class(names, rates),
        }
        | ({} if levels is None else {"levels": _by_level(levels, ap, auroc)})
        | ({"note": note} if note else {})
    )


def _decided(metrics: dict[str, float]) -> dict[str, float | None]:
    return {key: _number(metrics[key]) for key in ("CP", "CR", "CF1", "OP", "OR", "OF1")}


def _decisions(found: Decisions) -> dict[str, Any]:
    return {
        "threshold": THRESHOLDS[0],
        "macro_F1": _number(found.macro_f1),
        "micro_F1": _number(found.micro_f1),
        "sample_F1": _number(found.sample_f1),
        "hamming_loss": _number(found.hamming_loss),
        "subset_accuracy": _number(found.subset_accuracy),
        "images_fully_known": found.images_fully_known,
    }


def _without_negatives(names: Sequence[str], rates: Rates) -> list[str]:
    """Classes of which every known label is a positive: their average precision is 1, whatever the scores."""
    certain = (rates.positives > 0) & (rates.positives == rates.known)
    return [name for name, all_positive in zip(names, certain.tolist(), strict=True) if all_positive]


def _per_class(names: Sequence[str], rates: Rates) -> dict[str, dict[str, Any]]:
    columns = {
        "n": rates.known,
        "positives": rates.positives,
        "sensitivity": rates.sensitivity,
        "specificity": rates.specificity,
        "ppv": rates.ppv,
        "npv": rates.npv,
        "f1": rates.f1,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return {
        name: {key: _number(x) for key, x in zip(columns, row, strict=True)} | {"threshold": THRESHOLDS[0]}
        for name, row in zip(names, rows, strict=True)
    }


def _by_level(
    levels: Sequence[int], ap: Float64[Tensor, " C"], auroc: Float64[Tensor, " C"]
) -> dict[str, dict[str, Any]]:
    place = torch.tensor(levels)
    return {
        str(level): {
            "classes": int((place == level).sum()),
            "classes_scored": int((~ap[place == level].isnan()).sum()),
            "mAP": _number(ap[place == level].nanmean().item()),
            "macro_auroc": _number(auroc[place == level].nanmean().item()),
        }
        for level in sorted(set(levels))
    }


def _by_name(names: Sequence[str], values: Float64[Tensor, " C"]) -> dict[str, float | None]:
    return {name: _number(x) for name, x in zip(names, values.tolist(), strict=True)}


def _number(x: float | int) -> float | int | None:  # a count stays a whole number
    return None if x != x else x  # JSON has no NaN
