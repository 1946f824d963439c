import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import probmcl
from helpers.mixtures import (
    DIMS,
    GOALS,
    REGIMES,
    Goal,
    SimilarityResult,
    assert_as_good_as,
    class_bhattacharyya,
    draw,
    evaluate_similarity,
    literal_correlation,
    mixture_of,
)
from probmcl.mixture import (
    IsotropicMixture,
    aligned_correlation,
    bhattacharyya,
    correlation,
    feature_map,
    pairs,
    plan,
    similarity,
)
from probmcl.mixture.density import PRUNED_NORM, cap_at_one, log_norms, prune_components, variance_term
from probmcl.mixture.similarity import Way

WAYS: list[Way] = ["auto", "tiled", "features"]
each_way = pytest.mark.parametrize("way", WAYS)

SIMILARITIES: dict[str, Callable[..., Tensor]] = {
    "auto": correlation,
    "tiled": lambda p, q=None: correlation(p, q, way="tiled"),
    "features": lambda p, q=None: correlation(p, q, way="features"),
    "aligned-l2": lambda p, q=None: aligned_correlation(p, q, component_weight="l2"),
    "aligned-density": lambda p, q=None: aligned_correlation(p, q, component_weight="density"),
}


class TestCorrelation:
    @each_way
    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", [1, 2, 3, 40])
    def test_matches_the_textbook_formula(self, dim: int, regime: str, way: Way) -> None:
        p, q = mixture_of(draw(regime, rows=3), dim), mixture_of(draw(regime, rows=2, seed=1), dim)
        torch.testing.assert_close(correlation(p, way=way), literal_correlation(p, p), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(correlation(p, q, way=way), literal_correlation(p, q), rtol=1e-10, atol=1e-12)

    @pytest.mark.pairwise
    @pytest.mark.parametrize("goal", list(GOALS))
    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", DIMS)
    def test_tiled_float64_matches_the_textbook_formula(self, dim: int, regime: str, goal: Goal) -> None:
        """The tests of float32 below use this as their reference."""
        parameters = draw(regime)
        textbook = evaluate_similarity(lambda p: literal_correlation(p, p), parameters, dim, goal)
        measured = evaluate_similarity(lambda p: correlation(p, way="tiled"), parameters, dim, goal)
        assert_as_good_as(textbook, measured, dim, similarity=1e-11, relative=1e-9)

    @each_way
    @pytest.mark.parametrize("dim", [1, 2])
    def test_matches_numerical_integration(self, dim: int, way: Way) -> None:
        p = mixture_of(draw("wide", rows=3, components=3), dim)
        axis = torch.linspace(-30, 30, 401, dtype=torch.float64)
        grid = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
        densities = torch.stack(
            [
                mixture_of((x[i : i + 1].expand(len(grid), -1) for x in (p.log_weight, p.mean, p.variance)), dim)
                .log_prob(grid)
                .exp()
                for i in range(3)
            ]
        )
        inner = densities @ densities.T * (axis[1] - axis[0]) ** dim
        expected = inner / (inner.diagonal()[:, None] * inner.diagonal()).sqrt()
        torch.testing.assert_close(correlation(p, way=way), expected, rtol=1e-9, atol=1e-9)

    @each_way
    @pytest.mark.parametrize("dim", [1, 16])
    def test_gradients_within_a_batch(self, dim: int, way: Way) -> None:
        inputs = [x.requires_grad_() for x in draw(rows=3, components=2)]
        assert torch.autograd.gradcheck(lambda *x: correlation(mixture_of(x, dim), way=way), inputs)

    @each_way
    @pytest.mark.parametrize("dim", [1, 16])
    def test_gradients_between_two_batches(self, dim: int, way: Way) -> None:
        inputs = [x.requires_grad_() for x in (*draw(rows=2, components=2), *draw(rows=3, components=2, seed=1))]
        assert torch.autograd.gradcheck(
            lambda *x: correlation(mixture_of(x[:3], dim), mixture_of(x[3:], dim), way=way), inputs
        )

    @each_way
    def test_gradient_if_only_one_side_requires_it(self, way: Way) -> None:
        mean = draw()[1].requires_grad_()
        p, q = mixture_of((draw()[0], mean, draw()[2]), 2), mixture_of(draw(seed=1), 2)
        for first, second in ((p, q), (q, p)):
            (measured,) = torch.autograd.grad(correlation(first, second, way=way).sum(), mean)
            (expected,) = torch.autograd.grad(literal_correlation(first, second).sum(), mean)
            torch.testing.assert_close(measured, expected)

    @each_way
    def test_two_batches_match_a_block_of_the_combined_batch_with_gradients(self, way: Way) -> None:
        combined = [x.requires_grad_() for x in draw("wide", rows=7)]
        p, q = (mixture_of((x[rows] for x in combined), 16) for rows in (slice(0, 3), slice(3, 7)))
        block, combined_value = correlation(p, q, way=way), correlation(mixture_of(combined, 16), way=way)[:3, 3:]
        torch.testing.assert_close(block, combined_value, rtol=1e-11, atol=1e-13)
        weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = torch.autograd.grad(combined_value, combined, weight)
        for measured, gradient in zip(torch.autograd.grad(block, combined, weight), expected, strict=True):
            torch.testing.assert_close(measured, gradient, rtol=1e-9, atol=1e-12)

    def test_error_for_vector_means_suggests_aligned_correlation(self) -> None:
        with pytest.raises(ValueError, match="aligned_correlation"):
            correlation(mixture_of(draw(size=(2,)), 2))
        with pytest.raises(ValueError, match="aligned_correlation"):
            correlation(mixture_of(draw(), 2), mixture_of(draw(size=(2,)), 2))

    @pytest.mark.parametrize("function", [correlation, plan])
    def test_unknown_way_is_an_error(self, function: Callable[..., object], pytestconfig: pytest.Config) -> None:
        if pytestconfig.getoption("jaxtyping_packages"):
            pytest.skip("the runtime type checker raises first")
        with pytest.raises(ValueError, match=r"way.*'fast'"):
            function(mixture_of(draw(), 2), way="fast")

    @each_way
    @pytest.mark.parametrize("parameter", [0, 1, 2], ids=["log_weight", "mean", "variance"])
    def test_nan_stays_in_its_row_and_column(self, parameter: int, way: Way) -> None:
        parameters = draw(rows=4)
        good = correlation(mixture_of(parameters, 16))
        parameters[parameter][2, 1] = math.nan
        p, others = mixture_of(parameters, 16), [0, 1, 3]
        measured = correlation(p, way=way)
        assert measured[2].isnan().all()
        assert measured[:, 2].isnan().all()
        torch.testing.assert_close(measured[others][:, others], good[others][:, others])
        assert correlation(mixture_of(draw(rows=3), 16), p, way=way)[:, 2].isnan().all()

    @each_way
    @pytest.mark.parametrize("rows", [(0, 0), (0, 3), (3, 0)])
    def test_empty_batches(self, rows: tuple[int, int], way: Way) -> None:
        inputs = [[x.requires_grad_() for x in draw(rows=count)] for count in rows]
        p, q = (mixture_of(x, 16) for x in inputs)
        for value, learning in ((correlation(p, q, way=way), inputs[0]), (correlation(q, p, way=way), inputs[1])):
            assert value.numel() == 0
            assert torch.autograd.grad(value.sum(), learning[1])[0].abs().sum() == 0
        assert correlation(p, q, way=way).shape == rows
        assert correlation(p, way=way).shape == (rows[0], rows[0])

    @each_way
    def test_second_derivative_is_an_error(self, way: Way) -> None:
        inputs = [x.requires_grad_() for x in draw()]
        p, q = mixture_of(inputs, 16), mixture_of(draw(seed=1), 16)
        for value in (correlation(p, way=way), correlation(p, q, way=way)):
            (gradient,) = torch.autograd.grad(value.square().sum(), inputs[1], create_graph=True)
            with pytest.raises(RuntimeError, match="differentiate twice"):
                torch.autograd.backward(gradient.square().sum())

    def test_no_underflow_in_many_dimensions(self) -> None:
        p = mixture_of((x.float() for x in draw("floor")), 2048)
        assert (2 * math.pi * 2 * p.variance).pow(-1024).max() == 0
        torch.testing.assert_close(correlation(p).diagonal(), torch.ones(6), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", list(SIMILARITIES))
class TestEverySimilarity:
    @given(seed=st.integers(0, 999), regime=st.sampled_from(REGIMES), dim=st.sampled_from(DIMS))
    @settings(max_examples=50)
    def test_symmetric_bounded_and_one_on_the_diagonal(self, name: str, seed: int, regime: str, dim: int) -> None:
        parameters = draw(regime, seed=seed)
        for dtype, digit in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
            measured = SIMILARITIES[name](mixture_of((x.to(dtype) for x in parameters), dim))
            assert measured.dtype == dtype
            assert measured.isfinite().all()
            assert 0 <= measured.min() <= measured.max() <= 1
            torch.testing.assert_close(measured, measured.T, rtol=0, atol=digit)
            torch.testing.assert_close(measured.diagonal(), torch.ones(6, dtype=dtype), rtol=0, atol=digit)

    @given(seed=st.integers(0, 999), shift=st.floats(-20, 20), data=st.data())
    @settings(max_examples=50)
    def test_invariance_to_order_shift_and_weight_scale(
        self, name: str, seed: int, shift: float, data: st.DataObject
    ) -> None:
        log_weight, mean, variance = draw(seed=seed)
        expected = SIMILARITIES[name](IsotropicMixture(log_weight, mean, variance, dim=16))
        rows, order = data.draw(st.permutations(range(6))), data.draw(st.permutations(range(4)))
        shuffled = mixture_of((x[rows][:, order] for x in (log_weight, mean, variance)), 16)
        torch.testing.assert_close(SIMILARITIES[name](shuffled), expected[rows][:, rows])
        moved = IsotropicMixture(log_weight + 7 * shift, mean + shift, variance, dim=16)
        torch.testing.assert_close(SIMILARITIES[name](moved), expected)

    def test_two_batches_match_a_block_of_the_combined_batch(self, name: str) -> None:
        combined = draw(rows=7)
        p, q = (mixture_of((x[rows] for x in combined), 16) for rows in (slice(0, 3), slice(3, 7)))
        measured = SIMILARITIES[name](p, q)
        assert measured.shape == (3, 4)
        torch.testing.assert_close(measured, SIMILARITIES[name](mixture_of(combined, 16))[:3, 3:])

    @pytest.mark.parametrize("dim", DIMS)
    def test_one_row_with_one_component_has_self_similarity_one(self, name: str, dim: int) -> None:
        p = IsotropicMixture(torch.zeros(1, 1), torch.full((1, 1), 3.0), torch.full((1, 1), 2.0), dim=dim)
        digit = 2e-7 if name == "features" else 0.0
        for q in (None, p):
            torch.testing.assert_close(SIMILARITIES[name](p, q), torch.ones(1, 1), rtol=0, atol=digit)

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("components", [1, 7])
    def test_self_similarity_is_one_without_gradient(self, name: str, components: int, regime: str) -> None:
        inputs = [x.float().requires_grad_() for x in draw(regime, rows=1, components=components)]
        p = mixture_of(inputs, 128)
        for q in (None, p):
            measured = SIMILARITIES[name](p, q)
            torch.testing.assert_close(measured, torch.ones(1, 1), rtol=0, atol=1e-6)
            for gradient in torch.autograd.grad(measured.sum(), inputs, retain_graph=True):
                assert gradient.abs().max() < 1e-4

    def test_single_components_have_similarity_kappa(self, name: str) -> None:
        p = IsotropicMixture(torch.zeros(2, 1), torch.tensor([[0.0], [0.5]]), torch.tensor([[1.0], [4.0]]), dim=8)
        kappa = (2 * 1 * 2 / 5) ** 4 * math.exp(-8 * 0.25 / 10)
        for q in (None, p):
            assert SIMILARITIES[name](p, q)[0, 1].item() == pytest.approx(kappa, rel=1e-6)

    @pytest.mark.parametrize("dim", DIMS)
    @pytest.mark.parametrize("against", ["itself", "another"])
    def test_one_hot_weights_have_finite_gradients(self, name: str, against: str, dim: int) -> None:
        mean = torch.tensor([[0.0, 9.0], [-9.0, 0.01]]).requires_grad_()
        variance = torch.tensor([[1.0, 50.0], [0.5, 1.0]]).requires_grad_()
        log_weight = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]]).requires_grad_()
        p = IsotropicMixture(log_weight, mean, variance, dim=dim)
        measured = SIMILARITIES[name](p, None if against == "itself" else p)
        # The aligned similarity has no component in common.
        between = 0.0 if name.startswith("aligned") else math.exp(-dim * 1e-4 / 4)
        torch.testing.assert_close(measured, torch.tensor([[1, between], [between, 1]]), rtol=0, atol=1e-6)
        for gradient in torch.autograd.grad(measured.square().sum(), (log_weight, mean, variance)):
            assert gradient.isfinite().all()

    def test_equal_components_act_as_one(self, name: str) -> None:
        _, mean, variance = draw(components=1)
        log_weight = torch.full((6, 3), -math.log(3)).double()
        three_components = IsotropicMixture(log_weight, mean.expand(6, 3), variance.expand(6, 3), dim=16)
        one_component = IsotropicMixture(torch.zeros(6, 1).double(), mean, variance, dim=16)
        for more, one in ((None, None), (three_components, one_component)):
            torch.testing.assert_close(
                SIMILARITIES[name](three_components, more), SIMILARITIES[name](one_component, one)
            )

    def test_equal_rows_have_similarity_one_without_gradient(self, name: str) -> None:
        inputs = [x[:1].float().repeat(5, 1).requires_grad_() for x in draw()]
        measured = SIMILARITIES[name](mixture_of(inputs, 128))
        torch.testing.assert_close(measured, torch.ones(5, 5), rtol=0, atol=1e-6)
        for gradient in torch.autograd.grad(measured.sum(), inputs):
            assert gradient.abs().max() < 1e-3

    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
    def test_half_precision_is_converted_to_float32(self, name: str, half: torch.dtype) -> None:
        log_weight, mean, variance = (x.to(half) for x in draw())
        p = IsotropicMixture(log_weight, mean, variance, dim=2048)
        converted = IsotropicMixture(log_weight.float(), mean.float(), variance.float(), dim=2048)
        assert torch.equal(SIMILARITIES[name](p), SIMILARITIES[name](converted))

    @pytest.mark.parametrize("against", ["itself", "another"])
    def test_autocast_does_not_change_the_result(self, name: str, against: str) -> None:
        def value_and_gradients() -> list[Tensor]:
            inputs = [x.float().requires_grad_() for x in draw()]
            p, q = mixture_of(inputs, 128), mixture_of((x.float() for x in draw(seed=1)), 128)
            measured = SIMILARITIES[name](p, None if against == "itself" else q)
            return [measured, *torch.autograd.grad(measured.sum(), inputs)]

        with torch.autocast("cpu", dtype=torch.bfloat16):
            autocast_result = value_and_gradients()
        for measured, expected in zip(autocast_result, value_and_gradients(), strict=True):
            assert torch.equal(measured, expected)

    def test_different_dimensions_are_an_error(self, name: str) -> None:
        p = mixture_of(draw(), 16)
        for q in (mixture_of(draw(), 17), mixture_of(draw(components=5), 16)):
            with pytest.raises(ValueError, match="4 components in 16 dimensions"):
                SIMILARITIES[name](p, q)


