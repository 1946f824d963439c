"""How far probabilities can be trusted: their agreement with frequencies, and the errors among decided images."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from jaxtyping import Bool, Float, Float64, Int
from numpy import ndarray

from probmcl.evaluation.bootstrap import fraction_interval
from probmcl.evaluation.scores import Array, ClassEntries, checked, class_columns
from probmcl.runtime.files import nan_to_none
from probmcl.store.evaluation import (
    Abstention,
    AbstentionRates,
    ClassReliability,
    ReliabilityDiagram,
    ReliabilitySummary,
    RiskCoverage,
)

BINS = 15
"""Bins of the calibration error. All have the same number of images, except for ties."""

SMALLEST = 2.0**-53
"""Probabilities are kept this far from 0 and 1 in the log loss, which would be infinite for a wrong 0 or 1."""

COVERAGES = tuple(step / 20 for step in range(1, 21))
"""Fractions of the images at which the risk–coverage curve is reported."""


class Reliability(NamedTuple):
    """Measures of the probabilities of each class, over its known entries; NaN if there are none.

    Attributes:
        known: number of known entries.
        brier: mean of (p − y)².
        log_loss: mean of −log p for positives and −log(1 − p) for negatives.
        calibration_error: mean distance between probability and frequency, over `BINS` bins of equal mass.
        base_rate_brier: the Brier score of a constant probability, the prevalence of the class.
        base_rate_log_loss: the log loss of that constant.
    """

    known: Int[ndarray, " C"]
    brier: Float64[ndarray, " C"]
    log_loss: Float64[ndarray, " C"]
    calibration_error: Float64[ndarray, " C"]
    base_rate_brier: Float64[ndarray, " C"]
    base_rate_log_loss: Float64[ndarray, " C"]


def reliability(probabilities: Array, labels: Array, known: Array | None = None) -> Reliability:
    """Measure how well probabilities of shape (N, C) agree with 0/1 labels.

        calibration error = Σ_b (n_b / n) |mean p in bin b − fraction of positives in bin b|

    The bins divide the known entries of a class, in the order of their probability, into 15 parts of equal size;
    equal probabilities are in the same bin.

    Reference: Nguyen and O'Connor, Posterior calibration and exploratory analysis for NLP models, 2015.

    >>> measures = reliability(np.array([[0.9], [0.2]]), np.array([[1], [0]]))
    >>> measures.brier.round(3).item(), measures.log_loss.round(3).item(), measures.calibration_error.round(2).item()
    (0.025, 0.164, 0.15)
    """
    columns = class_columns(checked(probabilities, labels, known))
    number, *measures = np.array([_measure(column) for column in columns]).T
    return Reliability(number.astype(np.int64), *measures)


def _measure(column: ClassEntries) -> tuple[float, ...]:
    p, y = _known(column)
    if not len(p):
        return (0.0, *[np.nan] * 5)
    error = np.abs(np.bincount(bin_of(p), weights=p - y)).sum() / len(p)
    rate = np.full(len(y), y.mean())
    return float(len(p)), ((p - y) ** 2).mean(), _log_loss(p, y), error, ((rate - y) ** 2).mean(), _log_loss(rate, y)


def _known(column: ClassEntries) -> tuple[Float64[ndarray, " K"], Float64[ndarray, " K"]]:
    p, y = column.scores[column.known].astype(np.float64), column.positive[column.known].astype(np.float64)
    if len(p) and not (p.min() >= 0 and p.max() <= 1):
        raise ValueError(f"probabilities must be between 0 and 1, got {p.min():g} to {p.max():g}")
    return p, y


def _log_loss(p: Float64[ndarray, " K"], y: Float64[ndarray, " K"]) -> float:
    p = np.clip(p, SMALLEST, 1 - SMALLEST)
    return float(-(y * np.log(p) + (1 - y) * np.log1p(-p)).mean())


def bin_of(p: Float64[ndarray, " K"]) -> Int[ndarray, " K"]:
    """Return the bin of each probability, from 0 to `BINS` − 1.

    >>> bin_of(np.linspace(0, 1, 6)).tolist()
    [0, 2, 5, 7, 10, 12]
    """
    return np.searchsorted(np.sort(p), p) * BINS // max(len(p), 1)


def reliability_bins(probabilities: Array, labels: Array, known: Array | None = None) -> Iterator[ReliabilityDiagram]:
    """Yield the points of each class's reliability diagram."""
    for column in class_columns(checked(probabilities, labels, known)):
        p, y = _known(column)
        bins = bin_of(p)
        images = np.bincount(bins)
        filled = np.flatnonzero(images)
        probability = np.bincount(bins, weights=p)[filled] / images[filled]
        frequency = np.bincount(bins, weights=y)[filled] / images[filled]
        yield ReliabilityDiagram(
            probability=probability.tolist(), frequency=frequency.tolist(), images=images[filled].tolist()
        )


