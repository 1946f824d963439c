from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import log_loss

from helpers.scores import flip_unknown, minimize_log_loss, simulated_rows, smoothed_targets
from probmcl.calibration import fit
from probmcl.calibration.fit import FOLDS, STRENGTHS, assign_folds, fit_calibration
from probmcl.calibration.maps import Calibration, Kind, fit_platt, logits
from probmcl.calibration.thresholds import ThresholdRule
from probmcl.evaluation import average_precision
from probmcl.evaluation.scores import ScoredRows
from probmcl.runtime.files import read_json, write_json

Array = npt.NDArray[Any]


def no_parents(rows: ScoredRows) -> Array:
    return np.full(rows.scores.shape[1], -1)


def fitted(rows: ScoredRows, kind: Kind = "sigmoid", **other: Any) -> Calibration:
    names = [f"class {number}" for number in range(rows.scores.shape[1])]
    return fit_calibration(rows, names, kind=kind, **({"parents": no_parents(rows)} | other))


def probabilities(rows: ScoredRows, **other: Any) -> Array:
    return fitted(rows, **other).probabilities(rows.scores, no_parents(rows))


def sigmoids(calibration: Calibration) -> set[tuple[float, float]]:
    return {(part.slope, part.intercept) for part in calibration.classes.values()}


def ranks(column: Array) -> list[int]:
    inverse: list[int] = np.unique(column, return_inverse=True)[1].tolist()
    return inverse


VARIED: dict[str, Any] = {"slope": [0.7, 0.3, 1.2, 0.7], "intercept": [-2.0, 1.0, 0.0, -4.0]}
"""Classes that differ so much that the pooled sigmoid does not fit any of them."""


@pytest.mark.parametrize("images", [1, 8, 70])
@pytest.mark.parametrize("seed", range(6))
def test_sigmoids_change_neither_ranking_nor_average_precision(seed: int, images: int) -> None:
    rows, generator = simulated_rows(images, 4, seed=seed, **VARIED), np.random.default_rng(seed)
    neighbors = [np.float32(0.7)]
    for _ in range(3):
        neighbors.append(np.nextafter(neighbors[-1], np.float32(1)))
    special = np.array([0, 1, 1e-45, 1e-30, 1 - 2.0**-24, 1 - 2.0**-23, *neighbors], dtype=np.float32)
    replaced = generator.random(rows.scores.shape) < 0.2
    rows = replace(rows, scores=np.where(replaced, generator.choice(special, rows.scores.shape), rows.scores))
    p = probabilities(rows)
    assert [ranks(column) for column in p.T] == [ranks(column) for column in rows.scores.T]
    before, after = (average_precision(scores, rows.labels, rows.known) for scores in (rows.scores, p))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("kind", ["sigmoid", "isotonic", "none"])
@pytest.mark.parametrize("rule", ["balanced", "precision:0.6", "recall:0.8"])
def test_unknown_labels_are_ignored(kind: Kind, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "MIN_ISOTONIC", 20)
    rows = simulated_rows(120, unknown=0.4)
    options: dict[str, Any] = {"kind": kind, "rule": ThresholdRule.parse(rule)}
    assert fitted(flip_unknown(rows), **options) == fitted(rows, **options)


def test_counts_of_known_labels() -> None:
    rows = simulated_rows(60)
    calibration = fitted(rows, predictions="out_of_fold", rule=ThresholdRule.parse("cost:3,1"))
    assert (calibration.images, calibration.predictions, calibration.thresholds) == (60, "out_of_fold", "cost:3,1")
    for column, part in enumerate(calibration.classes.values()):
        labels = rows.labels[rows.known[:, column], column]
        assert (part.positives, part.negatives) == (labels.sum(), (1 - labels).sum())