ROWS = {2: 24, 10: 12, 20: 16, 80: 8, 500: 4}
"""Number of rows by number of components, which keeps the float64 reference fast."""


def rounded(regime: str, components: int) -> list[Tensor]:
    return [x.float() for x in draw(regime, rows=ROWS[components], components=components)]


@cache
def truth(regime: str, dim: int, components: int, goal: Goal) -> SimilarityResult:
    """Compute all pairs of components in float64, from the same rounded parameters."""
    exact_parameters = [x.double() for x in rounded(regime, components)]
    return evaluate_similarity(lambda p: correlation(p, way="tiled"), exact_parameters, dim, goal)


@pytest.mark.pairwise
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("components", list(ROWS))
@pytest.mark.parametrize("goal", list(GOALS))
@each_way
def test_float32_matches_float64(way: Way, goal: Goal, components: int, dim: int, regime: str) -> None:
    exact = truth(regime, dim, components, goal)
    measured = evaluate_similarity(lambda p: correlation(p, way=way), rounded(regime, components), dim, goal)
    # Feature vectors have an absolute error, so tiny similarities have a large relative one.
    floor = 1e-10 if way == "features" else 0.0
    digit = 1e-6 if way == "tiled" else 2e-6
    assert_as_good_as(exact, measured, dim, similarity=digit, relative=1e-5, mean_floor=floor)


