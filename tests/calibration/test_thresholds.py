from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.scores import flip_unknown, simulated_rows
from probmcl.calibration.risk_control import cut_with_bounded_error, cut_with_expected_recall
from probmcl.calibration.thresholds import (
    RULES,
    ThresholdRule,
    Thresholds,
    balanced_threshold,
    choose_thresholds,
    f1_threshold,
)
from probmcl.errors import OptionError
from probmcl.evaluation.stored_scores import ScoredRows

Array = npt.NDArray[Any]

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
