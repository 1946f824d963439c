"""Inner products of mixtures over all pairs of components, computed in tiles to limit memory."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from probmcl.mixture.density import Components, slices, variance_term

TILE = 2**18
"""Number of component pairs per tile; a few MB, which fit into a core's cache."""


def inner_products(a: Components, b: Components | None, dim: int) -> Float[Tensor, "M P"]:
    """Return ⟨p_i, q_j⟩ = Σ_kl exp(ω_ik + ω'_jl) κ_kl; `b` defaults to `a`, which halves the cost."""
    product: Tensor = _Inner.apply(dim, b is None, *(x[None] for x in (*a, *(b or a))))  # type: ignore[no-untyped-call]
    return product[0]


def squares(a: Components, dim: int) -> Float[Tensor, "M"]:
    """Return ⟨p_i, p_i⟩ for each row."""
    product: Tensor = _Inner.apply(dim, False, *(x[:, None] for x in (*a, *a)))  # type: ignore[no-untyped-call]
    return product.flatten()


class _Inner(torch.autograd.Function):
    """Autograd function for G_ij = Σ_kl exp(ω_ik + ω'_jl) κ_kl within each batch, computed in tiles to limit memory.

    Takes ω, μ, v of shape (B, R, K) and ω', μ', v' of shape (B, P, K'). With F = (dL/dG_ij) exp(ω_ik + ω'_jl) κ_kl,
    d = μ − μ' and S = v + v', the gradients are dω = ΣF, dμ = −n Σ F d/S and, in a form that avoids the cancellation in
    n/4v − n/2S, dv = (n/2) Σ F [d²/S² + (v' − v)/(2vS)]. If both sides are the same, G is symmetric and only the tiles
    on and above the diagonal are computed.
    """

    @staticmethod
    def forward(ctx: Any, dim: int, symmetric: bool, *tensors: Tensor) -> Tensor:
        ctx.dim, ctx.symmetric = dim, symmetric
        ctx.save_for_backward(*tensors)
        a, b = tensors[:3], tensors[3:]
        inner = a[0].new_zeros(a[0].shape[0], a[0].shape[1], b[0].shape[1])
        for batch, rows, columns, components in _tiles(a[0], b[0], symmetric):
            tile = _Tile([x[batch, rows, components] for x in a], [x[batch, columns] for x in b], dim)
            part = tile.product.sum((3, 4))
            inner[batch, rows, columns] += part
            if symmetric and rows != columns:
                inner[batch, columns, rows] += part.mT
        return inner

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        grad_a = [torch.zeros_like(x) for x in a]
        grad_b = grad_a if ctx.symmetric else [torch.zeros_like(x) for x in b]
        for batch, rows, columns, components in _tiles(a[0], b[0], ctx.symmetric):
            tile_grad = grad[batch, rows, columns]
            if ctx.symmetric and rows != columns:
                tile_grad = tile_grad + grad[batch, columns, rows].mT
            tile = _Tile([x[batch, rows, components] for x in a], [x[batch, columns] for x in b], ctx.dim)
            tile_a, tile_b = tile.gradients(tile_grad)
            for total, part in zip(grad_a, tile_a, strict=True):
                total[batch, rows, components] += part
            for total, part in zip(grad_b, tile_b, strict=True):
                total[batch, columns] += part
        return (None, None, *grad_a, *((None,) * 3 if ctx.symmetric else grad_b))


class _Tile:
    """All pairs of components of a few rows from each side, as (B, R, P, K, K') tensors."""

    def __init__(self, a: list[Tensor], b: list[Tensor], dim: int) -> None:
        log_a, mean_a, self.v_a = (x[:, :, None, :, None] for x in a)
        log_b, mean_b, self.v_b = (x[:, None, :, None, :] for x in b)
        self.dim = dim
        self.sum = self.v_a + self.v_b
        self.shift = mean_a - mean_b
        log_kappa = -dim * (variance_term(self.v_a, self.v_b) + self.shift.square() / (2 * self.sum))
        log_kappa.clamp_(min=-87)  # e^−87 is negligible, and exp is ten times slower when it underflows
        self.product = log_kappa.exp_().mul_(log_a.exp()).mul_(log_b.exp())

    def gradients(self, grad: Float[Tensor, "B R P"]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the contribution of this tile to the gradients of ω, μ, v and of ω', μ', v'."""
        weighted = self.product * grad[:, :, :, None, None]  # F
        slope = self.shift / self.sum  # d/S
        mean_pairs = weighted * slope
        square_pairs = mean_pairs * slope
        variance_pairs = weighted * (self.v_b - self.v_a) / (2 * self.sum)
        axes_a, axes_b = (2, 4), (1, 3)
        v_a, v_b = self.v_a[:, :, 0, :, 0], self.v_b[:, 0, :, 0, :]
        grad_v_a = self.dim / 2 * (square_pairs.sum(axes_a) + variance_pairs.sum(axes_a) / v_a)
        grad_v_b = self.dim / 2 * (square_pairs.sum(axes_b) - variance_pairs.sum(axes_b) / v_b)
        return (
            [weighted.sum(axes_a), -self.dim * mean_pairs.sum(axes_a), grad_v_a],
            [weighted.sum(axes_b), self.dim * mean_pairs.sum(axes_b), grad_v_b],
        )


def _tiles(
    a: Float[Tensor, "B R K"], b: Float[Tensor, "B P L"], symmetric: bool
) -> Iterator[tuple[slice, slice, slice, slice]]:
    """Yield slices of batches, rows, columns and components of `a` that hold at most `TILE` pairs of components."""
    (batches, rows, components), (_, columns, others) = a.shape, b.shape
    component_slices = slices(components, max(1, TILE // others))
    pairs = max(1, TILE // (components * others))
    if symmetric:
        row_slices, all_batches = slices(rows, math.isqrt(pairs)), slice(0, batches)  # there is one batch
        squares = itertools.combinations_with_replacement(row_slices, 2)
        return ((all_batches, *square, part) for square in squares for part in component_slices)
    step_columns = min(columns, pairs)
    step_rows = min(rows, max(1, pairs // step_columns))
    step_batches = max(1, pairs // (step_columns * step_rows))
    return itertools.product(
        slices(batches, step_batches), slices(rows, step_rows), slices(columns, step_columns), component_slices
    )