def integrated_correlation(p: IsotropicMixture) -> Tensor:
    """Integrate in one dimension with nodes half a standard deviation apart, which is exact to 10⁻¹⁶."""
    reach = 9 * p.variance.max().sqrt().item() + p.mean.abs().max().item()
    nodes = torch.arange(-reach, reach, 0.5, dtype=torch.float64)[:, None, None]
    log_normal = -0.5 * ((2 * math.pi * p.variance).log() + (nodes - p.mean).square() / p.variance)
    densities = (p.log_weight + log_normal).exp().sum(2).T
    inner = densities @ densities.T
    return inner / (inner.diagonal()[:, None] * inner.diagonal()).sqrt()


@pytest.mark.slow
@pytest.mark.pairwise
@pytest.mark.parametrize("regime", ["init", "alike", "wide", "floor"])
@pytest.mark.parametrize("components", [2000, 9605])
@pytest.mark.parametrize("goal", list(GOALS))
@pytest.mark.parametrize("way", ["auto", "features"])
def test_gradients_of_thousands_of_classes_in_one_dimension(way: Way, goal: Goal, components: int, regime: str) -> None:
    """All mixtures are nearly equal, and gradients are a thousandth of the terms that they are the sum of."""
    parameters = [x.float() for x in draw(regime, rows=6, components=components)]
    exact = evaluate_similarity(integrated_correlation, [x.double() for x in parameters], 1, goal)
    measured = evaluate_similarity(lambda p: correlation(p, way=way), parameters, 1, goal)
    assert_as_good_as(exact, measured, 1, similarity=2e-6, relative=1e-5)


