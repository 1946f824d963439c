import math
from fractions import Fraction
from itertools import count, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from probmcl.calibration.risk_control import (
    accepted_cuts,
    cut_with_bounded_error,
    cut_with_expected_recall,
    cuts_of,
)

Array = npt.NDArray[Any]

LEVELS = [step / 16 for step in range(17)]  # including 0 and 1; their midpoints are exact

entries = st.lists(st.tuples(st.sampled_from(LEVELS), st.booleans()), max_size=40)


def unzip(pairs: list[tuple[float, bool]]) -> tuple[Array, Array]:
    return np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs], dtype=np.bool_)


def slow_thresholds(scores: list[float]) -> list[float]:
    """Return the midpoints between neighboring scores, from the highest to the lowest, also with 0 and 1."""
    distinct = sorted({0.0, 1.0, *scores}, reverse=True)
    highest = [1.0] if 1.0 in scores else []
    return highest + [(upper + lower) / 2 for upper, lower in pairwise(distinct)]


@given(st.lists(st.sampled_from(LEVELS), max_size=12))
def test_cuts_are_all_midpoints_between_scores(scores: list[float]) -> None:
    cuts = cuts_of(np.array(scores))
    assert cuts.threshold.tolist() == slow_thresholds(scores)
    assert cuts.above.tolist() == [sum(score > threshold for score in scores) for threshold in cuts.threshold]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_cuts_count_the_scores_above_each_threshold(scores: list[float]) -> None:
    cuts = cuts_of(np.array(scores))
    assert cuts.above.tolist() == [sum(score > threshold for score in scores) for threshold in cuts.threshold]
    assert (np.diff(cuts.above) > 0).all()
    assert cuts.above[0] == 0


def slow_cuts(scores: Array, wrong: Array, limit: float, confidence: float = 0.9) -> tuple[float, float] | None:
    """Return the lowest and the highest threshold of the sequence of tests that reaches lower."""
    level = (1 - confidence) / 2
    fewest = next(n for n in count(1) if binom.cdf(0, n, limit) <= level)
    sequences = []
    for start in (fewest, 2 * fewest):
        accepted = []
        for threshold in slow_thresholds(scores.tolist()):
            above = scores > threshold
            if above.sum() < start:
                continue
            if binom.cdf(wrong[above].sum(), above.sum(), limit) > level:
                break
            accepted.append(threshold)
        if accepted:
            sequences.append((accepted[-1], accepted[0]))
    return min(sequences, key=lambda ends: ends[0], default=None)


@given(entries, st.sampled_from([0.2, 0.3, 0.5, 0.7]), st.sampled_from([0.5, 0.8, 0.9]))
def test_bounded_error_matches_a_slow_loop(pairs: list[tuple[float, bool]], limit: float, confidence: float) -> None:
    scores, wrong = unzip(pairs)
    expected = slow_cuts(scores, wrong, limit, confidence)
    assert accepted_cuts(scores, wrong, limit, confidence=confidence) == expected
    lowest = cut_with_bounded_error(scores, wrong, limit, confidence=confidence)
    assert lowest == (None if expected is None else expected[0])


