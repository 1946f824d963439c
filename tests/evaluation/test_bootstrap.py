import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from probmcl.evaluation import (
    area_under_roc,
    average_precision,
    bootstrapped_map,
    centered,
    holm,
    interval,
    p_value,
    resamples,
)
from probmcl.evaluation import scores as evaluation_scores
from probmcl.evaluation.bootstrap import bootstrapped_areas

Table = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.bool_], npt.NDArray[Any]]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    images, classes, draws = draw(st.tuples(st.integers(1, 10), st.integers(1, 4), st.integers(1, 5)))
    scores = draw(arrays(np.float64, (images, classes), elements=st.sampled_from([-np.inf, 0.0, 0.25, 0.5, 1.0])))
    labels = draw(arrays(np.float32, (images, classes), elements=st.sampled_from([0.0, 1.0])))
    weights = draw(arrays(np.int64, (draws, images), elements=st.integers(0, 3)))
    return scores, labels, draw(arrays(np.bool_, (images, classes))), weights


def repeated(table: Table) -> list[float]:
    """Return the mAP of each resample, computed from explicitly repeated images."""
    scores, labels, known, weights = table
    result = []
    for row in weights:
        images = np.repeat(np.arange(len(row)), row)
        kept = (scores[images], labels[images], known[images])
        result.append(average_precision(*kept).nanmean().item() if len(images) else np.nan)
    return result


