"""Abstention: decisions that are yes, no or not sure, with bounded error rates."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Shaped

from probmcl.calibration.thresholds import accepted_cuts, balanced_threshold
from probmcl.errors import OptionError


class Limits(NamedTuple):
    """The decision is no up to `no`, yes above `yes`, and not sure in between.

    An infinite limit means that a class is never decided in that way.
    """

    no: Float64[np.ndarray, " C"]
    yes: Float64[np.ndarray, " C"]


def abstention_limits(
    risk: float,
    probabilities: Float[np.ndarray, "N C"],
    labels: Shaped[np.ndarray, "N C"],
    known: Bool[np.ndarray, "N C"],
) -> Limits:
    """Return limits that bound the error rates of each class, given probabilities and labels of held-out images.

    For each class, the rate of errors among its yes decisions is at most `risk` with probability 0.9, and so is the
    rate among its no decisions; see `cut_with_bounded_error`. A yes is never below the balanced threshold, and a no is
    never above it: otherwise, every image would be a no for a class that is rarer than `risk`.
    """
    if not 0 < risk < 1:
        raise OptionError("abstain", risk, "must be an error rate between 0 and 1, such as 0.05")
    limits = [_limits(risk, p[k], y[k] == 1) for p, y, k in zip(probabilities.T, labels.T, known.T, strict=True)]
    return Limits(*np.array(limits).T)


def _limits(risk: float, p: Float[np.ndarray, " K"], positive: Bool[np.ndarray, " K"]) -> tuple[float, float]:
    if not len(p):
        return -np.inf, np.inf
    middle = balanced_threshold(p)
    yes, no = accepted_cuts(p, ~positive, risk), accepted_cuts(1 - p, positive, risk)
    upper = np.inf if yes is None or middle > yes[1] else max(middle, yes[0])
    lower = -np.inf if no is None or middle < 1 - no[1] else min(middle, 1 - no[0])
    return lower, upper