def bootstrapped_calibration_error(
    probabilities: Array, labels: Array, known: Array | None, weights: Int[ndarray, "B _"]
) -> Float64[ndarray, "B C"]:
    """Return the calibration error of each class in each resample; the bins are those of the original images.

    The result is NaN for a class without known entries in a resample.
    """
    errors = []
    drawn = weights.astype(np.float32)
    for column in class_columns(checked(probabilities, labels, known)):
        p, y = _known(column)
        rows = np.flatnonzero(column.known)
        differences = np.zeros((len(column.known), BINS + 1), dtype=np.float32)
        differences[rows, bin_of(p)] = p - y
        differences[rows, BINS] = 1.0
        sums = (drawn @ differences).astype(np.float64)  # (B, bins + 1)
        with np.errstate(invalid="ignore"):
            errors.append(np.abs(sums[:, :BINS]).sum(1) / sums[:, BINS])
    return np.stack(errors, axis=1)


def summarize_reliability(
    probabilities: Array,
    labels: Array,
    known: Array | None,
    names: Sequence[str],
    resampled: Float64[ndarray, "B C"] | None = None,
) -> ReliabilitySummary:
    """Return the measures overall and per class, with intervals of the calibration error from its resamples.

    Overall, Brier score and log loss are means over all known entries, and the calibration error is the mean over
    classes. Undefined measures are None.
    """
    measures = reliability(probabilities, labels, known)
    error = float(_mean_over_classes(measures.calibration_error[None])[0])
    interval = None
    if resampled is not None:
        interval = fraction_interval(_mean_over_classes(resampled), error)
    per_class = {}
    diagrams = reliability_bins(probabilities, labels, known)
    for c, (name, diagram) in enumerate(zip(names, diagrams, strict=True)):
        per_class[name] = _class_reliability(measures, c, diagram, resampled)
    return ReliabilitySummary(
        brier=_mean_over_entries(measures.brier, measures.known),
        log_loss=_mean_over_entries(measures.log_loss, measures.known),
        base_rate_brier=_mean_over_entries(measures.base_rate_brier, measures.known),
        base_rate_log_loss=_mean_over_entries(measures.base_rate_log_loss, measures.known),
        calibration_error=nan_to_none(error),
        calibration_error_interval=interval,
        per_class=per_class,
    )


def _class_reliability(
    measures: Reliability, c: int, diagram: ReliabilityDiagram, resampled: Float64[ndarray, "B C"] | None
) -> ClassReliability:
    """Return the measures of class c, with the interval of its calibration error."""
    error = float(measures.calibration_error[c])
    return ClassReliability(
        brier=nan_to_none(float(measures.brier[c])),
        log_loss=nan_to_none(float(measures.log_loss[c])),
        calibration_error=nan_to_none(error),
        calibration_error_interval=None if resampled is None else fraction_interval(resampled[:, c], error),
        reliability=diagram,
    )


def _mean_over_entries(measure: Float64[ndarray, " C"], known: Int[ndarray, " C"]) -> float | None:
    """Return the mean of a measure, weighted by the known entries of each class; None if nothing is known."""
    share = known / max(known.sum(), 1)
    return float(np.nansum(share * measure)) if share.any() else None


def _mean_over_classes(errors: Float64[ndarray, "B C"]) -> Float64[ndarray, " B"]:
    """Return the mean of each row without NaN; NaN for a row of NaN."""
    defined = ~np.isnan(errors)
    with np.errstate(invalid="ignore"):
        mean: Float64[ndarray, " B"] = np.where(defined, errors, 0).sum(1) / defined.sum(1)
    return mean


