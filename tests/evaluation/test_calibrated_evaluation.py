"""Evaluation of calibrated probabilities: decisions at chosen thresholds, reliability before and after, abstention."""

import json
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from helpers.evaluations import row_metrics
from helpers.scores import flip_unknown, simulated_rows
from probmcl.calibration import Calibration, fit_calibration
from probmcl.console import Console
from probmcl.data.labels import levels_of, parents_of
from probmcl.evaluation import average_precision, decisions_at, multilabel_metrics, resamples
from probmcl.evaluation.evaluate import EvaluatedModel
from probmcl.evaluation.intervals import EvaluationOptions, evaluate_rows
from probmcl.evaluation.reliability import (
    OpenDecisions,
    bootstrapped_calibration_error,
    evaluate_abstention,
    risk_coverage,
    summarize_reliability,
)
from probmcl.evaluation.scores import ScoredRows
from probmcl.runtime.conversion import convert
from probmcl.store.evaluation import DecisionScores, Evaluation, SplitMetrics

Thresholds: TypeAlias = npt.NDArray[np.float64]

NAMES = ["cat", "dog", "fox"]
THRESHOLDS = np.array([0.2, 0.5, 0.7])


def calibrated(images: int = 80) -> ScoredRows:
    """Return probabilities that are lower than the raw scores; the ranking differs in the last class only."""
    rows = simulated_rows(images, 3)
    probabilities = rows.scores.astype(np.float64) ** 2
    probabilities[:, 2] = probabilities[:, 2].round(1)
    return replace(rows, scores=probabilities, raw=rows.scores)


def evaluated(rows: ScoredRows, thresholds: Thresholds | None = THRESHOLDS) -> SplitMetrics:
    return row_metrics(rows, names=NAMES, thresholds=thresholds)


def fully_evaluated(
    rows: ScoredRows, draws: int = 30, aggregate: Any = None, *, values: list[str] | None = None, **model: Any
) -> Evaluation:
    options = EvaluationOptions(by=None if values is None else "site", aggregate=aggregate, draws=draws)
    return evaluate_rows(rows, EvaluatedModel(NAMES, **model), options, values, Console.quiet())


def as_read(evaluation: SplitMetrics) -> SplitMetrics:
    """Write metrics as JSON, which has neither NaN nor infinity, and read them again."""
    content = json.dumps(evaluation.to_dict(), allow_nan=False)
    return convert(json.loads(content), type(evaluation))


def test_published_thresholds_are_applied_to_raw_scores_and_chosen_ones_to_probabilities() -> None:
    rows = calibrated()
    assert rows.raw is not None
    result = evaluated(rows)
    assert result.at.keys() == ["0.5", "0.8", "chosen"]
    assert result.at.half == decision_scores(rows, rows.raw, 0.5)
    assert result.at.high == decision_scores(rows, rows.raw, 0.8)
    assert result.at.chosen == result.at.used == decision_scores(rows, rows.scores, THRESHOLDS)
    assert result.at.half != result.at.chosen
    assert multilabel_metrics(rows.raw, rows.labels, rows.known, top_k=3)["OP"] == result.top3.OP


def decision_scores(rows: ScoredRows, scores: npt.NDArray[Any], threshold: Any) -> DecisionScores:
    entries = (scores, rows.labels, rows.known)
    harmonic = multilabel_metrics(*entries, threshold=threshold)
    macro_f1 = multilabel_metrics(*entries, threshold=threshold, f1="per_class")["CF1"]
    return DecisionScores(
        **{name: harmonic[name] for name in ("CP", "CR", "CF1", "OP", "OR", "OF1")}, macro_F1=macro_f1
    )


def test_decisions_and_rates_use_the_chosen_thresholds() -> None:
    rows = calibrated()
    result = evaluated(rows)
    expected = decisions_at(rows.scores, rows.labels, rows.known, THRESHOLDS)
    assert result.decisions.threshold == "chosen"
    assert result.decisions.macro_F1 == expected.macro_f1
    assert result.decisions.hamming_loss == expected.hamming_loss
    assert [result.per_class[name].threshold for name in NAMES] == THRESHOLDS.tolist()
    known = rows.known[:, 0]
    positive, decided = rows.labels[known, 0] == 1, rows.scores[known, 0] > 0.2
    assert result.per_class["cat"].sensitivity == pytest.approx(decided[positive].mean())
    assert as_read(result) == result


