"""How far probabilities can be trusted: their agreement with frequencies, and the errors among decided images."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import xlogy
from scipy.stats import entropy
from sklearn import metrics as reference

from helpers.half_hidden import Entry, Table, tables
from helpers.scores import flip_unknown, simulated_rows
from probmcl.evaluation import resamples
from probmcl.evaluation.bootstrap import fraction_interval
from probmcl.evaluation.reliability import (
    BINS,
    COVERAGES,
    OpenDecisions,
    bin_of,
    bootstrapped_calibration_error,
    evaluate_abstention,
    reliability,
    reliability_bins,
    risk_coverage,
    summarize_reliability,
    uncertainty,
)
from probmcl.evaluation.scores import ScoredRows
from probmcl.runtime.conversion import convert
from probmcl.store.evaluation import Abstention, AbstentionRates, ReliabilitySummary

Array = npt.NDArray[Any]


def arrays_of(rows: ScoredRows) -> tuple[Array, Array, Array]:
    return rows.scores, rows.labels, rows.known


def slow_bins(entries: list[Entry]) -> list[list[Entry]]:
    """Divide the known entries of a class; the bin depends on the number of entries with a lower probability."""
    bins: list[list[Entry]] = [[] for _ in range(BINS)]
    for p, label in entries:
        lower = sum(other < p for other, _ in entries)
        bins[BINS * lower // len(entries)].append((p, label))
    return [part for part in bins if part]


def slow_error(bins: list[list[Entry]]) -> float:
    total = sum(map(len, bins))
    return sum(abs(sum(p for p, _ in part) - sum(label for _, label in part)) for part in bins) / (total or np.nan)


def test_brier_score_and_log_loss_match_scikit_learn() -> None:
    rows = simulated_rows(300, unknown=0.3)
    measures = reliability(*arrays_of(rows))
    for column, known in enumerate(rows.known.T):
        p, labels = rows.scores[known, column].astype(np.float64), rows.labels[known, column]
        rate = np.full(len(labels), labels.mean())
        assert measures.known[column] == known.sum()
        assert measures.brier[column] == pytest.approx(reference.brier_score_loss(labels, p), abs=1e-12)
        assert measures.log_loss[column] == pytest.approx(reference.log_loss(labels, p), abs=1e-12)
        assert measures.base_rate_brier[column] == pytest.approx(reference.brier_score_loss(labels, rate), abs=1e-7)
        assert measures.base_rate_log_loss[column] == pytest.approx(reference.log_loss(labels, rate), abs=1e-7)


@given(tables())
def test_measures_match_a_slow_loop(table: Table) -> None:
    measures = reliability(*table)
    for column, entries in enumerate(table.classes):
        assert measures.known[column] == len(entries)
        assert measures.calibration_error[column] == pytest.approx(slow_error(slow_bins(entries)), nan_ok=True)
        brier = sum((p - label) ** 2 for p, label in entries) / (len(entries) or np.nan)
        assert measures.brier[column] == pytest.approx(brier, nan_ok=True)
        rate = sum(label for _, label in entries) / (len(entries) or np.nan)
        assert measures.base_rate_brier[column] == pytest.approx(rate * (1 - rate), nan_ok=True)
        entropy = -xlogy(rate, rate) - xlogy(1 - rate, 1 - rate)
        assert measures.base_rate_log_loss[column] == pytest.approx(entropy, abs=1e-12, nan_ok=True)


def test_log_loss_of_a_wrong_certainty_is_finite() -> None:
    assert reliability(np.array([[0.0, 1.0]]), np.array([[1, 0]])).log_loss.tolist() == pytest.approx(
        [53 * np.log(2)] * 2
    )
    assert reliability(np.array([[0.0, 1.0]]), np.array([[0, 1]])).log_loss == pytest.approx([0, 0], abs=1e-15)


@given(tables())
def test_bins_match_a_slow_loop_and_contain_all_known_entries(table: Table) -> None:
    for entries, bins in zip(table.classes, reliability_bins(*table), strict=True):
        parts = slow_bins(entries)
        assert bins.images == [len(part) for part in parts]
        assert sum(bins.images) == len(entries)
        assert bins.probability == pytest.approx([np.mean([p for p, _ in part]) for part in parts])
        assert bins.frequency == pytest.approx([np.mean([label for _, label in part]) for part in parts])


def test_bins_have_equal_size_without_ties_and_equal_probabilities_share_a_bin() -> None:
    p = np.random.default_rng(0).permutation(150) / 150
    assert np.bincount(bin_of(p)).tolist() == [10] * BINS
    assert set(bin_of(p.round(1))[p.round(1) == 0.5]) == {bin_of(p.round(1))[p.round(1) == 0.5][0]}
    assert bin_of(p.round(1)).max() < BINS


def test_calibration_error_is_0_for_frequencies_and_large_for_shifted_scores() -> None:
    p = np.repeat([0.25, 0.5, 0.75], 40)
    labels = np.concatenate([np.arange(40) < 40 * rate for rate in (0.25, 0.5, 0.75)])
    measures = reliability(np.stack([p, p + 0.25], axis=1), np.stack([labels, labels], axis=1))
    assert measures.calibration_error.tolist() == pytest.approx([0, 0.25], abs=1e-12)


@pytest.mark.parametrize("wrong", [-0.01, 1.01, np.inf])
def test_values_that_are_not_probabilities_are_refused(wrong: float) -> None:
    p = np.array([[0.5], [wrong]])
    for measure in (reliability, lambda *parts: list(reliability_bins(*parts))):
        with pytest.raises(ValueError, match="between 0 and 1"):
            measure(p, np.ones((2, 1)))
        measure(p, np.ones((2, 1)), np.array([[True], [False]]))  # its label is not known


@settings(max_examples=50)
@given(tables())
def test_bootstrapped_errors_match_repeated_images(table: Table) -> None:
    weights = np.vstack([np.ones(len(table.scores), dtype=np.int32), resamples(len(table.scores), None, draws=4)])
    result = bootstrapped_calibration_error(*table, weights)
    assert result.shape == (5, table.scores.shape[1])
    for column, known in enumerate(table.known.T):
        rows = np.flatnonzero(known)
        members = dict(zip(rows.tolist(), bin_of(table.scores[rows, column]).tolist(), strict=True))
        for draw, times in enumerate(weights):
            bins: list[list[Entry]] = [[] for _ in range(BINS)]  # of the original images
            for row in np.repeat(np.arange(len(times)), times).tolist():
                if known[row]:
                    bins[members[row]].append(table.entry(row, column))
            assert result[draw, column] == pytest.approx(slow_error(bins), abs=1e-6, nan_ok=True)
    np.testing.assert_allclose(result[0], reliability(*table).calibration_error, atol=1e-6)


def test_summary_has_means_over_entries_and_the_mean_error_of_the_classes() -> None:
    rows = simulated_rows(90, 3, intercept=[-3.0, 0.0, 0.0])
    rows.known[:, 2] = False
    rows.known[:60, 1] = False
    measures, summary = reliability(*arrays_of(rows)), summarize_reliability(*arrays_of(rows), ["a", "b", "c"])
    p, labels = rows.scores[rows.known].astype(np.float64), rows.labels[rows.known]
    assert summary.brier == pytest.approx(((p - labels) ** 2).mean())
    assert summary.log_loss == pytest.approx(reference.log_loss(labels, p))
    assert summary.base_rate_brier == pytest.approx(
        measures.known[:2] @ measures.base_rate_brier[:2] / rows.known.sum()
    )
    assert summary.calibration_error == pytest.approx(measures.calibration_error[:2].mean())
    assert summary.calibration_error_interval is None
    assert summary.per_class["b"].log_loss == measures.log_loss[1]
    unknown = {"brier": None, "log_loss": None, "calibration_error": None, "calibration_error_interval": None}
    assert summary.per_class["c"].to_dict() == unknown | {
        "reliability": {"probability": [], "frequency": [], "images": []}
    }
    assert convert(json.loads(json.dumps(summary.to_dict(), allow_nan=False)), ReliabilitySummary) == summary
    assert summarize_reliability(*arrays_of(flip_unknown(rows)), ["a", "b", "c"]) == summary


def test_intervals_of_the_calibration_error_are_centered() -> None:
    rows = simulated_rows(90, 2)
    samples = bootstrapped_calibration_error(*arrays_of(rows), resamples(90, None, draws=100))
    summary = summarize_reliability(*arrays_of(rows), ["a", "b"], samples)
    error = reliability(*arrays_of(rows)).calibration_error
    assert summary.per_class["b"].calibration_error_interval == fraction_interval(samples[:, 1], error[1])
    assert summary.calibration_error_interval == fraction_interval(samples.mean(1), error.mean())
    assert summary.calibration_error is not None
    assert summary.calibration_error_interval is not None
    low, high = summary.calibration_error_interval
    assert 0 <= low < summary.calibration_error < high


@pytest.mark.parametrize("known_images", [0, 1])
def test_intervals_are_none_if_many_resamples_have_no_known_label(known_images: int) -> None:
    rows = simulated_rows(4, 1)
    rows.known[:] = np.arange(4)[:, None] < known_images
    samples = bootstrapped_calibration_error(*arrays_of(rows), resamples(4, None, draws=50))
    summary = summarize_reliability(*arrays_of(rows), ["a"], samples)
    assert summary.calibration_error_interval is None
    assert summary.per_class["a"].calibration_error_interval is None
    assert (summary.calibration_error is None) == (known_images == 0)


def test_fraction_interval_is_none_if_undefined_or_unreliable() -> None:
    samples = np.linspace(0.4, 0.6, 20)
    assert fraction_interval(samples, 0.5) == pytest.approx([0.405, 0.595])
    assert fraction_interval(samples, 0.9) == pytest.approx([0.805, 0.995])  # centered on the estimate
    assert fraction_interval(samples, 0.99) == pytest.approx([0.895, 1.0])
    assert fraction_interval(samples, None) is None
    assert fraction_interval(samples, np.nan) is None
    assert fraction_interval(np.where(np.arange(20) < 3, np.nan, samples), 0.5) is None


def test_uncertainty_is_the_mean_entropy_in_bits() -> None:
    p = np.concatenate([np.random.default_rng(0).random((20, 4)), [[0, 1, 0.5, 1e-300]]])
    expected = entropy(np.stack([p, 1 - p]), base=2).mean(1)
    np.testing.assert_allclose(uncertainty(p), expected, rtol=1e-12)
    np.testing.assert_allclose(uncertainty(p.astype(np.float32)), expected, rtol=1e-5)


def test_certain_images_have_no_uncertainty_and_nan_stays_nan() -> None:
    result = uncertainty(np.array([[1.0, 0.0], [0.5, 0.5], [np.nan, 0.5]]))
    np.testing.assert_array_equal(result, [0, 1, np.nan])
    assert not np.signbit(result[0])


@st.composite
def decided_tables(draw: st.DrawFn) -> tuple[Array, Array, Array, Array]:
    shape = draw(st.tuples(st.integers(1, 30), st.integers(1, 3)))
    p = draw(arrays(np.float64, shape, elements=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.8, 1.0])))
    masks = arrays(np.bool_, shape)
    return p, draw(masks), draw(masks).astype(np.float32), draw(masks)


@given(decided_tables())
def test_risk_coverage_matches_a_slow_loop(table: tuple[Array, Array, Array, Array]) -> None:
    p, decisions, labels, known = table
    curve = risk_coverage(*table)
    assert len(curve.coverage) == len(curve.risk) == len(COVERAGES)
    order = sorted(range(len(p)), key=lambda row: uncertainty(p)[row])  # stable
    for target, coverage, risk in zip(COVERAGES, curve.coverage, curve.risk, strict=True):
        images = round(coverage * len(p))
        assert images >= 1
        assert abs(images - target * len(p)) <= 0.5 + 1e-9 or images == 1
        kept = [(n, c) for n in order[:images] for c in range(p.shape[1]) if known[n, c]]
        wrong = [decisions[entry] != (labels[entry] == 1) for entry in kept]
        assert risk == (pytest.approx(np.mean(wrong)) if wrong else None)
    assert curve.coverage[-1] == 1


def test_risk_falls_with_the_coverage_if_uncertain_images_have_more_errors() -> None:
    rows = simulated_rows(2000, 1, slope=1.0, intercept=0.0)
    risks = risk_coverage(rows.scores, rows.scores > 0.5, rows.labels, rows.known).risk
    assert risks[0] < risks[9] < risks[-1]  # type: ignore[operator]
    assert risks[-1] == pytest.approx(((rows.scores > 0.5) != rows.labels)[rows.known].mean())


@st.composite
def abstentions(draw: st.DrawFn) -> tuple[Array, Array, Array, Array]:
    shape = draw(st.tuples(st.integers(1, 12), st.just(3)))
    decisions = draw(arrays(np.int64, shape, elements=st.integers(-1, 1)))
    masks = arrays(np.bool_, shape)
    return decisions == 1, decisions == -1, draw(masks).astype(np.float32), draw(masks)


def slow_rates(parts: tuple[Array, ...], entries: list[tuple[int, int]]) -> dict[str, float | None]:
    yes, no, labels, known = parts
    kept = [entry for entry in entries if known[entry]]
    sets = {
        "coverage": [yes[entry] or no[entry] for entry in kept],
        "yes_risk": [labels[entry] == 0 for entry in kept if yes[entry]],
        "no_risk": [labels[entry] == 1 for entry in kept if no[entry]],
    }
    return {name: float(np.mean(values)) if values else None for name, values in sets.items()}


@given(abstentions())
def test_rates_of_an_abstention_match_a_slow_loop(table: tuple[Array, Array, Array, Array]) -> None:
    yes, no, labels, known = table
    result = evaluate_abstention(OpenDecisions(yes, no), labels, known, ["a", "b", "c"], None)
    images = range(len(table[0]))
    parts: list[tuple[AbstentionRates, list[tuple[int, int]]]] = [(result, [(n, c) for n in images for c in range(3)])]
    parts += [(result.per_class[name], [(n, c) for n in images]) for c, name in enumerate("abc")]
    for rates, entries in parts:
        for name, value in slow_rates(table, entries).items():
            assert rates[name] == (None if value is None else pytest.approx(value))
            assert rates[f"{name}_interval"] is None  # without weights
    assert convert(json.loads(json.dumps(result.to_dict(), allow_nan=False)), Abstention) == result


@settings(max_examples=20)
@given(abstentions(), st.integers(0, 99))
def test_intervals_of_an_abstention_match_repeated_images(table: tuple[Array, ...], seed: int) -> None:
    yes, no, labels, known = table
    weights = resamples(len(yes), None, draws=10, seed=seed)
    result = evaluate_abstention(OpenDecisions(yes, no), labels, known, ["a", "b", "c"], weights)
    drawn: dict[str, list[float]] = {"coverage": [], "yes_risk": [], "no_risk": []}
    for times in weights:
        entries = [(n, 1) for n in np.repeat(np.arange(len(times)), times).tolist()]
        for name, value in slow_rates(table, entries).items():
            drawn[name].append(np.nan if value is None else value)
    for name, samples in drawn.items():
        rates = result.per_class["b"]
        expected = fraction_interval(np.array(samples), rates[name])
        assert rates[f"{name}_interval"] == (None if expected is None else pytest.approx(expected, abs=1e-6))


def test_unknown_labels_are_ignored() -> None:
    rows = simulated_rows(60, unknown=0.4)
    decisions, weights = OpenDecisions(rows.scores > 0.8, rows.scores < 0.3), resamples(60, None, draws=20)
    curves, rates = [], []
    for table in (rows, flip_unknown(rows)):
        curves.append(risk_coverage(rows.scores, rows.scores > 0.5, table.labels, table.known))
        rates.append(evaluate_abstention(decisions, table.labels, table.known, list("abcd"), weights))
    assert curves[0] == curves[1]
    assert rates[0] == rates[1]
    assert rates[0].coverage is not None
    assert rates[0].coverage_interval is not None
    low, high = rates[0].coverage_interval
    assert low < rates[0].coverage < high
