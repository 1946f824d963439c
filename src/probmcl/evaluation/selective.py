"""Selective prediction: the uncertainty of each image, and the errors among the images that are decided."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int
from numpy import ndarray

from probmcl.evaluation.bootstrap import fraction_interval
from probmcl.runtime.files import nan_to_none

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
) -> dict[str, list[float | None]]:
    """Return the fraction of wrong decisions among the images with the lowest uncertainty, for several fractions.

    Reference: El-Yaniv and Wiener, On the foundations of noise-free selective classification, 2010.
    """
    order = np.argsort(uncertainty(probabilities), kind="stable")
    wrong = np.cumsum(((decisions != (labels == 1)) & known).sum(1)[order])
    total = np.cumsum(known.sum(1)[order])
    last = [max(1, round(coverage * len(order))) - 1 for coverage in COVERAGES]
    risks = [float(wrong[row] / total[row]) if total[row] else None for row in last]
    return {"coverage": [(row + 1) / len(order) for row in last], "risk": risks}


def evaluate_abstention(
    yes: Bool[ndarray, "N C"],
    no: Bool[ndarray, "N C"],
    labels: Float[ndarray, "N C"],
    known: Bool[ndarray, "N C"],
    names: Sequence[str],
    weights: Int[ndarray, "B N"] | None,
) -> dict[str, Any]:
    """Return the coverage, and the error rates among the yes and the no decisions, overall and per class.

    The coverage is the fraction of known entries that are decided. Intervals come from `weights`, the result of
    `resamples`. Undefined rates are None.
    """
    positive = labels == 1
    masks = (known, (yes | no) & known, yes & known, yes & known & ~positive, no & known, no & known & positive)
    counts = [mask.sum(0, dtype=np.float64)[None] for mask in masks]  # (1, C)
    drawn = [] if weights is None else [weights.astype(np.float32) @ mask.astype(np.float32) for mask in masks]
    overall = [count.sum(1, keepdims=True) for count in counts], [count.sum(1, keepdims=True) for count in drawn]
    per_class = {
        name: _rates([count[:, c : c + 1] for count in counts], [count[:, c : c + 1] for count in drawn])
        for c, name in enumerate(names)
    }
    return _rates(*overall) | {"per_class": per_class}


def _rates(counts: Sequence[ndarray], drawn: Sequence[ndarray]) -> dict[str, Any]:
    rates: dict[str, Any] = {}
    for name, part, whole in (("coverage", 1, 0), ("yes_risk", 3, 2), ("no_risk", 5, 4)):
        with np.errstate(invalid="ignore"):
            value = float((counts[part] / counts[whole]).item())
            samples = (drawn[part] / drawn[whole])[:, 0].astype(np.float64) if drawn else None
        rates[name] = nan_to_none(value)
        rates[f"{name}_interval"] = None if samples is None else fraction_interval(samples, value)
    return rates
