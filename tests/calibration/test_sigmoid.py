from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.special import expit
from sklearn.calibration import _SigmoidCalibration
from sklearn.linear_model import LogisticRegression

from helpers.scores import minimize_log_loss, smoothed_targets
from probmcl.calibration.sigmoid import MIN_SLOPE, compose, fit_platt, fit_sigmoids, logits

Array = npt.NDArray[Any]


def platt(z: Array, labels: Array, known: Array | None = None) -> Array:
    mask = np.ones(len(z), dtype=np.bool_) if known is None else known
    return fit_platt(torch.from_numpy(z), torch.from_numpy(labels), torch.from_numpy(mask)).numpy()


def entries(count: int, kind: str) -> tuple[Array, Array]:
    """Return logits with labels that overlap, or that a threshold separates."""
    generator = np.random.default_rng(count)
    z = generator.normal(scale=3, size=count)
    return z, z > 0.3 if kind == "separable" else generator.random(count) < expit(0.6 * z - 1)


@pytest.mark.parametrize("kind", ["overlapping", "separable"])
@pytest.mark.parametrize("count", [5, 40, 3000])
def test_platt_matches_scikit_learn(count: int, kind: str) -> None:
    z, labels = entries(count, kind)
    slope, intercept = platt(z, labels)
    np.testing.assert_allclose(expit(slope * z + intercept), _SigmoidCalibration().fit(z, labels).predict(z), atol=5e-6)


def test_platt_ignores_unknown_entries() -> None:
    z, labels = entries(500, "overlapping")
    known = np.arange(500) % 3 > 0
    result = platt(z, labels, known)
    reference = _SigmoidCalibration().fit(z[known], labels[known])
    np.testing.assert_allclose(result, [-reference.a_, -reference.b_], rtol=1e-4)
    np.testing.assert_array_equal(platt(z, labels ^ ~known, known), result)
    np.testing.assert_array_equal(platt(z, np.where(known, labels, np.nan), known), result)


@pytest.mark.parametrize("label", [0, 1])
def test_platt_with_equal_labels_is_finite_and_almost_constant(label: int) -> None:
    z, labels = entries(50, "overlapping")[0], np.full(50, label)
    slope, intercept = platt(z, labels)
    assert slope == MIN_SLOPE  # scikit-learn has no bound, and its slope is 0
    best = minimize_log_loss(z, smoothed_targets(labels == 1))
    np.testing.assert_allclose(expit(slope * z + intercept), expit(best[0] * z + best[1]), atol=1e-6)
    np.testing.assert_allclose(expit(slope * z + intercept), _SigmoidCalibration().fit(z, labels).predict(z), atol=0.01)


@pytest.mark.parametrize("z", [-104.0, -3.0, 0.0, 2.0, 17.0])
@pytest.mark.parametrize(("label", "target"), [(0, 1 / 3), (1, 2 / 3)])
def test_platt_with_one_entry_gives_its_smoothed_target(z: float, label: int, target: float) -> None:
    slope, intercept = platt(np.array([z]), np.array([label]))
    assert expit(slope * z + intercept) == pytest.approx(target, abs=1e-6)


@pytest.mark.parametrize("count", [100, 100_000])
def test_platt_with_constant_scores_gives_the_mean_target(count: int) -> None:
    labels = np.arange(count) % 10 < 3
    slope, intercept = platt(np.full(count, -3.0), labels)
    assert expit(slope * -3 + intercept) == pytest.approx(smoothed_targets(labels).mean(), abs=1e-5)


@pytest.mark.parametrize("count", [2, 20, 400])
@pytest.mark.parametrize("scale", [20.0, 80.0])
def test_platt_converges_for_saturated_scores(count: int, scale: float) -> None:
    generator = np.random.default_rng(count)
    for _ in range(10):
        labels = generator.random(count) < 0.3
        z = np.clip(scale * (generator.normal(size=count) + labels - 0.5), -104, 17.3)
        targets = smoothed_targets(labels)
        losses = []
        for slope, intercept in (platt(z, labels), minimize_log_loss(z, targets)):
            x = slope * z + intercept
            losses.append((np.logaddexp(0, x) - targets * x).mean())
        assert losses[0] <= losses[1] + 1e-6


def test_platt_without_known_entries_leaves_scores_unchanged() -> None:
    assert platt(np.array([-1.0, 2.0]), np.array([0, 1]), np.zeros(2, dtype=np.bool_)).tolist() == [1, 0]


POOLED = torch.tensor([0.8, -0.5], dtype=torch.float64)