class TestComponents:
    @pytest.mark.parametrize(("dim", "least", "most"), [(1, 80, 80), (2048, 1, 16)])
    def test_few_components_remain_in_many_dimensions(self, dim: int, least: int, most: int) -> None:
        p = mixture_of((x.float() for x in draw(rows=20, components=80)), dim)
        assert least <= prune_components(p, torch.float32).mean.shape[1] <= most

    @pytest.mark.pairwise
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", DIMS)
    def test_pruned_components_have_negligible_norm(self, dim: int, regime: str, dtype: torch.dtype) -> None:
        p = mixture_of(draw(regime, rows=20, components=80), dim)
        kept = prune_components(p, dtype)
        missing = log_norms(p).exp().sum(1) - kept.log_norm.double().exp().sum(1)
        rounding = 80 * torch.finfo(dtype).eps
        assert missing.abs().max() <= PRUNED_NORM[dtype] + rounding
        assert PRUNED_NORM[dtype] < 2e-8

    @each_way
    def test_pruned_components_have_negligible_gradients(self, way: Way) -> None:
        parameters = rounded("init", 80)
        log_norm = log_norms(mixture_of(parameters, 2048))
        heavy = log_norm > math.log(1e-3)
        light = log_norm < math.log(1e-30)
        assert light.sum() > 100
        measured = evaluate_similarity(lambda p: correlation(p, way=way), parameters, 2048, "weighted")
        exact = truth("init", 2048, 80, "weighted")
        for true, gradient in zip(exact[1:4], measured[1:4], strict=True):
            assert isinstance(true, Tensor)
            assert isinstance(gradient, Tensor)
            assert true[heavy].abs().max() > 1e-3
            assert true[light].abs().max() <= 1e-12
            assert gradient[light].abs().max() <= 1e-7 * true[heavy].abs().max()

    @pytest.mark.parametrize("dim", DIMS)
    def test_gradient_of_log_weights_sums_to_zero_per_row(self, dim: int) -> None:
        log_weight, mean, variance = (x.float().requires_grad_() for x in draw("wide", components=20))
        value = correlation(IsotropicMixture(log_weight, mean, variance, dim=dim)).square().sum()
        (gradient,) = torch.autograd.grad(value, log_weight)
        assert gradient.double().sum(1).abs().max() <= 1e-6 * gradient.abs().max()

    def test_largest_norm_of_each_row_is_one(self) -> None:
        p = mixture_of((x.float() for x in draw("thousand")), 2048)
        measured = log_norms(p)
        assert torch.equal(measured.amax(1), torch.zeros(6).double())
        norm = p.log_weight.double() - 512 * p.variance.double().log()  # without the constant (2048/4) log 4π
        torch.testing.assert_close(measured.diff(), norm.diff())

    @pytest.mark.parametrize(("v", "w"), [(1.0, 1.0), (1.0, 1.001), (1.0, 6.8), (1000.0, 1.0)])
    def test_variance_term(self, v: float, w: float) -> None:
        expected = -0.5 * math.log(2 * math.sqrt(v * w) / (v + w))
        measured = variance_term(*torch.tensor([v, w], dtype=torch.float64))
        assert measured.item() == pytest.approx(expected, rel=1e-9, abs=1e-16)

    def test_cap_at_one_keeps_the_gradient(self) -> None:
        above = torch.tensor([0.25, 1.0, 1 + 2**-23, 1 + 2**-20], requires_grad=True)
        measured = cap_at_one(above)
        assert measured.tolist() == [0.25, 1.0, 1.0, 1.0]
        assert torch.equal(torch.autograd.grad(measured.sum(), above)[0], torch.ones(4))


