"""Scores of a report: of each class, of the whole run, and the points of their curves."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int32
from numpy import ndarray

from probmcl.evaluation.bootstrap import (
    MAX_RESAMPLED,
    bootstrapped_precisions,
    centered,
    fraction_interval,
    reliable_interval,
    resamples,
)
from probmcl.evaluation.metrics import DecisionCounts, area_under_roc, average_precision, rates_at
from probmcl.evaluation.scores import read_scores, scores_file
from probmcl.neighbors.training_images import cooccurrence
from probmcl.report.run_data import RunData, SplitScores
from probmcl.runtime.files import nan_to_none
from probmcl.store.report import (
    ClassScores,
    Curves,
    FrozenScores,
    Headline,
    LabelPairs,
    NewPair,
    NewPairs,
    ReliabilityPoints,
)

MAX_DRAWS, MIN_DRAWS = 400, 100
"""Most and fewest resamples; the report has two classifiers to resample."""

BINS = 100
"""Bins of the histograms behind the threshold explorer."""

RECALLS = np.linspace(0, 1, 21)
"""Recalls at which the precision–recall curve of a class is stored."""

MAX_CLASSES = 30
"""Classes in a co-occurrence matrix: the most frequent ones."""

RELIABILITY_BINS, MIN_LABELS = 10, 10
"""Bins of the reliability diagram; those with fewer labels are not drawn."""

MAX_PAIRS = 20
"""Pairs of labels in a list."""


@dataclass(frozen=True, eq=False)
class ScoredRun:
    """The scores of a run with their resamples, which are shared by the model and the frozen probe."""

    run: RunData

    @cached_property
    def _weights(self) -> Int32[ndarray, "B N"]:
        images, classes = self.run.test.probabilities.shape
        affordable = MAX_RESAMPLED // 4 // (images * classes)
        draws = min(MAX_DRAWS, max(MIN_DRAWS, affordable))
        return resamples(images, self.run.test.group, draws=draws)

    @cached_property
    def precisions(self) -> Float64[ndarray, "B C"]:
        """The average precision of each class in each resample."""
        return bootstrapped_precisions(*self.run.test.entries, self._weights)

    @cached_property
    def ap(self) -> Float64[ndarray, " C"]:
        """The average precision of each class; NaN if it cannot be scored."""
        return _scored_ap(self.run.test)

    @cached_property
    def counts(self) -> DecisionCounts:
        """The decisions at the thresholds of the run."""
        return rates_at(*self.run.test.entries, self.run.thresholds)

    def headline(self) -> Headline:
        """Return the headline numbers of the model and, if another candidate was kept, of the frozen probe."""
        evaluation = self.run.evaluation
        decisions = evaluation.at.used
        reliability = evaluation.calibration.final
        return Headline(
            images=evaluation.images,
            mAP=evaluation.mAP,
            mAP_interval=evaluation.mAP_interval,
            macro_auroc=evaluation.macro_auroc,
            macro_auroc_interval=evaluation.macro_auroc_interval,
            chance=evaluation.chance,
            classes=evaluation.classes,
            classes_scored=evaluation.classes_scored,
            CF1=decisions.CF1,
            OF1=decisions.OF1,
            macro_F1=decisions.macro_F1,
            calibration_error=reliability.calibration_error,
            calibration_error_interval=reliability.calibration_error_interval,
            brier=reliability.brier,
            frozen=self._frozen(),
        )

    def _frozen(self) -> FrozenScores | None:
        """Return the scores of the frozen probe, and the gain over it on the same resamples."""
        frozen = self.run.frozen
        if frozen is None or self.run.evaluation.mAP is None:
            return None
        frozen_map = float(np.nanmean(_scored_ap(frozen)))
        gain = float(np.nanmean(self.ap)) - frozen_map
        resampled_frozen_map = _mean_map(bootstrapped_precisions(*frozen.entries, self._weights))
        resampled_gain = _mean_map(self.precisions) - resampled_frozen_map
        gain_interval = reliable_interval(centered(resampled_gain, gain))
        macro_auroc = area_under_roc(*frozen.entries).nanmean().item()
        return FrozenScores(
            mAP=frozen_map,
            mAP_interval=fraction_interval(resampled_frozen_map, frozen_map),
            macro_auroc=nan_to_none(macro_auroc),
            gain=gain,
            gain_interval=None if gain_interval is None else list(gain_interval),
        )

    def classes(self) -> list[ClassScores]:
        """Return the scores of each class, in the order of the classes."""
        return [self._class_scores(column) for column in range(len(self.run.names))]

    def _class_scores(self, column: int) -> ClassScores:
        run, counts = self.run, self.counts
        name = run.names[column]
        p = run.test.probabilities[:, column]
        positive = run.test.positive[:, column]
        known = run.test.known[:, column]
        negative = known & ~positive
        ap = float(self.ap[column])
        reliability = run.evaluation.calibration.final.per_class[name]
        return ClassScores(
            name=name,
            train=int(run.labels.counts[column]),
            val=int(run.val.positive[:, column].sum()),
            test=int(positive.sum()),
            unknown=int((~known).sum()),
            ap=nan_to_none(ap),
            ap_interval=fraction_interval(self.precisions[:, column], ap),
            precision=nan_to_none(float(counts.ppv[column])),
            recall=nan_to_none(float(counts.sensitivity[column])),
            f1=nan_to_none(float(counts.f1[column])),
            threshold=float(run.thresholds[column]),
            true_positives=int(counts.true_positives[column]),
            false_positives=int(counts.false_positives[column]),
            false_negatives=int(counts.false_negatives[column]),
            calibration_error=reliability.calibration_error,
            calibration_error_interval=reliability.calibration_error_interval,
            precision_at_recall=precision_at_recall(p[known], positive[known], RECALLS),
            positives_by_probability=histogram(p[positive]),
            negatives_by_probability=histogram(p[negative]),
        )


def _scored_ap(scores: SplitScores) -> Float64[ndarray, " C"]:
    """Return the average precision of each class; NaN for a class without a positive or without a known negative."""
    has_positive = scores.positive.any(axis=0)
    has_negative = (scores.known & ~scores.positive).any(axis=0)
    ap = average_precision(*scores.entries).numpy()
    scored_ap: Float64[ndarray, " C"] = np.where(has_positive & has_negative, ap, np.nan)
    return scored_ap


def _mean_map(samples: Float64[ndarray, "B C"]) -> Float64[ndarray, " B"]:
    """Return the mean of the classes that are scored in each resample; NaN if there are none."""
    scored = ~np.isnan(samples)
    count = scored.sum(axis=1)
    total = np.where(scored, samples, 0).sum(axis=1)
    undefined = np.full(len(samples), np.nan)
    means: Float64[ndarray, " B"] = np.divide(total, count, out=undefined, where=count > 0)
    return means


def precision_at_recall(
    p: Float[ndarray, " N"], positive: Bool[ndarray, " N"], recalls: Float64[ndarray, " R"]
) -> list[float]:
    """Return the highest precision at each recall or above; nothing for a class without positives.

    >>> precision_at_recall(np.array([0.9, 0.6, 0.1]), np.array([True, False, True]), np.array([0.5, 1.0]))
    [1.0, 0.667]
    """
    if not positive.any():
        return []
    order = np.argsort(-p, kind="stable")
    hits = np.cumsum(positive[order])
    precision = hits / np.arange(1, len(p) + 1)
    recall = hits / hits[-1]
    is_last_of_ties = np.append(np.diff(p[order]) != 0, True)  # equal probabilities are decided together
    precision = precision[is_last_of_ties]
    recall = recall[is_last_of_ties]
    highest_from_here = np.maximum.accumulate(precision[::-1])[::-1]
    # The tolerance is for recalls such as 0.15, which differ from hits / positives by a rounding error.
    first_points = np.searchsorted(recall, recalls - 1e-12)
    return [round(float(highest_from_here[point]), 3) for point in first_points]


def histogram(p: Float[ndarray, " N"]) -> list[int]:
    """Count the probabilities in `BINS` bins; a probability of k / BINS is in bin k − 1, since decisions are p > t.

    >>> sum(histogram(np.array([0.0, 0.01, 0.5, 1.0]))), histogram(np.array([0.01]))[0]
    (4, 1)
    """
    position = np.round(p * BINS, 9)  # 0.29 · 100 is 28.999999999999996
    bins: Int[ndarray, " N"] = np.clip(np.ceil(position) - 1, 0, BINS - 1).astype(int)
    counts = np.bincount(bins, minlength=BINS)
    return [int(count) for count in counts]


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