def test_without_calibration_the_threshold_is_one_half() -> None:
    result = evaluated(replace(calibrated(), raw=None), None)
    assert result.at.keys() == ["0.5", "0.8"]
    assert result.at.used == result.at.half
    assert result.decisions.threshold == 0.5
    assert {rates.threshold for rates in result.per_class.values()} == {0.5}
    assert "ap_changes" not in result


def test_changes_of_the_average_precision_are_listed_if_the_ranking_changes() -> None:
    rows = calibrated()
    assert rows.raw is not None
    before, after = (average_precision(scores, rows.labels, rows.known)[2] for scores in (rows.raw, rows.scores))
    result = evaluated(rows)
    assert result.ap_changes is not None
    assert result.ap_changes == pytest.approx({"fox": (after - before).item()})
    assert result.ap["fox"] == after.item()
    rows.known[:, 2] = False
    assert evaluated(rows).to_dict()["ap_changes"] == {}


def test_labels_predicted_and_true_are_means_over_images_with_known_labels() -> None:
    rows = calibrated()
    rows.known[:10] = False
    kept, decisions = rows.known.any(1), evaluated(rows).decisions
    predicted = (rows.scores > THRESHOLDS) & rows.known
    assert decisions.labels_predicted == pytest.approx(predicted[kept].sum(1).mean())
    assert decisions.labels_true == pytest.approx((rows.labels * rows.known)[kept].sum(1).mean())


def test_reliability_is_reported_before_and_after_calibration() -> None:
    rows = calibrated()
    assert rows.raw is not None
    calibration = fully_evaluated(rows, thresholds=THRESHOLDS).calibration
    assert calibration.parts == (calibration.before, calibration.after)
    assert calibration.final is calibration.after
    weights = resamples(80, None, draws=30)
    for part, scores in zip(calibration.parts, (rows.raw, rows.scores), strict=True):
        entries = (scores, rows.labels, rows.known)
        samples = bootstrapped_calibration_error(*entries, weights)
        assert part == summarize_reliability(*entries, NAMES, samples)
    assert calibration.before.brier != calibration.final.brier


def test_reliability_of_uncalibrated_scores() -> None:
    rows = replace(calibrated(), raw=None)
    calibration = fully_evaluated(rows, draws=0).calibration
    assert calibration.keys() == ["before"]
    assert calibration.before == calibration.final == summarize_reliability(*rows.entries, NAMES)


@pytest.mark.parametrize("thresholds", [None, THRESHOLDS])
def test_risk_coverage_uses_the_chosen_thresholds(thresholds: Thresholds | None) -> None:
    rows = calibrated()
    decided = rows.scores > (0.5 if thresholds is None else thresholds)
    result = fully_evaluated(rows, draws=0, thresholds=thresholds).risk_coverage
    assert result == risk_coverage(rows.scores, decided, rows.labels, rows.known)


@pytest.mark.parametrize("draws", [0, 30])
def test_abstention_is_evaluated_between_the_limits(draws: int) -> None:
    rows, no, yes = calibrated(), np.array([0.1, -np.inf, 0.4]), np.array([0.6, 0.7, 0.4])
    result = fully_evaluated(rows, draws=draws, limits=(no, yes)).abstention
    assert result is not None
    weights = resamples(80, None, draws=draws) if draws else None
    decisions = OpenDecisions(rows.scores > yes, rows.scores <= no)
    assert result == evaluate_abstention(decisions, rows.labels, rows.known, NAMES, weights)
    assert result.per_class["fox"].coverage == 1
    assert result.per_class["dog"].no_risk is None
    assert (result.coverage_interval is None) == (draws == 0)
    assert "abstention" not in fully_evaluated(rows, draws=0)


def test_intervals_resample_whole_groups() -> None:
    rows = calibrated()
    grouped = replace(rows, group=tuple(f"slide {number // 8}" for number in range(80)))
    limits = np.full(3, 0.1), np.full(3, 0.6)
    single, whole = (fully_evaluated(table, limits=limits) for table in (rows, grouped))
    samples = bootstrapped_calibration_error(
        rows.scores, rows.labels, rows.known, resamples(80, grouped.group, draws=30)
    )
    expected = summarize_reliability(rows.scores, rows.labels, rows.known, NAMES, samples)
    assert whole.calibration.after == expected
    assert single.abstention is not None
    assert whole.abstention is not None
    assert whole.abstention.coverage == single.abstention.coverage
    assert whole.abstention.coverage_interval != single.abstention.coverage_interval