@pytest.mark.parametrize("seed", range(8))
def test_bounded_error_matches_a_slow_loop_if_errors_become_frequent(seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.integers(0, 128, size=150) / 128
    wrong = generator.random(150) > scores
    result = accepted_cuts(scores, wrong, 0.3)
    assert result is not None
    assert result == slow_cuts(scores, wrong, 0.3)


def test_one_error_near_the_top_does_not_end_the_search() -> None:
    scores, wrong = np.linspace(0.99, 0.01, 99), np.zeros(99, dtype=np.bool_)
    wrong[3] = True  # the first sequence of tests fails after 14 scores, and the second succeeds after 28
    threshold = cut_with_bounded_error(scores, wrong, 0.2)
    assert threshold is not None
    assert (scores > threshold).all()


@pytest.mark.parametrize(("n", "accepted"), [(13, False), (14, True)])
def test_fewest_scores_for_a_bound(n: int, accepted: bool) -> None:
    assert 0.8**14 < 0.05 < 0.8**13
    threshold = cut_with_bounded_error(np.linspace(0.9, 0.5, n), np.zeros(n, dtype=np.bool_), 0.2)
    assert (threshold is not None) == accepted


@pytest.mark.parametrize("errors", ["rising", "constant"])
def test_error_rate_above_the_threshold_is_bounded_in_nine_of_ten_repetitions(errors: str) -> None:
    generator, exceeded, found = np.random.default_rng(0), [], []
    for _ in range(600):
        scores, chance = generator.random((2, 250))
        wrong = chance < (1 - scores if errors == "rising" else 0.201)
        threshold = cut_with_bounded_error(scores, wrong, 0.2)
        found.append(threshold is not None)
        # If an error has probability 1 − s at score s, the error rate above t is (1 − t) / 2.
        exceeded.append(threshold is not None and (errors == "constant" or (1 - threshold) / 2 > 0.2))
    slack = 3 * math.sqrt(0.1 * 0.9 / 600)
    assert 0 < np.mean(exceeded) < 0.1 + slack
    assert np.mean(found) > 0.6 or errors == "constant"


def slow_expected_recall(scores: Array, positive: Array, recall: str) -> float | None:
    allowed = math.floor((1 - Fraction(recall)) * (int(positive.sum()) + 1)) - 1
    thresholds = [t for t in slow_thresholds(scores.tolist()) if (positive & (scores <= t)).sum() <= allowed]
    return max(thresholds, default=None)


@given(entries, st.sampled_from(["0.3", "0.5", "0.7", "0.75", "0.8", "0.9"]))
def test_expected_recall_matches_a_slow_loop(pairs: list[tuple[float, bool]], recall: str) -> None:
    scores, positive = unzip(pairs)
    expected = slow_expected_recall(scores, positive, recall)
    assert cut_with_expected_recall(scores, positive, float(recall)) == expected


@pytest.mark.parametrize(("recall", "fewest"), [(0.5, 1), (0.7, 3), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_fewest_positives_for_a_recall(recall: float, fewest: int) -> None:
    """Some products are below their exact value, such as (1 − 0.9) · 10, which is 0.9999999999999998."""
    for positives in (fewest - 1, fewest):
        scores = np.linspace(0.1, 0.9, positives)
        threshold = cut_with_expected_recall(scores, np.ones(positives, dtype=np.bool_), recall)
        assert (threshold is not None) == (positives == fewest)


def test_number_of_missed_positives_is_exact_at_floating_point_boundaries() -> None:
    for tenths in range(1, 10):
        scores = np.arange(1, 100) / 100  # with 99 positives, 100 (1 − recall) is an integer
        threshold = cut_with_expected_recall(scores, np.ones(99, dtype=np.bool_), tenths / 10)
        assert threshold is not None
        assert (scores <= threshold).sum() == 100 - 10 * tenths - 1


@pytest.mark.parametrize("n", [9, 14, 40])
def test_mean_recall_of_new_positives_is_as_promised(n: int) -> None:
    generator, recall = np.random.default_rng(n), []
    for _ in range(1500):
        scores = generator.random(n + 500)
        threshold = cut_with_expected_recall(scores, np.arange(n + 500) < n, 0.9)
        assert threshold is not None
        recall.append(1 - threshold)  # the scores of new positives are uniformly distributed
    slack = 3 * np.std(recall) / math.sqrt(len(recall))
    assert 0.9 - slack < np.mean(recall) < 0.9 + 1 / (n + 1) + slack


def test_no_threshold_is_below_a_positive_with_score_0() -> None:
    scores = np.array([0.0, 0.5, 0.5])
    assert cut_with_expected_recall(scores, scores == 0, 0.5) is None
    assert cut_with_expected_recall(scores, scores > 0, 0.5) == 0.25


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, float("nan")])
def test_rates_outside_0_and_1_are_refused(value: float) -> None:
    scores, mask = np.array([0.5]), np.array([True])
    with pytest.raises(ValueError, match="limit="):
        cut_with_bounded_error(scores, mask, value)
    with pytest.raises(ValueError, match="recall="):
        cut_with_expected_recall(scores, mask, value)
