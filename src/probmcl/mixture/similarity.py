"""Similarity of mixtures with scalar means: Sim(p_i, p_j) of ProbMCL, section 2.2, and the Bhattacharyya coefficient.

Sim is built from the correlation of two components,

    κ = ⟨N, N'⟩ / (‖N‖ ‖N'‖) = (2σσ'/S)^(n/2) exp(−‖m − m'‖² / 2S),   S = σ² + σ'²,

which lies in (0, 1] for any dimension n, so that nothing underflows where (2πS)^(−n/2) would from n ≈ 70 on.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from probmcl.mixture import pairs
from probmcl.mixture.density import (
    Components,
    IsotropicMixture,
    at_most_one,
    check_same_space,
    components_that_count,
    of_nothing,
    one_with_itself,
)
from probmcl.mixture.feature_map import MEMORY, bytes_needed, cosines, features, refuse_above
from probmcl.mixture.grid import Grid, grid_for, outside_of_graphs
from probmcl.runtime.precision import full_precision, to_float64

Way = Literal["auto", "tiled", "features", "compiled"]

FLOAT64_SIMILARITY = 0.95
"""If even the smallest similarity is above this, float32 leaves too few digits for the gradients."""

SLOW_COST = 1e9
"""Cost of all pairs, in the unit below, above which the fallback to them is worth a warning: about 40 ms."""

PAIR_COST, VALUE_COST = 1000, 300
"""Cost of a pair of components, and of a component on a node of an axis, in multiplications of a matrix product.

