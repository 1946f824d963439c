"""Rules that choose the threshold of each class from calibrated probabilities."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Shaped

from probmcl.calibration.risk_control import cut_with_bounded_error, cut_with_expected_recall, cuts_of
from probmcl.errors import OptionError

SYNTAX = "balanced, f1, precision:P or recall:R (between 0 and 1), cost:FN,FP (above 0), or a number from 0 to 1"


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
        """Parse the value of an option."""
        kind, colon, rest = str(text).strip().partition(":")
        try:
            values = tuple(float(part) for part in rest.split(",")) if colon else ()
            rule = cls(kind, values) if kind in RULES and kind != "fixed" else cls("fixed", (float(kind), *values))
        except ValueError:
            raise OptionError("thresholds", text, f"must be {SYNTAX}") from None
        expected, is_valid = RULES[rule.kind]
        if len(rule.values) != expected or not all(map(is_valid, rule.values)):
            raise OptionError("thresholds", text, f"must be {SYNTAX}")
        return rule

    def __str__(self) -> str:
        values = ",".join(repr(value).removesuffix(".0") for value in self.values)
        return values if self.kind == "fixed" else ":".join(filter(None, (self.kind, values)))


BALANCED = ThresholdRule("balanced")

RULES: Mapping[str, tuple[int, Callable[[float], bool]]] = {
    "balanced": (0, bool),
    "f1": (0, bool),
    "precision": (1, lambda value: 0 < value < 1),
    "recall": (1, lambda value: 0 < value < 1),
    "cost": (2, lambda value: 0 < value < float("inf")),
    "fixed": (1, lambda value: 0 <= value <= 1),
}
"""The number of values of each rule, and whether a value is valid."""


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
    if rule.kind in ("fixed", "cost"):
        value = rule.values[0] if rule.kind == "fixed" else rule.values[1] / sum(rule.values)
        return Thresholds(np.full(classes, value), None)
    if rule.kind in ("balanced", "f1"):
        choose = balanced_threshold if rule.kind == "balanced" else f1_threshold
        return Thresholds(np.array([choose(column) for column in probabilities.T]), None)
    values = [_guaranteed(rule, p[k], y[k] == 1) for p, y, k in zip(probabilities.T, labels.T, known.T, strict=True)]
    promised = np.array([value is not None for value in values])
    balanced = [balanced_threshold(p) if v is None else v for v, p in zip(values, probabilities.T, strict=True)]
    return Thresholds(np.array(balanced), promised)


def balanced_threshold(probabilities: Float[np.ndarray, " N"]) -> float:
    """Return the threshold above which there are as many images as positives are expected, Σ p."""
    cuts = cuts_of(probabilities)
    return float(cuts.threshold[np.abs(cuts.above - probabilities.sum()).argmin()])


def f1_threshold(probabilities: Float[np.ndarray, " N"]) -> float:
    """Return the threshold with the highest expected F1, approximated by 2 E[TP] / (predicted + E[positives]).

    >>> f1_threshold(np.array([0.9, 0.5, 0.1, 0.1]))
    0.3
    """
    cuts = cuts_of(probabilities)
    hits = np.concatenate([[0.0], np.cumsum(np.sort(probabilities)[::-1])])
    return float(cuts.threshold[(hits[cuts.above] / np.maximum(cuts.above + hits[-1], 1e-300)).argmax()])


def _guaranteed(rule: ThresholdRule, p: Float[np.ndarray, " K"], positive: Bool[np.ndarray, " K"]) -> float | None:
    if rule.kind == "recall":
        return cut_with_expected_recall(p, positive, rule.values[0])
    return cut_with_bounded_error(p, ~positive, 1 - rule.values[0]) if len(p) else None
