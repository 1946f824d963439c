"""Rules that choose the threshold of each class, with and without a statistical guarantee."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Shaped
from scipy.special import bdtr

from probmcl.errors import OptionError

CONFIDENCE = 0.9
"""Probability with which a bound on an error rate holds."""

STARTS = np.array([1, 2])
"""Where the sequences of tests start, in multiples of the fewest scores for which a test can succeed."""

ROUNDING_ERROR = 1e-9
"""Subtracted before rounding up and added before rounding down, so that an integer with a rounding error stays."""

SYNTAX = "balanced, f1, precision:P or recall:R (between 0 and 1), cost:FN,FP (above 0), or a number from 0 to 1"

RULES: Mapping[str, tuple[int, Callable[[float], bool]]] = {
    "balanced": (0, bool),
    "f1": (0, bool),
    "precision": (1, lambda value: 0 < value < 1),
    "recall": (1, lambda value: 0 < value < 1),
    "cost": (2, lambda value: 0 < value < float("inf")),
    "fixed": (1, lambda value: 0 <= value <= 1),
}
"""The number of values of each rule, and whether a value is valid."""


class AcceptedThresholds(NamedTuple):
    """The ends of a range of thresholds above which the error rate is bounded."""

    lowest: float
    highest: float


class Cuts(NamedTuple):
    """All ways to divide the scores of a class into those above a threshold and the rest, the smallest part first.

    Attributes:
        threshold: a threshold halfway between two neighboring scores; the first is above all scores.
        above: number of scores above it.
    """

    threshold: Float[np.ndarray, " K"]
    above: Int[np.ndarray, " K"]


def cuts_of(scores: Float[np.ndarray, " N"]) -> Cuts:
    """Return the cuts between the distinct scores of a class, which are between 0 and 1.

    >>> cuts_of(np.array([0.2, 0.8, 0.8]))
    Cuts(threshold=array([0.9, 0.5, 0.1]), above=array([0, 2, 3]))
    """
    ascending, ascending_counts = np.unique(scores, return_counts=True)
    distinct = ascending[::-1]
    counts = ascending_counts[::-1]

    # There is one threshold above the highest score, and one below each distinct score.
    upper = np.concatenate([[1.0], distinct])
    lower = np.concatenate([distinct, [0.0]])
    middle = (lower + upper) / 2
    # Between close scores, the middle may be rounded to the upper one, and then the upper one would not be above it.
    threshold = np.where(middle < upper, middle, lower)
    above = np.concatenate([[0], np.cumsum(counts)])

    # Below a score of 0, there is no room for a threshold. The first threshold has no score above it.
    lowest_score_above = np.concatenate([[np.inf], distinct])
    is_possible = threshold < lowest_score_above
    return Cuts(threshold[is_possible], above[is_possible])


def cut_with_bounded_error(
    scores: Float[np.ndarray, " N"], wrong: Bool[np.ndarray, " N"], limit: float, *, confidence: float = CONFIDENCE
) -> float | None:
    """Return the lowest threshold above which the error rate is at most `limit`, with the given probability.

    `wrong` marks the scores that would be errors if they were above the threshold. Learn-then-Test: going down from the
    highest score, the hypothesis "the error rate above t exceeds the limit" is tested with the exact binomial tail

        p(t) = P(Bin(n, limit) ≤ k)   for k errors among n scores above t,

    until a test fails. There are two such sequences, each at half the level, so that one error near the top does not
    end the search: they start after m and after 2m scores, where m is the smallest number for which a test can succeed.
    The probability that any accepted threshold is wrong is then at most 1 − confidence, if images are independent and
    the error rate above t does not fall when t is lowered. None means that no threshold was accepted.

    Reference: Angelopoulos et al., Learn then Test: Calibrating Predictive Algorithms to Achieve Risk Control, 2021.

    >>> scores = np.linspace(0.99, 0.01, 99)
    >>> round(cut_with_bounded_error(scores, scores < 0.5, 0.2), 3)
    0.445
    """
    accepted = accepted_cuts(scores, wrong, limit, confidence=confidence)
    return None if accepted is None else accepted.lowest


def accepted_cuts(
    scores: Float[np.ndarray, " N"], wrong: Bool[np.ndarray, " N"], limit: float, *, confidence: float = CONFIDENCE
) -> AcceptedThresholds | None:
    """Return the ends of the sequence of thresholds that `cut_with_bounded_error` accepts, or None.

    Two sequences of tests go through the cuts from high to low thresholds. Each starts at a cut with enough scores
    above it, and ends before the first p-value above the level. The sequence that reaches the lowest threshold is
    returned. The bound on the error rate holds for all of its thresholds at once.
    """
    if not 0 < limit < 1:
        raise ValueError(f"limit={limit} must be between 0 and 1")
    cuts = cuts_of(scores)
    descending = np.argsort(-scores, kind="stable")
    errors_among_highest = np.concatenate([[0], np.cumsum(wrong[descending])])
    errors_above = errors_among_highest[cuts.above]
    p = bdtr(errors_above.astype(float), cuts.above, limit)  # P(Bin(n, limit) ≤ k) of each cut

    level = (1 - confidence) / len(STARTS)
    # No test succeeds for fewer scores: without errors, the p-value of n scores is (1 − limit)ⁿ.
    fewest = math.ceil(math.log(level) / math.log(1 - limit) - ROUNDING_ERROR)
    starts = np.searchsorted(cuts.above, fewest * STARTS)  # the first cuts with this number of scores and with twice it
    accepted = None
    last_accepted = -1
    for first in starts.tolist():
        last = first + _tests_before_failure(p[first:], level) - 1
        if last >= first and last > last_accepted:
            last_accepted = last
            accepted = AcceptedThresholds(lowest=float(cuts.threshold[last]), highest=float(cuts.threshold[first]))
    return accepted


def _tests_before_failure(p: Float64[np.ndarray, " K"], level: float) -> int:
    """Return how many tests succeed before the first p-value above the level."""
    failed = np.flatnonzero(p > level)
    return int(failed[0]) if len(failed) else len(p)


def cut_with_expected_recall(
    scores: Float[np.ndarray, " N"], positive: Bool[np.ndarray, " N"], recall: float
) -> float | None:
    """Return the highest threshold at which the expected recall on new images is at least `recall`.

    Conformal risk control over the n positives: at most ⌊(1 − recall)(n + 1)⌋ − 1 of them may be missed. For a new
    positive, the probability to score above the threshold is then at least recall and, if the scores are dense, at
    most recall + 1 / (n + 1). None means that n is too small: 90 % needs 9 positives.

    Reference: Angelopoulos et al., Conformal Risk Control, 2022.

    >>> scores = np.arange(20) / 20
    >>> cut_with_expected_recall(scores, scores >= 0.5, 0.8)
    0.525
    """
    if not 0 < recall < 1:
        raise ValueError(f"recall={recall} must be between 0 and 1")
    positive_scores = np.sort(scores[positive])
    rank = math.floor((1 - recall) * (len(positive_scores) + 1) + ROUNDING_ERROR)
    if rank < 1:
        return None
    lowest_kept = positive_scores[rank - 1]  # the rank − 1 positives with lower scores may be missed
    thresholds = cuts_of(scores).threshold  # descending
    below = thresholds[thresholds < lowest_kept]
    return float(below[0]) if len(below) else None  # no threshold is below a score of 0


@dataclass(frozen=True)
class ThresholdRule:
    """A rule for thresholds.

    - balanced: as many positives as the probabilities predict
    - f1: the highest expected F1
    - precision:P: the lowest threshold with a precision of at least P, with probability 0.9
    - recall:R: the highest threshold with an expected recall of at least R
    - cost:FN,FP: the lowest expected cost, if a missed label costs FN and a wrong one FP
    - a number: the same threshold for all classes

    >>> ThresholdRule.parse("cost:5,1")
    ThresholdRule(kind='cost', values=(5.0, 1.0))
    >>> str(ThresholdRule.parse("0.30")), str(ThresholdRule("recall", (0.9,)))
    ('0.3', 'recall:0.9')
    """

    kind: str
    values: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str | float) -> "ThresholdRule":
        """Parse the value of the option `thresholds`: a number, or the name of a rule with its values after a colon."""
        name, colon, listed = str(text).strip().partition(":")
        has_name = name in RULES and name != "fixed"  # a fixed threshold is written as a number
        try:
            values = tuple(float(part) for part in listed.split(",")) if colon else ()
            rule = cls(name, values) if has_name else cls("fixed", (float(name), *values))
        except ValueError:
            raise OptionError("thresholds", text, f"must be {SYNTAX}") from None
        number_of_values, is_valid = RULES[rule.kind]
        if len(rule.values) != number_of_values or not all(map(is_valid, rule.values)):
            raise OptionError("thresholds", text, f"must be {SYNTAX}")
        return rule

    def __str__(self) -> str:
        values = ",".join(repr(value).removesuffix(".0") for value in self.values)
        if self.kind == "fixed":
            return values
        return f"{self.kind}:{values}" if values else self.kind


BALANCED = ThresholdRule("balanced")


class Thresholds(NamedTuple):
    """The threshold of each class, and whether the rule's guarantee holds for it (None: the rule gives none)."""

    values: Float64[np.ndarray, " C"]
    promised: Bool[np.ndarray, " C"] | None