Measured on a CPU, forward and backward: 38 ns, 11 ns and 0.04 ns.
"""


@dataclass(frozen=True)
class Plan:
    """How similarities are computed: by all pairs of components, or by feature vectors on a grid.

    Attributes:
        way: `tiled`, `features` or `compiled`.
        grid: the nodes; None where the way is `tiled`.
        components: components of a row that are looked at; those of next to no norm are left out.
        bytes: most memory that it will take at once, about.
        bytes_in_float64: the same for the second pass, if all mixtures turn out to be alike.
        dtype: precision it is computed in.
        reason: why this way.
        fell_back: whether the grid was too large for a way that would have been taken.
    """

    way: Literal["tiled", "features", "compiled"]
    grid: Grid | None
    components: int
    bytes: int
    dtype: torch.dtype
    reason: str
    bytes_in_float64: int = 0
    fell_back: bool = False


@outside_of_graphs
@full_precision
def correlation(p: IsotropicMixture, q: IsotropicMixture | None = None, *, way: Way = "auto") -> Float[Tensor, "M P"]:
    """Return the correlation coefficient of two mixtures with scalar means, over all pairs of components.

    Sim(p, q) = ∫pq / √(∫p² ∫q²). With weights w_k = π_k σ_k^(−n/2), which are the norms ‖π_k N_k‖ up to a factor that
    cancels, ∫pq = Σ_kl w_k w'_l κ_kl. Symmetric, in [0, 1], and 1 between equal mixtures. Where all mixtures are nearly
    the same, it is computed in float64. It can be differentiated once.

    Reference: ProbMCL, text below Eq. 3.

    Args:
        p: M mixtures.
        q: P mixtures; None compares p with itself.
        way: how it is computed, equal up to rounding. `tiled` walks over all pairs of components; `features` compares
            feature vectors, which takes time linear in the components; `compiled` is the same through torch.compile,
            which needs a compiler on the machine. `auto` takes the cheaper of the first two; `plan` returns which. A
            requested way is taken or refused, except that a pass in float64 that does not fit into memory is tiled.

    >>> p = IsotropicMixture(torch.zeros(2, 1), torch.tensor([[0.0], [2.0]]), torch.ones(2, 1), dim=1)
    >>> correlation(p)  # exp(−n d²/4)
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """
    _check(p, q, way)
    if _is_empty(p, q):
        return of_nothing(p, q or p)
    dtype = p.variance.dtype
    a, b = _sides(p, q, dtype)
    similarity = _compared(a, b, p.dim, _planned(a, b, p.dim, way))
    coarse = similarity.dtype != torch.float64 and similarity.device.type != "mps"
    if coarse and bool(similarity.detach().amin() > FLOAT64_SIMILARITY):
        del similarity  # and what it keeps for backward
        a, b = _sides(p, q, torch.float64)
        similarity = _compared(a, b, p.dim, _planned(a, b, p.dim, way, may_refuse=False)).to(dtype)
    return at_most_one(similarity if q is not None else one_with_itself(similarity))


@full_precision
def plan(p: IsotropicMixture, q: IsotropicMixture | None = None, *, way: Way = "auto") -> Plan:
    """Return how `correlation` would compute it.

    >>> p = IsotropicMixture(torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(2, 1), dim=128)
    >>> plan(p).way
    'tiled'
    """
    _check(p, q, way)
    if _is_empty(p, q):
        return Plan("tiled", None, p.variance.shape[1], 0, p.variance.dtype, "there are no rows")
    first = _planned(*_sides(p, q, p.variance.dtype), p.dim, way)
    second = _planned(*_sides(p, q, to_float64(p.variance).dtype), p.dim, way, may_refuse=False)
    prepared = 64 * (p.variance.numel() + (0 if q is None else q.variance.numel()))
    return replace(first, bytes=first.bytes + prepared, bytes_in_float64=second.bytes + prepared)


def _is_empty(p: IsotropicMixture, q: IsotropicMixture | None) -> bool:
    return 0 in (len(p.variance), len((q or p).variance))


def _check(p: IsotropicMixture, q: IsotropicMixture | None, way: Way) -> None:
    if way not in get_args(Way):
        raise ValueError(f"way={way!r}; there are {', '.join(map(repr, get_args(Way)))}")
    _check_scalar_means(p, q)


def _check_scalar_means(p: IsotropicMixture, q: IsotropicMixture | None) -> None:
    if p.has_vector_means or (q is not None and q.has_vector_means):
        raise ValueError("only for scalar means; for vector means there is aligned_correlation()")
    check_same_space(p, q or p)


def _sides(p: IsotropicMixture, q: IsotropicMixture | None, dtype: torch.dtype) -> tuple[Components, Components | None]:
    return components_that_count(p, dtype), None if q is None else components_that_count(q, dtype)


def _compared(a: Components, b: Components | None, dim: int, chosen: Plan) -> Float[Tensor, "M P"]:
    if chosen.fell_back:
        _warn_that_the_grid_is_too_large()
    if chosen.grid is None:
        inner = pairs.inner_products(a, b, dim)
        squares = [inner.diagonal()] * 2 if b is None else [pairs.squares(side, dim) for side in (a, b)]
        return inner / (squares[0].sqrt()[:, None] * squares[1].sqrt()[None, :])
    compiled = chosen.way == "compiled"
    others = None if b is None else features(b, chosen.grid, compiled=compiled)
    return cosines(features(a, chosen.grid, compiled=compiled), others)


def _planned(a: Components, b: Components | None, dim: int, way: Way, *, may_refuse: bool = True) -> Plan:
    sides = [a] if b is None else [a, b]
    components, dtype = max(side.mean.shape[1] for side in sides), a.variance.dtype
    numbers = 14 * pairs.TILE + 8 * len(sides[0].mean) * len(sides[-1].mean)
    tiled = Plan("tiled", None, components, numbers * dtype.itemsize, dtype, "asked for")
    if way == "tiled":
        return tiled
    grid = grid_for(sides, dim)
    if grid is None:
        return replace(tiled, reason="not every parameter is finite")
    size = bytes_needed(sides, grid)
    if way != "auto" and may_refuse:
        refuse_above(MEMORY, sides, grid, remedy=f"take 'tiled' or 'auto' instead of {way!r}")
    if way != "auto" and size <= MEMORY:
        return Plan(way, grid, components, size, dtype, "asked for")
    by_pairs, by_features = _costs(sides, grid)
    if size > MEMORY:
        reason = f"{grid.nodes:,} nodes would take {size / 1e9:.1f} GB"
        return replace(tiled, reason=reason, fell_back=by_pairs > SLOW_COST)
    if by_pairs <= by_features:
        return replace(tiled, reason=f"all pairs cost {by_pairs / by_features:.2g} of {grid.nodes:,} nodes")
    reason = f"{grid.nodes:,} nodes cost {by_features / by_pairs:.2g} of all pairs"
    return Plan("features", grid, components, size, dtype, reason)


def _costs(sides: list[Components], grid: Grid) -> tuple[float, float]:
    """What all pairs of components cost, and feature vectors on a grid, in multiplications of a matrix product."""
    rows, columns = len(sides[0].mean), len(sides[-1].mean)
    components = [side.mean.shape[1] for side in sides]
    by_pairs = PAIR_COST * rows * columns * components[0] * components[-1] / (3 - len(sides))
    values = grid.along.nodes + (grid.across.nodes if grid.across else 0)
    mapped = sum(side.mean.numel() for side in sides)
    by_features = mapped * (VALUE_COST * values + 3.0 * grid.nodes) + 3 * rows * columns * grid.nodes
    return by_pairs, by_features


@cache
def _warn_that_the_grid_is_too_large() -> None:
    warnings.warn(
        f"means or variances lie so far apart that the mixtures' feature vectors would take more than "
        f"{MEMORY / 1e9:.1f} GB; their similarity is computed from all pairs of components instead, which is slower",
        stacklevel=2,
    )


@outside_of_graphs
@full_precision
def bhattacharyya(p: IsotropicMixture, q: IsotropicMixture | None = None, *, step: float = 0.5) -> Float[Tensor, "M P"]:
    """Return the Bhattacharyya coefficient ∫√(pq) of two mixtures with scalar means, from 0 to 1 for equal mixtures.

    There is no closed form. The roots of the densities are sampled on the grid of the feature map, and their inner
    product is the trapezoidal rule for the integral. The change when `step` is halved estimates the error.

    Args:
        p: M mixtures.
        q: P mixtures; None compares p with itself.
        step: distance of the nodes relative to those of `correlation`, which suffice for squares but not for roots;
            half of it takes four times as many nodes.

    >>> p = IsotropicMixture(torch.zeros(2, 1), torch.tensor([[0.0], [2.0]]), torch.ones(2, 1), dim=1)
    >>> bhattacharyya(p)  # exp(−n d²/8)
    tensor([[1.0000, 0.6065],
            [0.6065, 1.0000]])
    """
    _check_scalar_means(p, q)
    if _is_empty(p, q):
        return of_nothing(p, q or p)
    sides = [Components(m.log_weight.log_softmax(1), m.mean, m.variance) for m in ((p,) if q is None else (p, q))]
    grid = grid_for(sides, p.dim, kind="mass", step=step)
    if grid is None:
        raise ValueError("a mean or a variance is not finite")
    refuse_above(MEMORY, sides, grid, remedy="give a larger step")
    # The smallest normal number keeps the slope of the root finite where a density has vanished.
    roots = [(density + torch.finfo(torch.float32).tiny).sqrt() for density in (features(s, grid) for s in sides)]
    # Their lengths are one, up to the error.
    return at_most_one(one_with_itself(cosines(roots[0], None)) if q is None else cosines(*roots))