@pytest.mark.parametrize("images", [30, 90])
def test_classes_without_positives_negatives_or_known_labels_are_calibrated(images: int) -> None:
    rows = simulated_rows(images, 5)
    rows.labels[:, 0], rows.labels[:, 1], rows.known[:, 2] = 0, 1, False
    calibration = fitted(rows)
    never, always, unlabeled, *_ = calibration.classes.values()
    assert (never.positives, always.negatives) == (0, 0)
    assert (unlabeled.positives, unlabeled.negatives) == (0, 0)
    assert (unlabeled.log_loss_before, unlabeled.log_loss_after) == (None, None)
    p = calibration.probabilities(rows.scores, no_parents(rows))
    assert ((p > 0) & (p < 1)).all()
    assert np.isfinite([part.log_loss_after for part in (never, always)]).all()  # type: ignore[arg-type]


def test_without_any_known_label_scores_stay_unchanged() -> None:
    rows = simulated_rows(60, unknown=1.0)
    calibration = fitted(rows)
    assert calibration.log_loss == (None, None)
    np.testing.assert_allclose(calibration.probabilities(rows.scores, no_parents(rows)), rows.scores, rtol=1e-6)


def test_one_image_has_no_cross_validated_loss() -> None:
    rows = simulated_rows(1, 6, unknown=0.0)
    calibration = fitted(rows)
    assert (calibration.images, calibration.strength, len(sigmoids(calibration))) == (1, None, 1)
    assert all(part.log_loss_after is None for part in calibration.classes.values())
    assert all(part.log_loss_before is not None for part in calibration.classes.values())


@pytest.mark.parametrize(("images", "shared"), [(49, True), (50, False)])
def test_all_classes_share_a_sigmoid_if_there_are_fewer_than_50_images(images: int, shared: bool) -> None:
    calibration = fitted(simulated_rows(images, unknown=0.0, **VARIED))
    assert (calibration.strength is None) == shared
    assert (len(sigmoids(calibration)) == 1) == shared


def test_classes_that_do_not_differ_share_a_sigmoid() -> None:
    assert fitted(simulated_rows(100, 30)).strength in (None, 100.0)


def test_images_of_one_group_are_not_cross_validated() -> None:
    calibration = fitted(replace(simulated_rows(100, **VARIED), group=("slide",) * 100))
    assert calibration.strength is None
    assert calibration.log_loss[1] is None


@given(st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=40))
def test_folds_keep_groups_together_and_have_equal_numbers_of_groups(groups: list[str]) -> None:
    fold = assign_folds(len(groups), groups)
    assignment = dict(zip(groups, fold.tolist(), strict=True))
    assert [assignment[group] for group in groups] == fold.tolist()
    counts = Counter(assignment.values())
    sizes = [counts[number] for number in range(FOLDS)]
    assert all(before - after in (0, 1) for before, after in pairwise(sizes))
    assert max(sizes) - min(sizes) <= 1


def test_folds_of_single_images_depend_on_the_seed() -> None:
    fold = assign_folds(52, None)
    assert np.bincount(fold).tolist() == [11, 11, 10, 10, 10]
    assert (np.diff(fold) < 0).any()  # they are shuffled
    np.testing.assert_array_equal(assign_folds(52, None), fold)
    assert (assign_folds(52, None, seed=1) != fold).any()


def slow_losses(rows: ScoredRows) -> Array:
    """Return the cross-validated log loss for each strength and class, summed over the known held-out entries."""
    fold, z, positive = assign_folds(len(rows), rows.group), logits(rows.scores), rows.labels == 1
    losses = np.zeros((len(STRENGTHS), z.shape[1]))
    for number in range(FOLDS):
        training = (fold != number)[:, None] & rows.known
        slope, intercept = minimize_log_loss(z[training], smoothed_targets(positive[training]))
        u = slope * z + intercept
        for row, column in np.ndindex(losses.shape):
            mask, test = training[:, column], (fold == number) & rows.known[:, column]
            slope, intercept = minimize_log_loss(u[mask, column], positive[mask, column], STRENGTHS[row])
            x = slope * u[test, column] + intercept
            losses[row, column] += (np.logaddexp(0, x) - positive[test, column] * x).sum()
    return losses


