"""How good a model is on one split: the dictionary that evaluation.json holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probmcl import distributed
from probmcl.data.loader import Batch
from probmcl.evaluation.metrics import average_precision, multilabel_metrics
from probmcl.methods.base import Classifier

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

    Several processes each go through their `distributed.share` of the batches, and all get the scores of all images, in
    the order in which one process would have them.
    """
    classifier.to(device).eval()
    scores = []
    for batch in batches:
        scores.append(classifier.logits(batch.views[0].to(device)).float().sigmoid().cpu())
        if done is not None:
            done(len(batch.labels))
    gathered = distributed.unshare(scores)
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
) -> dict[str, Any]:
    """Everything that is reported of one split, as fractions; None where a class has no positive.

    `note` is what the classifier has to say of its mAP, and only there if it says something.

    >>> result = evaluate(torch.tensor([[0.9], [0.1]]), torch.tensor([[1.0], [0.0]]), None, names=["cat"], split="test")
    >>> result["mAP"], result["at"]["0.8"]["CF1"]
    (1.0, 1.0)
    """
    at = {str(t): multilabel_metrics(scores, labels, known, threshold=t) for t in THRESHOLDS}
    top3 = multilabel_metrics(scores, labels, known, top_k=3)
    summary = at[str(THRESHOLDS[0])]
    ap = average_precision(scores, labels, known).tolist()
    return {
        "split": split,
        "images": len(scores),
        "classes": len(names),
        "classes_scored": int(summary["classes_scored"]),
        "mAP": _number(summary["mAP"]),
        "ap": {name: _number(x) for name, x in zip(names, ap, strict=True)},
        "at": {threshold: _decisions(metrics) for threshold, metrics in at.items()},
        "top3": _decisions(top3),
    } | ({"note": note} if note else {})


def _decisions(metrics: dict[str, float]) -> dict[str, float | None]:
    return {key: _number(metrics[key]) for key in ("CP", "CR", "CF1", "OP", "OR", "OF1")}


def _number(x: float) -> float | None:
    return None if x != x else x  # JSON has no NaN
