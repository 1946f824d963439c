"""Selective prediction: the uncertainty of each image, and the errors among the images that are decided."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from jaxtyping import Bool, Float, Float64, Int
from numpy import ndarray

from probmcl.evaluation.bootstrap import fraction_interval
from probmcl.runtime.files import nan_to_none
from probmcl.store.evaluation import Abstention, AbstentionRates, RiskCoverage

COVERAGES = tuple(step / 20 for step in range(1, 21))
"""Fractions of the images at which the risk–coverage curve is reported."""


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
