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

MAX_ENTRIES = MAX_RESAMPLED // 4
"""Entries to resample, a quarter of those of a training run."""

BINS = 100
"""Bins of the histograms behind the threshold explorer."""

RECALLS = np.linspace(0, 1, 21)
"""Recalls at which the precision–recall curve of a class is stored."""

RECALL_TOLERANCE = 1e-12
"""A recall such as 0.15 differs from hits / positives by a rounding error."""

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
        """The number of times that each test image is drawn in each of B resamples."""
        images, classes = self.run.test.probabilities.shape
        affordable = MAX_ENTRIES // (images * classes)
        draws = min(MAX_DRAWS, max(MIN_DRAWS, affordable))
        return resamples(images, self.run.test.group, draws=draws)

    @cached_property
    def precisions(self) -> Float64[ndarray, "B C"]:
        """The average precision of each class in each resample."""
        probabilities, labels, known = self.run.test.entries
        return bootstrapped_precisions(probabilities, labels, known, self._weights)

    @cached_property
    def ap(self) -> Float64[ndarray, " C"]:
        """The average precision of each class; NaN if it cannot be scored."""
        return _scored_ap(self.run.test)

    @cached_property
    def counts(self) -> DecisionCounts:
        """The decisions at the thresholds of the run."""
        probabilities, labels, known = self.run.test.entries
        return rates_at(probabilities, labels, known, self.run.thresholds)

    def headline(self) -> Headline:
        """Return the headline numbers of the model and, if another candidate was kept, of the frozen probe."""
        evaluation = self.run.evaluation
        decisions = evaluation.at.used
        reliability = evaluation.calibration.final
        frozen = self._frozen_scores()
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
            frozen=frozen,
        )

    def _frozen_scores(self) -> FrozenScores | None:
        """Return the test scores of the frozen probe, and the gain in mAP of the kept model over it.

        The intervals are 95 % intervals over resamples of the test images. The mAP of resamples is biased upward, so
        both intervals are centered on the value for the original images. Both models are scored on the same resamples,
        so the interval of the gain is that of a paired difference. The result is None if the probe was kept or was not
        tested, or if no class can be scored.
        """
        frozen = self.run.frozen
        if frozen is None or self.run.evaluation.mAP is None:
            return None
        probabilities, labels, known = frozen.entries
        frozen_map = float(np.nanmean(_scored_ap(frozen)))
        kept_map = float(np.nanmean(self.ap))
        gain = kept_map - frozen_map

        frozen_precisions = bootstrapped_precisions(probabilities, labels, known, self._weights)
        resampled_frozen_map = _mean_over_classes(frozen_precisions)
        frozen_map_interval = fraction_interval(resampled_frozen_map, frozen_map)  # centered, and clipped to [0, 1]

        resampled_kept_map = _mean_over_classes(self.precisions)
        resampled_gain = resampled_kept_map - resampled_frozen_map
        gain_ends = reliable_interval(centered(resampled_gain, gain))  # not clipped, since a gain may be negative
        gain_interval = None  # if the resamples are too few or too similar for an interval
        if gain_ends is not None:
            gain_interval = list(gain_ends)

        macro_auroc = area_under_roc(probabilities, labels, known).nanmean().item()
        return FrozenScores(
            mAP=frozen_map,
            mAP_interval=frozen_map_interval,
            macro_auroc=nan_to_none(macro_auroc),
            gain=gain,
            gain_interval=gain_interval,
        )

    def classes(self) -> list[ClassScores]:
        """Return the scores of each class, in the order of the classes."""
        return [self._class_scores(column) for column in range(len(self.run.names))]

    def _class_scores(self, column: int) -> ClassScores:
        """Return the scores of one class, given its column in the labels and the probabilities."""
        run = self.run
        name = run.names[column]
        probabilities = run.test.probabilities[:, column]
        is_positive = run.test.positive[:, column]
        is_known = run.test.known[:, column]
        is_negative = is_known & ~is_positive

        positives_in_train = run.labels.counts[column]
        positives_in_val = run.val.positive[:, column].sum()
        positives_in_test = is_positive.sum()
        unknown_in_test = (~is_known).sum()

        ap = float(self.ap[column])
        ap_interval = fraction_interval(self.precisions[:, column], ap)
        curve = precision_at_recall(probabilities[is_known], is_positive[is_known], RECALLS)

        decisions = self.counts
        precision = float(decisions.ppv[column])  # the positive predictive value
        recall = float(decisions.sensitivity[column])
        f1 = float(decisions.f1[column])
        true_positives = decisions.true_positives[column]
        false_positives = decisions.false_positives[column]
        false_negatives = decisions.false_negatives[column]

        reliability = run.evaluation.calibration.final.per_class[name]
        return ClassScores(
            name=name,
            train=int(positives_in_train),
            val=int(positives_in_val),
            test=int(positives_in_test),
            unknown=int(unknown_in_test),
            ap=nan_to_none(ap),
            ap_interval=ap_interval,
            precision=nan_to_none(precision),
            recall=nan_to_none(recall),
            f1=nan_to_none(f1),
            threshold=float(run.thresholds[column]),
            true_positives=int(true_positives),
            false_positives=int(false_positives),
            false_negatives=int(false_negatives),
            calibration_error=reliability.calibration_error,
            calibration_error_interval=reliability.calibration_error_interval,
            precision_at_recall=curve,
            positives_by_probability=histogram(probabilities[is_positive]),
            negatives_by_probability=histogram(probabilities[is_negative]),
        )


