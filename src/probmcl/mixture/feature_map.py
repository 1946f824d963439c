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
    """Estimate the peak memory of feature vectors, unit vectors, their gradients, one block, parameters and results.

    The factors are upper bounds on the number of tensors of each kind that exist at the same time. A single side is
    compared with itself.
    """
    rows = sum(len(side.mean) for side in sides)
    parameters = sum(side.mean.numel() for side in sides)
    results = len(sides[0].mean) * len(sides[-1].mean)
    elements = 4 * rows * grid.nodes + 5 * BLOCK + 32 * parameters + 8 * results
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
        """Return the cosines (M, P) of the rows of `a` (M, Q) and `b` (P, Q); without `b`, those of `a` with itself."""
        # Both lengths come first: they need a temporary copy in float64, and no unit vectors exist yet.
        length_a = _lengths(a)
        length_b = length_a if b is None else _lengths(b)
        unit_a = a / length_a
        unit_b = unit_a if b is None else b / length_b
        # In float32, a sum over tens of thousands of nodes is more accurate as a sum of partial sums.
        pieces = zip(torch.split(unit_a, PIECE, 1), torch.split(unit_b, PIECE, 1), strict=True)
        cosine = a.new_zeros(len(unit_a), len(unit_b))
        for piece_a, piece_b in pieces:
            cosine += piece_a @ piece_b.T
        ctx.symmetric = b is None
        ctx.save_for_backward(unit_a, unit_b, length_a, length_b, cosine)
        return cosine

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of `a` and `b`; None for one that needs none. `grad` is dL/dcos of shape (M, P)."""
        unit_a, unit_b, length_a, length_b, cosine = ctx.saved_tensors
        if ctx.symmetric:  # a vector is row i of the cosines, and also column i
            return _gradient_of_vectors(grad + grad.T, cosine, unit_a, length_a, unit_a), None
        needs_a, needs_b = ctx.needs_input_grad
        grad_a = grad_b = None
        if needs_a:
            grad_a = _gradient_of_vectors(grad, cosine, unit_a, length_a, unit_b)
        if needs_b:
            grad_b = _gradient_of_vectors(grad.T, cosine.T, unit_b, length_b, unit_a)
        return grad_a, grad_b


def _gradient_of_vectors(
    grad: Float[Tensor, "M P"],
    cosine: Float[Tensor, "M P"],
    unit: Float[Tensor, "M Q"],
    length: Float[Tensor, "M 1"],
    others: Float[Tensor, "P Q"],
) -> Float[Tensor, "M Q"]:
    """Return dL/dP_i = Σ_j (dL/dcos_ij) (P̂_j − cos_ij P̂_i) / ‖P_i‖ for the vectors P_i = `length` · `unit`.

    `others` are the unit vectors P̂_j. The part along P̂_i is subtracted, because the length of a vector does not change
    its cosines.
    """
    along = (grad * cosine).sum(1, keepdim=True)
    gradient = grad @ others
    # In place, because feature vectors are the largest tensors.
    gradient.addcmul_(unit, along, value=-1)
    gradient.div_(length)
    return gradient


def _lengths(vectors: Float[Tensor, "M Q"]) -> Float[Tensor, "M 1"]:
    """Return row norms summed in float64; over tens of thousands of nodes, float32 would lose the sixth digit."""
    dtype = to_float64(vectors[:0]).dtype
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True, dtype=dtype)
    return lengths.to(vectors.dtype)


class _Features(torch.autograd.Function):
    """Autograd function for P, which is computed block by block and recomputed in the backward pass.

    P(u, y) = Σ_k exp(ω_k) a_k(u) g_k(y), where u are positions along a line, and y are logarithms of the distance from
    it. A component has the log-weight ω, the mean x = √n μ on the line and the variance v = σ². With t = (u − x)/√(2v),
    its profile a along the line is proportional to v^(−power) exp(−t²). With ξ = y − middle, where middle is log σ plus
    a constant, its profile g across the line is proportional to exp(−sharpness (e^2ξ − 1 − 2ξ)). `power` and
    `sharpness` are constants of the grid. With a and g including the weight, dω = ⟨dP, ag⟩, dx = √(2/v) ⟨dP, t ag⟩ and
    dv = ⟨dP, (t² − power + sharpness (e^2ξ − 1)) ag⟩ / v.
    """

    @staticmethod
    def forward(ctx: Any, grid: Grid, *tensors: Tensor) -> Tensor:
        """Return the feature vector of each row (M, Q): the sum of its components at the Q nodes of the grid.

        `tensors` are ω, μ and v of the components, each of shape (M, K). A few rows and components are summed at a
        time to limit memory.
        """
        ctx.grid = grid
        ctx.save_for_backward(*tensors)
        c = Components(*tensors)
        profiles = _profiles(c, grid)
        nodes = _nodes(grid, profiles.height)
        vectors = c.log_norm.new_zeros(len(c.log_norm), grid.nodes)
        for rows, components in _blocks(c, grid):
            vectors[rows] += _sum_of_components(profiles.block(rows, components), nodes)
        return vectors

    @staticmethod
    @once_differentiable
    @full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of ω, μ and v, given the gradient dP of the feature vectors (M, Q).

        They are dω = ⟨dP, ag⟩, dμ = √(2n/v) ⟨dP, t ag⟩ and dv = ⟨dP, (t² − power + sharpness (e^2ξ − 1)) ag⟩ / v. Here
        ⟨ , ⟩ is the sum over the grid, and a(u) g(y) is a component: the product of its profiles along a line and
        across it, including its weight. t = (u − x)/√(2v) is the distance from its mean x = √n μ, and ξ is the distance
        of y from the peak of g. `power` and `sharpness` are constants of the grid.
        """
        grid, c = ctx.grid, Components(*ctx.saved_tensors)
        profiles = _profiles(c, grid)
        nodes = _nodes(grid, profiles.height)
        zeroth, first, second, across = (torch.empty_like(c.mean) for _ in _Moments._fields)
        for rows, components in _blocks(c, grid):
            moments = _moments(grad[rows], profiles.block(rows, components), nodes)
            zeroth[rows, components] = moments.zeroth
            first[rows, components] = moments.first
            second[rows, components] = moments.second
            across[rows, components] = moments.across
        d_mean = (2 * grid.dim / c.variance).sqrt() * first  # dx/dμ = √n
        d_variance = (second - grid.power * zeroth + across) / c.variance
        return None, zeroth, d_mean, d_variance  # of the grid, ω, μ and v


