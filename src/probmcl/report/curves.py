"""Points of the curves in a report, and the co-occurrence of labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int
from numpy import ndarray

from probmcl.evaluation.stored_scores import read_scores, scores_file
from probmcl.neighbors.training_images import cooccurrence
from probmcl.report.run_data import RunData
from probmcl.report.scores import RECALLS, precision_at_recall

MAX_CLASSES = 30
"""Classes in a co-occurrence matrix: the most frequent ones."""

RELIABILITY_BINS, MIN_LABELS = 10, 10
"""Bins of the reliability diagram; those with fewer labels are not drawn."""

MAX_PAIRS = 20
"""Pairs of labels in a list."""


def curves(run: RunData, classes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the precision–recall curves, the reliability diagram and the risk–coverage curve."""
    test = run.test
    known = test.known
    scored = [row["precision_at_recall"] for row in classes if row["precision_at_recall"]]
    return {
        "recall": [round(float(recall), 3) for recall in RECALLS],
        "micro": precision_at_recall(test.probabilities[known], test.positive[known], RECALLS),
        "macro": [round(float(x), 3) for x in np.mean(scored, axis=0)] if scored else [],
        "quartiles": [[round(float(x), 3) for x in row] for row in np.quantile(scored, [0.25, 0.75], axis=0)]
        if scored
        else [],
        "reliability": {"before": _bins(run, raw=True), "after": _bins(run, raw=False)}
        if run.calibration
        else {"before": _bins(run, raw=True)},
        "risk_coverage": run.evaluation["risk_coverage"],
    }


def _bins(run: RunData, *, raw: bool) -> dict[str, list[Any]]:
    """Return the points of a reliability diagram of all classes together, with bins of equal width."""
    known = run.test.known
    scores = read_scores(scores_file(run.folder.path, "test")).rows.scores if raw else run.test.probabilities
    p, positive = scores[known].astype(np.float64), run.test.positive[known].astype(np.float64)
    bins = np.minimum((p * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)
    labels = np.bincount(bins, minlength=RELIABILITY_BINS)
    filled = np.flatnonzero(labels >= MIN_LABELS)
    probability, frequency = (np.bincount(bins, weights=x, minlength=RELIABILITY_BINS) for x in (p, positive))
    points = {"probability": probability, "frequency": frequency}
    rounded = {key: (sums[filled] / labels[filled]).round(4).tolist() for key, sums in points.items()}
    return {**rounded, "labels": labels[filled].tolist()}


def label_pairs(run: RunData) -> dict[str, Any]:
    """Return how often labels occur together in the test labels and in the predictions, and pairs new to the model."""
    frequent = np.argsort(-run.test.positive.sum(0), kind="stable")[:MAX_CLASSES]
    frequent = frequent[run.test.positive.sum(0)[frequent] > 0]
    truth = _conditional(run.test.positive, frequent)
    predicted = _conditional(run.decisions & run.test.known, frequent)
    return {
        "classes": [run.names[c] for c in frequent],
        "truth": truth.round(3).tolist(),
        "predicted": predicted.round(3).tolist(),
        "never_seen": never_seen(run),
    }


def _conditional(present: Bool[ndarray, "N C"], classes: Int[ndarray, " K"]) -> Float64[ndarray, "K K"]:
    """Return, for each pair of classes, the fraction of the images with the first class that also have the second."""
    chosen = present[:, classes].astype(np.float64)
    together = chosen.T @ chosen
    result: Float64[ndarray, "K K"] = together / np.maximum(np.diag(together), 1)[:, None]
    return result


def never_seen(run: RunData) -> dict[str, Any] | None:
    """Return the pairs of labels that occur in test but in no training image, and how well they are recognized.

    None if the run does not store the labels of its training images.
    """
    if run.training is None:
        return None
    trained = cooccurrence(run.training.labels, run.training.known)
    present = run.test.positive.astype(np.float64)
    tested = present.T @ present
    new = np.triu((trained == 0) & (tested > 0), 1)
    images = (((present @ new) > 0) & run.test.positive).any(1)
    rows, columns = np.nonzero(new)
    order = np.argsort(-tested[rows, columns], kind="stable")[:MAX_PAIRS]
    pairs = [_pair(run, int(rows[k]), int(columns[k])) for k in order]
    others = ~images & run.test.positive.any(1)
    return {
        "pairs": int(new.sum()),
        "images": int(images.sum()),
        "recall": _recall(run, images),
        "recall_of_others": _recall(run, others),
        "most_frequent": pairs,
    }


def _pair(run: RunData, one: int, other: int) -> dict[str, Any]:
    images = run.test.positive[:, one] & run.test.positive[:, other]
    both = run.decisions[:, one] & run.decisions[:, other] & images
    return {"classes": [run.names[one], run.names[other]], "images": int(images.sum()), "both_found": int(both.sum())}


def _recall(run: RunData, images: Bool[ndarray, " N"]) -> float | None:
    positive = run.test.positive[images]
    return float(run.decisions[images][positive].mean()) if positive.any() else None
