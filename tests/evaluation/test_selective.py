import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import entropy

from helpers.scores import flip_unknown, simulated_rows
from probmcl.evaluation import resamples
from probmcl.evaluation.bootstrap import fraction_interval
from probmcl.evaluation.selective import COVERAGES, OpenDecisions, evaluate_abstention, risk_coverage, uncertainty
from probmcl.runtime.conversion import convert
from probmcl.store.evaluation import Abstention, AbstentionRates

Array = npt.NDArray[Any]


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