def peak_bytes(compute: Callable[[], None], folder: Path) -> int:
    """Return the peak memory of all tensors, as measured by the profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        compute()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    current, peak = 0, 0
    for event in sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["ts"]):
        current += event["args"]["Bytes"]
        peak = max(peak, current)
    return peak


class TestPlan:
    @pytest.fixture(autouse=True)
    def _reset_warning(self) -> Iterator[None]:
        similarity._warn_about_fallback.cache_clear()
        yield
        similarity._warn_about_fallback.cache_clear()

    @pytest.mark.parametrize(
        ("rows", "components", "way"), [(2, 1, "tiled"), (6, 4, "tiled"), (256, 80, "features"), (64, 500, "features")]
    )
    def test_auto_tiles_small_problems_and_maps_large_ones(self, rows: int, components: int, way: str) -> None:
        selected = plan(mixture_of((x.float() for x in draw(rows=rows, components=components)), 128))
        assert selected.way == way
        assert (selected.grid is None) == (way == "tiled")
        assert selected.dtype == torch.float32
        assert "nodes" in selected.reason

    def test_auto_between_two_batches(self) -> None:
        small, large = mixture_of(draw(rows=2), 128), mixture_of(draw(rows=256, components=80), 128)
        assert plan(large, large).way == "features"
        assert plan(small, small).way == "tiled"

    @pytest.mark.parametrize("way", ["tiled", "features"])
    @pytest.mark.parametrize("rows", [2, 100])
    def test_requested_way_is_used(self, rows: int, way: Way) -> None:
        selected = plan(mixture_of(draw(rows=rows, components=20), 16), way=way)
        assert (selected.way, selected.reason) == (way, "requested")

    def test_correlation_follows_the_plan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        small, large = mixture_of(draw(rows=2), 128), mixture_of(draw(rows=60, components=80), 128)
        by_features = Mock(side_effect=feature_map.features)
        by_pairs = Mock(side_effect=pairs.inner_products)
        monkeypatch.setattr(similarity, "features", by_features)
        monkeypatch.setattr(pairs, "inner_products", by_pairs)
        cases: list[tuple[IsotropicMixture, Way, Mock]] = [
            (small, "auto", by_pairs),
            (large, "auto", by_features),
            (small, "features", by_features),
            (large, "tiled", by_pairs),
        ]
        for p, way, expected in cases:
            by_features.reset_mock()
            by_pairs.reset_mock()
            correlation(p, way=way)
            assert [x.call_count for x in (by_features, by_pairs)] == [
                int(x is expected) for x in (by_features, by_pairs)
            ]

    def test_fallback_to_all_pairs_warns_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        p = mixture_of(draw(rows=40, components=20), 16)
        expected = correlation(p, way="features")
        assert plan(p).way == "features"
        monkeypatch.setattr(similarity, "MEMORY", 10_000)
        monkeypatch.setattr(similarity, "SLOW_COST", 1.0)
        with pytest.warns(UserWarning, match="so far apart .* all pairs of components instead") as record:
            measured = correlation(p)
        assert len(record) == 1
        torch.testing.assert_close(measured, expected)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = plan(p)
        assert again.way == "tiled"
        assert "GB" in again.reason

    def test_extremely_distant_means_are_tiled(self) -> None:
        log_weight, mean, variance = draw(rows=40, components=30)
        mean[:, 0] *= 1e6
        p = IsotropicMixture(log_weight, mean, variance, dim=16)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert plan(p).way == "tiled"
            measured = correlation(p)
        few = mixture_of((x[:3] for x in (log_weight, mean, variance)), 16)
        torch.testing.assert_close(measured[:3, :3], literal_correlation(few, few))

    def test_requested_grid_that_is_too_large_is_an_error(self) -> None:
        p = IsotropicMixture(torch.zeros(2, 1), torch.tensor([[0.0], [1e6]]), torch.ones(2, 1), dim=128)
        for function in (correlation, plan):
            with pytest.raises(ValueError, match=r"nodes need \d+\.\d GB.* 1\.1 GB.*'tiled' or 'auto'"):
                function(p, way="features")

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_parameters_that_are_not_finite_are_tiled(self, value: float) -> None:
        log_weight, mean, variance = draw(rows=100)
        mean[0, 0] = value
        selected = plan(IsotropicMixture(log_weight, mean, variance, dim=16))
        assert (selected.way, selected.grid) == ("tiled", None)
        assert "finite" in selected.reason

    @pytest.mark.parametrize(
        ("way", "rows", "components", "dim", "regime"),
        [
            ("features", 256, 80, 128, "init"),
            ("features", 64, 500, 16, "init"),
            ("features", 256, 80, 2048, "wide"),
            ("features", 64, 80, 2, "thousand"),
            ("features", 256, 80, 128, "alike"),
            ("tiled", 64, 80, 128, "init"),
            ("tiled", 6, 1000, 128, "init"),
        ],
    )
    def test_predicted_memory_is_an_upper_bound_within_a_factor_of_six(
        self, way: Way, rows: int, components: int, dim: int, regime: str, tmp_path: Path
    ) -> None:
        inputs = [x.float().requires_grad_() for x in draw(regime, rows=rows, components=components)]

        def compute() -> None:
            torch.autograd.backward(correlation(mixture_of(inputs, dim), way=way).square().sum())

        measured = peak_bytes(compute, tmp_path)
        predicted = plan(mixture_of(inputs, dim), way=way)
        assert measured <= (predicted.bytes_in_float64 if regime == "alike" else predicted.bytes) <= 6 * measured


def run_in_new_process(code: str) -> str:
    """Run code in a new process and return its output."""
    environment = {**os.environ, "PYTHONPATH": str(Path(probmcl.__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "dim", "limit"),
    [
        pytest.param("auto", 128, 0.1e9, marks=pytest.mark.exhaustive),
        ("auto", 2048, 0.1e9),
        pytest.param("tiled", 2048, 0.5e9, marks=pytest.mark.exhaustive),
    ],
)
def test_memory_of_the_paper_setting(way: Way, dim: int, limit: float) -> None:
    """With 256 views and 80 classes, the plain formula needs 18 GB."""
    pytest.importorskip("resource")
    code = f"""