@given(tables())
def test_map_matches_repeated_images(table: Table) -> None:
    result = bootstrapped_map(*table)
    assert result.shape == (len(table[3]),)
    np.testing.assert_allclose(result, repeated(table), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_map_matches_repeated_images_with_ties_and_unknown_labels(dtype: torch.dtype) -> None:
    generator = np.random.default_rng(0)
    labels = generator.random((300, 6)) < [0.5, 0.2, 0.05, 0.01, 0.003, 0.9]
    scores = torch.tensor((generator.normal(size=labels.shape) + labels).round(1)).to(dtype)
    known = generator.random(labels.shape) < 0.8
    weights = resamples(300, None, draws=20)
    expected = repeated((scores.float().numpy(), labels, known, weights))
    np.testing.assert_allclose(bootstrapped_map(scores, labels, known, weights), expected, rtol=0, atol=1e-14)


def test_class_without_a_drawn_positive_or_negative_is_left_out() -> None:
    scores, labels = np.array([[0.9, 0.1], [0.2, 0.3], [0.5, 0.4]]), np.array([[1, 0], [0, 1], [1, 0]])
    weights = np.array([[1, 1, 0], [2, 0, 1], [0, 1, 2], [0, 0, 0]])
    np.testing.assert_array_equal(bootstrapped_map(scores, labels, None, weights), [1, np.nan, (1 + 1 / 3) / 2, np.nan])
    always = np.array([[1, 1], [0, 1], [1, 1]])  # the second class has no negatives
    np.testing.assert_array_equal(bootstrapped_map(scores, always, None, weights), [1, np.nan, 1, np.nan])
    unlabeled = bootstrapped_map(scores, np.zeros((3, 2)), None, weights)
    assert np.isnan(unlabeled).all()


def test_drawing_every_image_once_gives_the_map() -> None:
    generator = np.random.default_rng(1)
    labels = generator.random((50, 3)) < 0.3
    scores = generator.random(labels.shape)
    result = bootstrapped_map(scores, labels, None, np.ones((1, 50), dtype=np.int32))
    assert result.item() == pytest.approx(average_precision(scores, labels).mean().item(), abs=1e-14)


@given(tables(), st.sampled_from([-np.inf, np.nan, 0.6]), st.sampled_from([-1.0, np.nan, 1.0]))
def test_unknown_entries_are_ignored(table: Table, score: float, label: float) -> None:
    scores, labels, known, weights = table
    changed = np.where(known, scores, score), np.where(known, labels, label), known, weights
    np.testing.assert_array_equal(bootstrapped_map(*changed), bootstrapped_map(*table))


def test_blocks_do_not_change_the_result_and_every_class_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(2)
    labels = generator.random((30, 7)) < 0.2
    labels[:, 3] = False
    scores, weights = generator.random(labels.shape), resamples(30, None, draws=11)
    expected_map = bootstrapped_map(scores, labels, None, weights)
    for count in (1, 60, 100):
        progress: list[int] = []
        monkeypatch.setattr(evaluation_scores, "BLOCK_ENTRIES", count)
        areas = bootstrapped_areas(scores, labels, None, weights, advance=progress.append)
        np.testing.assert_array_equal(areas.mean_precision, expected_map)
        assert sum(progress) == 7


def test_resamples_have_the_original_number_of_images() -> None:
    weights = resamples(50, None, draws=400)
    assert weights.shape == (400, 50)
    assert set(weights.sum(1)) == {50}
    assert weights.min() == 0
    # Each of n images is missing from a resample with probability (1 − 1/n)^n, and is drawn once on average.
    assert (weights == 0).mean() == pytest.approx((1 - 1 / 50) ** 50, abs=0.02)
    np.testing.assert_allclose(weights.mean(0), 1, atol=0.25)
    assert weights.var(axis=0).mean() == pytest.approx(1 - 1 / 50, abs=0.1)


def test_whole_groups_are_drawn() -> None:
    groups = ["b", "a", "b", "c", "a", "b"]
    weights = resamples(6, groups, draws=200)
    for name in "abc":
        members = weights[:, [i for i, group in enumerate(groups) if group == name]]
        assert (members == members[:, :1]).all()
    assert set(weights[:, [0, 1, 3]].sum(1)) == {3}  # one member of each group
    assert len(set(weights.sum(1))) > 1  # groups differ in size


def test_groups_of_one_image_equal_no_groups() -> None:
    names = [f"{i:02}" for i in range(12)]
    np.testing.assert_array_equal(resamples(12, names, draws=5), resamples(12, None, draws=5))
    # The draws of a group do not depend on the order of the images.
    np.testing.assert_array_equal(resamples(12, names[::-1], draws=5), resamples(12, names, draws=5)[:, ::-1])


def test_draws_depend_on_the_seed_but_not_on_their_number() -> None:
    np.testing.assert_array_equal(resamples(20, None, draws=3), resamples(20, None, draws=9)[:3])
    assert (resamples(20, None, draws=3, seed=1) != resamples(20, None, draws=3)).any()


def simulated(generator: np.random.Generator, images: int, classes: int, share: float) -> tuple[Any, Any]:
    labels = generator.random((images, classes)) < share
    return generator.normal(size=labels.shape) + labels, labels


def test_coverage_of_the_interval() -> None:
    generator = np.random.default_rng(0)
    many = [average_precision(*simulated(generator, 150, 1, 0.3)).item() for _ in range(1000)]
    truth, spread = np.mean(many), np.std(many)
    ends = []
    for seed in range(100):
        table = simulated(generator, 150, 1, 0.3)
        ends.append(interval(bootstrapped_map(*table, None, resamples(150, None, draws=200, seed=seed)), 0.9))
    low, high = np.array(ends).T
    assert 0.8 < ((low < truth) & (truth < high)).mean() < 0.98
    assert 0.8 < (high - low).mean() / (2 * 1.645 * spread) < 1.2


def test_coverage_with_few_positives_requires_centering() -> None:
    generator = np.random.default_rng(0)
    truth = np.mean([average_precision(*simulated(generator, 300, 20, 0.05)).nanmean() for _ in range(150)])
    plain, shifted = [], []
    for seed in range(50):
        table = simulated(generator, 300, 20, 0.05)
        samples = bootstrapped_map(*table, None, resamples(300, None, draws=120, seed=seed))
        plain.append(interval(samples))
        shifted.append(interval(centered(samples, average_precision(*table).nanmean().item())))
    covered = [np.mean([low < truth < high for low, high in ends]) for ends in (plain, shifted)]
    assert covered[0] < 0.88 < covered[1]


def test_mean_of_centered_values_is_the_estimate() -> None:
    samples = np.array([0.2, np.nan, 0.6, 0.7])
    result = centered(samples, 0.3)
    assert np.nanmean(result) == pytest.approx(0.3)
    np.testing.assert_allclose(np.diff(result[[0, 2, 3]]), np.diff(samples[[0, 2, 3]]))
    assert np.isnan(centered(np.full(2, np.nan), 0.3)).all()


def test_interval_ignores_nan() -> None:
    samples = np.array([np.nan, *np.linspace(0, 1, 41), np.nan])
    assert interval(samples) == pytest.approx((0.025, 0.975))
    assert interval(samples, level=0.5) == pytest.approx((0.25, 0.75))
    assert np.isnan(interval(np.array([np.nan]))).all()


def test_p_is_small_if_all_differences_have_one_sign() -> None:
    assert p_value(np.full(999, 0.1)) == p_value(np.full(999, -0.1)) == 2 / 1000
    assert p_value(np.zeros(99)) == 1  # two identical models
    assert p_value(np.array([1.0] * 90 + [-1.0] * 9)) == pytest.approx(2 * 10 / 100)
    assert p_value(np.array([1.0] * 90 + [0.0] * 9)) == pytest.approx(2 * 10 / 100)
    assert p_value(np.array([np.nan] + [1.0] * 90 + [-1.0] * 9)) == pytest.approx(2 * 10 / 100)
    assert p_value(np.array([np.nan])) == 1


def test_error_rate_of_the_p_value() -> None:
    """For two equally good models, p < 0.1 in about a tenth of the cases; for a better one, in most cases."""
    generator = np.random.default_rng(0)
    result: dict[str, list[bool]] = {"equal": [], "better": []}
    for seed in range(100):
        first, labels = simulated(generator, 200, 1, 0.3)
        noise = generator.normal(size=labels.shape)
        others = {"equal": noise + labels, "better": noise + 2 * labels}
        weights = resamples(200, None, draws=150, seed=seed)
        baseline = bootstrapped_map(first, labels, None, weights)
        for name, scores in others.items():
            result[name].append(p_value(bootstrapped_map(scores, labels, None, weights) - baseline) < 0.1)
    assert 0.02 <= np.mean(result["equal"]) <= 0.2
    assert np.mean(result["better"]) > 0.8


def slow_holm(p: list[float]) -> list[float]:
    """Closed testing: reject a hypothesis if Bonferroni rejects every set of hypotheses that contains it."""
    indices = range(len(p))
    adjusted = []
    for i in indices:
        sets = [s for size in range(1, len(p) + 1) for s in itertools.combinations(indices, size) if i in s]
        adjusted.append(max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets))
    return adjusted