def uncertainty(probabilities: Float[ndarray, "*N C"]) -> Float64[ndarray, "*N"]:
    """Return the mean binary entropy of the classes of each image, in bits: 0 if certain, 1 if all are 0.5.

    >>> uncertainty(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    p = probabilities.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nan_to_num(p * np.log2(p)) - np.nan_to_num((1 - p) * np.log2(1 - p))
    mean: Float64[ndarray, "*N"] = np.where(np.isnan(p), np.nan, entropy).mean(axis=-1)
    return mean + 0.0  # not −0


def risk_coverage(
    probabilities: Float[ndarray, "N C"],
    decisions: Bool[ndarray, "N C"],
    labels: Float[ndarray, "N C"],
    known: Bool[ndarray, "N C"],
) -> RiskCoverage:
    """Return the fraction of wrong decisions among the images with the lowest uncertainty, for several fractions.

    Reference: El-Yaniv and Wiener, On the foundations of noise-free selective classification, 2010.
    """
    order = np.argsort(uncertainty(probabilities), kind="stable")
    wrong_entries = (decisions != (labels == 1)) & known
    wrong = np.cumsum(wrong_entries.sum(1)[order])
    total = np.cumsum(known.sum(1)[order])
    coverages = []
    risks = []
    for coverage in COVERAGES:
        images = max(1, round(coverage * len(order)))
        decided = total[images - 1]
        coverages.append(images / len(order))
        risks.append(float(wrong[images - 1] / decided) if decided else None)
    return RiskCoverage(coverage=coverages, risk=risks)


class OpenDecisions(NamedTuple):
    """Decisions that may be left open: an entry that is neither yes nor no is not sure."""

    yes: Bool[ndarray, "N C"]
    no: Bool[ndarray, "N C"]


class _Counts(NamedTuple):
    """Numbers of entries in each of K sets, such as the classes, for the original images or for each of B resamples."""

    known: Float[ndarray, "B K"]
    decided: Float[ndarray, "B K"]
    yes: Float[ndarray, "B K"]
    wrong_yes: Float[ndarray, "B K"]
    no: Float[ndarray, "B K"]
    wrong_no: Float[ndarray, "B K"]

    def total(self) -> "_Counts":
        """Return the counts of all sets together."""
        return _Counts(*(count.sum(1, keepdims=True) for count in self))

    def of(self, c: int) -> "_Counts":
        """Return the counts of one set."""
        return _Counts(*(count[:, c : c + 1] for count in self))


def evaluate_abstention(
    decisions: OpenDecisions,
    labels: Float[ndarray, "N C"],
    known: Bool[ndarray, "N C"],
    names: Sequence[str],
    weights: Int[ndarray, "B N"] | None,
) -> Abstention:
    """Return the coverage, and the error rates among the yes and the no decisions, overall and per class.

    The coverage is the fraction of known entries that are decided. Intervals come from `weights`, the result of
    `resamples`. Undefined rates are None.
    """
    positive = labels == 1
    yes = decisions.yes & known
    no = decisions.no & known
    masks = (known, yes | no, yes, yes & ~positive, no, no & positive)
    counts = _Counts(*(mask.sum(0, dtype=np.float64)[None] for mask in masks))
    drawn = None
    if weights is not None:
        times = weights.astype(np.float32)
        drawn = _Counts(*(times @ mask.astype(np.float32) for mask in masks))
    per_class = {}
    for c, name in enumerate(names):
        per_class[name] = _rates(counts.of(c), None if drawn is None else drawn.of(c))
    overall = _rates(counts.total(), None if drawn is None else drawn.total())
    return Abstention(**msgspec.structs.asdict(overall), per_class=per_class)


def _rates(counts: _Counts, drawn: _Counts | None) -> AbstentionRates:
    """Return the rates of one set of entries, with intervals if there are resamples."""
    coverage, yes_risk, no_risk = _fractions(counts)
    intervals: list[list[float] | None] = [None, None, None]
    if drawn is not None:
        estimates = (coverage, yes_risk, no_risk)
        samples = _fractions(drawn)
        intervals = [fraction_interval(s, e.item()) for s, e in zip(samples, estimates, strict=True)]
    return AbstentionRates(
        coverage=nan_to_none(coverage.item()),
        coverage_interval=intervals[0],
        yes_risk=nan_to_none(yes_risk.item()),
        yes_risk_interval=intervals[1],
        no_risk=nan_to_none(no_risk.item()),
        no_risk_interval=intervals[2],
    )


def _fractions(counts: _Counts) -> tuple[Float64[ndarray, " B"], Float64[ndarray, " B"], Float64[ndarray, " B"]]:
    """Return the coverage and the error rates of the yes and the no decisions; 0 / 0 is NaN."""
    with np.errstate(invalid="ignore"):
        coverage = counts.decided / counts.known
        yes_risk = counts.wrong_yes / counts.yes
        no_risk = counts.wrong_no / counts.no
    return coverage[:, 0].astype(np.float64), yes_risk[:, 0].astype(np.float64), no_risk[:, 0].astype(np.float64)