def _scored_ap(scores: SplitScores) -> Float64[ndarray, " C"]:
    """Return the average precision of each class; NaN for a class without a positive or without a known negative."""
    has_positive = scores.positive.any(axis=0)
    has_negative = (scores.known & ~scores.positive).any(axis=0)
    probabilities, labels, known = scores.entries
    ap = average_precision(probabilities, labels, known).numpy()
    scored_ap: Float64[ndarray, " C"] = np.where(has_positive & has_negative, ap, np.nan)
    return scored_ap


def _mean_over_classes(precisions: Float64[ndarray, "B C"]) -> Float64[ndarray, " B"]:
    """Return the mean precision of the scored classes in each resample; NaN for a resample without a scored class.

    A precision of NaN means that the class cannot be scored in the resample.
    """
    scored = ~np.isnan(precisions)
    count = scored.sum(axis=1)
    total = np.where(scored, precisions, 0).sum(axis=1)
    undefined = np.full(len(precisions), np.nan)
    means: Float64[ndarray, " B"] = np.divide(total, count, out=undefined, where=count > 0)
    return means


def precision_at_recall(
    probabilities: Float[ndarray, " N"], positive: Bool[ndarray, " N"], recalls: Float64[ndarray, " R"]
) -> list[float]:
    """Return the highest precision at each recall or above; nothing for a class without positives.

    The precision–recall curve has a point for each distinct probability, at which all images with this probability or
    a higher one are predicted positive.

    >>> precision_at_recall(np.array([0.9, 0.6, 0.1]), np.array([True, False, True]), np.array([0.5, 1.0]))
    [1.0, 0.667]
    """
    if not positive.any():
        return []
    ranking = np.argsort(-probabilities, kind="stable")  # the highest probability comes first
    differs_from_next = np.diff(probabilities[ranking]) != 0
    is_last_of_ties = np.append(differs_from_next, True)
    points = np.flatnonzero(is_last_of_ties)  # places in the ranking, from 0
    hits = np.cumsum(positive[ranking])[points]
    precision = hits / (points + 1)
    recall = hits / hits[-1]

    # The recall never decreases along the points, so "this recall or above" means this point or a later one.
    highest_from_end = np.maximum.accumulate(precision[::-1])
    highest_from_here = highest_from_end[::-1]
    first_points = np.searchsorted(recall, recalls - RECALL_TOLERANCE)
    return _rounded(highest_from_here[first_points])