@given(st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.01, 0.02, 1.0]), max_size=6))
def test_holm_is_closed_testing_with_bonferroni(p: list[float]) -> None:
    assert holm(p) == pytest.approx(slow_holm(p), abs=1e-15)


def test_invalid_arguments_raise() -> None:
    with pytest.raises(ValueError, match="images=0"):
        resamples(0, None, draws=10)
    with pytest.raises(ValueError, match=r"groups .*expected 2, got 1"):
        resamples(2, ["a"])
    with pytest.raises(ValueError, match=r"weights: .*\(draws, 2\).*\(1, 3\)"):
        bootstrapped_map(np.ones((2, 1)), np.ones((2, 1)), None, np.ones((1, 3), dtype=np.int32))
    with pytest.raises(ValueError, match=r"weights: .*-1"):
        bootstrapped_map(np.ones((2, 1)), np.ones((2, 1)), None, np.array([[1, -1]]))
    with pytest.raises(ValueError, match=r"level=95\.0"):
        interval(np.ones(3), level=95.0)
    for wrong in (np.nan, -0.1, 1.1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            holm([0.5, float(wrong)])


@given(tables())
def test_auroc_matches_repeated_images(table: Table) -> None:
    scores, labels, known, weights = table
    expected_auroc = []
    for row in weights:
        images = np.repeat(np.arange(len(row)), row)
        kept = (scores[images], labels[images], known[images])
        expected_auroc.append(area_under_roc(*kept).nanmean().item() if len(images) else np.nan)
    areas = bootstrapped_areas(*table)
    np.testing.assert_allclose(areas.mean_auroc, expected_auroc, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(areas.mean_precision, bootstrapped_map(*table))
