"""Mixtures as vectors whose inner products are those of the mixtures: linear in the number of components.

P_i[u, y] = Σ_k exp(ω_ik) a_ik(u) g_ik(y) on the nodes of a grid, where a is a component along the line of all multiples
of **1** and g the same component across it, both of norm one. Then ⟨p_i, p_j⟩ = P_i · P_j up to the error that the grid
was chosen for, and Sim(p_i, p_j) is the cosine of P_i and P_j. docs/feature_map.md has the derivation.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from probmcl.mixture.density import Components, slices
from probmcl.mixture.grid import Grid, middle_across
from probmcl.runtime.precision import full_precision, to_float64

BLOCK = 2**19
"""Numbers of the largest tensor that is held while components are mapped: about what a core keeps in its cache."""

PIECE = 4096
"""Nodes over which products are summed at once."""

MEMORY = 2**30
"""Bytes that feature vectors and what belongs to them may take."""

LEAST_EXPONENT = {torch.float32: -40.0, torch.float64: -300.0}
"""Tails are cut off here. They count for nothing, and numbers below the normal range take a hundred times as long."""


def features(c: Components, grid: Grid, *, compiled: bool = False) -> Float[Tensor, "M Q"]:
    """The feature vector of each row."""
    vectors: Tensor = _Features.apply(grid, compiled, *c)  # type: ignore[no-untyped-call]
    return vectors


def cosines(a: Float[Tensor, "M Q"], b: Float[Tensor, "P Q"] | None) -> Float[Tensor, "M P"]:
    """Cosines of all pairs of rows; without `b` of `a` with itself."""
    cosine: Tensor = _Cosines.apply(a, b)  # type: ignore[no-untyped-call]
    return cosine


def bytes_needed(sides: list[Components], grid: Grid) -> int:
    """Feature vectors, unit vectors, gradients of both; one block; some tensors of parameters and of results."""
    rows, parameters = sum(len(side.mean) for side in sides), sum(side.mean.numel() for side in sides)
    numbers = 4 * rows * grid.nodes + 5 * BLOCK + 32 * parameters + 8 * len(sides[0].mean) * len(sides[-1].mean)
    return numbers * sides[0].variance.dtype.itemsize


def refuse_above(memory: int, sides: list[Components], grid: Grid, *, remedy: str) -> None:
    """Refuse a grid that would take more bytes."""
    size = bytes_needed(sides, grid)
    if size > memory:
        raise ValueError(
            f"means or variances lie so far apart that {grid.nodes:,} nodes would take {size / 1e9:.1f} GB, "
            f"more than {memory / 1e9:.1f} GB; {remedy}"
        )


class _Cosines(torch.autograd.Function):
    """Cosines of rows. Of rows with one another they are symmetric, so that backward takes one product, not two."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor | None) -> Tensor:
        length_a = _lengths(a)
        length_b = length_a if b is None else _lengths(b)
        unit_a = a / length_a
        unit_b = unit_a if b is None else b / length_b
        # In float32, a sum over tens of thousands of nodes is more exact as a sum of sums.
        pieces = zip(torch.split(unit_a, PIECE, 1), torch.split(unit_b, PIECE, 1), strict=True)
        cosine = sum((x @ y.T for x, y in pieces), a.new_zeros(len(unit_a), len(unit_b)))
        ctx.mirrored = b is None
        ctx.save_for_backward(unit_a, unit_b, length_a, length_b, cosine)
        return cosine

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        unit_a, unit_b, length_a, length_b, cosine = ctx.saved_tensors

        def gradient(unit: Tensor, others: Tensor, length: Tensor, pull: Tensor, cosine: Tensor) -> Tensor:
            along = (pull * cosine).sum(1, keepdim=True)  # a step along the vector itself changes no cosine
            return (pull @ others).addcmul_(unit, along, value=-1).div_(length)

        if ctx.mirrored:
            return gradient(unit_a, unit_a, length_a, grad + grad.T, cosine), None
        wanted_a, wanted_b = ctx.needs_input_grad
        return (
            gradient(unit_a, unit_b, length_a, grad, cosine) if wanted_a else None,
            gradient(unit_b, unit_a, length_b, grad.T, cosine.T) if wanted_b else None,
        )


