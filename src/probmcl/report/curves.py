"""Points of the curves in a report, and the co-occurrence of labels."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Float64, Int
from numpy import ndarray

from probmcl.evaluation.stored_scores import read_scores, scores_file
from probmcl.neighbors.training_images import cooccurrence
from probmcl.report.run_data import RunData
from probmcl.report.scores import RECALLS, precision_at_recall
from probmcl.store.report import ClassScores, Curves, LabelPairs, NewPair, NewPairs, ReliabilityPoints

MAX_CLASSES = 30
"""Classes in a co-occurrence matrix: the most frequent ones."""

RELIABILITY_BINS, MIN_LABELS = 10, 10
"""Bins of the reliability diagram; those with fewer labels are not drawn."""

MAX_PAIRS = 20
"""Pairs of labels in a list."""


def curves(run: RunData, classes: Sequence[ClassScores]) -> Curves:
    """Return the precision–recall curves, the reliability diagram and the risk–coverage curve."""
    test = run.test
    of_classes = [row.precision_at_recall for row in classes if row.precision_at_recall]
    return Curves(
        recall=_rounded(RECALLS),
        micro=precision_at_recall(test.probabilities[test.known], test.positive[test.known], RECALLS),
        macro=_rounded(np.mean(of_classes, axis=0)) if of_classes else [],
        quartiles=_quartiles(of_classes),
        reliability=_reliability(run),
        risk_coverage=run.evaluation.risk_coverage,
    )


def _rounded(values: Float64[ndarray, " R"]) -> list[float]:
    return [round(float(value), 3) for value in values]


def _quartiles(curves: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the lower and the upper quartile of several curves at each point; nothing without curves."""
    if not curves:
        return []
    lower, upper = np.quantile(curves, [0.25, 0.75], axis=0)
    return [_rounded(lower), _rounded(upper)]


def _reliability(run: RunData) -> dict[Literal["before", "after"], ReliabilityPoints]:
    """Return the reliability of the scores before calibration and, if the run is calibrated, after it."""
    stored = read_scores(scores_file(run.folder.path, "test"))
    before = _reliability_points(run, stored.rows.scores)
    reliability: dict[Literal["before", "after"], ReliabilityPoints] = {"before": before}
    if run.calibration is not None:
        reliability["after"] = _reliability_points(run, run.test.probabilities)
    return reliability


def _reliability_points(run: RunData, scores: Float[ndarray, "N C"]) -> ReliabilityPoints:
    """Return the points of a reliability diagram of all classes together, with bins of equal width."""
    known = run.test.known
    p = scores[known].astype(np.float64)
    positive = run.test.positive[known].astype(np.float64)
    bins = np.minimum((p * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)
    labels = np.bincount(bins, minlength=RELIABILITY_BINS)
    filled = np.flatnonzero(labels >= MIN_LABELS)

    def means(values: Float64[ndarray, " K"]) -> list[float]:
        sums = np.bincount(bins, weights=values, minlength=RELIABILITY_BINS)
        rounded: list[float] = (sums[filled] / labels[filled]).round(4).tolist()
        return rounded

    return ReliabilityPoints(probability=means(p), frequency=means(positive), labels=labels[filled].tolist())


def label_pairs(run: RunData) -> LabelPairs:
    """Return how often labels occur together in the test labels and in the predictions, and pairs new to the model."""
    positives = run.test.positive.sum(axis=0)
    by_frequency = np.argsort(-positives, kind="stable")
    frequent = by_frequency[:MAX_CLASSES]
    frequent = frequent[positives[frequent] > 0]
    truth = _conditional(run.test.positive, frequent)
    predicted = _conditional(run.decisions & run.test.known, frequent)
    return LabelPairs(
        classes=[run.names[column] for column in frequent],
        truth=truth.round(3).tolist(),
        predicted=predicted.round(3).tolist(),
        never_seen=never_seen(run),
    )


def _conditional(present: Bool[ndarray, "N C"], classes: Int[ndarray, " K"]) -> Float64[ndarray, "K K"]:
    """Return, for each pair of classes, the fraction of the images with the first class that also have the second."""
    chosen = present[:, classes].astype(np.float64)
    together = chosen.T @ chosen
    images = np.diag(together)
    fractions: Float64[ndarray, "K K"] = together / np.maximum(images, 1)[:, None]
    return fractions


def never_seen(run: RunData) -> NewPairs | None:
    """Return the pairs of labels that occur in test but in no training image, and how well they are recognized.

    None if the run does not store the labels of its training images.
    """
    if run.training is None:
        return None
    present = run.test.positive.astype(np.float64)
    in_train = cooccurrence(run.training.labels, run.training.known)
    in_test = present.T @ present
    is_new = np.triu((in_train == 0) & (in_test > 0), 1)
    partners = present @ is_new  # (N, C): for each image and class, its labels that form a new pair with the class
    has_new_pair = ((partners > 0) & run.test.positive).any(axis=1)
    has_only_known_pairs = ~has_new_pair & run.test.positive.any(axis=1)
    return NewPairs(
        pairs=int(is_new.sum()),
        images=int(has_new_pair.sum()),
        recall=_recall(run, has_new_pair),
        recall_of_others=_recall(run, has_only_known_pairs),
        most_frequent=_most_frequent(run, is_new, in_test),
    )


def _most_frequent(run: RunData, is_new: Bool[ndarray, "C C"], in_test: Float64[ndarray, "C C"]) -> list[NewPair]:
    """Return the new pairs with the most test images."""
    first, second = np.nonzero(is_new)
    by_frequency = np.argsort(-in_test[first, second], kind="stable")
    return [_new_pair(run, int(first[pair]), int(second[pair])) for pair in by_frequency[:MAX_PAIRS]]


def _new_pair(run: RunData, one: int, other: int) -> NewPair:
    images = run.test.positive[:, one] & run.test.positive[:, other]
    both_found = run.decisions[:, one] & run.decisions[:, other] & images
    return NewPair(
        classes=[run.names[one], run.names[other]],
        images=int(images.sum()),
        both_found=int(both_found.sum()),
    )


def _recall(run: RunData, images: Bool[ndarray, " N"]) -> float | None:
    positive = run.test.positive[images]
    if not positive.any():
        return None
    return float(run.decisions[images][positive].mean())