def histogram(probabilities: Float[ndarray, " N"]) -> list[int]:
    """Count the probabilities in `BINS` bins; a probability of k / BINS is in bin k − 1, since decisions are p > t.

    >>> sum(histogram(np.array([0.0, 0.01, 0.5, 1.0]))), histogram(np.array([0.01]))[0]
    (4, 1)
    """
    position = np.round(probabilities * BINS, 9)  # 0.29 · 100 is 28.999999999999996
    bin_below = np.ceil(position) - 1  # −1 for a probability of 0, which belongs in the first bin
    bins: Int[ndarray, " N"] = np.clip(bin_below, 0, BINS - 1).astype(int)
    counts = np.bincount(bins, minlength=BINS)
    return [int(count) for count in counts]


def curves(run: RunData, classes: Sequence[ClassScores]) -> Curves:
    """Return the precision–recall curves, the reliability diagram and the risk–coverage curve."""
    test = run.test
    micro = precision_at_recall(test.probabilities[test.known], test.positive[test.known], RECALLS)
    class_curves = [row.precision_at_recall for row in classes if row.precision_at_recall]
    macro: list[float] = []
    if class_curves:
        macro = _rounded(np.mean(class_curves, axis=0))
    return Curves(
        recall=_rounded(RECALLS),
        micro=micro,
        macro=macro,
        quartiles=_quartiles(class_curves),
        reliability=_reliability(run),
        risk_coverage=run.evaluation.risk_coverage,
    )


def _rounded(values: Float64[ndarray, " R"]) -> list[float]:
    return [round(float(value), 3) for value in values]