@pytest.mark.parametrize("grouped", [False, True])
def test_cross_validated_log_loss_matches_a_slow_loop(grouped: bool) -> None:
    rows = simulated_rows(66, 3, slope=[0.7, 0.3, 1.2], intercept=[-1.0, 1.0, 0.0])
    rows = replace(rows, group=tuple(f"slide {number // 5}" for number in range(66)) if grouped else None)
    losses, calibration = slow_losses(rows), fitted(rows)
    best = losses.sum(1).argmin()
    assert calibration.strength == (None if STRENGTHS[best] == np.inf else STRENGTHS[best])
    after = [part.log_loss_after for part in calibration.classes.values()]
    np.testing.assert_allclose(after, losses[best] / rows.known.sum(0), atol=1e-6)  # type: ignore[arg-type]


def test_log_loss_before_calibration_is_that_of_the_scores() -> None:
    rows = simulated_rows(80)
    for column, part in enumerate(fitted(rows).classes.values()):
        known = rows.known[:, column]
        scores = rows.scores[known, column].astype(np.float64)
        expected = log_loss(rows.labels[known, column], scores, labels=[0, 1])
        assert part.log_loss_before == pytest.approx(expected, abs=1e-9)


def test_isotonic_regression_requires_1000_positives() -> None:
    rows = simulated_rows(2500, 2, unknown=0.1)
    rows.labels[:] = 0
    for column, positives in enumerate((1000, 999)):
        highest = np.argsort(-rows.scores[:, column] * rows.known[:, column] + rows.scores[:, 1 - column] / 4)
        rows.labels[highest[:positives], column] = 1
    calibration = fitted(rows, "isotonic")
    assert [(part.kind, part.positives) for part in calibration.classes.values()] == [
        ("isotonic", 1000),
        ("sigmoid", 999),
    ]
    assert [part.kind for part in fitted(rows).classes.values()] == ["sigmoid"] * 2


def test_isotonic_probabilities_and_their_cross_validated_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "MIN_ISOTONIC", 30)
    rows = simulated_rows(150, 1)
    known, z, fold = rows.known[:, 0], logits(rows.scores)[:, 0], assign_folds(150, None)
    loss = 0.0
    for number in range(FOLDS):
        mask, test = known & (fold != number), known & (fold == number)
        points, margin = np.unique(z[mask]), 1 / (mask.sum() + 2)
        values = IsotonicRegression().fit(z[mask], rows.labels[mask, 0]).predict(points)
        p = np.interp(z[test], points, np.clip(values, margin, 1 - margin))
        loss += log_loss(rows.labels[test, 0], p, normalize=False, labels=[0, 1])
    (part,) = fitted(rows, "isotonic").classes.values()
    assert part.kind == "isotonic"
    assert part.log_loss_after == pytest.approx(loss / known.sum(), abs=1e-6)


def test_isotonic_regression_of_a_class_that_is_known_in_one_group_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "MIN_ISOTONIC", 20)
    rows = simulated_rows(150, 2, unknown=0.0)
    rows.known[100:, 0] = False
    calibration = fitted(replace(rows, group=("a",) * 100 + ("b",) * 25 + ("c",) * 25), "isotonic")
    assert [part.kind for part in calibration.classes.values()] == ["isotonic"] * 2


def test_kind_none_leaves_scores_unchanged() -> None:
    rows = simulated_rows(80)
    calibration = fitted(rows, "none")
    np.testing.assert_array_equal(calibration.probabilities(rows.scores, no_parents(rows)), rows.scores)
    assert (calibration.kind, calibration.strength, calibration.log_loss[1]) == ("none", None, None)
    assert calibration.log_loss[0] == fitted(rows).log_loss[0]


def test_shifted_scores_become_calibrated() -> None:
    """The asymmetric loss gives most scores near 0.5, far above the prevalence."""
    rows = simulated_rows(3000, 3, slope=1.5, intercept=[-4.0, -2.0, -3.0], unknown=0.3)
    prevalence = (rows.labels * rows.known).sum(0) / rows.known.sum(0)
    p = np.where(rows.known, probabilities(rows), 0).sum(0) / rows.known.sum(0)
    assert (rows.scores.mean(0) - prevalence).min() > 0.2
    np.testing.assert_allclose(p, prevalence, atol=0.002)


