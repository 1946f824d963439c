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
    table = np.array([_measure(column) for column in columns])  # (C, 6)
    entries, *measures = table.T
    return Reliability(entries.astype(np.int64), *measures)


def _measure(column: ClassEntries) -> tuple[float, float, float, float, float, float]:
    """Return the measures of one class in the order of the fields of `Reliability`."""
    p, y = _known(column)
    if not len(p):
        return 0.0, np.nan, np.nan, np.nan, np.nan, np.nan
    differences = np.bincount(bin_of(p), weights=p - y)  # the sum of p − y in each bin
    calibration_error = np.abs(differences).sum() / len(p)
    base_rate = np.full(len(y), y.mean())
    return (
        float(len(p)),
        _brier(p, y),
        _log_loss(p, y),
        calibration_error,
        _brier(base_rate, y),
        _log_loss(base_rate, y),
    )


def _known(column: ClassEntries) -> tuple[Float64[ndarray, " K"], Float64[ndarray, " K"]]:
    """Return the probabilities and the 0/1 labels of the known entries of one class."""
    p = column.scores[column.known].astype(np.float64)
    y = column.positive[column.known].astype(np.float64)
    if len(p) and not (p.min() >= 0 and p.max() <= 1):
        raise ValueError(f"probabilities must be between 0 and 1, got {p.min():g} to {p.max():g}")
    return p, y


def _brier(p: Float64[ndarray, " K"], y: Float64[ndarray, " K"]) -> float:
    """Return the Brier score of probabilities p for labels y."""
    return float(((p - y) ** 2).mean())


def _log_loss(p: Float64[ndarray, " K"], y: Float64[ndarray, " K"]) -> float:
    """Return the log loss of probabilities p for labels y."""
    clipped = np.clip(p, SMALLEST, 1 - SMALLEST)
    log_likelihoods = y * np.log(clipped) + (1 - y) * np.log1p(-clipped)
    return float(-log_likelihoods.mean())


def bin_of(p: Float64[ndarray, " K"]) -> Int[ndarray, " K"]:
    """Return the bin of each probability, from 0 to `BINS` − 1.

    >>> bin_of(np.linspace(0, 1, 6)).tolist()
    [0, 2, 5, 7, 10, 12]
    """
    rank = np.searchsorted(np.sort(p), p)  # equal probabilities have the same rank, from 0
    return rank * BINS // max(len(p), 1)


def reliability_bins(probabilities: Array, labels: Array, known: Array | None = None) -> Iterator[ReliabilityDiagram]:
    """Yield the points of each class's reliability diagram."""
    for column in class_columns(checked(probabilities, labels, known)):
        p, y = _known(column)
        bins = bin_of(p)
        counts = np.bincount(bins)
        filled = np.flatnonzero(counts)  # ties leave bins empty
        images = counts[filled]
        probability = np.bincount(bins, weights=p)[filled] / images
        frequency = np.bincount(bins, weights=y)[filled] / images
        yield ReliabilityDiagram(
            probability=probability.tolist(),
            frequency=frequency.tolist(),
            images=images.tolist(),
        )


def bootstrapped_calibration_error(
    probabilities: Array, labels: Array, known: Array | None, weights: Int[ndarray, "B _"]
) -> Float64[ndarray, "B C"]:
    """Return the calibration error of each class in each resample; the bins are those of the original images.

        error = Σ_b |Σ_i w_i (p_i − y_i)| / Σ_i w_i,   the inner sum over the known images i in bin b

    where p_i is the probability and y_i the 0/1 label of image i, which is drawn w_i times. The result is NaN for a
    class without known entries in a resample.
    """
    errors = []
    drawn = weights.astype(np.float32)
    for column in class_columns(checked(probabilities, labels, known)):
        p, y = _known(column)
        rows = np.flatnonzero(column.known)
        # Each known image has p − y in the column of its bin, and 1 in the last column, which counts the images.
        terms = np.zeros((len(column.known), BINS + 1), dtype=np.float32)
        terms[rows, bin_of(p)] = p - y
        terms[rows, BINS] = 1.0
        sums = (drawn @ terms).astype(np.float64)  # (B, bins + 1)
        differences = sums[:, :BINS]
        images = sums[:, BINS]
        with np.errstate(invalid="ignore"):
            errors.append(np.abs(differences).sum(1) / images)
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
    mean_error = _mean_over_classes(measures.calibration_error[None])  # (1,)
    error = float(mean_error[0])
    interval = None
    if resampled is not None:
        interval = fraction_interval(_mean_over_classes(resampled), error)
    diagrams = reliability_bins(probabilities, labels, known)
    per_class = {}
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
    interval = None
    if resampled is not None:
        interval = fraction_interval(resampled[:, c], error)
    return ClassReliability(
        brier=nan_to_none(float(measures.brier[c])),
        log_loss=nan_to_none(float(measures.log_loss[c])),
        calibration_error=nan_to_none(error),
        calibration_error_interval=interval,
        reliability=diagram,
    )


