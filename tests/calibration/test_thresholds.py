"""Rules that choose the threshold of each class, with and without a statistical guarantee."""

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

from helpers.scores import flip_unknown, simulated_rows
from probmcl.calibration.thresholds import (
    RULES,
    ThresholdRule,
    Thresholds,
    accepted_cuts,
    balanced_threshold,
    choose_thresholds,
    cut_with_bounded_error,
    cut_with_expected_recall,
    cuts_of,
    f1_threshold,
)
from probmcl.errors import OptionError
from probmcl.evaluation.scores import ScoredRows

Array = npt.NDArray[Any]

LEVELS = [step / 16 for step in range(17)]  # including 0 and 1; their midpoints are exact

entries = st.lists(st.tuples(st.sampled_from(LEVELS), st.booleans()), max_size=40)

VALID = {
    "balanced": ThresholdRule("balanced"),
    "f1": ThresholdRule("f1"),
    "precision:0.95": ThresholdRule("precision", (0.95,)),
    "recall:0.9": ThresholdRule("recall", (0.9,)),
    "cost:5,1": ThresholdRule("cost", (5.0, 1.0)),
    "cost:0.25,1000": ThresholdRule("cost", (0.25, 1000.0)),
    "0.3": ThresholdRule("fixed", (0.3,)),
    "0": ThresholdRule("fixed", (0.0,)),
    "1": ThresholdRule("fixed", (1.0,)),
}


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


@pytest.mark.parametrize(("text", "rule"), VALID.items())
def test_text_of_a_rule(text: str, rule: ThresholdRule) -> None:
    assert ThresholdRule.parse(text) == rule
    assert str(rule) == text
    assert ThresholdRule.parse(f" {text} ") == rule


def test_cases_cover_every_rule() -> None:
    assert {rule.kind for rule in VALID.values()} == set(RULES)


def test_numbers_are_rules() -> None:
    assert ThresholdRule.parse(0.25) == ThresholdRule("fixed", (0.25,))


@given(
    st.sampled_from(["precision", "recall", "cost", "fixed"]),
    st.floats(0, 1, exclude_min=True, exclude_max=True),
    st.floats(0, 1, exclude_min=True, exclude_max=True),
)
def test_rules_do_not_change_when_they_are_written_and_parsed(kind: str, first: float, second: float) -> None:
    rule = ThresholdRule(kind, (first, second)[: RULES[kind][0]])
    assert ThresholdRule.parse(str(rule)) == rule


INVALID = """
    best Balanced balanced:0.5 balanced: f1:2 precision precision: precision:0 precision:1 precision:high
    precision:0.9,0.8 recall recall:1.2 recall:-0.1 recall:nan cost cost:5 cost:0,1 cost:1,0 cost:1,-1 cost:inf,1
    cost:1,2,3 1.5 -0.1 nan inf 0.5:0.5 0.3,0.4
"""


@pytest.mark.parametrize("text", ["", *INVALID.split()])
def test_invalid_rules_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=f'^`thresholds="{text}"` must be balanced, f1, precision:P'):
        ThresholdRule.parse(text)


columns = st.lists(st.sampled_from([step / 16 for step in range(17)]), min_size=1, max_size=12).map(np.array)


def decisions(p: Array) -> list[Array]:
    """Return all decisions that a threshold can make; no threshold is below a probability of 0."""
    return [p > threshold for threshold in {1.0, *p.tolist(), *({-1.0} if p.min() > 0 else ())}]


@given(columns)
def test_balanced_threshold_predicts_the_expected_number_of_positives(p: Array) -> None:
    threshold = balanced_threshold(p)
    distance = abs((p > threshold).sum() - p.sum())
    best = [decided.sum() for decided in decisions(p) if abs(decided.sum() - p.sum()) == distance]
    assert distance == min(abs(decided.sum() - p.sum()) for decided in decisions(p))
    assert (p > threshold).sum() == min(best)  # of two equally good cuts, the one with fewer positives


def test_equal_probabilities_are_decided_alike() -> None:
    assert balanced_threshold(np.full(4, 0.75)) == 0.375  # three of four are expected
    assert balanced_threshold(np.full(4, 0.25)) == 0.625
    assert balanced_threshold(np.zeros(4)) == 0.5
    assert f1_threshold(np.full(4, 0.25)) == 0.125


def expected_f1(p: Array, decided: Array) -> float:
    total = decided.sum() + p.sum()
    return float(2 * p[decided].sum() / total) if total else 0.0


@given(columns)
def test_f1_threshold_has_the_highest_expected_f1(p: Array) -> None:
    best = max(expected_f1(p, decided) for decided in decisions(p))
    assert expected_f1(p, p > f1_threshold(p)) == pytest.approx(best, abs=1e-12)


def chosen(text: str, rows: ScoredRows) -> Thresholds:
    return choose_thresholds(ThresholdRule.parse(text), rows.scores, rows.labels, rows.known)


@given(columns, st.sampled_from(["cost:5,1", "cost:1,3", "cost:1,1", "cost:0.5,20"]))
def test_cost_threshold_has_the_lowest_expected_cost(p: Array, text: str) -> None:
    def cost(decided: Array) -> float:
        missed, wrong = ThresholdRule.parse(text).values
        return float(np.where(decided, (1 - p) * wrong, p * missed).sum())

    result = chosen(text, ScoredRows(p[:, None], np.zeros((len(p), 1)), np.ones((len(p), 1), dtype=np.bool_)))
    assert cost(p > result.values.item()) == pytest.approx(min(map(cost, decisions(p))), abs=1e-12)


def test_a_number_is_the_threshold_of_all_classes() -> None:
    assert chosen("0.3", simulated_rows(20)).values.tolist() == [0.3] * 4


@pytest.mark.parametrize(("text", "choose"), [("balanced", balanced_threshold), ("f1", f1_threshold)])
def test_rules_without_labels_use_all_images(text: str, choose: Any) -> None:
    rows = simulated_rows(50)
    assert chosen(text, rows).values.tolist() == [choose(column) for column in rows.scores.T]


@pytest.mark.parametrize("text", VALID)
def test_only_precision_and_recall_make_a_promise(text: str) -> None:
    promised = chosen(text, simulated_rows(400)).promised
    assert (promised is not None) == text.startswith(("precision", "recall"))


@pytest.mark.parametrize("text", ["precision:0.6", "recall:0.9"])
def test_guarantees_use_only_known_labels(text: str) -> None:
    rows = simulated_rows(400, slope=2.0, unknown=0.5)
    result = chosen(text, rows)
    assert result.promised is not None
    assert result.promised.all()
    for column, known in enumerate(rows.known.T):
        p, positive = rows.scores[known, column], rows.labels[known, column] == 1
        if text == "recall:0.9":
            assert result.values[column] == cut_with_expected_recall(p, positive, 0.9)
        else:
            assert result.values[column] == cut_with_bounded_error(p, ~positive, 1 - 0.6)
    np.testing.assert_array_equal(chosen(text, flip_unknown(rows)).values, result.values)


@pytest.mark.parametrize("text", ["precision:0.9", "recall:0.9"])
def test_classes_with_too_few_examples_have_the_balanced_threshold(text: str) -> None:
    rows = simulated_rows(300, 3, unknown=0.0)
    rows.labels[:, 0] = rows.scores[:, 0] > 0.5
    rows.known[8:, 1] = False
    rows.known[:, 2] = False
    result = chosen(text, rows)
    assert result.promised is not None
    assert result.promised.tolist() == [True, False, False]
    assert result.values[1:].tolist() == [balanced_threshold(column) for column in rows.scores.T[1:]]