class _Profiles(NamedTuple):
    """Shapes of K components in each of R rows, in units of the grid: a along the line and g across it.

    Measuring from the nearest node, in units of √2 σ, keeps t = (u − x)/√(2v) accurate in float32.
    """

    height: Float[Tensor, "R K"]  # exp(ω), times the peaks of a and g, times the quadrature weight
    nearest_node: Float[Tensor, "R K"]  # index of the node along the line that is nearest to the mean x
    offset: Float[Tensor, "R K"]  # position of the nearest node relative to x, in units of √2 σ
    step: Float[Tensor, "R K"]  # distance of two nodes along the line, in units of √2 σ
    middle: Float[Tensor, "R K"]  # log-distance y at the peak of g, in float64

    def block(self, rows: slice, components: slice) -> "_Profiles":
        """Return the profiles of a few components in a few rows."""
        return _Profiles._make(x[rows, components] for x in self)


class _Nodes(NamedTuple):
    """Nodes of a grid, as tensors on the device of the components."""

    along: Float[Tensor, "Qu"]  # indices 0, 1, 2, …
    across: Float[Tensor, "Qy"] | None  # log-distances y in float64; None in one dimension
    sharpness: float


class _Moments(NamedTuple):
    """Inner products ⟨dP, f a g⟩ of the gradient dP of the feature vectors with every component, for four factors f.

    a and g are the profiles of the component along and across the line, with its weight.
    """

    zeroth: Float[Tensor, "R K"]  # f = 1
    first: Float[Tensor, "R K"]  # f = t
    second: Float[Tensor, "R K"]  # f = t²
    across: Float[Tensor, "R K"]  # f = sharpness (e^2ξ − 1)


