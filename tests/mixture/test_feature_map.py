import math
from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from helpers.mixtures import REGIMES, Largest, draw
from probmcl.mixture import feature_map, grid
from probmcl.mixture.density import Components
from probmcl.mixture.feature_map import cosines, features
from probmcl.mixture.grid import Grid, grid_for

DIMS = [1, 2, 3, 16, 128, 2048]


def components(regime: str = "init", rows: int = 5, count: int = 4, seed: int = 0) -> Components:
    log_weight, mean, variance = draw(regime, rows=rows, components=count, seed=seed)
    return Components(log_weight - log_weight.amax(1, keepdim=True), mean, variance)


def grid_of(*sides: Components, dim: int) -> Grid:
    built = grid_for(list(sides), dim)
    assert built is not None
    return built


def reference_products(a: Components, b: Components, dim: int) -> Tensor:
    """Compute Σ_kl exp(ω_ik + ω'_jl) κ_kl, with κ from the integrals of products of two Gaussians."""

    def log_product(total: Tensor, distance: Tensor) -> Tensor:
        return -dim / 2 * (2 * math.pi * total).log() - dim * distance.square() / (2 * total)

    zero = torch.zeros(1, dtype=torch.float64)
    (norm_a, mean_a, v_a), (norm_b, mean_b, v_b) = ([x[:, None, :, None] for x in a], [x[None, :, None, :] for x in b])
    log_kappa = log_product(v_a + v_b, mean_a - mean_b)
    log_kappa = log_kappa - log_product(2 * v_a, zero) / 2 - log_product(2 * v_b, zero) / 2
    return (norm_a + norm_b + log_kappa).exp().sum((2, 3))


class TestFeatures:
    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", DIMS)
    def test_inner_products_match_the_mixtures(self, regime: str, dim: int) -> None:
        """Compares the inner products themselves, not only the cosines."""
        a, b = components(regime), components(regime, rows=3, seed=1)
        common_grid = grid_of(a, b, dim=dim)
        features_a, features_b = features(a, common_grid), features(b, common_grid)
        for x, y, first, second in ((features_a, features_a, a, a), (features_a, features_b, a, b)):
            torch.testing.assert_close(x @ y.T, reference_products(first, second, dim), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("error", [1e-3, 1e-6, 1e-9])
    @pytest.mark.parametrize("dim", DIMS)
    def test_error_matches_the_error_of_the_grid(self, error: float, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """On each axis, the step adds one `error` and the ends at most two; each row is one component of unit norm."""
        c = components("thousand", rows=20, count=1)
        monkeypatch.setitem(grid.ERROR, torch.float64, error)
        vectors = features(c, grid_of(c, dim=dim))
        difference = (vectors @ vectors.T - reference_products(c, c, dim)).abs().max()
        assert error / 1000 < difference <= 6 * error

    @pytest.mark.parametrize("regime", REGIMES)
    def test_features_are_nonnegative_with_one_per_node(self, regime: str) -> None:
        c = Components(*(x.float() for x in components(regime)))
        built = grid_of(c, dim=128)
        vectors = features(c, built)
        assert vectors.shape == (5, built.nodes)
        assert vectors.dtype == torch.float32
        assert 0 <= vectors.min() < vectors.max()

    def test_float32_features_match_float64(self) -> None:
        rounded = Components(*(x.float() for x in components("wide")))
        built = grid_of(rounded, dim=2048)
        exact = features(Components(*(x.double() for x in rounded)), built)
        torch.testing.assert_close(features(rounded, built).double(), exact, rtol=0, atol=1e-6 * exact.max().item())

    @pytest.mark.parametrize("kind", ["norm", "mass"])
    @pytest.mark.parametrize("dim", [1, 2, 16])
    def test_gradients(self, kind: Literal["norm", "mass"], dim: int) -> None:
        """Uses a coarse grid, because gradients do not depend on the quadrature error."""
        inputs = [x.requires_grad_() for x in components(rows=2, count=2)]
        built = grid_for([Components(*inputs)], dim, kind=kind, step=3.0)
        assert built is not None
        projection = torch.randn(built.nodes, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda *x: features(Components(*x), built) @ projection, inputs)

    def test_component_of_weight_zero_is_ignored_and_has_no_gradient(self) -> None:
        c = components(count=3)
        c.log_norm[:, 2] = -math.inf
        two = Components(*(x[:, :2] for x in c))
        built = grid_of(two, dim=16)
        inputs = [x.requires_grad_() for x in c]
        vectors = features(Components(*inputs), built)
        torch.testing.assert_close(vectors, features(two, built))
        for gradient in torch.autograd.grad(vectors.square().sum(), inputs):
            assert torch.equal(gradient[:, 2], torch.zeros(5).double())
            assert gradient[:, :2].abs().min() > 0


class TestBlocks:
    @pytest.mark.parametrize("block", [1, 1000, 5000, 20_000])
    @pytest.mark.parametrize("dim", [1, 16])
    def test_block_size_does_not_change_the_result(self, block: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
        inputs = [x.requires_grad_() for x in components(rows=9)]
        built = grid_of(Components(*inputs), dim=dim)

        def values_and_gradients() -> list[Tensor]:
            vectors = features(Components(*inputs), built)
            return [vectors, *torch.autograd.grad(vectors.square().sum(), inputs)]

        expected = values_and_gradients()
        monkeypatch.setattr(feature_map, "BLOCK", block)
        for measured, value in zip(values_and_gradients(), expected, strict=True):
            torch.testing.assert_close(measured, value, rtol=1e-12, atol=1e-13)

    def test_temporary_tensors_fit_into_a_block(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inputs = [x.float().requires_grad_() for x in components(rows=20, count=200)]
        built = grid_of(Components(*inputs), dim=16)
        monkeypatch.setattr(feature_map, "BLOCK", 30_000)
        with Largest() as tracker:  # type: ignore[no-untyped-call]
            torch.autograd.backward(features(Components(*inputs), built).square().sum())
        assert tracker.numbers <= max(30_000, 20 * built.nodes) < 20 * 200 * built.along.nodes


class TestCosines:
    def test_matches_torch_cosine_similarity(self) -> None:
        a, b = draw(rows=5, components=9)[2], draw(rows=3, components=9, seed=1)[2]
        torch.testing.assert_close(cosines(a, None), cosine_similarity(a[:, None], a[None], dim=2))
        torch.testing.assert_close(cosines(a, b), cosine_similarity(a[:, None], b[None], dim=2))

    def test_gradients(self) -> None:
        a, b = (draw(rows=rows, components=4, seed=rows)[1].requires_grad_() for rows in (3, 2))
        assert torch.autograd.gradcheck(lambda x: cosines(x, None), (a,))
        assert torch.autograd.gradcheck(cosines, (a, b))

    @pytest.mark.parametrize("nodes", [1_000, 50_000])
    def test_float32_matches_float64_for_many_nodes(self, nodes: int) -> None:
        a = torch.rand(8, nodes, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(cosines(a, None).double(), cosines(a.double(), None), rtol=0, atol=2e-6)
