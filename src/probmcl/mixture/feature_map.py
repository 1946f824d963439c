"""Feature map of mixtures that preserves inner products, at a cost linear in the number of components.

P_i[u, y] = Σ_k exp(ω_ik) a_ik(u) g_ik(y) on the nodes of a quadrature grid. Both factors of a component have norm one:
a is its profile along the line spanned by **1**, and g is its profile across that line. Then ⟨p_i, p_j⟩ = P_i · P_j up
to the error of the grid, and Sim(p_i, p_j) is the cosine of P_i and P_j. See docs/feature_map.md for the derivation.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from probmcl.mixture.density import Components, slices
from probmcl.mixture.grid import Grid, middle_across
from probmcl.runtime.precision import full_precision, to_float64

BLOCK = 2**19
"""Maximum number of elements in a temporary tensor; about the size of a core's cache."""

PIECE = 4096
"""Number of nodes per partial sum of an inner product."""

MEMORY = 2**30
"""Maximum memory in bytes for feature vectors, their gradients and temporary tensors."""

LEAST_EXPONENT = {torch.float32: -40.0, torch.float64: -300.0}
"""Smallest exponent; smaller values are negligible, and arithmetic on subnormal numbers is a hundred times slower."""


def features(c: Components, grid: Grid) -> Float[Tensor, "M Q"]:
    """Return the feature vector of each row."""
    vectors: Tensor = _Features.apply(grid, *c)  # type: ignore[no-untyped-call]
    return vectors


def cosines(a: Float[Tensor, "M Q"], b: Float[Tensor, "P Q"] | None) -> Float[Tensor, "M P"]:
    """Return the cosine similarity of all pairs of rows; `b` defaults to `a`."""
    cosine: Tensor = _Cosines.apply(a, b)  # type: ignore[no-untyped-call]
    return cosine


def bytes_needed(sides: list[Components], grid: Grid) -> int:
    """Estimate the peak memory of feature vectors, unit vectors, their gradients, one block, parameters and results."""
    rows, parameters = sum(len(side.mean) for side in sides), sum(side.mean.numel() for side in sides)
    elements = 4 * rows * grid.nodes + 5 * BLOCK + 32 * parameters + 8 * len(sides[0].mean) * len(sides[-1].mean)
    return elements * sides[0].variance.dtype.itemsize


def refuse_above(memory: int, sides: list[Components], grid: Grid, *, remedy: str) -> None:
    """Raise ValueError if feature vectors on a grid need more than `memory` bytes."""
    size = bytes_needed(sides, grid)
    if size > memory:
        raise ValueError(
            f"means or variances are so far apart that {grid.nodes:,} grid nodes need {size / 1e9:.1f} GB, "
            f"more than the limit of {memory / 1e9:.1f} GB; {remedy}"
        )


