"""Similarity of mixtures with scalar means: Sim(p_i, p_j) in ProbMCL, section 2.2, and Bhattacharyya coefficient.

Sim is built from the correlation of two components,

    κ = ⟨N, N'⟩ / (‖N‖ ‖N'‖) = (2σσ'/S)^(n/2) exp(−‖m − m'‖² / 2S),   S = σ² + σ'²,

which lies in (0, 1] for any dimension n. The normalizing factor (2πS)^(−n/2) would underflow for n above about 70.
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
    cap_at_one,
    check_same_space,
    empty_similarity,
    prune_components,
    set_diagonal_to_one,
)
from probmcl.mixture.feature_map import MEMORY, bytes_needed, cosines, features, refuse_above
from probmcl.mixture.grid import Grid, disable_compile, grid_for
from probmcl.runtime.precision import full_precision, to_float64

Way = Literal["auto", "tiled", "features"]

FLOAT64_SIMILARITY = 0.95
"""If all similarities exceed this, `correlation` uses float64 because float32 gradients have too few correct digits."""

SLOW_COST = 1e9
"""Cost of computing all pairs, in the unit below, above which falling back to them causes a warning; about 40 ms."""

PAIR_COST, VALUE_COST = 1000, 300
"""Cost of a pair of components, and of a component at a node of an axis, in multiply-adds of a matrix product.