def class_table() -> tuple[Array, Array, Array]:
    """Return logits, labels and known entries of eight classes that differ in slope, prevalence and known labels."""
    generator = np.random.default_rng(0)
    slope, intercept = np.array([[0.8, 0.3, 2.0, 0.7, -0.9, 0.8, 0.8, 0.8], [-0.5, 1.0, -2.0, -5.0, 0.0, 50, -50, 0.0]])
    z = generator.normal(scale=2, size=(300, 8))
    z[:3] = logits(np.array([0.0, 1.0, 1e-30]))[:, None]
    labels = generator.random(z.shape) < expit(slope * z + intercept)
    known = generator.random(z.shape) < 0.8
    known[:, 7] = False
    return z, labels, known


def sigmoids(table: tuple[Array, Array, Array], strength: float, start: torch.Tensor | None = None) -> Array:
    z, labels, known = (torch.from_numpy(part) for part in table)
    return fit_sigmoids(z, labels, known, POOLED, strength, start).numpy()


@pytest.mark.parametrize("strength", [0.3, 3.0, 100.0])
def test_sigmoids_minimize_the_penalized_log_loss(strength: float) -> None:
    z, labels, known = class_table()
    u = 0.8 * z - 0.5
    expected = [minimize_log_loss(u[k, c], labels[k, c], strength) for c, k in enumerate(known.T)]
    result = sigmoids((z, labels, known), strength)
    np.testing.assert_allclose(result, np.transpose(expected), atol=1e-5)
    np.testing.assert_allclose(result[:, 7], [1, 0], atol=1e-12)  # without known labels, it is the pooled fit


def test_infinite_strength_gives_the_pooled_fit() -> None:
    relative = torch.from_numpy(sigmoids(class_table(), float("inf")))
    slope, intercept = compose(POOLED, relative)
    assert slope.tolist() == [0.8] * 8
    assert intercept.tolist() == [-0.5] * 8


def test_composed_sigmoid_applies_the_relative_fit_to_the_pooled_logit() -> None:
    relative = torch.tensor([[2.0, 0.5], [1.0, -3.0]], dtype=torch.float64)
    slope, intercept = compose(POOLED, relative)
    z = torch.linspace(-5, 5, 11, dtype=torch.float64)[:, None]
    torch.testing.assert_close(slope * z + intercept, relative[0] * (0.8 * z - 0.5) + relative[1])


@pytest.mark.parametrize("strength", [0.3, 10.0])
def test_result_does_not_depend_on_the_start(strength: float) -> None:
    table, generator = class_table(), np.random.default_rng(1)
    expected = sigmoids(table, strength)
    for _ in range(5):
        start = np.stack([generator.uniform(MIN_SLOPE, 4, 8), generator.normal(scale=4, size=8)])
        np.testing.assert_allclose(sigmoids(table, strength, torch.from_numpy(start)), expected, atol=1e-6)


def test_unknown_labels_do_not_change_the_sigmoids() -> None:
    z, labels, known = class_table()
    np.testing.assert_array_equal(sigmoids((z, labels ^ ~known, known), 1.0), sigmoids((z, labels, known), 1.0))


def test_rare_class_stays_near_the_pooled_fit_and_frequent_class_near_its_own() -> None:
    generator = np.random.default_rng(0)
    z = generator.normal(scale=2, size=(8000, 2))
    labels = generator.random(z.shape) < expit(0.3 * z + 1)
    known = np.ones_like(labels)
    known[np.flatnonzero(labels[:, 0])[3:], 0] = False  # three positives and three negatives
    known[np.flatnonzero(~labels[:, 0])[3:], 0] = False
    result = sigmoids((z, labels, known), 10.0)
    np.testing.assert_allclose(result[:, 0], [1, 0], atol=0.25)
    own = LogisticRegression(C=np.inf, tol=1e-8).fit(0.8 * z[:, 1:] - 0.5, labels[:, 1])
    np.testing.assert_allclose(result[:, 1], [own.coef_.item(), own.intercept_.item()], atol=0.02)
    assert abs(result[:, 1] - [1, 0]).min() > 0.5


def test_slope_of_an_anticorrelated_class_is_positive() -> None:
    z, labels, known = class_table()
    assert np.corrcoef(z[3:, 4], labels[3:, 4])[0, 1] < -0.5
    assert sigmoids((z, labels, known), 0.3)[0, 4] == MIN_SLOPE


def test_logits_are_finite_and_strictly_increasing() -> None:
    tiny, one = np.float32(1e-45), np.float32(1)
    scores = np.array([0, tiny, 2 * tiny, 1e-30, 0.5, np.nextafter(np.float32(0.5), one), 0, one], dtype=np.float32)
    scores[-2] = np.nextafter(one, np.float32(0))
    z = logits(scores)
    assert np.isfinite(z).all()
    assert (np.diff(z) > 0).all()
    np.testing.assert_allclose(expit(z[3:-1]), scores[3:-1].astype(np.float64), rtol=1e-12)
