"""From scores to probabilities: Platt scaling and isotonic regression, and the calibration of a model."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from helpers.scores import minimize_log_loss, smoothed_targets
from probmcl.calibration.maps import (
    MIN_SLOPE,
    Calibration,
    ClassCalibration,
    Kind,
    LabeledLogits,
    compose,
    fit_isotonic,
    fit_platt,
    fit_sigmoids,
    logits,
)
from probmcl.runtime.files import read_json, write_json

Array = npt.NDArray[Any]

isotonic_entries = st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=30)


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
    entries = LabeledLogits(*(torch.from_numpy(part) for part in table))
    return fit_sigmoids(entries, POOLED, strength, start).numpy()


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


@given(isotonic_entries)
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


def made_class(kind: Kind = "sigmoid", *, positives: int = 30, **other: Any) -> ClassCalibration:
    numbers: dict[str, Any] = {"negatives": 70, "log_loss_before": 0.5, "log_loss_after": 0.25}
    return ClassCalibration(kind, positives, **(numbers | other))


def made_calibration(*classes: ClassCalibration, **other: Any) -> Calibration:
    values: dict[str, Any] = {"kind": "sigmoid", "thresholds": "balanced", "predictions": "val", "images": 100}
    names = "cat", "dog", "fox", "owl"
    named = dict(zip(names, classes, strict=False))
    return Calibration(**(values | {"strength": 3.0, "classes": named} | other))


SIGMOID = made_class(slope=2.0, intercept=-1.0, threshold=0.3)
ISOTONIC = made_class("isotonic", logits=(-1.0, 0.0, 2.0), probabilities=(0.1, 0.4, 0.4), threshold=0.2)
NONE = made_class("none", log_loss_after=None)
NO_PARENTS = np.full(3, -1)


def test_each_kind_maps_scores_to_probabilities() -> None:
    scores = np.array([[0.5], [0.9], [0.2], [0.0], [1.0]], dtype=np.float32).repeat(3, axis=1)
    probabilities = made_calibration(SIGMOID, ISOTONIC, NONE).probabilities(scores, NO_PARENTS)
    assert probabilities.dtype == np.float64
    np.testing.assert_allclose(probabilities[:3, 0], expit(2 * logit(scores[:3, 0].astype(np.float64)) - 1))
    np.testing.assert_allclose(probabilities[:, 1], [0.4, 0.4, 0.1, 0.1, 0.4])
    np.testing.assert_array_equal(probabilities[:, 2], scores[:, 2])


def test_isotonic_probabilities_are_interpolated_between_logits() -> None:
    scores = expit(np.array([[-0.5], [-0.25]]))
    probabilities = made_calibration(ISOTONIC).probabilities(scores, np.array([-1]))
    np.testing.assert_allclose(probabilities[:, 0], [0.25, 0.325])


def test_probability_is_capped_by_that_of_the_parent() -> None:
    generator = np.random.default_rng(0)
    classes = [
        made_class(slope=slope, intercept=intercept)
        for slope, intercept in ((1.0, -2.0), (2.0, 1.0), (0.5, 3.0), (1.0, 0.0))
    ]
    calibration, scores, parents = made_calibration(*classes), generator.random((50, 4)), np.array([-1, 0, 1, -1])
    free, capped = calibration.probabilities(scores, np.full(4, -1)), calibration.probabilities(scores, parents)
    np.testing.assert_array_equal(capped, np.c_[np.minimum.accumulate(free[:, :3], axis=1), free[:, 3]])
    assert (capped < free).any()


@pytest.mark.parametrize("slope", [0.01, 1.0, 2.0])
def test_distinct_scores_have_distinct_probabilities(slope: float) -> None:
    high = 1 - 2.0 ** -np.arange(1, 25)
    scores = np.concatenate([[0.0], 2.0 ** -np.arange(149, 1, -1), high, [1.0]]).astype(np.float32)
    probabilities = made_calibration(made_class(slope=slope)).probabilities(scores[:, None], np.array([-1]))
    assert (np.diff(scores) > 0).all()
    assert (np.diff(probabilities[:, 0]) > 0).all()


def test_json_round_trip(tmp_path: Path) -> None:
    original = made_calibration(
        SIGMOID, ISOTONIC, NONE, made_class(promised=False, log_loss_before=None), strength=None
    )
    write_json(tmp_path / "calibration.json", original)
    assert msgspec.convert(read_json(tmp_path / "calibration.json"), Calibration) == original
    assert msgspec.convert(msgspec.to_builtins(original), Calibration) == original


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slope": 0.0}, "slope="),
        ({"slope": -1.0}, "slope="),
        ({"slope": float("nan")}, "finite"),
        ({"intercept": float("inf")}, "finite"),
        ({"threshold": float("nan")}, "finite"),
        ({"kind": "isotonic"}, "as many logits"),
        ({"logits": (1.0,), "probabilities": (0.5,)}, "others have none"),
        ({"kind": "isotonic", "logits": (0.0, 1.0), "probabilities": (0.5,)}, "as many logits"),
        ({"kind": "isotonic", "logits": (0.0, float("nan")), "probabilities": (0.5, 0.6)}, "finite"),
        ({"kind": "isotonic", "logits": (1.0, 0.0), "probabilities": (0.5, 0.6)}, "ascending"),
        ({"kind": "isotonic", "logits": (0.0, 1.0), "probabilities": (0.6, 0.5)}, "ascending"),
    ],
)
def test_invalid_parameters_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made_class(**change)
    stored = msgspec.to_builtins(made_calibration(SIGMOID))
    stored["classes"]["cat"] |= change
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(stored, Calibration)


def test_thresholds_are_in_the_order_of_the_classes() -> None:
    assert made_calibration(SIGMOID, ISOTONIC, NONE).threshold.tolist() == [0.3, 0.2, 0.5]


def test_log_loss_is_the_mean_over_known_entries() -> None:
    few = made_class(positives=10, negatives=0, log_loss_before=1.6, log_loss_after=0.8)
    unlabeled = made_class(positives=0, negatives=0, log_loss_before=None, log_loss_after=None)
    before, after = made_calibration(SIGMOID, few, unlabeled).log_loss
    assert before == pytest.approx((100 * 0.5 + 10 * 1.6) / 110)
    assert after == pytest.approx((100 * 0.25 + 10 * 0.8) / 110)
    assert made_calibration(unlabeled).log_loss == (None, None)
    assert made_calibration(NONE).log_loss == (0.5, None)


def test_summary_reports_the_images_the_log_loss_and_the_rule() -> None:
    (line,) = made_calibration(SIGMOID).summary()
    assert "100" in line
    assert line.endswith("log loss 0.500 → 0.250; thresholds: balanced")
    line, note = made_calibration(NONE, kind="none", images=20).summary()
    assert line == "not calibrated; thresholds: balanced, fitted on 20 images"
    assert note.startswith("note: balanced thresholds need calibrated probabilities")
    assert "log loss" not in line


def test_summary_names_classes_with_few_examples() -> None:
    few, enough = made_class(positives=9), made_class(positives=10)
    calibration = made_calibration(enough, few, enough, images=49)
    assert calibration.few_positives == ["dog"]
    warning, note = calibration.summary()
    assert warning == "warning: calibrated on 49 images, too few for a curve per class"
    assert note == "note: 1 class has fewer than 10 positives for a threshold: dog"
    assert len(made_calibration(enough, images=50).summary()) == 1


def test_summary_names_classes_without_the_guarantee() -> None:
    kept, broken = made_class(promised=True), made_class(promised=False, positives=3)
    calibration = made_calibration(broken, kept, broken, thresholds="recall:0.9")
    assert calibration.not_promised == ["cat", "fox"]
    (note,) = calibration.summary()[1:]
    assert note.startswith("note: recall:0.9 cannot be promised for 2 classes")
    assert note.endswith("so it is balanced for cat, fox")