def _quartiles(class_curves: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the lower and the upper quartile of several curves at each point; nothing without curves."""
    if not class_curves:
        return []
    lower, upper = np.quantile(class_curves, [0.25, 0.75], axis=0)
    return [_rounded(lower), _rounded(upper)]


def _reliability(run: RunData) -> dict[Literal["before", "after"], ReliabilityPoints]:
    """Return the reliability of the scores before calibration and, if the run is calibrated, after it."""
    stored = read_scores(scores_file(run.folder.path, "test"))
    raw_scores = stored.rows.scores
    reliability: dict[Literal["before", "after"], ReliabilityPoints] = {}
    reliability["before"] = _reliability_points(run, raw_scores)
    if run.calibration is not None:
        reliability["after"] = _reliability_points(run, run.test.probabilities)
    return reliability


def _reliability_points(run: RunData, scores: Float[ndarray, "N C"]) -> ReliabilityPoints:
    """Return the points of a reliability diagram of all classes together, with bins of equal width.

    A point is the mean score and the fraction of positives among the known labels of a bin. Bins with few labels have
    no point.
    """
    known = run.test.known
    known_scores = scores[known].astype(np.float64)
    positive = run.test.positive[known].astype(np.float64)

    bins = np.minimum((known_scores * RELIABILITY_BINS).astype(int), RELIABILITY_BINS - 1)  # the last bin includes 1
    labels = np.bincount(bins, minlength=RELIABILITY_BINS)
    sum_of_scores = np.bincount(bins, weights=known_scores, minlength=RELIABILITY_BINS)
    positives = np.bincount(bins, weights=positive, minlength=RELIABILITY_BINS)

    drawn = np.flatnonzero(labels >= MIN_LABELS)
    mean_score = sum_of_scores[drawn] / labels[drawn]
    frequency = positives[drawn] / labels[drawn]
    return ReliabilityPoints(
        probability=mean_score.round(4).tolist(),
        frequency=frequency.round(4).tolist(),
        labels=labels[drawn].tolist(),
    )


def label_pairs(run: RunData) -> LabelPairs:
    """Return how often labels occur together in the test labels and in the predictions, and pairs new to the model."""
    positives = run.test.positive.sum(axis=0)
    by_frequency = np.argsort(-positives, kind="stable")
    most_frequent = by_frequency[:MAX_CLASSES]
    has_positives = positives[most_frequent] > 0
    shown = most_frequent[has_positives]  # columns of the classes

    truth = _conditional_frequency(run.test.positive, shown)
    predicted = _conditional_frequency(run.decisions & run.test.known, shown)
    return LabelPairs(
        classes=[run.names[column] for column in shown],
        truth=truth.round(3).tolist(),
        predicted=predicted.round(3).tolist(),
        never_seen=never_seen(run),
    )


def _conditional_frequency(present: Bool[ndarray, "N C"], columns: Int[ndarray, " K"]) -> Float64[ndarray, "K K"]:
    """Return, for each pair of classes, the fraction of the images with the first class that also have the second.

    `columns` are the K classes to compare. A class without images has a row of zeros.
    """
    chosen = present[:, columns].astype(np.float64)
    with_both = chosen.T @ chosen
    with_first = np.diag(with_both)
    divisor = np.maximum(with_first, 1)
    frequency: Float64[ndarray, "K K"] = with_both / divisor[:, None]
    return frequency


def never_seen(run: RunData) -> NewPairs | None:
    """Return the pairs of labels that occur in test but in no training image, and how well they are recognized.

    None if the run does not store the labels of its training images.
    """
    if run.training is None:
        return None
    positive = run.test.positive
    present = positive.astype(np.float64)
    in_train = cooccurrence(run.training.labels, run.training.known)  # (C, C), images with both labels
    in_test = present.T @ present  # (C, C)
    only_in_test = (in_train == 0) & (in_test > 0)
    is_new = np.triu(only_in_test, 1)  # each pair once, and no label with itself

    partners = present @ is_new  # (N, C): for each image and label, its earlier labels that form a new pair with it
    has_new_pair = ((partners > 0) & positive).any(axis=1)
    has_only_known_pairs = ~has_new_pair & positive.any(axis=1)
    return NewPairs(
        pairs=int(is_new.sum()),
        images=int(has_new_pair.sum()),
        recall=_recall(run, has_new_pair),
        recall_of_others=_recall(run, has_only_known_pairs),
        most_frequent=_most_frequent_pairs(run, is_new, in_test),
    )


def _most_frequent_pairs(run: RunData, is_new: Bool[ndarray, "C C"], in_test: Float64[ndarray, "C C"]) -> list[NewPair]:
    """Return the new pairs with the most test images; `in_test` is the number of test images with each pair."""
    firsts, seconds = np.nonzero(is_new)
    images = in_test[firsts, seconds]
    by_frequency = np.argsort(-images, kind="stable")
    pairs = []
    for number in by_frequency[:MAX_PAIRS]:
        first = int(firsts[number])
        second = int(seconds[number])
        pairs.append(_new_pair(run, first, second))
    return pairs


def _new_pair(run: RunData, first: int, second: int) -> NewPair:
    """Return the number of test images that have both classes, and of those in which both are found.

    The classes are given by their columns.
    """
    has_both = run.test.positive[:, first] & run.test.positive[:, second]
    predicts_both = run.decisions[:, first] & run.decisions[:, second]
    both_found = has_both & predicts_both
    return NewPair(
        classes=[run.names[first], run.names[second]],
        images=int(has_both.sum()),
        both_found=int(both_found.sum()),
    )


def _recall(run: RunData, chosen: Bool[ndarray, " N"]) -> float | None:
    """Return the fraction of the labels of the chosen test images that are predicted; None if there are no labels."""
    positive = run.test.positive[chosen]
    if not positive.any():
        return None
    decisions = run.decisions[chosen]
    return float(decisions[positive].mean())