def choose_thresholds(
    rule: ThresholdRule,
    probabilities: Float[np.ndarray, "N C"],
    labels: Shaped[np.ndarray, "N C"],
    known: Bool[np.ndarray, "N C"],
) -> Thresholds:
    """Return the thresholds of all classes, given the calibrated probabilities and labels of held-out images.

    Only `precision` and `recall` use the labels. If a class has too few examples for their guarantee, its threshold is
    the balanced one.

    >>> p = np.array([[0.9], [0.6], [0.3], [0.2]])  # two positives are expected
    >>> choose_thresholds(ThresholdRule("balanced"), p, np.zeros((4, 1)), np.ones((4, 1), dtype=bool)).values
    array([0.45])
    """
    classes = probabilities.shape[1]
    if rule.kind == "fixed":
        (threshold,) = rule.values
        return Thresholds(np.full(classes, threshold), promised=None)
    if rule.kind == "cost":
        missed_cost, wrong_cost = rule.values
        # A label costs (1 − p) · FP on average if it is predicted, and p · FN if it is not.
        threshold = wrong_cost / (missed_cost + wrong_cost)
        return Thresholds(np.full(classes, threshold), promised=None)
    if rule.kind == "balanced":
        return Thresholds(np.array([balanced_threshold(column) for column in probabilities.T]), promised=None)
    if rule.kind == "f1":
        return Thresholds(np.array([f1_threshold(column) for column in probabilities.T]), promised=None)

    values = []
    promised = []
    for p, label, is_known in zip(probabilities.T, labels.T, known.T, strict=True):
        guaranteed = _guaranteed_threshold(rule, p[is_known], label[is_known] == 1)
        promised.append(guaranteed is not None)
        values.append(balanced_threshold(p) if guaranteed is None else guaranteed)
    return Thresholds(np.array(values), np.array(promised))