def _profiles(c: Components, grid: Grid) -> _Profiles:
    """Compute the shape of each component in units of the grid: its height, position, width and log-distance.

    The computation is in float64, because √n μ and ω are large and only their decimals matter. Along the line, a
    component is a Gaussian with the mean x = √n μ and the variance v. Across it, the peak is at the log-distance
    `middle`.
    """
    dtype = c.variance.dtype
    mean, variance = to_float64(c.mean), to_float64(c.variance)
    power, step = grid.power, grid.along.step

    position = math.sqrt(grid.dim) * mean - grid.along.first  # x, measured from the first node
    nearest_node = (position / step).round()
    width = (2 * variance).sqrt()  # √2 σ
    offset = (nearest_node * step - position) / width

    # The quadrature multiplies both a and g by step^(2 · power), the root of the step if components have unit norm.
    log_peak_along = -power * (4 * math.pi * power / step**2 * variance).log()
    log_height = c.log_norm + log_peak_along
    middle = torch.zeros_like(variance)
    if grid.across:
        middle = 0.5 * variance.log() + middle_across(grid.dim, power)
        log_peak_across = 2 * power * (_log_mass_factor(grid.dim - 1) + math.log(grid.across.step))
        log_height += log_peak_across
    return _Profiles(
        height=log_height.exp().to(dtype),
        nearest_node=nearest_node.to(dtype),
        offset=offset.to(dtype),
        step=(step / width).to(dtype),
        middle=middle,
    )


def _log_mass_factor(m: int) -> float:
    """Return log c such that c exp(−(m/2)(e^2ξ − 1 − 2ξ)) has unit mass and its root therefore has unit norm."""
    return math.log(2) - math.lgamma(m / 2) + m / 2 * (math.log(m / 2) - 1)


def _nodes(grid: Grid, like: Tensor) -> _Nodes:
    """Return the nodes of a grid on the device of `like`; indices along the line also have its dtype."""
    indices = torch.arange(grid.along.nodes, device=like.device, dtype=like.dtype)
    if grid.across is None:
        return _Nodes(indices, None, grid.sharpness)
    return _Nodes(indices, grid.across.positions(like), grid.sharpness)


