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

Normalization = Literal["norm", "mass"]

ERROR = {torch.float32: 1e-8, torch.float64: 1e-15}
"""Quadrature error, relative to inner products and squared norms, that determines the steps and ends of the axes."""

POWER: dict[Normalization, float] = {"norm": 0.25, "mass": 0.5}
"""Value of `Grid.power` that gives the sampled components unit norm or unit mass."""


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
        indices = torch.arange(self.nodes, device=like.device, dtype=torch.float32)
        return self.first + self.step * to_float64(indices)


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
        if self.across is None:
            return self.along.nodes
        return self.along.nodes * self.across.nodes

    @property
    def sharpness(self) -> float:
        """Factor of (e^2ξ − 1 − 2ξ) in the exponent across the line."""
        return self.power * (self.dim - 1)


def grid_for(sides: list[Components], dim: int, *, kind: Normalization = "norm", step: float = 1.0) -> Grid | None:
    """Return the smallest grid that covers all components, or None if a parameter is not finite.

    A component with the mean μ·1 depends on two coordinates: the position along the line spanned by **1**, and the
    log-distance from this line. In one dimension there is only the first.

    Components are sampled with unit norm or unit mass, depending on `kind`. `step` multiplies the steps that are
    sufficient for inner products of unit-norm components.
    """
    error = ERROR[sides[0].variance.dtype]
    power = POWER[kind]
    bounds_of_sides = torch.stack([_bounds(side, dim, error, power) for side in sides])
    bounds = bounds_of_sides.amin(0).tolist()  # the upper ends are negated, so the minimum covers all sides
    if not all(map(math.isfinite, bounds)):
        return None
    narrowest, left, minus_right, low, minus_high = bounds
    along = _axis(left, -minus_right, step * step_along(narrowest, error))
    if dim == 1:
        return Grid(along, None, dim, power)
    across = _axis(low, -minus_high, step * step_across(dim, error))
    return Grid(along, across, dim, power)


def _bounds(c: Components, dim: int, error: float, power: float) -> Float[Tensor, "5"]:
    """Return the smallest standard deviation and the ends of both axes: left, −right, low and −high.

    The upper ends are negated, so that the minimum over several sides covers all of them. In one dimension, low and
    high are 0.

    Outside the ends, the squared norm or mass of the K components of a row adds up to at most `error`, relative to the
    component with the largest norm. Components with small norm need shorter axes, and components with negligible norm
    are ignored.
    """
    log_norm, mean, variance = (to_float64(x.detach()) for x in c)
    components = log_norm.shape[1]
    full_depth = -math.log(error)
    log_total = (log_norm + math.log(components)).clamp(max=0)  # as if all K components had this norm and mean
    # Dividing by 2 · power gives the logarithm of the squared norm (power ¼) or of the mass (power ½).
    depth = (full_depth + log_total / (2 * power)).clamp(min=0)  # remaining decay to `error`, in log units

    position = math.sqrt(dim) * mean
    deviation = variance.sqrt()
    # Along the line, the squared norm or mass falls as exp(−distance² / (4 · power · v)). At `reach`, it is e^−depth.
    reach = (4 * power * depth).sqrt() * deviation
    left, right = position - reach, position + reach
    if dim == 1:
        low = high = torch.zeros_like(position)
    else:
        middle = middle_across(dim, power) + 0.5 * variance.log()
        below, above = tails_across(dim, error)
        # Compared with the parabola −mξ², the logarithm falls more slowly below the mode and faster above it.
        low = middle - below * (depth / full_depth).sqrt()
        high = middle + (depth / (dim - 1)).sqrt().clamp(max=above)

    matters = depth > 0
    outer_ends = [end.where(matters, math.inf).amin() for end in (left, -right, low, -high)]
    # The sum propagates NaN and inf, which a comparison would drop.
    not_finite = 0 * (position.sum() + variance.sum())
    return torch.stack([deviation.amin(), *outer_ends]) + not_finite


def step_along(narrowest: float, error: float) -> float:
    """Return the step h whose trapezoidal error 2 exp(−π²σ²/h²), relative to the inner product, is `error`."""
    return math.pi * narrowest / math.sqrt(math.log(2 / error))


@cache
def step_across(dim: int, error: float) -> float:
    """Return the step h whose relative trapezoidal error 2 |Γ(m/2 + iπ/h)| / Γ(m/2), m = n − 1, is `error`."""
    m = dim - 1

    def log_excess(step: float) -> float:
        log_gamma = float(loggamma(complex(m / 2, math.pi / step)).real)  # log |Γ(m/2 + iπ/h)|
        return math.log(2) + log_gamma - math.lgamma(m / 2) - math.log(error)

    # The step is between 0.1/√m and 1.4/√m for every error in use, far from both ends of this interval.
    return _root(log_excess, 1e-4 / math.sqrt(m), 10.0)


def middle_across(dim: int, power: float) -> float:
    """Return the mode across the line of a component with σ = 1: ½ log(2·power·m)."""
    return 0.5 * math.log(2 * power * (dim - 1))


@cache
def tails_across(dim: int, error: float) -> tuple[float, float]:
    """Return the distances below and above the mode at which exp(−(m/2)(e^2ξ − 1 − 2ξ)) falls to `error`."""

    def log_excess(xi: float) -> float:
        """Return log(error) minus the exponent; it increases with the distance |ξ| on both sides."""
        return (dim - 1) / 2 * (math.expm1(2 * xi) - 2 * xi) + math.log(error)

    below = _root(lambda distance: log_excess(-distance), 0.0, 100.0)
    above = _root(log_excess, 0.0, 100.0)
    return below, above


def _axis(low: float, high: float, step: float) -> Axis:
    """Return an axis whose last node is at `high` or at most one step above it."""
    intervals = math.ceil((high - low) / step)
    return Axis(low, step, intervals + 1)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the zero of an increasing function, by bisection."""
    for _ in range(100):  # more halvings than a float has digits
        middle = (low + high) / 2
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
