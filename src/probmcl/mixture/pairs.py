"""Inner products of mixtures by walking over all pairs of components, in tiles of bounded memory."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from probmcl.mixture.density import Components, slices, spread

TILE = 2**18
"""Pairs of components that are held in memory at once: a few MB, which a core keeps in its cache."""


def inner_products(a: Components, b: Components | None, dim: int) -> Float[Tensor, "M P"]:
    """⟨p_i, q_j⟩ = Σ_kl exp(ω_ik + ω'_jl) κ_kl; without `b` of `a` with itself, at half the cost."""
    product: Tensor = _Inner.apply(dim, b is None, *(x[None] for x in (*a, *(b or a))))  # type: ignore[no-untyped-call]
    return product[0]


def squares(a: Components, dim: int) -> Float[Tensor, "M"]:
    """⟨p_i, p_i⟩ of each row."""
    product: Tensor = _Inner.apply(dim, False, *(x[:, None] for x in (*a, *a)))  # type: ignore[no-untyped-call]
    return product.flatten()


class _Inner(torch.autograd.Function):
    """G_ij = Σ_kl exp(ω_ik + ω'_jl) κ_kl within each batch, in tiles: nothing of size R·P·K² outlives its tile.

    Takes ω, μ, v of shape (B, R, K) and ω', μ', v' of shape (B, P, K'). With F = (dL/dG_ij) exp(ω_ik + ω'_jl) κ_kl,
    d = μ − μ' and S = v + v', the gradients are dω = ΣF, dμ = −n Σ F d/S and, in a form without the cancellation of
    n/4v − n/2S, dv = (n/2) Σ F [d²/S² + (v' − v)/(2vS)]. Where both sides are the same, so are G and its mirror image:
    only the tiles on and above the diagonal are computed.
    """

    @staticmethod
    def forward(ctx: Any, dim: int, mirrored: bool, *tensors: Tensor) -> Tensor:
        ctx.dim, ctx.mirrored = dim, mirrored
        ctx.save_for_backward(*tensors)
        a, b = tensors[:3], tensors[3:]
        inner = a[0].new_zeros(a[0].shape[0], a[0].shape[1], b[0].shape[1])
        for batch, rows, columns, some in _tiles(a[0], b[0], mirrored):
            tile = _Tile([x[batch, rows, some] for x in a], [x[batch, columns] for x in b], dim)
            part = tile.product.sum((3, 4))
            inner[batch, rows, columns] += part
            if mirrored and rows != columns:
                inner[batch, columns, rows] += part.mT
        return inner

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        grad_a = [torch.zeros_like(x) for x in a]
        grad_b = grad_a if ctx.mirrored else [torch.zeros_like(x) for x in b]
        for batch, rows, columns, some in _tiles(a[0], b[0], ctx.mirrored):
            pull = grad[batch, rows, columns]
            if ctx.mirrored and rows != columns:
                pull = pull + grad[batch, columns, rows].mT
            tile = _Tile([x[batch, rows, some] for x in a], [x[batch, columns] for x in b], ctx.dim)
            tile_a, tile_b = tile.gradients(pull)
            for whole, part in zip(grad_a, tile_a, strict=True):
                whole[batch, rows, some] += part
            for whole, part in zip(grad_b, tile_b, strict=True):
                whole[batch, columns] += part
        return (None, None, *grad_a, *((None,) * 3 if ctx.mirrored else grad_b))


class _Tile:
    """All pairs of components between a few rows of either side, as (B, R, P, K, K') tensors."""

    def __init__(self, a: list[Tensor], b: list[Tensor], dim: int) -> None:
        log_a, mean_a, self.v_a = (x[:, :, None, :, None] for x in a)
        log_b, mean_b, self.v_b = (x[:, None, :, None, :] for x in b)
        self.dim = dim
        self.sum = self.v_a + self.v_b
        self.shift = mean_a - mean_b
        log_kappa = -dim * (spread(self.v_a, self.v_b) + self.shift.square() / (2 * self.sum))
        log_kappa.clamp_(min=-87)  # e^−87 counts for nothing, and an exp that underflows takes ten times as long
        self.product = log_kappa.exp_().mul_(log_a.exp()).mul_(log_b.exp())

    def gradients(self, grad: Float[Tensor, "B R P"]) -> tuple[list[Tensor], list[Tensor]]:
        """The part of this tile in the gradients of ω, μ, v and of ω', μ', v'."""
        flow = self.product * grad[:, :, :, None, None]  # F
        slope = self.shift / self.sum  # d/S
        pull = flow * slope
        stretch = pull * slope
        apart = flow * (self.v_b - self.v_a) / (2 * self.sum)
        to_a, to_b = (2, 4), (1, 3)
        v_a, v_b = self.v_a[:, :, 0, :, 0], self.v_b[:, 0, :, 0, :]
        grad_v_a = self.dim / 2 * (stretch.sum(to_a) + apart.sum(to_a) / v_a)
        grad_v_b = self.dim / 2 * (stretch.sum(to_b) - apart.sum(to_b) / v_b)
        return (
            [flow.sum(to_a), -self.dim * pull.sum(to_a), grad_v_a],
            [flow.sum(to_b), self.dim * pull.sum(to_b), grad_v_b],
        )


def _tiles(
    a: Float[Tensor, "B R K"], b: Float[Tensor, "B P L"], mirrored: bool
) -> Iterator[tuple[slice, slice, slice, slice]]:
    """Slices of batches, rows, columns and a's components that together hold at most `TILE` pairs of components."""
    (batches, rows, components), (_, columns, others) = a.shape, b.shape
    some = slices(components, max(1, TILE // others))
    pairs = max(1, TILE // (components * others))
    if mirrored:
        sides, whole = slices(rows, math.isqrt(pairs)), slice(0, batches)  # of which there is one
        squares = itertools.combinations_with_replacement(sides, 2)
        return ((whole, *square, part) for square in squares for part in some)
    step_columns = min(columns, pairs)
    step_rows = min(rows, max(1, pairs // step_columns))
    step_batches = max(1, pairs // (step_columns * step_rows))
    return itertools.product(
        slices(batches, step_batches), slices(rows, step_rows), slices(columns, step_columns), some
    )
