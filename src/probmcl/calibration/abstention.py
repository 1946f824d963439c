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
    no = []
    yes = []
    for p, label, is_known in zip(probabilities.T, labels.T, known.T, strict=True):
        no_limit, yes_limit = _limits_of_class(risk, p[is_known], label[is_known] == 1)
        no.append(no_limit)
        yes.append(yes_limit)
    return Limits(np.array(no), np.array(yes))


def _limits_of_class(risk: float, p: Float[np.ndarray, " K"], positive: Bool[np.ndarray, " K"]) -> tuple[float, float]:
    """Return the highest probability of a no, and that of a not sure, from the known entries of one class.

    `risk` is the largest error rate among the decisions. An infinite limit means that no decision has this error rate.
    """
    if not len(p):
        return -np.inf, np.inf
    balanced = balanced_threshold(p)

    yes_limit = np.inf
    yes = accepted_cuts(p, ~positive, risk)
    if yes is not None and balanced <= yes.highest:
        yes_limit = max(balanced, yes.lowest)

    # A no is a yes for the probability 1 − p that the class is absent, so a low threshold there is a high one here.
    no_limit = -np.inf
    no = accepted_cuts(1 - p, positive, risk)
    if no is not None and balanced >= 1 - no.highest:
        no_limit = min(balanced, 1 - no.lowest)
    return no_limit, yes_limit