import resource, sys, torch
from torch.nn.functional import elu
from torch.utils._python_dispatch import TorchDispatchMode
from probmcl.mixture import IsotropicMixture, correlation

def step(rows):
    logit, mean, raw = (torch.randn(rows, 80, requires_grad=True) for _ in range(3))
    p = IsotropicMixture(logit.log_softmax(1), mean / 2, elu(raw) + 2, dim={dim})
    correlation(p, way={way!r}).square().sum().backward()
    assert all(x.grad.isfinite().all() for x in (logit, mean, raw))

def peak():
    try:  # ru_maxrss of a child includes the peak of its parent
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

torch.set_num_threads(1)
step(4)
before = peak()
step(256)
print(peak() - before)
"""
    assert 0 <= int(run_in_new_process(code)) < limit


@pytest.mark.exhaustive  # it compiles
def test_call_from_a_compiled_function() -> None:
    """Runs in a new process, because torch.compile does not support the runtime type checks of the tests."""
    code = """
import torch
from probmcl.mixture import IsotropicMixture, aligned_correlation, correlation

torch.set_num_threads(1)
torch.manual_seed(0)

def energy(log_weight, mean, variance, similarity):
    return similarity(IsotropicMixture(log_weight, 2 * mean, variance, dim=16)).square().sum()

inputs = [x.requires_grad_() for x in (torch.randn(6, 4).log_softmax(1), torch.randn(6, 4), 1 + torch.rand(6, 4))]
compiled = torch.compile(energy, backend="aot_eager")
for way in ("auto", "tiled", "features", None):
    similarity = aligned_correlation if way is None else lambda p: correlation(p, way=way)
    for run in (energy, compiled):
        value = run(*inputs, similarity)
        print(value.item(), *(x.norm().item() for x in torch.autograd.grad(value, inputs)))
