from pathlib import Path

import pytest

from probmcl.report.verdict import RULES, Rule, judge

GOOD: dict[str, float | None] = {
    "val_images": 1000.0,
    "test_images": 1000.0,
    "leaks": 0.0,
    "seen_before": 0.0,
    "above_chance": 0.3,
    "mean_f1": 0.8,
    "weak_classes": 0.0,
    "never_correct": 0.0,
    "not_scored": 0.0,
    "rare": 0.0,
    "gain_low": 0.01,
    "gain_high": 0.03,
    "calibration_error": 0.01,
    "val_test": 0.01,
    "uncertain_thresholds": 0.0,
    "not_promised": 0.0,
    "unknown_labels": 0.0,
}
LIMITS = {
    "val_images": ("below", 200, 50),
    "test_images": ("below", 500, 50),
    "leaks": ("above", 0, None),
    "seen_before": ("above", 0, None),
    "above_chance": ("below", 0.05, 0.0),
    "mean_f1": ("below", 0.6, 0.2),
    "weak_classes": ("above", 0.1, None),
    "never_correct": ("above", 0.0, 0.25),
    "not_scored": ("above", 0.0, 0.5),
    "rare": ("above", 0.0, 0.5),
    "gain_low": ("below", 0.0, None),
    "gain_high": ("below", None, 0.0),
    "calibration_error": ("above", 0.05, 0.15),
    "val_test": ("above", 0.05, 0.15),
    "uncertain_thresholds": ("above", 0.0, 0.5),
    "not_promised": ("above", 0.0, None),
    "unknown_labels": ("above", 0.2, 0.8),
}
DOCUMENT = Path(__file__).parents[2] / "docs" / "report.md"
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)


def test_a_good_run_is_ready_to_use() -> None:
    verdict = judge(GOOD)
    assert (verdict.decision, verdict.reasons) == ("ready to use", [])
    assert len(verdict.checks) == len(RULES)


@every_rule
def test_every_rule_has_the_expected_limits(rule: Rule) -> None:
    assert (rule.worse, rule.care, rule.stop) == LIMITS[rule.key]


@every_rule
def test_values_beyond_a_limit_change_the_verdict(rule: Rule) -> None:
    step = 1e-6 if rule.worse == "above" else -1e-6
    for limit, decision in ((rule.care, "use with care"), (rule.stop, "do not use")):
        if limit is not None:
            verdict = judge(GOOD | {rule.key: limit + step})
            assert verdict.decision == decision
            assert verdict.next_step == rule.advice
            assert rule.title in verdict.reasons[0]
    best = rule.care if rule.care is not None else rule.stop
    assert judge(GOOD | {rule.key: best}).decision == "ready to use"


@every_rule
def test_an_unmeasured_quantity_needs_care_unless_it_can_only_stop(rule: Rule) -> None:
    expected = "ready to use" if rule.care is None else "use with care"
    assert judge(GOOD | {rule.key: None}).decision == expected


@every_rule
def test_the_documentation_lists_every_rule_with_its_numbers(rule: Rule) -> None:
    row = next(
        line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {rule.title} ")
    )
    for limit in (rule.care, rule.stop):
        if limit is not None:
            assert f"{rule.worse} {rule.show(limit)}" in row


def test_the_most_serious_reason_comes_first() -> None:
    verdict = judge(GOOD | {"test_images": 100.0, "never_correct": 0.9})
    assert verdict.decision == "do not use"
    assert "never" in verdict.reasons[0]
    assert len(verdict.reasons) == 2


def test_rules_that_do_not_apply_are_left_out() -> None:
    frozen_kept = {key: value for key, value in GOOD.items() if not key.startswith("gain")}
    assert {check.key for check in judge(frozen_kept).checks} == frozen_kept.keys()