def _blocks(c: Components, grid: Grid) -> Iterator[tuple[slice, slice]]:
    """Yield slices of rows and components with at most `BLOCK` values along either grid axis."""
    longest_axis = grid.along.nodes
    if grid.across:
        longest_axis = max(longest_axis, grid.across.nodes)
    rows, components = c.mean.shape
    components_per_block = max(1, BLOCK // longest_axis)
    rows_per_block = max(1, components_per_block // components)  # several rows only if all their components fit
    return itertools.product(slices(rows, rows_per_block), slices(components, components_per_block))


def _profile_along(profiles: _Profiles, nodes: _Nodes) -> tuple[Float[Tensor, "R K Qu"], Float[Tensor, "R K Qu"]]:
    """Return the profile exp(−t²) of each component, and t, at every node u along the line.

    t = (u − x)/√(2v) is the distance of the node from the mean x of the component, where v is its variance. It is
    computed as step · (number of nodes from the nearest node to u) + offset, where the offset is that of the node
    nearest to x. Both are in units of √(2v).
    """
    # In place, because these tensors have the size of a block.
    t = nodes.along - profiles.nearest_node[:, :, None]
    t *= profiles.step[:, :, None]
    t += profiles.offset[:, :, None]
    exponent = t.square().neg_()
    exponent.clamp_(min=LEAST_EXPONENT[t.dtype])
    return exponent.exp_(), t


def _profile_across(profiles: _Profiles, nodes: _Nodes) -> tuple[Float[Tensor, "R K Qy"], Float[Tensor, "R K Qy"]]:
    """Return the profile g of each component, and its slope, at every node y across the line.

        g = height · exp(−sharpness (e^2ξ − 1 − 2ξ))     slope = sharpness (e^2ξ − 1)     ξ = y − middle

    where y is the logarithm of the distance from the line, `middle` is its value at the peak of the component, and the
    height includes the weight of the component. Half the derivative of the logarithm of g by `middle` is the slope.
    Exponent and slope are small differences of large numbers, so they are computed in float64. In one dimension there
    is one node, with ξ = 0.
    """
    height = profiles.height[:, :, None]
    if nodes.across is None:
        return height, torch.zeros_like(height)
    y = nodes.across
    sharpness = nodes.sharpness
    # e^2ξ = e^2y e^(−2 middle) needs no exponential for every pair of a component and a node.
    growth = (sharpness * (2 * y).exp()) * (-2 * profiles.middle).exp()[:, :, None]  # sharpness e^2ξ
    linear = (1 + 2 * y) * sharpness - (2 * sharpness * profiles.middle)[:, :, None]  # sharpness (1 + 2ξ)
    # In place, because these tensors have the size of a block.
    exponent = linear.sub_(growth)
    exponent.clamp_(min=LEAST_EXPONENT[height.dtype])
    across = exponent.to(height.dtype).exp_()
    across *= height
    slope = growth.sub_(sharpness)
    return across, slope.to(height.dtype)


def _sum_of_components(profiles: _Profiles, nodes: _Nodes) -> Float[Tensor, "R Q"]:
    """Return Σ_k a_k(u) g_k(y) at every node (u, y) of the grid, over the components k of a block.

    a_k is the profile of a component along a line, and g_k its profile across the line. The weight of the component is
    a factor of g_k. The Q = Qu · Qy nodes of the result are in the order of u, then y.
    """
    along, _ = _profile_along(profiles, nodes)  # a: (R, K, Qu)
    across, _ = _profile_across(profiles, nodes)  # g, with the weight: (R, K, Qy)
    return torch.bmm(along.mT, across).flatten(1)


def _moments(grad: Float[Tensor, "R Q"], profiles: _Profiles, nodes: _Nodes) -> _Moments:
    """Return the four sums over the grid from which the gradients of every component are computed.

        sum_f = Σ_u Σ_y dP(u, y) f a(u) g(y)     with f = 1, t, t² and slope

    A component is a product a(u) g(y) on a grid with Qu nodes u along a line and Qy nodes y across it. The feature
    vectors P are the sums of all components, and `grad` is the gradient dP of the loss by P. The derivatives of a
    component by its weight, mean and variance are a(u) g(y) times these factors:

        a(u) = exp(−t²)                                       t = (u − x) / (√2 σ), the distance from the mean x
        g(y) = height · exp(−sharpness (e^2ξ − 1 − 2ξ))       slope = sharpness (e^2ξ − 1)

    where ξ = y − middle is the distance from the peak of g, and sharpness is a constant of the grid.
    """
    along, t = _profile_along(profiles, nodes)  # a and t: (R, K, Qu)
    across, slope = _profile_across(profiles, nodes)  # g and slope: (R, K, Qy)
    grad_on_grid = grad.reshape(len(grad), len(nodes.along), -1)  # (R, Qu, Qy)

    # 1, t and t² depend only on u, so the sum over y is the same for them. It is a matrix product, and comes first.
    # The terms of the sum over u are updated in place, because they have the size of a block.
    terms_along = torch.bmm(across, grad_on_grid.mT)  # (R, K, Qu): Σ_y dP g
    terms_along *= along  # f = 1
    zeroth = terms_along.sum(2)
    terms_along *= t  # f = t
    first = terms_along.sum(2)
    terms_along *= t  # f = t²
    second = terms_along.sum(2)

    # The slope depends only on y, so the sum over u comes first.
    terms_across = torch.bmm(along, grad_on_grid)  # (R, K, Qy): Σ_u dP a
    terms_across *= across
    terms_across *= slope
    return _Moments(zeroth, first, second, across=terms_across.sum(2))
