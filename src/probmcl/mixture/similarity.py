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
    if _needs_float64(similarity):
        del similarity  # frees the tensors saved for backward
        a, b = _prune(p, q, torch.float64)
        algorithm = _make_plan(a, b, p.dim, way, may_refuse=False)
        similarity = _compute(a, b, p.dim, algorithm).to(dtype)
    if q is None:
        similarity = set_diagonal_to_one(similarity)
    return cap_at_one(similarity)


@full_precision
def plan(p: IsotropicMixture, q: IsotropicMixture | None = None, *, way: Way = "auto") -> SimilarityPlan:
    """Return the algorithm and memory that `correlation` would use.

    >>> p = IsotropicMixture(torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(2, 1), dim=128)
    >>> plan(p).way
    'tiled'
    """
    _check(p, q, way)
    dtype = p.variance.dtype
    if _is_empty(p, q):
        return SimilarityPlan("tiled", None, p.variance.shape[1], 0, dtype, "a side has no rows")
    float64 = to_float64(p.variance).dtype  # float32 on Apple's GPUs
    first = _make_plan(*_prune(p, q, dtype), p.dim, way)
    second = _make_plan(*_prune(p, q, float64), p.dim, way, may_refuse=False)
    components = p.variance.numel()
    if q is not None:
        components += q.variance.numel()
    pruning = 64 * components  # bytes: room for eight tensors in float64
    return replace(first, bytes=first.bytes + pruning, bytes_in_float64=second.bytes + pruning)


def _is_empty(p: IsotropicMixture, q: IsotropicMixture | None) -> bool:
    """Return whether one of the sides has no rows."""
    rows, columns = len(p.variance), len((q or p).variance)
    return rows == 0 or columns == 0


def _check(p: IsotropicMixture, q: IsotropicMixture | None, way: Way) -> None:
    """Raise ValueError if the way is unknown or the mixtures cannot be compared."""
    if way not in get_args(Way):
        ways = ", ".join(map(repr, get_args(Way)))
        raise ValueError(f"`way` must be one of {ways}, got {way!r}")
    _check_scalar_means(p, q)


def _check_scalar_means(p: IsotropicMixture, q: IsotropicMixture | None) -> None:
    """Raise ValueError if a mixture has vector means or the mixtures differ in dimension or number of components."""
    other = q or p
    if p.has_vector_means or other.has_vector_means:
        raise ValueError("only scalar means are supported; use aligned_correlation() for vector means")
    check_same_space(p, other)


def _prune(p: IsotropicMixture, q: IsotropicMixture | None, dtype: torch.dtype) -> tuple[Components, Components | None]:
    """Drop components with negligible norm from both sides; without q, the second side is None."""
    a = prune_components(p, dtype)
    if q is None:
        return a, None
    return a, prune_components(q, dtype)


def _needs_float64(similarity: Float[Tensor, "M P"]) -> bool:
    """Return whether all similarities are too close to 1 for float32 gradients; Apple's GPUs (mps) have no float64."""
    if similarity.dtype == torch.float64 or similarity.device.type == "mps":
        return False
    return bool(similarity.detach().amin() > FLOAT64_SIMILARITY)


def _compute(a: Components, b: Components | None, dim: int, algorithm: SimilarityPlan) -> Float[Tensor, "M P"]:
    """Return the similarities of two sides, or of `a` with itself; rounding may leave values slightly above 1."""
    if algorithm.fell_back:
        _warn_about_fallback()
    if algorithm.grid is None:
        return _compute_by_pairs(a, b, dim)
    features_b = None if b is None else features(b, algorithm.grid)
    return cosines(features(a, algorithm.grid), features_b)


def _compute_by_pairs(a: Components, b: Components | None, dim: int) -> Float[Tensor, "M P"]:
    """Return ⟨p_i, q_j⟩ / (‖p_i‖ ‖q_j‖) from the inner products of all pairs of components."""
    inner = pairs.inner_products(a, b, dim)
    if b is None:
        squares_a = squares_b = inner.diagonal()
    else:
        squares_a, squares_b = pairs.squares(a, dim), pairs.squares(b, dim)
    return inner / (squares_a.sqrt()[:, None] * squares_b.sqrt()[None, :])


