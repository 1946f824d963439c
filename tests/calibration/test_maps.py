from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.special import expit, logit

from probmcl.calibration.maps import Calibration, ClassCalibration, Kind
from probmcl.runtime.files import read_json, write_json


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
