import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from probmcl.calibration.isotonic import fit_isotonic

entries = st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=30)


@given(entries)
def test_matches_scikit_learn_with_ties(pairs: list[tuple[int, bool]]) -> None:
    z, positive = np.array([pair[0] for pair in pairs], dtype=np.float64), np.array([pair[1] for pair in pairs])
    points, margin = np.unique(z), 1 / (len(z) + 2)
    expected = np.clip(IsotonicRegression().fit(z, positive).predict(points), margin, 1 - margin)
    between = np.linspace(-5, 5, 41)  # also beyond the outer points
    np.testing.assert_allclose(np.interp(between, *fit_isotonic(z, positive)), np.interp(between, points, expected))


def test_matches_scikit_learn_with_many_entries() -> None:
    generator = np.random.default_rng(0)
    z = generator.normal(size=3000)
    positive = generator.random(3000) < 1 / (1 + np.exp(-2 * z))
    expected = np.clip(IsotonicRegression().fit(z, positive).predict(z), 1 / 3002, 1 - 1 / 3002)
    points, probabilities = fit_isotonic(z, positive)
    np.testing.assert_allclose(np.interp(z, points, probabilities), expected)
    assert len(points) < 300  # only the corners are stored


@pytest.mark.parametrize(("label", "expected"), [(False, 1 / 7), (True, 6 / 7)])
def test_equal_labels_give_a_constant_away_from_0_and_1(label: bool, expected: float) -> None:
    z = np.array([3.0, -1.0, 0.0, 5.0, 5.0])
    points, probabilities = fit_isotonic(z, np.full(5, label))
    assert points.tolist() == [-1, 5]
    assert probabilities.tolist() == pytest.approx([expected] * 2)


def test_one_distinct_logit_gives_the_frequency() -> None:
    points, probabilities = fit_isotonic(np.zeros(4), np.array([True, False, True, True]))
    assert (points.tolist(), probabilities.tolist()) == ([0.0], [0.75])