def _make_plan(a: Components, b: Components | None, dim: int, way: Way, *, may_refuse: bool = True) -> SimilarityPlan:
    """Choose the algorithm for two sides, or for `a` with itself.

    If features are requested but need too much memory, this is an error, or all pairs are computed if `may_refuse` is
    False.
    """
    sides = [a] if b is None else [a, b]
    tiled = _plan_for_pairs(sides)
    if way == "tiled":
        return tiled
    grid = grid_for(sides, dim)
    if grid is None:
        return replace(tiled, reason="a mean or variance is not finite")

    mapped = replace(tiled, way="features", grid=grid, bytes=bytes_needed(sides, grid))
    fits = mapped.bytes <= MEMORY
    if way == "features":
        if may_refuse:
            refuse_above(MEMORY, sides, grid, remedy=f"use way='tiled' or 'auto' instead of {way!r}")
        if fits:
            return mapped

    pair_cost, feature_cost = _cost_of_pairs(sides), _cost_of_features(sides, grid)
    if not fits:
        reason = f"{grid.nodes:,} nodes would need {mapped.bytes / 1e9:.1f} GB"
        return replace(tiled, reason=reason, fell_back=pair_cost > SLOW_COST)
    if pair_cost <= feature_cost:
        return replace(tiled, reason=f"{pair_cost / feature_cost:.2g} times the cost of {grid.nodes:,} nodes")
    reason = f"{feature_cost / pair_cost:.2g} times the cost of all pairs, with {grid.nodes:,} nodes"
    return replace(mapped, reason=reason)


def _plan_for_pairs(sides: list[Components]) -> SimilarityPlan:
    """Return the plan to compute all pairs of components of two sides, or of a single side with itself."""
    components = max(side.mean.shape[1] for side in sides)
    dtype = sides[0].variance.dtype
    results = len(sides[0].mean) * len(sides[-1].mean)
    # The factors are upper bounds on the number of tensors that exist at the same time.
    elements = 14 * pairs.TILE + 8 * results
    return SimilarityPlan("tiled", None, components, elements * dtype.itemsize, dtype, "requested")


def _cost_of_pairs(sides: list[Components]) -> float:
    """Estimate the cost of all pairs of components, in multiply-adds of a matrix product."""
    components_of_rows, components_of_columns = sides[0].mean.numel(), sides[-1].mean.numel()
    cost = PAIR_COST * components_of_rows * components_of_columns
    if len(sides) == 1:
        return cost / 2  # a side compared with itself: the pairs below the diagonal are skipped
    return float(cost)


def _cost_of_features(sides: list[Components], grid: Grid) -> float:
    """Estimate the cost of feature vectors and their inner products, in multiply-adds of a matrix product.

    A component is evaluated at the nodes of each axis, at `VALUE_COST` per value. The products of these values are then
    summed over the components at all nodes of the grid.
    """
    nodes_of_axes = grid.along.nodes
    if grid.across:
        nodes_of_axes += grid.across.nodes
    components = sum(side.mean.numel() for side in sides)
    pairs_of_rows = len(sides[0].mean) * len(sides[-1].mean)
    # Three matrix products of each kind: one in the forward pass and up to two in the backward pass.
    mapping = components * (VALUE_COST * nodes_of_axes + 3.0 * grid.nodes)
    comparing = 3 * pairs_of_rows * grid.nodes
    return mapping + comparing


@cache
def _warn_about_fallback() -> None:
    """Warn, once per process, that feature vectors need too much memory."""
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
    mixtures = [p] if q is None else [p, q]
    sides = [Components(mixture.log_weight.log_softmax(1), mixture.mean, mixture.variance) for mixture in mixtures]
    grid = grid_for(sides, p.dim, kind="mass", step=step)
    if grid is None:
        raise ValueError("a mean or variance is not finite")
    refuse_above(MEMORY, sides, grid, remedy="use a larger `step`")
    # Adding the smallest normal number keeps the gradient of the root finite where the density is zero.
    smallest = torch.finfo(torch.float32).tiny
    roots = [(features(side, grid) + smallest).sqrt() for side in sides]
    # The roots have norm one up to the quadrature error, so their cosine is the integral.
    if q is None:
        return cap_at_one(set_diagonal_to_one(cosines(roots[0], None)))
    return cap_at_one(cosines(*roots))