Measured on a CPU, forward and backward: 38 ns, 11 ns and 0.04 ns (one multiply-add).
"""


@dataclass(frozen=True)
class SimilarityPlan:
    """Algorithm for computing similarities: all pairs of components, or feature vectors on a grid.

    Attributes:
        way: `tiled` or `features`.
        grid: nodes of the feature vectors; None if the way is `tiled`.
        components: number of components per row after pruning those with negligible norm.
        bytes: estimated peak memory.
        bytes_in_float64: the same for the second pass in float64, which runs if all similarities are close to 1.
        dtype: precision of the first pass.
        reason: why this way was chosen.
        fell_back: True if the grid was too large and computing all pairs instead is slow.
    """

    way: Literal["tiled", "features"]
    grid: Grid | None
    components: int
    bytes: int
    dtype: torch.dtype
    reason: str
    bytes_in_float64: int = 0
    fell_back: bool = False


@disable_compile
@full_precision
def correlation(p: IsotropicMixture, q: IsotropicMixture | None = None, *, way: Way = "auto") -> Float[Tensor, "M P"]:
    """Return the correlation coefficient of two mixtures with scalar means, over all pairs of components.

    Sim(p, q) = ∫pq / √(∫p² ∫q²). With weights w_k = π_k σ_k^(−n/2), which are the norms ‖π_k N_k‖ up to a factor that
    cancels, ∫pq = Σ_kl w_k w'_l κ_kl. Sim is symmetric, lies in [0, 1], and is 1 for equal mixtures. It is computed in
    float64 if all mixtures are nearly equal. Second derivatives are not supported.

    Reference: ProbMCL, text below Eq. 3.

    Args:
        p: M mixtures.
        q: P mixtures; None compares p with itself.
        way: algorithm; the results agree up to rounding. `tiled` computes all pairs of components. `features` compares
            feature vectors, in time linear in the number of components. `auto` uses the cheaper of the two; `plan`
            returns the choice. Requesting a way that needs too much memory is an error, except in the float64 pass,
            which is then tiled.

    >>> p = IsotropicMixture(torch.zeros(2, 1), torch.tensor([[0.0], [2.0]]), torch.ones(2, 1), dim=1)
    >>> correlation(p)  # exp(−n d²/4)
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """
    _check(p, q, way)
    if _is_empty(p, q):
        return empty_similarity(p, q or p)
    dtype = p.variance.dtype
    a, b = _prune(p, q, dtype)
    similarity = _compute(a, b, p.dim, _make_plan(a, b, p.dim, way))
    is_float32 = similarity.dtype != torch.float64 and similarity.device.type != "mps"
    if is_float32 and bool(similarity.detach().amin() > FLOAT64_SIMILARITY):
        del similarity  # frees the tensors saved for backward
        a, b = _prune(p, q, torch.float64)
        similarity = _compute(a, b, p.dim, _make_plan(a, b, p.dim, way, may_refuse=False)).to(dtype)
    return cap_at_one(similarity if q is not None else set_diagonal_to_one(similarity))


@full_precision
def plan(p: IsotropicMixture, q: IsotropicMixture | None = None, *, way: Way = "auto") -> SimilarityPlan:
    """Return the algorithm and memory that `correlation` would use.

    >>> p = IsotropicMixture(torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(2, 1), dim=128)
    >>> plan(p).way
    'tiled'
    """
    _check(p, q, way)
    if _is_empty(p, q):
        return SimilarityPlan("tiled", None, p.variance.shape[1], 0, p.variance.dtype, "a side has no rows")
    first = _make_plan(*_prune(p, q, p.variance.dtype), p.dim, way)
    second = _make_plan(*_prune(p, q, to_float64(p.variance).dtype), p.dim, way, may_refuse=False)
    preparation = 64 * (p.variance.numel() + (0 if q is None else q.variance.numel()))
    return replace(first, bytes=first.bytes + preparation, bytes_in_float64=second.bytes + preparation)


def _is_empty(p: IsotropicMixture, q: IsotropicMixture | None) -> bool:
    return 0 in (len(p.variance), len((q or p).variance))


def _check(p: IsotropicMixture, q: IsotropicMixture | None, way: Way) -> None:
    if way not in get_args(Way):
        raise ValueError(f"`way` must be one of {', '.join(map(repr, get_args(Way)))}, got {way!r}")
    _check_scalar_means(p, q)


def _check_scalar_means(p: IsotropicMixture, q: IsotropicMixture | None) -> None:
    if p.has_vector_means or (q is not None and q.has_vector_means):
        raise ValueError("only scalar means are supported; use aligned_correlation() for vector means")
    check_same_space(p, q or p)


def _prune(p: IsotropicMixture, q: IsotropicMixture | None, dtype: torch.dtype) -> tuple[Components, Components | None]:
    return prune_components(p, dtype), None if q is None else prune_components(q, dtype)


def _compute(a: Components, b: Components | None, dim: int, algorithm: SimilarityPlan) -> Float[Tensor, "M P"]:
    if algorithm.fell_back:
        _warn_about_fallback()
    if algorithm.grid is None:
        inner = pairs.inner_products(a, b, dim)
        squares = [inner.diagonal()] * 2 if b is None else [pairs.squares(side, dim) for side in (a, b)]
        return inner / (squares[0].sqrt()[:, None] * squares[1].sqrt()[None, :])
    others = None if b is None else features(b, algorithm.grid)
    return cosines(features(a, algorithm.grid), others)


def _make_plan(a: Components, b: Components | None, dim: int, way: Way, *, may_refuse: bool = True) -> SimilarityPlan:
    sides = [a] if b is None else [a, b]
    components, dtype = max(side.mean.shape[1] for side in sides), a.variance.dtype
    elements = 14 * pairs.TILE + 8 * len(sides[0].mean) * len(sides[-1].mean)
    tiled = SimilarityPlan("tiled", None, components, elements * dtype.itemsize, dtype, "requested")
    if way == "tiled":
        return tiled
    grid = grid_for(sides, dim)
    if grid is None:
        return replace(tiled, reason="a mean or variance is not finite")
    size = bytes_needed(sides, grid)
    if way != "auto" and may_refuse:
        refuse_above(MEMORY, sides, grid, remedy=f"use way='tiled' or 'auto' instead of {way!r}")
    if way != "auto" and size <= MEMORY:
        return SimilarityPlan(way, grid, components, size, dtype, "requested")
    by_pairs, by_features = _costs(sides, grid)
    if size > MEMORY:
        reason = f"{grid.nodes:,} nodes would need {size / 1e9:.1f} GB"
        return replace(tiled, reason=reason, fell_back=by_pairs > SLOW_COST)
    if by_pairs <= by_features:
        return replace(tiled, reason=f"{by_pairs / by_features:.2g} times the cost of {grid.nodes:,} nodes")
    reason = f"{by_features / by_pairs:.2g} times the cost of all pairs, with {grid.nodes:,} nodes"
    return SimilarityPlan("features", grid, components, size, dtype, reason)


def _costs(sides: list[Components], grid: Grid) -> tuple[float, float]:
    """Estimate the cost of all pairs of components and of feature vectors, in multiply-adds of a matrix product."""
    rows, columns = len(sides[0].mean), len(sides[-1].mean)
    components = [side.mean.shape[1] for side in sides]
    by_pairs = PAIR_COST * rows * columns * components[0] * components[-1] / (3 - len(sides))
    values = grid.along.nodes + (grid.across.nodes if grid.across else 0)
    mapped = sum(side.mean.numel() for side in sides)
    by_features = mapped * (VALUE_COST * values + 3.0 * grid.nodes) + 3 * rows * columns * grid.nodes
    return by_pairs, by_features


@cache
def _warn_about_fallback() -> None:
    warnings.warn(
        f"means or variances are so far apart that the feature vectors of the mixtures would need more than "
        f"{MEMORY / 1e9:.1f} GB; computing all pairs of components instead, which is slower",
        stacklevel=2,
    )


@disable_compile
@full_precision
def bhattacharyya(p: IsotropicMixture, q: IsotropicMixture | None = None, *, step: float = 0.5) -> Float[Tensor, "M P"]:
    """Return the Bhattacharyya coefficient ∫√(pq) of two mixtures with scalar means; it is 1 for equal mixtures.

    The integral has no closed form. It is computed using the trapezoidal rule, as the inner product of the square roots
    of the densities on the feature map's grid. To estimate the error, halve `step` and compare the results.

    Args:
        p: M mixtures.
        q: P mixtures; None compares p with itself.
        step: distance between nodes, relative to the grid of `correlation`, which is too coarse for square
            roots of densities. Halving it doubles the number of nodes on each axis.

    >>> p = IsotropicMixture(torch.zeros(2, 1), torch.tensor([[0.0], [2.0]]), torch.ones(2, 1), dim=1)
    >>> bhattacharyya(p)  # exp(−n d²/8)
    tensor([[1.0000, 0.6065],
            [0.6065, 1.0000]])
    """
    _check_scalar_means(p, q)
    if _is_empty(p, q):
        return empty_similarity(p, q or p)
    sides = [Components(m.log_weight.log_softmax(1), m.mean, m.variance) for m in ((p,) if q is None else (p, q))]
    grid = grid_for(sides, p.dim, kind="mass", step=step)
    if grid is None:
        raise ValueError("a mean or variance is not finite")
    refuse_above(MEMORY, sides, grid, remedy="use a larger `step`")
    # Adding the smallest normal number keeps the gradient of the root finite where the density is zero.
    roots = [(density + torch.finfo(torch.float32).tiny).sqrt() for density in (features(s, grid) for s in sides)]
    # The roots have norm one up to the quadrature error, so their cosine is the integral.
    return cap_at_one(set_diagonal_to_one(cosines(roots[0], None)) if q is None else cosines(*roots))