def test_calibration_lowers_the_log_loss_of_shifted_scores() -> None:
    before, after = fitted(simulated_rows(400, intercept=-3.0)).log_loss
    assert before is not None
    assert after is not None
    assert after < before - 0.1


def test_probabilities_are_capped_by_those_of_the_parents_before_thresholds_are_chosen() -> None:
    rows, parents = simulated_rows(120, **VARIED), np.array([-1, 0, 1, -1])
    calibration = fitted(rows, parents=parents)
    p = calibration.probabilities(rows.scores, parents)
    assert (p[:, 1] <= p[:, 0]).all()
    assert (p[:, 2] <= p[:, 1]).all()
    np.testing.assert_allclose((p > calibration.threshold).sum(0), p.sum(0), atol=0.5)
    assert (fitted(rows).threshold[1:3] != calibration.threshold[1:3]).all()


@pytest.mark.parametrize("kind", ["sigmoid", "isotonic"])
def test_json_round_trip(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "MIN_ISOTONIC", 20)
    rows = simulated_rows(100)
    calibration = fitted(rows, kind, rule=ThresholdRule("recall", (0.9,)))
    write_json(tmp_path / "calibration.json", calibration)
    again = msgspec.convert(read_json(tmp_path / "calibration.json"), Calibration)
    assert again == calibration
    parents = no_parents(rows)
    np.testing.assert_array_equal(
        again.probabilities(rows.scores, parents), calibration.probabilities(rows.scores, parents)
    )


def test_guarantees_are_stored_per_class() -> None:
    rows = simulated_rows(100, unknown=0.0)
    rows.labels[8:, 0] = 0  # at most eight positives, and 90 % recall needs nine
    calibration = fitted(rows, rule=ThresholdRule("recall", (0.9,)))
    assert [part.promised for part in calibration.classes.values()] == [False, True, True, True]
    assert all(part.promised is None for part in fitted(rows).classes.values())


@pytest.mark.parametrize("kind", ["sigmoid", "isotonic"])
def test_blocks_of_classes_do_not_change_the_result(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "MIN_ISOTONIC", 25)
    rows = simulated_rows(100, 5)
    whole = fitted(rows, kind)
    monkeypatch.setattr(fit, "CACHED_ENTRIES", 200)
    parts = fitted(rows, kind)
    expected, result = (part.probabilities(rows.scores, no_parents(rows)) for part in (whole, parts))
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    for one, other in zip(whole.classes.values(), parts.classes.values(), strict=True):
        assert (other.kind, other.positives) == (one.kind, one.positives)
        assert other.log_loss_before == pytest.approx(one.log_loss_before)
        assert other.log_loss_after == pytest.approx(one.log_loss_after)


def test_pooled_fit_uses_some_of_very_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = simulated_rows(40, 5, unknown=0.0)
    monkeypatch.setattr(fit, "POOLED_ENTRIES", 70)  # 200 entries, so every third image
    z, labels = torch.from_numpy(logits(rows.scores[::3]).ravel()), torch.from_numpy(rows.labels[::3].ravel())
    expected = fit_platt(z, labels, torch.ones(len(z), dtype=torch.bool))
    np.testing.assert_allclose(list(sigmoids(fitted(rows))), expected[None])


@pytest.mark.parametrize(("images", "kind"), [(1, "sigmoid"), (80, "sigmoid"), (80, "none")])
def test_progress_is_reported_once_per_fold(images: int, kind: Kind) -> None:
    calls = []
    fitted(simulated_rows(images), kind, advance=lambda: calls.append(1))
    assert len(calls) == FOLDS


def test_10000_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "STRENGTHS", (float("inf"), 10.0))  # the others would take most of the time
    rows = simulated_rows(60, 10_000, unknown=0.5)
    calibration = fitted(rows)
    assert len(calibration.classes) == 10_000
    p = calibration.probabilities(rows.scores, no_parents(rows))
    assert ((p > 0) & (p < 1)).all()
    before, after = calibration.log_loss
    assert before is not None
    assert after is not None
    assert after < before
