import itertools

import pytest
import torch
from torch import Tensor

from helpers.mixtures import REGIMES, Largest, draw
from probmcl.mixture import pairs
from probmcl.mixture.density import Components
from probmcl.mixture.pairs import inner_products, squares


def components(regime: str = "init", rows: int = 6, count: int = 4, seed: int = 0) -> Components:
    log_weight, mean, variance = draw(regime, rows=rows, components=count, seed=seed)
    return Components(log_weight - log_weight.amax(1, keepdim=True), mean, variance)


def reference_products(a: Components, b: Components, dim: int) -> Tensor:
    """Compute Σ_kl exp(ω_ik + ω'_jl) κ_kl in four loops."""

    def kappa(i: int, k: int, j: int, m: int) -> Tensor:
        v, w = a.variance[i, k], b.variance[j, m]
        distance = dim * (a.mean[i, k] - b.mean[j, m]).square()
        return (2 * (v * w).sqrt() / (v + w)) ** (dim / 2) * (-distance / (2 * (v + w))).exp()

    out = torch.zeros(len(a.mean), len(b.mean), dtype=torch.float64)
    for i, k in itertools.product(*map(range, a.mean.shape)):
        for j, m in itertools.product(*map(range, b.mean.shape)):
            out[i, j] += (a.log_norm[i, k] + b.log_norm[j, m]).exp() * kappa(i, k, j, m)
    return out


def products_and_gradients(inputs: list[Tensor], dim: int = 16) -> list[Tensor]:
    """Return all inner products of two sides and their gradients."""
    a, b = Components(*inputs[:3]), Components(*inputs[3:])
    products = [inner_products(a, None, dim), inner_products(a, b, dim), squares(a, dim)]
    weights = [torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype) for x in products]
    return [*products, *torch.autograd.grad(products, inputs, weights)]


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dim", [1, 2, 40])
def test_inner_products_match_loops(regime: str, dim: int) -> None:
    a, b = components(regime, rows=3), components(regime, rows=2, count=3, seed=1)
    expected_a = reference_products(a, a, dim)
    for measured, expected in (
        (inner_products(a, None, dim), expected_a),
        (inner_products(a, a, dim), expected_a),
        (inner_products(a, b, dim), reference_products(a, b, dim)),
        (squares(a, dim), expected_a.diagonal()),
    ):
        torch.testing.assert_close(measured, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dim", [1, 16])
def test_gradients_of_one_and_two_sides(dim: int) -> None:
    inputs = [x.requires_grad_() for x in (*components(rows=3, count=2), *components(rows=2, count=3, seed=1))]
    assert torch.autograd.gradcheck(lambda *x: inner_products(Components(*x), None, dim), inputs[:3])
    assert torch.autograd.gradcheck(lambda *x: inner_products(Components(*x[:3]), Components(*x[3:]), dim), inputs)
    assert torch.autograd.gradcheck(lambda *x: squares(Components(*x), dim), inputs[:3])


def test_symmetric_product_computes_half_of_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    a = components(rows=32)
    sizes: list[int] = []

    class CountingTile(pairs._Tile):
        def __init__(self, first: Components, second: Components, dim: int) -> None:
            super().__init__(first, second, dim)
            sizes.append(self.product.numel())

    monkeypatch.setattr(pairs, "TILE", 64)  # two by two rows of four components each
    monkeypatch.setattr(pairs, "_Tile", CountingTile)
    inner_products(a, None, 16)
    symmetric_size = sum(sizes)
    sizes.clear()
    inner_products(a, a, 16)
    assert sum(sizes) == (32 * 4) ** 2
    assert symmetric_size == (16 * 17 // 2) * 64


class TestTiles:
    @pytest.mark.parametrize("tile", [1, 15, 16, 40, 100, 1000])
    def test_tile_size_does_not_change_the_result(self, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
        inputs = [x.requires_grad_() for x in (*components(rows=7), *components(rows=5, count=3, seed=1))]
        expected = products_and_gradients(inputs)
        monkeypatch.setattr(pairs, "TILE", tile)
        for measured, value in zip(products_and_gradients(inputs), expected, strict=True):
            torch.testing.assert_close(measured, value, rtol=1e-12, atol=1e-13)

    @pytest.mark.parametrize("tile", [400, 1000, 5000])
    def test_tensors_fit_into_a_tile(self, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pairs, "TILE", tile)
        inputs = [x.requires_grad_() for x in (*components(rows=20, count=5), *components(rows=20, count=5, seed=1))]
        with Largest() as tracker:  # type: ignore[no-untyped-call]
            products_and_gradients(inputs)  # 10,000 pairs of components in each direction
        assert tile / 2 < tracker.numbers <= tile

    @pytest.mark.parametrize("count", [40, 100])
    def test_rows_with_many_components_are_split(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pairs, "TILE", 1000)
        inputs = [x.requires_grad_() for x in (*components(rows=2, count=count), *components(rows=1, count=count))]
        with Largest() as tracker:  # type: ignore[no-untyped-call]
            products_and_gradients(inputs)
        assert tracker.numbers <= 1000

    def test_gradients_of_distant_components_are_finite(self) -> None:
        mean = torch.tensor([[0.0], [1e5], [-1e18]], requires_grad=True)
        c = Components(torch.zeros(3, 1), mean, torch.ones(3, 1))
        products = inner_products(c, None, 2048)
        torch.testing.assert_close(products, torch.eye(3), rtol=0, atol=1e-30)
        assert torch.autograd.grad(products.sum(), mean)[0].isfinite().all()