def _lengths(vectors: Float[Tensor, "M Q"]) -> Float[Tensor, "M 1"]:
    """Added up in float64: over tens of thousands of nodes float32 loses the sixth digit."""
    wide = to_float64(vectors[:0]).dtype
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True, dtype=wide)
    return lengths.to(vectors.dtype)


class _Features(torch.autograd.Function):
    """P and its gradients, some components of some rows at a time, computed again for backward.

    With t = (u − x)/√(2v) and x = √n μ, a is proportional to v^(−power) exp(−t²); with ξ = y − middle, which moves with
    log σ, g to exp(−sharpness (e^2ξ − 1 − 2ξ)). Hence dω = ⟨dP, ag⟩, dx = √(2/v) ⟨dP, t ag⟩ and
    dv = ⟨dP, (t² − power + sharpness (e^2ξ − 1)) ag⟩ / v.
    """

    @staticmethod
    def forward(ctx: Any, grid: Grid, compiled: bool, *tensors: Tensor) -> Tensor:
        ctx.grid, ctx.compiled = grid, compiled
        ctx.save_for_backward(*tensors)
        shapes, mapped = _shapes(Components(*tensors), grid), _mapped_by(compiled)[0]
        vectors = tensors[0].new_zeros(len(tensors[0]), grid.nodes)
        for rows, some in _blocks(shapes, grid):  # a view would be compiled anew for each kind of block, a clone is not
            block = _Shapes(*(x[rows, some].clone() for x in shapes))
            vectors[rows] += mapped(block, *_axes(shapes, grid))
        return vectors

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grid, c = ctx.grid, Components(*ctx.saved_tensors)
        shapes, moments = _shapes(c, grid), _mapped_by(ctx.compiled)[1]
        flow, pull, stretch, widen = sums = [torch.empty_like(c.mean) for _ in range(4)]
        for rows, some in _blocks(shapes, grid):
            block = _Shapes(*(x[rows, some].clone() for x in shapes))
            parts = moments(grad[rows].clone(), block, *_axes(shapes, grid))
            for whole, part in zip(sums, parts, strict=True):
                whole[rows, some] = part
        d_mean = (2 * grid.dim / c.variance).sqrt() * pull
        d_variance = (stretch - grid.power * flow + widen) / c.variance
        return None, None, flow, d_mean, d_variance


class _Shapes(NamedTuple):
    """Each component in units of the grid.

    `node` is the node next to its place along the line, `rest` what is between the two and `scale` a step, both in
    units of √2 σ: so t = (u − x)/√(2v) of a component far out keeps its digits. `middle` is its middle across the line.
    """

    factor: Float[Tensor, "M K"]
    node: Float[Tensor, "M K"]
    rest: Float[Tensor, "M K"]
    scale: Float[Tensor, "M K"]
    middle: Float[Tensor, "M K"]


def _shapes(c: Components, grid: Grid) -> _Shapes:
    dtype, along = c.variance.dtype, grid.along
    mean, variance = to_float64(c.mean), to_float64(c.variance)
    from_first = math.sqrt(grid.dim) * mean - along.first
    node = (from_first / along.step).round()
    width = (2 * variance).sqrt()
    log_factor = c.log_norm - grid.power * (4 * math.pi * grid.power / along.step**2 * variance).log()
    middle = torch.zeros_like(variance)
    if grid.across:
        middle = 0.5 * variance.log() + middle_across(grid.dim, grid.power)
        log_factor += 2 * grid.power * (_log_mass_across(grid.dim - 1) + math.log(grid.across.step))
    rest, scale = (node * along.step - from_first) / width, along.step / width
    factor, node, rest, scale = (x.to(dtype) for x in (log_factor.exp(), node, rest, scale))
    return _Shapes(factor, node, rest, scale, middle)


