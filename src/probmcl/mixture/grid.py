"""Quadrature grid for the feature map: equispaced nodes on two axes, with steps and ends that bound the error.

A Gaussian centered at μ·1 in n dimensions is symmetric about the line spanned by **1**. It depends on only two
coordinates: the position u = 1ᵀz/√n along that line and the log-distance y from it. The derivation is in
docs/feature_map.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, ParamSpec, TypeVar

import torch
from jaxtyping import Float
from scipy.special import loggamma
from torch import Tensor

from probmcl.mixture.density import Components
from probmcl.runtime.precision import to_float64

P = ParamSpec("P")
R = TypeVar("R")

ERROR = {torch.float32: 1e-8, torch.float64: 1e-15}
"""Quadrature error, relative to inner products and squared norms, that determines the steps and ends of the axes."""


def disable_compile(function: Callable[P, R]) -> Callable[P, R]:
    """Exclude a function from torch.compile, because the size of a grid depends on tensor values."""
    disabled: Callable[P, R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return disabled


@dataclass(frozen=True)
class Axis:
    """Equispaced nodes, starting at `first`."""

    first: float
    step: float
    nodes: int

    def positions(self, like: Tensor) -> Tensor:
        """Return the node positions on the device of `like`, in float64 if the device supports it."""
        return self.first + self.step * to_float64(torch.arange(self.nodes, device=like.device, dtype=torch.float32))


@dataclass(frozen=True)
class Grid:
    """Nodes along the line and across it; in one dimension, `across` is None.

    Components are sampled with unit norm (`power` ¼, for inner products of densities) or with unit mass (½, for inner
    products of their roots). Along the line they scale with σ^(−2·power), and across it they are proportional to
    exp(−power·m(e^2ξ − 1 − 2ξ)), where m = n − 1.
    """

    along: Axis
    across: Axis | None
    dim: int
    power: float

    @property
    def nodes(self) -> int:
        """Number of grid points, which is the size of a feature vector."""
        return self.along.nodes * (self.across.nodes if self.across else 1)

    @property
    def sharpness(self) -> float:
        """Factor of (e^2ξ − 1 − 2ξ) in the exponent across the line."""
        return self.power * (self.dim - 1)


def grid_for(
    sides: list[Components], dim: int, *, kind: Literal["norm", "mass"] = "norm", step: float = 1.0
) -> Grid | None:
    """Return the smallest grid that covers all components, or None if a parameter is not finite.

    `step` multiplies the steps that are sufficient for inner products of unit-norm components.
    """
    error, power = ERROR[sides[0].variance.dtype], {"norm": 0.25, "mass": 0.5}[kind]
    bounds = torch.stack([_bounds(c, dim, error, power) for c in sides]).amin(0).tolist()
    if not all(map(math.isfinite, bounds)):
        return None
    narrowest, left, right, low, high = bounds
    along = _axis(left, -right, step * step_along(narrowest, error))
    if dim == 1:
        return Grid(along, None, dim, power)
    return Grid(along, _axis(low, -high, step * step_across(dim, error)), dim, power)


def _bounds(c: Components, dim: int, error: float, power: float) -> Float[Tensor, "5"]:
    """Return the smallest standard deviation and the ends of both axes, along the line first, with upper ends negated.

    Outside the ends, the squared norm or mass of the K components of a row adds up to at most `error`, relative to the
    component with the largest norm. Components with small norm need shorter axes, and components with negligible norm
    are ignored.
    """
    log_norm, mean, variance = (to_float64(x.detach()) for x in c)
    full_depth = -math.log(error)
    log_bound = (log_norm + math.log(log_norm.shape[1])).clamp(max=0)  # as if all K components had this norm and mean
    depth = (full_depth + log_bound / (2 * power)).clamp(min=0)  # remaining decay to `error`, in log units
    position, deviation = math.sqrt(dim) * mean, variance.sqrt()
    reach = (4 * power * depth).sqrt() * deviation
    ends = [position - reach, -position - reach]
    if dim > 1:
        middle, (below, above) = middle_across(dim, power) + 0.5 * variance.log(), tails_across(dim, error)
        # Compared with the parabola −mξ², the logarithm falls more slowly below the mode and faster above it.
        ends += [middle - below * (depth / full_depth).sqrt(), -middle - (depth / (dim - 1)).sqrt().clamp(max=above)]
    else:
        ends += [torch.zeros_like(position)] * 2
    outer_ends = [end.where(depth > 0, math.inf).amin() for end in ends]
    # The sum propagates NaN and inf, which a comparison would drop.
    return torch.stack([deviation.amin(), *outer_ends]) + 0 * (position.sum() + variance.sum())


def step_along(narrowest: float, error: float) -> float:
    """Return the step h whose trapezoidal error 2 exp(−π²σ²/h²), relative to the inner product, is `error`."""
    return math.pi * narrowest / math.sqrt(math.log(2 / error))


@cache
def step_across(dim: int, error: float) -> float:
    """Return the step h whose relative trapezoidal error 2 |Γ(m/2 + iπ/h)| / Γ(m/2), m = n − 1, is `error`."""
    m = dim - 1

    def excess(step: float) -> float:
        return math.log(2) + float(loggamma(complex(m / 2, math.pi / step)).real) - math.lgamma(m / 2) - math.log(error)

    return _root(excess, 1e-4 / math.sqrt(m), 10.0)


def middle_across(dim: int, power: float) -> float:
    """Return the mode across the line of a component with σ = 1: ½ log(2·power·m)."""
    return 0.5 * math.log(2 * power * (dim - 1))


@cache
def tails_across(dim: int, error: float) -> tuple[float, float]:
    """Return the distances below and above the mode at which exp(−(m/2)(e^2ξ − 1 − 2ξ)) falls to `error`."""

    def excess(distance: float, sign: int) -> float:
        xi = sign * distance
        return (dim - 1) / 2 * (math.expm1(2 * xi) - 2 * xi) + math.log(error)

    return _root(lambda d: excess(d, -1), 0.0, 100.0), _root(lambda d: excess(d, 1), 0.0, 100.0)


def _axis(low: float, high: float, step: float) -> Axis:
    return Axis(low, step, math.ceil((high - low) / step) + 1)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the zero of an increasing function, by bisection."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2
