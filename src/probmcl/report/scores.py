"""Scores of a run on its test split: the headline numbers, the gain over the frozen probe, and one row per class."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int32
from numpy import ndarray

from probmcl.audit.findings import MIN_TRAIN_LABELS
from probmcl.evaluation.bootstrap import (
    MAX_RESAMPLED,
    bootstrapped_precisions,
    centered,
    fraction_interval,
    reliable_interval,
    resamples,
)
from probmcl.evaluation.decisions import DecisionCounts, rates_at
from probmcl.evaluation.metrics import area_under_roc, average_precision
from probmcl.evaluation.reliability import bin_of
from probmcl.report.run_data import RunData, SplitScores
from probmcl.runtime.files import nan_to_none
from probmcl.store.report import ClassScores, FrozenScores, Headline

MAX_DRAWS, MIN_DRAWS = 400, 100
"""Most and fewest resamples; the report has two classifiers to resample."""

WEAK_F1 = 0.5
"""A class with a lower F1 is weak."""

BINS = 100
"""Bins of the histograms behind the threshold explorer."""

RECALLS = np.linspace(0, 1, 21)
"""Recalls at which the precision–recall curve of a class is stored."""


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


def measurements(run: RunData, headline: Headline, classes: Sequence[ClassScores]) -> dict[str, float | None]:
    """Return the quantities that the rules of the verdict apply to; those that do not apply are left out."""
    warnings = [warning.kind for warning in run.metadata.warnings]
    tested = [row for row in classes if row.test]
    measured: dict[str, float | None] = {
        "val_images": float(run.images["val"]),
        "test_images": float(run.images["test"]),
        "leaks": float(warnings.count("leak")),
        "seen_before": float(warnings.count("seen_before")),
        "above_chance": _above_chance(headline),
        "mean_f1": headline.macro_F1,
        "weak_classes": _fraction([(row.f1 or 0.0) < WEAK_F1 for row in tested]),
        "never_correct": _fraction([row.true_positives == 0 for row in tested]),
        "not_scored": 1 - headline.classes_scored / headline.classes,
        "rare": _fraction([row.train < MIN_TRAIN_LABELS for row in classes]),
        "calibration_error": _error_beyond_noise(run.test, headline.calibration_error),
        "val_test": _validation_gap(run, headline),
        "unknown_labels": float(1 - run.test.known.mean()),
    }
    if headline.frozen is not None:
        low, high = headline.frozen.gain_interval or (None, None)
        measured["gain_low"] = low
        measured["gain_high"] = high
    if run.calibration is not None:
        measured["uncertain_thresholds"] = len(run.calibration.few_positives) / len(classes)
        measured["not_promised"] = len(run.calibration.not_promised) / len(classes)
    return measured


def _validation_gap(run: RunData, headline: Headline) -> float | None:
    """Return the distance between the validation mAP of the kept candidate and the test mAP."""
    kept = next(entry for entry in run.metadata.candidates if entry.name == run.kept)
    if kept.validation_mAP is None or headline.mAP is None:
        return None
    return abs(kept.validation_mAP - headline.mAP)


def _error_beyond_noise(test: SplitScores, error: float | None) -> float | None:
    """Return the calibration error minus its expectation for perfectly calibrated probabilities.

    With few images, the calibration error is large even then: a bin with n images has an expected distance of
    √(2/π) · √(Σ p (1 − p)) / n.
    """
    if error is None:
        return None
    noise = []
    for column in range(test.known.shape[1]):
        p = test.probabilities[test.known[:, column], column]
        if len(p):
            variance = np.bincount(bin_of(p), weights=p * (1 - p))
            deviations = np.sqrt(variance).sum()
            noise.append(float(np.sqrt(2 / np.pi) * deviations / len(p)))
    return max(0.0, error - float(np.mean(noise)))


def _above_chance(headline: Headline) -> float | None:
    """Return the smaller margin over chance, of mAP and of AUROC, at the lower ends of their intervals."""
    if headline.mAP_interval is None or headline.macro_auroc_interval is None or headline.chance is None:
        return None
    margin_of_map = headline.mAP_interval[0] - headline.chance
    margin_of_auroc = headline.macro_auroc_interval[0] - 0.5
    return float(min(margin_of_map, margin_of_auroc))


def _fraction(flags: Sequence[bool]) -> float:
    return sum(flags) / max(len(flags), 1)
