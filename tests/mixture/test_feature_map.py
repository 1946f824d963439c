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


def slow_products(a: Components, b: Components, dim: int) -> Tensor:
    """Σ_kl exp(ω_ik + ω'_jl) κ_kl, with κ from the integrals of products of two Gaussians."""

    def log_product(total: Tensor, distance: Tensor) -> Tensor:
        return -dim / 2 * (2 * math.pi * total).log() - dim * distance.square() / (2 * total)

    nowhere = torch.zeros(1, dtype=torch.float64)
    (norm_a, mean_a, v_a), (norm_b, mean_b, v_b) = ([x[:, None, :, None] for x in a], [x[None, :, None, :] for x in b])
    log_kappa = log_product(v_a + v_b, mean_a - mean_b)
    log_kappa = log_kappa - log_product(2 * v_a, nowhere) / 2 - log_product(2 * v_b, nowhere) / 2
    return (norm_a + norm_b + log_kappa).exp().sum((2, 3))


class TestFeatures:
    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("dim", DIMS)
    def test_their_products_are_those_of_the_mixtures(self, regime: str, dim: int) -> None:
        """In absolute terms, not only as cosines."""
        a, b = components(regime), components(regime, rows=3, seed=1)
        shared = grid_of(a, b, dim=dim)
        of_a, of_b = features(a, shared), features(b, shared)
        for x, y, first, second in ((of_a, of_a, a, a), (of_a, of_b, a, b)):
            torch.testing.assert_close(x @ y.T, slow_products(first, second, dim), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("error", [1e-3, 1e-6, 1e-9])
    @pytest.mark.parametrize("dim", DIMS)
    def test_the_error_is_the_one_that_the_grid_was_chosen_for(
        self, error: float, dim: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each axis adds one by its step and at most two by its ends; one component in a row has norm one."""
        c = components("thousand", rows=20, count=1)
        monkeypatch.setitem(grid.ERROR, torch.float64, error)
        mapped = features(c, grid_of(c, dim=dim))
        off = (mapped @ mapped.T - slow_products(c, c, dim)).abs().max()
        assert error / 1000 < off <= 6 * error

    @pytest.mark.parametrize("regime", REGIMES)
    def test_no_feature_is_negative_and_there_is_one_for_each_node(self, regime: str) -> None:
        c = Components(*(x.float() for x in components(regime)))
        built = grid_of(c, dim=128)
        mapped = features(c, built)
        assert mapped.shape == (5, built.nodes)
        assert mapped.dtype == torch.float32
        assert 0 <= mapped.min() < mapped.max()

    def test_features_of_float32_are_those_of_float64_rounded(self) -> None:
        rough = Components(*(x.float() for x in components("wide")))
        built = grid_of(rough, dim=2048)
        fine = features(Components(*(x.double() for x in rough)), built)
        torch.testing.assert_close(features(rough, built).double(), fine, rtol=0, atol=1e-6 * fine.max().item())

    @pytest.mark.parametrize("kind", ["norm", "mass"])
    @pytest.mark.parametrize("dim", [1, 2, 16])
    def test_gradients(self, kind: Literal["norm", "mass"], dim: int) -> None:
        """On a coarse grid: they are the slopes of what is computed, whatever the error."""
        inputs = [x.requires_grad_() for x in components(rows=2, count=2)]
        built = grid_for([Components(*inputs)], dim, kind=kind, step=3.0)
        assert built is not None
        onto = torch.randn(built.nodes, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda *x: features(Components(*x), built) @ onto, inputs)

    def test_a_component_without_weight_adds_nothing_and_gets_no_gradient(self) -> None:
        c = components(count=3)
        c.log_norm[:, 2] = -math.inf
        two = Components(*(x[:, :2] for x in c))
        built = grid_of(two, dim=16)
        inputs = [x.requires_grad_() for x in c]
        mapped = features(Components(*inputs), built)
        torch.testing.assert_close(mapped, features(two, built))
        for gradient in torch.autograd.grad(mapped.square().sum(), inputs):
            assert torch.equal(gradient[:, 2], torch.zeros(5).double())
            assert gradient[:, :2].abs().min() > 0


class TestBlocks:
    @pytest.mark.parametrize("block", [1, 1000, 5000, 20_000])
    @pytest.mark.parametrize("dim", [1, 16])
    def test_their_size_changes_nothing(self, block: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
        inputs = [x.requires_grad_() for x in components(rows=9)]
        built = grid_of(Components(*inputs), dim=dim)

        def everything() -> list[Tensor]:
            mapped = features(Components(*inputs), built)
            return [mapped, *torch.autograd.grad(mapped.square().sum(), inputs)]

        expected = everything()
        monkeypatch.setattr(feature_map, "BLOCK", block)
        for measured, whole in zip(everything(), expected, strict=True):
            torch.testing.assert_close(measured, whole, rtol=1e-12, atol=1e-13)

    def test_no_tensor_is_larger_than_a_block_or_the_features(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inputs = [x.float().requires_grad_() for x in components(rows=20, count=200)]
        built = grid_of(Components(*inputs), dim=16)
        monkeypatch.setattr(feature_map, "BLOCK", 30_000)
        with Largest() as seen:  # type: ignore[no-untyped-call]
            torch.autograd.backward(features(Components(*inputs), built).square().sum())
        assert seen.numbers <= max(30_000, 20 * built.nodes) < 20 * 200 * built.along.nodes


class TestCosines:
    def test_they_are_those_of_the_library(self) -> None:
        a, b = draw(rows=5, components=9)[2], draw(rows=3, components=9, seed=1)[2]
        torch.testing.assert_close(cosines(a, None), cosine_similarity(a[:, None], a[None], dim=2))
        torch.testing.assert_close(cosines(a, b), cosine_similarity(a[:, None], b[None], dim=2))

    def test_gradients(self) -> None:
        a, b = (draw(rows=rows, components=4, seed=rows)[1].requires_grad_() for rows in (3, 2))
        assert torch.autograd.gradcheck(lambda x: cosines(x, None), (a,))
        assert torch.autograd.gradcheck(cosines, (a, b))

    @pytest.mark.parametrize("nodes", [1_000, 50_000])
    def test_float32_keeps_its_digits_however_many_nodes_there_are(self, nodes: int) -> None:
        a = torch.rand(8, nodes, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(cosines(a, None).double(), cosines(a.double(), None), rtol=0, atol=2e-6)
