"""Scores of a run on its test split: the headline numbers, the gain over the frozen probe, and one row per class."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
        draws = min(MAX_DRAWS, max(MIN_DRAWS, MAX_RESAMPLED // 4 // (images * classes)))
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

    def headline(self) -> dict[str, Any]:
        """Return the headline numbers of the model and, if another candidate was kept, of the frozen probe."""
        evaluation = self.run.evaluation
        keys = ("mAP", "mAP_interval", "macro_auroc", "macro_auroc_interval", "chance", "classes", "classes_scored")
        chosen = evaluation["at"].get("chosen", evaluation["at"]["0.5"])
        calibration = evaluation["calibration"].get("after", evaluation["calibration"]["before"])
        error = {key: calibration[key] for key in ("calibration_error", "calibration_error_interval", "brier")}
        scores = {key: evaluation[key] for key in keys} | {key: chosen[key] for key in ("CF1", "OF1", "macro_F1")}
        return {"images": evaluation["images"], **scores, **error, "frozen": self._frozen()}

    def _frozen(self) -> dict[str, Any] | None:
        frozen = self.run.frozen
        if frozen is None or self.run.evaluation["mAP"] is None:
            return None
        mean = float(np.nanmean(_scored_ap(frozen)))
        theirs = bootstrapped_precisions(*frozen.entries, self._weights)
        ours, other = _mean_map(self.precisions), _mean_map(theirs)
        gain = float(np.nanmean(self.ap)) - mean
        interval = reliable_interval(centered(ours - other, gain))
        return {
            "mAP": mean,
            "mAP_interval": fraction_interval(other, mean),
            "macro_auroc": nan_to_none(area_under_roc(*frozen.entries).nanmean().item()),
            "gain": gain,
            "gain_interval": None if interval is None else list(interval),
        }

    def classes(self) -> list[dict[str, Any]]:
        """Return a row for each class, in the order of the classes."""
        run = self.run
        calibration = run.evaluation["calibration"]
        errors = calibration.get("after", calibration["before"])["per_class"]
        columns = {key: getattr(self.counts, key).tolist() for key in ("ppv", "sensitivity", "f1")}
        tp, fp, fn = (getattr(self.counts, f"{key}s").tolist() for key in _COUNTS)
        rows = []
        for c, name in enumerate(run.names):
            positive, known = run.test.positive[:, c], run.test.known[:, c]
            p = run.test.probabilities[:, c]
            rows.append(
                {
                    "name": name,
                    "train": int(run.labels.counts[c]),
                    "val": int(run.val.positive[:, c].sum()),
                    "test": int(positive.sum()),
                    "unknown": int((~known).sum()),
                    "ap": nan_to_none(float(self.ap[c])),
                    "ap_interval": fraction_interval(self.precisions[:, c], float(self.ap[c])),
                    "precision": nan_to_none(columns["ppv"][c]),
                    "recall": nan_to_none(columns["sensitivity"][c]),
                    "f1": nan_to_none(columns["f1"][c]),
                    "threshold": float(run.thresholds[c]),
                    "true_positives": tp[c],
                    "false_positives": fp[c],
                    "false_negatives": fn[c],
                    "calibration_error": errors[name]["calibration_error"],
                    "calibration_error_interval": errors[name]["calibration_error_interval"],
                    "precision_at_recall": precision_at_recall(p[known], positive[known], RECALLS),
                    "positives_by_probability": histogram(p[positive]),
                    "negatives_by_probability": histogram(p[known & ~positive]),
                }
            )
        return rows


_COUNTS = ("true_positive", "false_positive", "false_negative")


def _scored_ap(scores: SplitScores) -> Float64[ndarray, " C"]:
    scored = scores.positive.any(0) & (scores.known & ~scores.positive).any(0)
    ap: Float64[ndarray, " C"] = np.where(scored, average_precision(*scores.entries).numpy(), np.nan)
    return ap


def _mean_map(samples: Float64[ndarray, "B C"]) -> Float64[ndarray, " B"]:
    scored = ~np.isnan(samples)
    count = scored.sum(1)
    means: Float64[ndarray, " B"] = np.divide(
        np.where(scored, samples, 0).sum(1), count, out=np.full(len(samples), np.nan), where=count > 0
    )
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
    last = np.append(np.diff(p[order]) != 0, True)  # equal probabilities are decided together
    precision, recall = (hits / np.arange(1, len(p) + 1))[last], (hits / hits[-1])[last]
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return [round(float(best[row]), 3) for row in np.searchsorted(recall, recalls - 1e-12)]


def histogram(p: Float[ndarray, " N"]) -> list[int]:
    """Count the probabilities in `BINS` bins; a probability of k / BINS is in bin k − 1, since decisions are p > t.

    >>> sum(histogram(np.array([0.0, 0.01, 0.5, 1.0]))), histogram(np.array([0.01]))[0]
    (4, 1)
    """
    bins: Int[ndarray, " N"] = np.clip(np.ceil(np.round(p * BINS, 9)) - 1, 0, BINS - 1).astype(int)
    return [int(count) for count in np.bincount(bins, minlength=BINS)]


def measurements(run: RunData, headline: dict[str, Any], classes: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the quantities that the rules of the verdict apply to; those that do not apply are left out."""
    warnings = [warning.kind for warning in run.metadata.warnings]
    kept = next(entry for entry in run.metadata.candidates if entry.name == run.metadata.kept)
    validation, test = kept.validation_mAP, headline["mAP"]
    with_positives = [row for row in classes if row["test"]]
    measured: dict[str, float | None] = {
        "val_images": float(run.images["val"]),
        "test_images": float(run.images["test"]),
        "leaks": float(warnings.count("leak")),
        "seen_before": float(warnings.count("seen_before")),
        "above_chance": _above_chance(headline),
        "mean_f1": headline["macro_F1"],
        "weak_classes": _fraction((row["f1"] or 0.0) < WEAK_F1 for row in with_positives),
        "never_correct": _fraction(not row["true_positives"] for row in with_positives),
        "not_scored": 1 - headline["classes_scored"] / headline["classes"],
        "rare": _fraction(row["train"] < MIN_TRAIN_LABELS for row in classes),
        "calibration_error": _error_beyond_noise(run.test, headline["calibration_error"]),
        "val_test": None if validation is None or test is None else abs(validation - test),
        "unknown_labels": float(1 - run.test.known.mean()),
    }
    if headline["frozen"] is not None:
        low, high = headline["frozen"]["gain_interval"] or (None, None)
        measured |= {"gain_low": low, "gain_high": high}
    if run.calibration is not None:
        measured["uncertain_thresholds"] = len(run.calibration.few_positives) / len(classes)
        measured["not_promised"] = len(run.calibration.not_promised) / len(classes)
    return measured


def _error_beyond_noise(test: SplitScores, error: float | None) -> float | None:
    """Return the calibration error minus its expectation for perfectly calibrated probabilities.

    With few images, the calibration error is large even then: a bin with n images has an expected distance of
    √(2/π) · √(Σ p (1 − p)) / n.
    """
    if error is None:
        return None
    noise = []
    for p in (test.probabilities[test.known[:, c], c] for c in range(test.known.shape[1])):
        if len(p):
            variance = np.bincount(bin_of(p), weights=p * (1 - p))
            noise.append(float(np.sqrt(2 / np.pi) * np.sqrt(variance).sum() / len(p)))
    return max(0.0, error - float(np.mean(noise)))


def _above_chance(headline: dict[str, Any]) -> float | None:
    if headline["mAP_interval"] is None or headline["macro_auroc_interval"] is None or headline["chance"] is None:
        return None
    above = headline["mAP_interval"][0] - headline["chance"], headline["macro_auroc_interval"][0] - 0.5
    return float(min(above))


def _fraction(flags: Any) -> float:
    values = list(flags)
    return float(sum(values) / max(len(values), 1))