def _log_mass_across(m: int) -> float:
    """Logarithm of what gives exp(−(m/2)(e^2ξ − 1 − 2ξ)) mass one; half of it gives its root norm one."""
    return math.log(2) - math.lgamma(m / 2) + m / 2 * (math.log(m / 2) - 1)


def _axes(shapes: _Shapes, grid: Grid) -> tuple[Tensor, Tensor | None, float]:
    """Numbers of the nodes along the line, places of those across it, and the sharpness."""
    numbers = torch.arange(grid.along.nodes, device=shapes.node.device, dtype=shapes.node.dtype)
    return numbers, grid.across.places(shapes.node) if grid.across else None, grid.sharpness


def _blocks(shapes: _Shapes, grid: Grid) -> Iterator[tuple[slice, slice]]:
    """Slices of rows and of components that together have at most `BLOCK` values on either axis."""
    longer = max(grid.along.nodes, grid.across.nodes if grid.across else 1)
    (rows, components), fit = shapes.node.shape, max(1, BLOCK // longer)
    return itertools.product(slices(rows, max(1, fit // components)), slices(components, fit))


def _profile_along(s: _Shapes, numbers: Tensor) -> tuple[Float[Tensor, "R K Qu"], Float[Tensor, "R K Qu"]]:
    """exp(−t²), and t."""
    t = (numbers - s.node[:, :, None]).mul_(s.scale[:, :, None]).add_(s.rest[:, :, None])
    return t.square().neg_().clamp_(min=LEAST_EXPONENT[t.dtype]).exp_(), t


def _profile_across(
    s: _Shapes, places: Tensor | None, sharpness: float
) -> tuple[Float[Tensor, "R K Qy"], Float[Tensor, "R K Qy"]]:
    """The factor times exp(−sharpness (e^2ξ − 1 − 2ξ)), and sharpness (e^2ξ − 1).

    Both are small differences of large numbers: in float64, and with e^2ξ as a product of two exponentials.
    """
    factor = s.factor
    if places is None:
        return factor[:, :, None], torch.zeros_like(factor[:, :, None])
    growth = (sharpness * (2 * places).exp()) * (-2 * s.middle).exp()[:, :, None]
    exponent = ((1 + 2 * places) * sharpness - (2 * sharpness * s.middle)[:, :, None]).sub_(growth)
    across = exponent.clamp_(min=LEAST_EXPONENT[factor.dtype]).to(factor.dtype).exp_().mul_(factor[:, :, None])
    return across, growth.sub_(sharpness).to(factor.dtype)


def _map(s: _Shapes, numbers: Tensor, places: Tensor | None, sharpness: float) -> Float[Tensor, "R Q"]:
    """Return what a block adds to the feature vectors of its rows."""
    along, _ = _profile_along(s, numbers)
    across, _ = _profile_across(s, places, sharpness)
    return torch.bmm(along.mT, across).flatten(1)


def _moments(
    grad: Float[Tensor, "R Q"], s: _Shapes, numbers: Tensor, places: Tensor | None, sharpness: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """⟨dP, ag⟩ and the same with t, with t² and with sharpness (e^2ξ − 1), for each component of a block."""
    along, t = _profile_along(s, numbers)
    across, growth = _profile_across(s, places, sharpness)
    grad = grad.reshape(len(grad), len(numbers), -1)
    flow = torch.bmm(across, grad.mT).mul_(along)
    pull = flow * t
    widen = torch.bmm(along, grad).mul_(across).mul_(growth)
    return flow.sum(2), pull.sum(2), pull.mul_(t).sum(2), widen.sum(2)


@cache
def _mapped_by(compiled: bool) -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, ...]]]:
    if not compiled:
        return _map, _moments
    return torch.compile(_map, dynamic=True), torch.compile(_moments, dynamic=True)