class _Cosines(torch.autograd.Function):
    """Autograd function for the cosine similarity of rows; without `b`, backward needs one matrix product, not two."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor | None) -> Tensor:
        length_a = _lengths(a)
        length_b = length_a if b is None else _lengths(b)
        unit_a = a / length_a
        unit_b = unit_a if b is None else b / length_b
        # In float32, a sum over tens of thousands of nodes is more accurate as a sum of partial sums.
        pieces = zip(torch.split(unit_a, PIECE, 1), torch.split(unit_b, PIECE, 1), strict=True)
        cosine = sum((x @ y.T for x, y in pieces), a.new_zeros(len(unit_a), len(unit_b)))
        ctx.symmetric = b is None
        ctx.save_for_backward(unit_a, unit_b, length_a, length_b, cosine)
        return cosine

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        unit_a, unit_b, length_a, length_b, cosine = ctx.saved_tensors

        def gradient(unit: Tensor, others: Tensor, length: Tensor, upstream: Tensor, cosine: Tensor) -> Tensor:
            along = (upstream * cosine).sum(1, keepdim=True)  # the length of a vector does not change its cosines
            return (upstream @ others).addcmul_(unit, along, value=-1).div_(length)

        if ctx.symmetric:
            return gradient(unit_a, unit_a, length_a, grad + grad.T, cosine), None
        needs_a, needs_b = ctx.needs_input_grad
        return (
            gradient(unit_a, unit_b, length_a, grad, cosine) if needs_a else None,
            gradient(unit_b, unit_a, length_b, grad.T, cosine.T) if needs_b else None,
        )


def _lengths(vectors: Float[Tensor, "M Q"]) -> Float[Tensor, "M 1"]:
    """Return row norms summed in float64; over tens of thousands of nodes, float32 would lose the sixth digit."""
    dtype = to_float64(vectors[:0]).dtype
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True, dtype=dtype)
    return lengths.to(vectors.dtype)


class _Features(torch.autograd.Function):
    """Autograd function for P, which is computed block by block and recomputed in the backward pass.

    With t = (u − x)/√(2v) and x = √n μ, a is proportional to v^(−power) exp(−t²). With ξ = y − middle, where middle is
    log σ plus a constant, g is proportional to exp(−sharpness (e^2ξ − 1 − 2ξ)). Hence dω = ⟨dP, ag⟩,
    dx = √(2/v) ⟨dP, t ag⟩ and dv = ⟨dP, (t² − power + sharpness (e^2ξ − 1)) ag⟩ / v.
    """

    @staticmethod
    def forward(ctx: Any, grid: Grid, *tensors: Tensor) -> Tensor:
        ctx.grid = grid
        ctx.save_for_backward(*tensors)
        shapes = _shapes(Components(*tensors), grid)
        vectors = tensors[0].new_zeros(len(tensors[0]), grid.nodes)
        for rows, components in _blocks(shapes, grid):
            block = _Shapes(*(x[rows, components] for x in shapes))
            vectors[rows] += _map(block, *_axes(shapes, grid))
        return vectors

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grid, c = ctx.grid, Components(*ctx.saved_tensors)
        shapes = _shapes(c, grid)
        moment_0, moment_1, moment_2, moment_across = sums = [torch.empty_like(c.mean) for _ in range(4)]
        for rows, components in _blocks(shapes, grid):
            block = _Shapes(*(x[rows, components] for x in shapes))
            parts = _moments(grad[rows], block, *_axes(shapes, grid))
            for total, part in zip(sums, parts, strict=True):
                total[rows, components] = part
        d_mean = (2 * grid.dim / c.variance).sqrt() * moment_1
        d_variance = (moment_2 - grid.power * moment_0 + moment_across) / c.variance
        return None, moment_0, d_mean, d_variance


class _Shapes(NamedTuple):
    """Components in units of the grid.

    `node` is the index of the node nearest to the mean along the line. `rest` (its offset from the mean) and `scale`
    (the step) are in units of √2 σ, which keeps t = (u − x)/√(2v) accurate. `middle` is the mode across the line.
    """

    factor: Float[Tensor, "M K"]
    node: Float[Tensor, "M K"]
    rest: Float[Tensor, "M K"]
    scale: Float[Tensor, "M K"]
    middle: Float[Tensor, "M K"]


def _shapes(c: Components, grid: Grid) -> _Shapes:
    dtype, along = c.variance.dtype, grid.along
    mean, variance = to_float64(c.mean), to_float64(c.variance)
    offset = math.sqrt(grid.dim) * mean - along.first
    node = (offset / along.step).round()
    width = (2 * variance).sqrt()
    log_factor = c.log_norm - grid.power * (4 * math.pi * grid.power / along.step**2 * variance).log()
    middle = torch.zeros_like(variance)
    if grid.across:
        middle = 0.5 * variance.log() + middle_across(grid.dim, grid.power)
        log_factor += 2 * grid.power * (_log_mass_across(grid.dim - 1) + math.log(grid.across.step))
    rest, scale = (node * along.step - offset) / width, along.step / width
    factor, node, rest, scale = (x.to(dtype) for x in (log_factor.exp(), node, rest, scale))
    return _Shapes(factor, node, rest, scale, middle)


def _log_mass_across(m: int) -> float:
    """Return log c such that c exp(−(m/2)(e^2ξ − 1 − 2ξ)) has unit mass and its root therefore has unit norm."""
    return math.log(2) - math.lgamma(m / 2) + m / 2 * (math.log(m / 2) - 1)


def _axes(shapes: _Shapes, grid: Grid) -> tuple[Tensor, Tensor | None, float]:
    """Return the node indices along the line, the node positions across it, and the sharpness."""
    indices = torch.arange(grid.along.nodes, device=shapes.node.device, dtype=shapes.node.dtype)
    return indices, grid.across.positions(shapes.node) if grid.across else None, grid.sharpness


def _blocks(shapes: _Shapes, grid: Grid) -> Iterator[tuple[slice, slice]]:
    """Yield slices of rows and components with at most `BLOCK` values along either grid axis."""
    longer = max(grid.along.nodes, grid.across.nodes if grid.across else 1)
    (rows, components), fit = shapes.node.shape, max(1, BLOCK // longer)
    return itertools.product(slices(rows, max(1, fit // components)), slices(components, fit))


def _profile_along(s: _Shapes, indices: Tensor) -> tuple[Float[Tensor, "R K Qu"], Float[Tensor, "R K Qu"]]:
    """Return exp(−t²) and t."""
    t = (indices - s.node[:, :, None]).mul_(s.scale[:, :, None]).add_(s.rest[:, :, None])
    return t.square().neg_().clamp_(min=LEAST_EXPONENT[t.dtype]).exp_(), t


def _profile_across(
    s: _Shapes, positions: Tensor | None, sharpness: float
) -> tuple[Float[Tensor, "R K Qy"], Float[Tensor, "R K Qy"]]:
    """Return factor · exp(−sharpness (e^2ξ − 1 − 2ξ)), and sharpness (e^2ξ − 1).

    Both are small differences between large numbers, so they need float64 and e^2ξ as a product of two exponentials.
    """
    factor = s.factor
    if positions is None:
        return factor[:, :, None], torch.zeros_like(factor[:, :, None])
    growth = (sharpness * (2 * positions).exp()) * (-2 * s.middle).exp()[:, :, None]
    exponent = ((1 + 2 * positions) * sharpness - (2 * sharpness * s.middle)[:, :, None]).sub_(growth)
    across = exponent.clamp_(min=LEAST_EXPONENT[factor.dtype]).to(factor.dtype).exp_().mul_(factor[:, :, None])
    return across, growth.sub_(sharpness).to(factor.dtype)


def _map(s: _Shapes, indices: Tensor, positions: Tensor | None, sharpness: float) -> Float[Tensor, "R Q"]:
    """Return the contribution of a block to the feature vectors of its rows."""
    along, _ = _profile_along(s, indices)
    across, _ = _profile_across(s, positions, sharpness)
    return torch.bmm(along.mT, across).flatten(1)


def _moments(
    grad: Float[Tensor, "R Q"], s: _Shapes, indices: Tensor, positions: Tensor | None, sharpness: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ⟨dP, f ag⟩ for f = 1, t, t² and sharpness (e^2ξ − 1), for each component of a block."""
    along, t = _profile_along(s, indices)
    across, growth = _profile_across(s, positions, sharpness)
    grad = grad.reshape(len(grad), len(indices), -1)
    moment_0 = torch.bmm(across, grad.mT).mul_(along)
    moment_1 = moment_0 * t
    moment_across = torch.bmm(along, grad).mul_(across).mul_(growth)
    return moment_0.sum(2), moment_1.sum(2), moment_1.mul_(t).sum(2), moment_across.sum(2)
