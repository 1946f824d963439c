"""Cuts of a ranking with a statistical guarantee: Learn-then-Test and conformal risk control."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import bdtr

CONFIDENCE = 0.9
"""Probability with which a bound on an error rate holds."""

STARTS = np.array([1, 2])
"""Where the sequences of tests start, in multiples of the fewest scores for which a test can succeed."""


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
    distinct, counts = np.unique(scores, return_counts=True)
    edges = np.concatenate([[0.0], distinct, [1.0]])
    lower, upper, middle = edges[:-1], edges[1:], (edges[:-1] + edges[1:]) / 2
    threshold = np.where(middle < upper, middle, lower)[::-1]  # there may be no number in between
    above = np.concatenate([[0], np.cumsum(counts[::-1])])
    possible = threshold < np.concatenate([[np.inf], distinct[::-1]])  # no threshold is below a score of 0
    return Cuts(threshold[possible], above[possible])


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
    return None if accepted is None else accepted[0]


def accepted_cuts(
    scores: Float[np.ndarray, " N"], wrong: Bool[np.ndarray, " N"], limit: float, *, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Return the lowest and the highest threshold of the sequence that `cut_with_bounded_error` accepts.

    The bound holds for all thresholds in between at once.
    """
    if not 0 < limit < 1:
        raise ValueError(f"limit={limit} must be between 0 and 1")
    cuts = cuts_of(scores)
    errors = np.concatenate([[0], np.cumsum(wrong[np.argsort(-scores, kind="stable")])])
    p = bdtr(errors[cuts.above].astype(float), cuts.above, limit)
    level = (1 - confidence) / len(STARTS)
    fewest = math.ceil(math.log(level) / math.log(1 - limit) - 1e-9)
    best = None
    for start in np.searchsorted(cuts.above, fewest * STARTS).tolist():
        failed = np.flatnonzero(p[start:] > level)
        last = start + (int(failed[0]) if len(failed) else len(p) - start) - 1
        if last >= start and (best is None or last > best[1]):
            best = start, last
    return None if best is None else (float(cuts.threshold[best[1]]), float(cuts.threshold[best[0]]))


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
    hits = np.sort(scores[positive])
    rank = math.floor((1 - recall) * (len(hits) + 1) + 1e-9)
    if rank < 1:
        return None
    cuts = cuts_of(scores)
    below = cuts.threshold[cuts.threshold < hits[rank - 1]]
    return float(below[0]) if len(below) else None  # no threshold is below a score of 0