def test_one_group_has_no_intervals() -> None:
    rows = replace(calibrated(), group=("slide",) * 80)
    result = fully_evaluated(rows, limits=(np.full(3, 0.1), np.full(3, 0.6)))
    assert result.calibration.final.calibration_error_interval is None
    assert result.abstention is not None
    assert result.abstention.coverage_interval is None


@pytest.mark.parametrize("aggregate", ["mean", "max"])
def test_raw_scores_are_aggregated_like_probabilities(aggregate: Any) -> None:
    rows = replace(calibrated(6), group=("b", "a", "b", "a", "b", "c"))
    assert rows.raw is not None
    result = rows.aggregate(aggregate)
    assert result.raw is not None
    for part, original in ((result.raw, rows.raw), (result.scores, rows.scores)):
        combined = [getattr(original[members].astype(np.float64), aggregate)(0) for members in ([1, 3], [0, 2, 4], [5])]
        np.testing.assert_allclose(part, combined, rtol=1e-12)
    assert replace(rows, raw=None).aggregate(aggregate).raw is None
    evaluation = fully_evaluated(rows, draws=0, aggregate=aggregate, thresholds=THRESHOLDS)
    assert (evaluation.images, evaluation.groups, evaluation.aggregate) == (6, 3, aggregate)
    assert multilabel_metrics(result.raw, result.labels, result.known, threshold=0.8)["OR"] == evaluation.at.high.OR


def test_selected_rows_keep_their_raw_scores() -> None:
    rows = calibrated()
    assert rows.raw is not None
    np.testing.assert_array_equal(rows.take(np.array([5, 2])).raw, rows.raw[[5, 2]])


def test_unknown_labels_are_ignored() -> None:
    rows, limits = calibrated(), (np.full(3, 0.1), np.full(3, 0.6))
    results = [fully_evaluated(table, thresholds=THRESHOLDS, limits=limits) for table in (rows, flip_unknown(rows))]
    assert results[0] == results[1]
    assert as_read(results[0]) == results[0]


def evaluate_calibrated(
    raw: ScoredRows, calibration: Calibration, hierarchy: dict[str, str] | None, note: str = ""
) -> Evaluation:
    """Evaluate raw scores with a calibration, as `Model.evaluate` does."""
    parents = parents_of(NAMES, hierarchy)
    rows = replace(raw, scores=calibration.probabilities(raw.scores, parents), raw=raw.scores)
    levels = levels_of(parents).tolist() if hierarchy else ()
    model = EvaluatedModel(NAMES, levels, note, thresholds=calibration.threshold)
    return evaluate_rows(rows, model, EvaluationOptions(draws=100), None, Console.quiet())


def test_calibration_improves_the_reliability_of_other_images() -> None:
    held_out, test = (simulated_rows(600, 3, intercept=[-3.0, -2.0, 1.0], seed=seed) for seed in (0, 1))
    calibration = fit_calibration(held_out, NAMES, parents=np.full(3, -1))
    result = evaluate_calibrated(test, calibration, None, note="a note")
    before, after = (part.to_dict() for part in result.calibration.parts)
    assert after["log_loss"] < before["log_loss"] - 0.1
    assert after["calibration_error"] < before["calibration_error"] / 2
    assert (result.split, result.note, result.ap_changes) == ("test", "a note", {})
    assert result.levels is None
    expected = calibration.probabilities(test.scores, np.full(3, -1)) > calibration.threshold
    assert result.decisions.labels_predicted == pytest.approx((expected & test.known)[test.known.any(1)].sum(1).mean())


def test_evaluation_with_a_hierarchy_caps_probabilities_and_reports_levels() -> None:
    rows = simulated_rows(60, 3, unknown=0.0)
    parents = np.array([-1, 0, -1])
    calibration = fit_calibration(rows, NAMES, parents=parents)
    result = evaluate_calibrated(rows, calibration, {"dog": "cat"})
    assert result.levels is not None
    assert result.ap_changes is not None
    assert set(result.levels) == {"1", "2"}
    capped = average_precision(calibration.probabilities(rows.scores, parents), rows.labels)
    assert result.ap["dog"] == pytest.approx(capped[1].item())
    assert set(result.ap_changes) == {"dog"}