def balanced_threshold(probabilities: Float[np.ndarray, " N"]) -> float:
    """Return the threshold above which there are as many images as positives are expected, Σ p."""
    cuts = cuts_of(probabilities)
    expected_positives = probabilities.sum()
    best = np.abs(cuts.above - expected_positives).argmin()
    return float(cuts.threshold[best])


def f1_threshold(probabilities: Float[np.ndarray, " N"]) -> float:
    """Return the threshold with the highest expected F1, approximated by 2 E[TP] / (predicted + E[positives]).

    >>> f1_threshold(np.array([0.9, 0.5, 0.1, 0.1]))
    0.3
    """
    cuts = cuts_of(probabilities)
    descending = np.sort(probabilities)[::-1]
    expected_among_highest = np.concatenate([[0.0], np.cumsum(descending)])
    expected_positives = expected_among_highest[-1]
    expected_hits = expected_among_highest[cuts.above]  # E[TP]
    half_f1 = expected_hits / np.maximum(cuts.above + expected_positives, 1e-300)  # 0 / 0 is 0
    return float(cuts.threshold[half_f1.argmax()])


def _guaranteed_threshold(
    rule: ThresholdRule, p: Float[np.ndarray, " K"], positive: Bool[np.ndarray, " K"]
) -> float | None:
    """Return the threshold of a class by the rule `precision` or `recall`; None if there are too few examples."""
    (target,) = rule.values
    if rule.kind == "recall":
        return cut_with_expected_recall(p, positive, target)
    if not len(p):
        return None
    return cut_with_bounded_error(p, ~positive, limit=1 - target)  # a precision P is an error rate of 1 − P
