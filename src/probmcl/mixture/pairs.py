"""Inner products of mixtures over all pairs of components, computed in tiles to limit memory."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from probmcl.mixture.density import Components, slices, variance_term

TILE = 2**18
"""Number of component pairs per tile; a few MB, which fit into a core's cache."""


def inner_products(a: Components, b: Components | None, dim: int) -> Float[Tensor, "M P"]:
    """Return ⟨p_i, q_j⟩ = Σ_kl exp(ω_ik + ω'_jl) κ_kl; `b` defaults to `a`, which halves the cost."""
    symmetric = b is None
    one_batch = [x[None] for x in (*a, *(b or a))]
    product: Tensor = _Inner.apply(dim, symmetric, *one_batch)  # type: ignore[no-untyped-call]
    return product[0]


def squares(a: Components, dim: int) -> Float[Tensor, "M"]:
    """Return ⟨p_i, p_i⟩ for each row."""
    batch_per_row = [x[:, None] for x in (*a, *a)]
    product: Tensor = _Inner.apply(dim, False, *batch_per_row)  # type: ignore[no-untyped-call]
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
        """Return G_ij = Σ_kl exp(ω_ik + ω'_jl) κ_kl of shape (B, R, P), summed over one tile of pairs at a time.

        `tensors` are ω, μ, v of shape (B, R, K), then ω', μ', v' of shape (B, P, K'). If `symmetric`, they are equal,
        and only tiles on and above the diagonal of G are computed.
        """
        ctx.dim, ctx.symmetric = dim, symmetric
        ctx.save_for_backward(*tensors)
        a, b = Components(*tensors[:3]), Components(*tensors[3:])
        batches, rows_a, _ = a.mean.shape
        inner = a.mean.new_zeros(batches, rows_a, b.mean.shape[1])
        for part in _parts(a, b, symmetric):
            batch, rows, columns, _ = part  # slices; all parts with the same rows and columns add to the same block
            block = _tile(a, b, part, dim).product.sum((3, 4))  # over the components of both sides
            inner[batch, rows, columns] += block
            if symmetric and rows != columns:
                inner[batch, columns, rows] += block.mT  # the block on the other side of the diagonal
        return inner

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of ω, μ, v and of ω', μ', v', given dL/dG; the tiles are computed again.

        If both sides are the same tensors, each pair (i, j) above the diagonal stands for (i, j) and (j, i). Its
        gradients are then those of G_ij and G_ji together.
        """
        a, b = Components(*ctx.saved_tensors[:3]), Components(*ctx.saved_tensors[3:])
        grad_a = [torch.zeros_like(x) for x in a]
        # If both sides are the same, the gradients of both are added up in one place.
        grad_b = grad_a if ctx.symmetric else [torch.zeros_like(x) for x in b]
        for part in _parts(a, b, ctx.symmetric):
            batch, rows, columns, components = part
            block_grad = grad[batch, rows, columns]
            if ctx.symmetric and rows != columns:
                block_grad = block_grad + grad[batch, columns, rows].mT
            tile_a, tile_b = _tile(a, b, part, ctx.dim).gradients(block_grad)
            for total, addend in zip(grad_a, tile_a, strict=True):
                total[batch, rows, components] += addend
            for total, addend in zip(grad_b, tile_b, strict=True):
                total[batch, columns] += addend
        if ctx.symmetric:
            return None, None, *grad_a, None, None, None  # of `dim`, `symmetric`, `a` and `b`
        return None, None, *grad_a, *grad_b


class _Part(NamedTuple):
    """The part of all pairs of components in one tile: these components of rows of `a`, and all of columns of `b`."""

    batch: slice
    rows: slice
    columns: slice
    components: slice


def _parts(a: Components, b: Components, symmetric: bool) -> Iterator[_Part]:
    """Divide all pairs of components of `a` and `b` into parts of at most `TILE` pairs.

    `a.mean` has the shape (batches, rows, components), and `b.mean` has the shape (batches, columns, components). A
    part always has all components of its columns. If `symmetric`, both sides are the same and there is one batch; the
    parts below the diagonal are left out.
    """
    batches, rows, components = a.mean.shape
    _, columns, components_of_column = b.mean.shape

    # A single row and column may already have more than `TILE` pairs. Then the components of the row are divided, too.
    components_per_part = max(1, TILE // components_of_column)
    component_slices = slices(components, components_per_part)

    # The number of pairs of a row and a column for which a part has room.
    row_pairs_per_part = max(1, TILE // (components * components_of_column))

    if symmetric:
        all_batches = slice(0, batches)
        # Rows and columns are divided at the same places, so each part lies on, above or below the diagonal.
        rows_per_part = math.isqrt(row_pairs_per_part)
        row_slices = slices(rows, rows_per_part)
        for upper, lower in itertools.combinations_with_replacement(row_slices, 2):
            for component_slice in component_slices:
                yield _Part(all_batches, upper, lower, component_slice)
        return

    # The room is filled with columns first, then with rows that have all these columns, and then with batches.
    columns_per_part = min(columns, row_pairs_per_part)
    rows_per_part = min(rows, row_pairs_per_part // columns_per_part)
    batches_per_part = row_pairs_per_part // (columns_per_part * rows_per_part)
    batch_slices = slices(batches, batches_per_part)
    row_slices = slices(rows, rows_per_part)
    column_slices = slices(columns, columns_per_part)
    for part in itertools.product(batch_slices, row_slices, column_slices, component_slices):
        yield _Part(*part)


def _tile(a: Components, b: Components, part: _Part, dim: int) -> "_Tile":
    """Compare the components of one part."""
    part_of_a = Components._make(x[part.batch, part.rows, part.components] for x in a)
    part_of_b = Components._make(x[part.batch, part.columns] for x in b)
    return _Tile(part_of_a, part_of_b, dim)


class _Tile:
    """All pairs of components of a few rows from each side, as (B, R, P, K, K') tensors.

    `product` is exp(ω + ω') κ.
    """

    def __init__(self, a: Components, b: Components, dim: int) -> None:
        """Compute `product` for all pairs, where log κ = −n [variance term + d²/2S] with d = μ − μ' and S = v + v'."""
        log_a, mean_a, self.v_a = (x[:, :, None, :, None] for x in a)
        log_b, mean_b, self.v_b = (x[:, None, :, None, :] for x in b)
        self.dim = dim
        self.sum = self.v_a + self.v_b  # S
        self.shift = mean_a - mean_b  # d
        log_kappa = -dim * (variance_term(self.v_a, self.v_b) + self.shift.square() / (2 * self.sum))
        log_kappa.clamp_(min=-87)  # e^−87 is negligible, and exp is ten times slower when it underflows
        self.product = log_kappa.exp_()
        self.product *= log_a.exp()
        self.product *= log_b.exp()

    def gradients(self, grad: Float[Tensor, "B R P"]) -> tuple[Components, Components]:
        """Return the contribution of this tile to the gradients of ω, μ, v (side a) and of ω', μ', v' (side b).

        With F = `grad` exp(ω + ω') κ, d = μ − μ' and S = v + v', they are dω = ΣF, dμ = −n Σ F d/S and
        dv = (n/2) Σ F [d²/S² + (v' − v)/(2vS)]. The tensors over pairs have the axes (batch, row of a, row of b,
        component of a, component of b).
        """
        weighted = self.product * grad[:, :, :, None, None]  # F
        slope = self.shift / self.sum  # d/S
        mean_pairs = weighted * slope  # F d/S
        square_pairs = mean_pairs * slope  # F d²/S²
        variance_pairs = weighted * (self.v_b - self.v_a) / (2 * self.sum)  # F (v' − v)/2S

        over_b = (2, 4)  # the axes of the rows of b and their components
        v_a = self.v_a[:, :, 0, :, 0]
        gradient_a = Components(
            log_norm=weighted.sum(over_b),
            mean=-self.dim * mean_pairs.sum(over_b),
            variance=self.dim / 2 * (square_pairs.sum(over_b) + variance_pairs.sum(over_b) / v_a),
        )
        over_a = (1, 3)  # the axes of the rows of a and their components; for b, d and v' − v change their signs
        v_b = self.v_b[:, 0, :, 0, :]
        gradient_b = Components(
            log_norm=weighted.sum(over_a),
            mean=self.dim * mean_pairs.sum(over_a),
            variance=self.dim / 2 * (square_pairs.sum(over_a) - variance_pairs.sum(over_a) / v_b),
        )
        return gradient_a, gradient_b