def _mean_over_entries(measure: Float64[ndarray, " C"], known: Int[ndarray, " C"]) -> float | None:
    """Return the mean of a measure, weighted by the known entries of each class; None if nothing is known."""
    share = known / max(known.sum(), 1)
    if not share.any():
        return None
    return float(np.nansum(share * measure))


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
        positive_term = np.nan_to_num(p * np.log2(p))  # 0 log 0 is 0
        negative_term = np.nan_to_num((1 - p) * np.log2(1 - p))
    entropy = np.where(np.isnan(p), np.nan, -positive_term - negative_term)
    mean: Float64[ndarray, "*N"] = entropy.mean(axis=-1)
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
    is_wrong = (decisions != (labels == 1)) & known
    # The numbers of wrong and of known decisions among the first images in this order.
    wrong = np.cumsum(is_wrong.sum(1)[order])
    decided = np.cumsum(known.sum(1)[order])
    coverages = []
    risks = []
    for coverage in COVERAGES:
        images = max(1, round(coverage * len(order)))
        last = images - 1
        risk = float(wrong[last] / decided[last]) if decided[last] else None
        coverages.append(images / len(order))
        risks.append(risk)
    return RiskCoverage(coverage=coverages, risk=risks)


class OpenDecisions(NamedTuple):
    """Decisions that may be left open: an entry that is neither yes nor no is not sure."""

    yes: Bool[ndarray, "N C"]
    no: Bool[ndarray, "N C"]


class _Counts(NamedTuple):
    """Numbers of entries, for the original images (B = 1) or in each of B resamples.

    The second axis has the classes. It is missing in the counts of one class or of all classes together.
    """

    known: Float[ndarray, "B *C"]
    decided: Float[ndarray, "B *C"]
    yes: Float[ndarray, "B *C"]
    wrong_yes: Float[ndarray, "B *C"]
    no: Float[ndarray, "B *C"]
    wrong_no: Float[ndarray, "B *C"]

    def total(self) -> "_Counts":
        """Return the counts of all classes together."""
        return _Counts._make(count.sum(1) for count in self)

    def of_class(self, c: int) -> "_Counts":
        """Return the counts of one class."""
        return _Counts._make(count[:, c] for count in self)


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
    masks = {
        "known": known,
        "decided": yes | no,
        "yes": yes,
        "wrong_yes": yes & ~positive,
        "no": no,
        "wrong_no": no & positive,
    }
    sums = {name: mask.sum(0, dtype=np.float64)[None] for name, mask in masks.items()}  # (1, C) each
    counts = _Counts(**sums)
    resampled = None
    if weights is not None:
        times = weights.astype(np.float32)
        resampled_sums = {name: times @ mask.astype(np.float32) for name, mask in masks.items()}  # (B, C) each
        resampled = _Counts(**resampled_sums)

    per_class = {}
    for c, name in enumerate(names):
        resampled_class = None if resampled is None else resampled.of_class(c)
        per_class[name] = _rates(counts.of_class(c), resampled_class)
    resampled_total = None if resampled is None else resampled.total()
    overall = _rates(counts.total(), resampled_total)
    return Abstention(**msgspec.structs.asdict(overall), per_class=per_class)


def _rates(counts: _Counts, resampled: _Counts | None) -> AbstentionRates:
    """Return the rates of one class or of all classes together, with intervals if there are resamples."""
    estimates = [fraction.item() for fraction in _fractions(counts)]
    intervals: list[list[float] | None] = [None, None, None]
    if resampled is not None:
        samples = _fractions(resampled)
        intervals = [fraction_interval(s, estimate) for s, estimate in zip(samples, estimates, strict=True)]
    coverage, yes_risk, no_risk = map(nan_to_none, estimates)
    coverage_interval, yes_risk_interval, no_risk_interval = intervals
    return AbstentionRates(
        coverage=coverage,
        coverage_interval=coverage_interval,
        yes_risk=yes_risk,
        yes_risk_interval=yes_risk_interval,
        no_risk=no_risk,
        no_risk_interval=no_risk_interval,
    )


def _fractions(counts: _Counts) -> tuple[Float64[ndarray, " B"], Float64[ndarray, " B"], Float64[ndarray, " B"]]:
    """Return the coverage and the error rates of the yes and the no decisions; 0 / 0 is NaN.

    `counts` are those of one class or of all classes together.
    """
    with np.errstate(invalid="ignore"):
        coverage = counts.decided / counts.known
        yes_risk = counts.wrong_yes / counts.yes
        no_risk = counts.wrong_no / counts.no
    return coverage.astype(np.float64), yes_risk.astype(np.float64), no_risk.astype(np.float64)
