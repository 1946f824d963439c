"""Where the feature map looks at mixtures: equispaced nodes on two axes, and the error that they leave.

A Gaussian around μ·1 in n dimensions is round about the line of all multiples of **1**. It depends on two numbers only:
the place u = 1ᵀz/√n along that line, and y, the logarithm of the distance from it. docs/feature_map.md derives what
follows from there.
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
"""Error that steps and ends of the axes are chosen for, relative to inner products and to squared norms."""


def outside_of_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Keep torch.compile out of a function that builds a grid, which depends on numbers that no graph knows."""
    kept_out: Callable[P, R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return kept_out


@dataclass(frozen=True)
class Axis:
    """Equispaced nodes, from the first one on."""

    first: float
    step: float
    nodes: int

    def places(self, like: Tensor) -> Tensor:
        """The nodes, on the device of `like`, in float64 where it has that."""
        return self.first + self.step * to_float64(torch.arange(self.nodes, device=like.device, dtype=torch.float32))


@dataclass(frozen=True)
class Grid:
    """The nodes along the line, and those across it; in one dimension there is nothing across.

    Components are sampled with norm one (`power` ¼, for inner products of densities) or with mass one (½, of their
    roots): along the line they go with σ^(−2·power), across it as exp(−power·m(e^2ξ − 1 − 2ξ)), m = n − 1.
    """

    along: Axis
    across: Axis | None
    dim: int
    power: float

    @property
    def nodes(self) -> int:
        """How many points the grid has: numbers in a feature vector."""
        return self.along.nodes * (self.across.nodes if self.across else 1)

    @property
    def sharpness(self) -> float:
        """What (e^2ξ − 1 − 2ξ) is multiplied by across the line."""
        return self.power * (self.dim - 1)


def grid_for(
    sides: list[Components], dim: int, *, kind: Literal["norm", "mass"] = "norm", step: float = 1.0
) -> Grid | None:
    """The smallest grid that holds all components of all sides; None where a parameter is not finite.

    Steps are those that suffice for inner products of components of norm one, times `step`.
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
    """The narrowest deviation, and the ends of what counts along and across the line, the upper ones negated.

    What all K components of a row together have outside of the ends is at most `error`, squared norm or mass, in units
    of the heaviest. A light component comes to its end sooner than a heavy one, and one that is light enough has none.
    """
    log_norm, mean, variance = (to_float64(x.detach()) for x in c)
    enough = -math.log(error)
    together = (log_norm + math.log(log_norm.shape[1])).clamp(max=0)  # if all K were as heavy, in the same place
    depth = (enough + together / (2 * power)).clamp(min=0)  # by how much, in logarithms, it still has to sink
    place, deviation = math.sqrt(dim) * mean, variance.sqrt()
    reach = (4 * power * depth).sqrt() * deviation
    ends = [place - reach, -place - reach]
    if dim > 1:
        middle, (below, above) = middle_across(dim, power) + 0.5 * variance.log(), tails_across(dim, error)
        # From the middle down the logarithm falls ever slower, and up ever faster, than the parabola −mξ².
        ends += [middle - below * (depth / enough).sqrt(), -middle - (depth / (dim - 1)).sqrt().clamp(max=above)]
    else:
        ends += [torch.zeros_like(place)] * 2
    at_ends = [end.where(depth > 0, math.inf).amin() for end in ends]
    # A sum carries what is not finite where a comparison drops it.
    return torch.stack([deviation.amin(), *at_ends]) + 0 * (place.sum() + variance.sum())


def step_along(narrowest: float, error: float) -> float:
    """The step h at which the trapezoidal rule is wrong by 2 exp(−π²σ²/h²) of the inner product."""
    return math.pi * narrowest / math.sqrt(math.log(2 / error))


@cache
def step_across(dim: int, error: float) -> float:
    """The step h at which the trapezoidal rule is wrong by 2 |Γ(m/2 + iπ/h)| / Γ(m/2), m = n − 1, of the product."""
    m = dim - 1

    def excess(step: float) -> float:
        return math.log(2) + float(loggamma(complex(m / 2, math.pi / step)).real) - math.lgamma(m / 2) - math.log(error)

    return _root(excess, 1e-4 / math.sqrt(m), 10.0)


def middle_across(dim: int, power: float) -> float:
    """Where a component of deviation one is largest across the line: ½ log(2·power·m)."""
    return 0.5 * math.log(2 * power * (dim - 1))


@cache
def tails_across(dim: int, error: float) -> tuple[float, float]:
    """How far below and above its middle the square of a component, exp(−(m/2)(e^2ξ − 1 − 2ξ)), has sunk to `error`."""

    def left(distance: float, sign: int) -> float:
        xi = sign * distance
        return (dim - 1) / 2 * (math.expm1(2 * xi) - 2 * xi) + math.log(error)

    return _root(lambda d: left(d, -1), 0.0, 100.0), _root(lambda d: left(d, 1), 0.0, 100.0)


def _axis(low: float, high: float, step: float) -> Axis:
    return Axis(low, step, math.ceil((high - low) / step) + 1)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where an increasing function is zero, by halving."""
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2