"""
    found = [[float(number) for number in line.split()] for line in run_in_new_process(code).splitlines()]
    assert len(found) == 8
    for plain, compiled in zip(found[::2], found[1::2], strict=True):
        assert compiled == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("dim", [1, 128])
def test_many_distant_components_of_small_weight(dim: int) -> None:
    """Each of a thousand components at one point has weight 10⁻⁴; together they have a tenth of the total weight."""
    log_weight = torch.full((4, 1000), math.log(0.9e-4))
    log_weight[:, 0] = 0
    mean = torch.full((4, 1000), 12.0) + torch.linspace(0, 1, 4)[:, None] / math.sqrt(dim)
    mean[:, 0] = 0
    p = IsotropicMixture(log_weight, mean, torch.ones(4, 1000), dim)
    torch.testing.assert_close(correlation(p, way="features"), correlation(p, way="tiled"), rtol=0, atol=2e-6)


def integrate_on_grid(p: IsotropicMixture) -> Tensor:
    """Integrate √(p_i p_j) over R or R² on a regular grid."""
    axis = torch.linspace(-30, 30, 401, dtype=torch.float64)
    points = torch.cartesian_prod(*[axis] * p.dim).reshape(-1, p.dim)
    log_densities = []
    for i in range(len(p.mean)):
        row = (x[i : i + 1].expand(len(points), -1) for x in (p.log_weight, p.mean, p.variance))
        log_densities.append(mixture_of(row, p.dim).log_prob(points))
    roots = (torch.stack(log_densities) / 2).exp()
    return roots @ roots.T * (axis[1] - axis[0]) ** p.dim


def integrate_along_and_across(p: IsotropicMixture) -> Tensor:
    """Integrate √(p_i p_j) over u along the line spanned by 1 and the distance r from it, on a regular grid.

    The points at distance r form a sphere of dimension n − 2 with area 2π^(m/2)/Γ(m/2) r^(m−1), m = n − 1.
    """
    m, root = p.dim - 1, math.sqrt(p.dim)
    widest = p.variance.max().sqrt().item()
    reach = root * p.mean.abs().max().item() + 9 * widest
    u = torch.linspace(-reach, reach, 601, dtype=torch.float64)
    t = torch.linspace(0, math.sqrt((math.sqrt(m) + 7) * widest), 802, dtype=torch.float64)[1:]
    r = t.square()  # makes the integrand flat at zero; dr = 2t dt
    log_area = math.log(2) + m / 2 * math.log(math.pi) - math.lgamma(m / 2) + (m - 1) * r.log() + (2 * t).log()
    log_densities = []
    for log_weight, mean, variance in zip(p.log_weight, p.mean, p.variance, strict=True):
        squares = (u[:, None, None] - root * mean).square() + r[:, None].square()
        log_normal = -p.dim / 2 * (2 * math.pi * variance).log() - squares / (2 * variance)
        log_densities.append((log_weight + log_normal).logsumexp(2))
    cell = (u[1] - u[0]) * (t[1] - t[0])
    roots = ((torch.stack(log_densities) + log_area) / 2).exp().flatten(1)
    return roots @ roots.T * cell


class TestBhattacharyya:
    @pytest.mark.parametrize("regime", ["init", "wide"])
    @pytest.mark.parametrize("dim", [1, 2])
    def test_matches_integral_on_a_grid(self, regime: str, dim: int) -> None:
        p = mixture_of(draw(regime, rows=3, components=3), dim)
        torch.testing.assert_close(bhattacharyya(p), integrate_on_grid(p), rtol=0, atol=1e-8)

    @pytest.mark.parametrize("regime", ["init", "wide", "floor"])
    @pytest.mark.parametrize("dim", [3, 128])
    def test_matches_integral_along_and_across_the_line(self, regime: str, dim: int) -> None:
        p = mixture_of(draw(regime, rows=3, components=3), dim)
        torch.testing.assert_close(bhattacharyya(p, step=0.5), integrate_along_and_across(p), rtol=0, atol=1e-7)

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", [1, 2, 16, 128, 2048])
    def test_single_gaussians_match_the_closed_form(self, regime: str, dim: int) -> None:
        p, q = (mixture_of(draw(regime, components=1, seed=seed), dim) for seed in (0, 1))
        torch.testing.assert_close(bhattacharyya(p, q), class_bhattacharyya(p, q)[:, :, 0], rtol=0, atol=1e-12)

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", [1, 2, 16, 128, 2048])
    def test_symmetric_bounded_and_one_on_the_diagonal(self, regime: str, dim: int) -> None:
        p = mixture_of((x.float() for x in draw(regime)), dim)
        measured = bhattacharyya(p)
        assert measured.dtype == torch.float32
        assert measured.isfinite().all()
        assert 0 <= measured.min() <= measured.max() <= 1
        torch.testing.assert_close(measured, measured.T, rtol=0, atol=1e-6)
        torch.testing.assert_close(measured.diagonal(), torch.ones(6), rtol=0, atol=2e-6)

    def test_two_batches_match_a_block_of_the_combined_batch(self) -> None:
        combined = draw(rows=7)
        p, q = (mixture_of((x[rows] for x in combined), 16) for rows in (slice(0, 3), slice(3, 7)))
        combined_value = bhattacharyya(mixture_of(combined, 16), step=0.5)
        torch.testing.assert_close(bhattacharyya(p, q, step=0.5), combined_value[:3, 3:], rtol=0, atol=1e-9)

    @pytest.mark.parametrize("dim", [1, 3, 16])
    def test_gradients(self, dim: int) -> None:
        a, b = ([x.requires_grad_() for x in draw(rows=2, components=2, seed=seed)] for seed in (0, 1))
        assert torch.autograd.gradcheck(lambda *x: bhattacharyya(mixture_of(x, dim), step=0.5), a)
        assert torch.autograd.gradcheck(
            lambda *x: bhattacharyya(mixture_of(x[:3], dim), mixture_of(x[3:], dim), step=0.5), (*a, *b)
        )

    @pytest.mark.parametrize("dim", [1, 16, 2048])
    def test_one_hot_weights_have_finite_gradients(self, dim: int) -> None:
        mean = torch.tensor([[0.0, 9.0], [-9.0, 0.01]]).requires_grad_()
        variance = torch.tensor([[1.0, 50.0], [0.5, 1.0]]).requires_grad_()
        log_weight = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]]).requires_grad_()
        measured = bhattacharyya(IsotropicMixture(log_weight, mean, variance, dim=dim))
        between = math.exp(-dim * 1e-4 / 8)
        torch.testing.assert_close(measured, torch.tensor([[1, between], [between, 1]]), rtol=0, atol=3e-6)
        for gradient in torch.autograd.grad(measured.square().sum(), (log_weight, mean, variance)):
            assert gradient.isfinite().all()

    def test_distant_mixtures_have_coefficient_zero_and_finite_gradients(self) -> None:
        mean = torch.tensor([[0.0], [50.0]], requires_grad=True)
        measured = bhattacharyya(IsotropicMixture(torch.zeros(2, 1), mean, torch.ones(2, 1), dim=2))
        torch.testing.assert_close(measured, torch.eye(2), rtol=0, atol=1e-6)
        assert torch.autograd.grad(measured[0, 1], mean)[0].isfinite().all()

    @pytest.mark.parametrize("rows", [(0, 0), (0, 3), (3, 0)])
    def test_empty_batches(self, rows: tuple[int, int]) -> None:
        p, q = (mixture_of(draw(rows=count), 16) for count in rows)
        assert bhattacharyya(p, q).shape == rows

    def test_autocast_does_not_change_the_result(self) -> None:
        p = mixture_of((x.float() for x in draw()), 128)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            autocast_result = bhattacharyya(p)
        assert torch.equal(autocast_result, bhattacharyya(p))

    def test_second_derivative_is_an_error(self) -> None:
        inputs = [x.requires_grad_() for x in draw()]
        value = bhattacharyya(mixture_of(inputs, 16)).square().sum()
        (gradient,) = torch.autograd.grad(value, inputs[1], create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            torch.autograd.backward(gradient.square().sum())

    def test_vector_means_are_an_error(self) -> None:
        p, vectors = mixture_of(draw(), 2), mixture_of(draw(size=(2,)), 2)
        for sides in ((vectors, None), (p, vectors)):
            with pytest.raises(ValueError, match="scalar means"):
                bhattacharyya(*sides)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_parameter_that_is_not_finite_is_an_error(self, value: float) -> None:
        log_weight, mean, variance = draw()
        mean[0, 0] = value
        with pytest.raises(ValueError, match="not finite"):
            bhattacharyya(IsotropicMixture(log_weight, mean, variance, dim=16))

    def test_different_dimensions_are_an_error(self) -> None:
        p = mixture_of(draw(), 16)
        for q in (mixture_of(draw(), 17), mixture_of(draw(components=5), 16)):
            with pytest.raises(ValueError, match="4 components in 16 dimensions"):
                bhattacharyya(p, q)


class TestError:
    """The change of a coefficient when the step is halved estimates the error of the larger step."""

    @staticmethod
    def estimate(p: IsotropicMixture, step: float) -> float:
        return (bhattacharyya(p, step=step) - bhattacharyya(p, step=step / 2)).abs().max().item()

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", [1, 2, 16, 128, 2048])
    @pytest.mark.parametrize("step", [1.0, 2.0])
    def test_estimate_is_accurate_within_a_factor_of_three(self, step: float, dim: int, regime: str) -> None:
        p = mixture_of(draw(regime, rows=5, components=3), dim)
        error = (bhattacharyya(p, step=step) - bhattacharyya(p, step=0.25)).abs().max().item()
        estimate, rounding = self.estimate(p, step), 1e-13
        assert error / 3 - rounding <= estimate <= 3 * error + rounding

    @pytest.mark.parametrize("dim", [1, 128])
    def test_estimate_bounds_the_error_of_integration(self, dim: int) -> None:
        p = mixture_of(draw("init", rows=3, components=3), dim)
        reference = integrate_on_grid(p) if dim == 1 else integrate_along_and_across(p)
        for step in (2.0, 3.0):
            error = (bhattacharyya(p, step=step) - reference).abs().max().item()
            assert 1e-9 < error < 3 * self.estimate(p, step)
