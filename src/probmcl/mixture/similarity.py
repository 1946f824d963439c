"""How alike two mixtures are: Sim(p_i, p_j) of ProbMCL, section 2.2.

Both similarities are built from the correlation of two components,

    κ = ⟨N, N'⟩ / (‖N‖ ‖N'‖) = (2σσ'/S)^(n/2) exp(−‖m − m'‖² / 2S),   S = σ² + σ'²,

which lies in (0, 1] for any dimension n, so that nothing underflows where (2πS)^(−n/2) would from n ≈ 70 on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from probmcl.mixture.density import IsotropicMixture
from probmcl.precision import finest, full_precision

Way = Literal["auto", "tiled"]
ComponentWeight = Literal["l2", "density"]

TILE = 2**18
"""Pairs of components that are held in memory at once: a few MB, which a core keeps in its cache."""


@full_precision
def correlation(p: IsotropicMixture, q: IsotropicMixture | None = None, *, way: Way = "auto") -> Float[Tensor, "M P"]:
    """Correlation coefficient of two mixtures with scalar means, over all pairs of components.

    Sim(p, q) = ∫pq / √(∫p² ∫q²). With weights w_k = π_k σ_k^(−n/2), which are the norms ‖π_k N_k‖ up to a factor that
    cancels, ∫pq = Σ_kl w_k w'_l κ_kl. Symmetric, in [0, 1], and 1 between equal mixtures.

    Reference: ProbMCL, text below Eq. 3.

    Args:
        p: M mixtures.
        q: P mixtures; None compares p with itself.
        way: how it is computed; `tiled` walks over all pairs of components in tiles of bounded memory, forward and
            backward. `auto` takes the cheapest exact way that there is.

    >>> p = IsotropicMixture(torch.zeros(2, 1), torch.tensor([[0.0], [2.0]]), torch.ones(2, 1), dim=1)
    >>> correlation(p)  # exp(−n d²/4)
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """
    if way not in ("auto", "tiled"):
        raise ValueError(f"way={way!r}; there are 'auto' and 'tiled'")
    for mixture in (p, q or p):
        if mixture.has_vector_means:
            raise ValueError("correlation() is for scalar means; for vector means there is aligned_correlation()")
    _check_same_space(p, q or p)
    a = _components(p)
    if q is None:
        inner = _all_pairs(a, a, p.dim)
        return _normalise(inner, inner.diagonal(), inner.diagonal())
    b = _components(q)
    return _normalise(_all_pairs(a, b, p.dim), _each_with_itself(a, p.dim), _each_with_itself(b, p.dim))


@full_precision
def aligned_correlation(
    p: IsotropicMixture, q: IsotropicMixture | None = None, *, component_weight: ComponentWeight = "l2"
) -> Float[Tensor, "M P"]:
    """Correlation coefficient of two mixtures whose component k meets component k only.

    Sim(p, q) = Σ_k w_k w'_k κ_k / √(Σ_k w_k² · Σ_k w'_k²). This is `correlation` for mixtures whose classes live in
    orthogonal places that are far apart: component k at (M·e_k, m_k) with M → ∞.

    Reference: decision 0002.

    Args:
        p: M mixtures, with scalar or vector means.
        q: P mixtures; None compares p with itself.
        component_weight: `l2` takes w_k = π_k, as if every component had norm one; `density` takes the norms of the
            densities themselves, π_k σ_k^(−n/2).

    >>> weight = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    >>> p = IsotropicMixture(weight.log(), torch.zeros(2, 2, 3), torch.ones(2, 2), dim=3)
    >>> aligned_correlation(p)  # the cosine of (1, 1) and (1, 0)
    tensor([[1.0000, 0.7071],
            [0.7071, 1.0000]])
    """
    if component_weight not in ("l2", "density"):
        raise ValueError(f"component_weight={component_weight!r}; there are 'l2' and 'density'")
    q = p if q is None else q
    _check_same_space(p, q)
    weight_a, weight_b = _unit_weights(p, component_weight), _unit_weights(q, component_weight)
    v_a, v_b = p.variance.T[:, :, None], q.variance.T[:, None, :]  # (C, M, 1), (C, 1, P)
    kappa = torch.exp(-p.dim * _spread(v_a, v_b) - _squared_distance(p, q) / (2 * (v_a + v_b)))
    return _at_most_one((weight_a.T[:, :, None] * weight_b.T[:, None, :] * kappa).sum(0))


def _check_same_space(p: IsotropicMixture, q: IsotropicMixture) -> None:
    sizes = [(m.variance.shape[1], m.dim) for m in (p, q)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            "mixtures of {} components in {} dimensions and of {} in {} differ".format(*sizes[0], *sizes[1])
        )


def _spread(v_a: Tensor, v_b: Tensor) -> Tensor:
    """How far two variances are apart: −½ log(2σσ'/S), without logarithm of a number near one.

    2σσ'/S = (1 − t)/(1 + t) with t = ((σ − σ')/(σ + σ'))², hence ½ log = −atanh t.
    """
    return torch.atanh(((v_a - v_b) / (v_a.sqrt() + v_b.sqrt()).square()).square())


def _log_norms(p: IsotropicMixture) -> Float[Tensor, "M C"]:
    """Logarithm of ‖π_k N_k‖ up to a constant in each row, which every similarity here divides out; its maximum is 0.

    In float64: (n/4) log v reaches thousands, of which the digits after the point are the ones that count.
    """
    log_norm = finest(p.log_weight) - p.dim / 4 * finest(p.variance).log()
    return log_norm - log_norm.amax(1, keepdim=True).detach()


def _unit_weights(p: IsotropicMixture, component_weight: ComponentWeight) -> Float[Tensor, "M C"]:
    log_weight = _log_norms(p) if component_weight == "density" else finest(p.log_weight)
    return (log_weight - 0.5 * (2 * log_weight).logsumexp(1, keepdim=True)).exp().to(p.variance.dtype)


def _squared_distance(p: IsotropicMixture, q: IsotropicMixture) -> Float[Tensor, "C M P"]:
    if not p.has_vector_means:
        return p.dim * (p.mean.T[:, :, None] - q.mean.T[:, None, :]).square()
    a, b = p.mean.transpose(0, 1), q.mean.transpose(0, 1)  # (C, M, d), (C, P, d)
    # By differences: ‖a‖² + ‖b‖² − 2ab would lose the digits of components that nearly coincide.
    return torch.cdist(a.contiguous(), b.contiguous(), compute_mode="donot_use_mm_for_euclid_dist").square()


def _normalise(inner: Tensor, square_a: Tensor, square_b: Tensor) -> Tensor:
    return _at_most_one(inner / (square_a.sqrt()[:, None] * square_b.sqrt()[None, :]))


def _at_most_one(similarity: Tensor) -> Tensor:
    """Take off what rounding put above one, and leave the gradient alone (a clamp would make it zero there)."""
    return similarity - (similarity - 1).clamp(min=0).detach()


Components = tuple[Tensor, Tensor, Tensor]  # log-norm ω, mean μ, variance v


def _components(p: IsotropicMixture) -> Components:
    return _ScaleFree.apply(_log_norms(p)).to(p.variance.dtype), p.mean, p.variance  # type: ignore[no-untyped-call]


def _all_pairs(a: Components, b: Components, dim: int) -> Float[Tensor, "M P"]:
    product: Tensor = _Inner.apply(dim, *(x[None] for x in (*a, *b)))  # type: ignore[no-untyped-call]
    return product[0]


def _each_with_itself(a: Components, dim: int) -> Float[Tensor, "M"]:
    product: Tensor = _Inner.apply(dim, *(x[:, None] for x in (*a, *a)))  # type: ignore[no-untyped-call]
    return product.flatten()


class _ScaleFree(torch.autograd.Function):
    """Log-norms that only count relative to each other within a row.

    The gradient of anything scale-free sums to zero over a row. What rounding leaves of that sum is taken off.
    """

    @staticmethod
    def forward(ctx: Any, log_norm: Tensor) -> Tensor:
        ctx.save_for_backward(log_norm.softmax(1))
        return log_norm.view_as(log_norm)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (share,) = ctx.saved_tensors
        corrected: Tensor = grad - share * grad.sum(1, keepdim=True)
        return corrected


class _Inner(torch.autograd.Function):
    """G_ij = Σ_kl exp(ω_ik + ω'_jl) κ_kl within each batch, in tiles: nothing of size R·P·C² outlives its tile.

    Takes ω, μ, v of shape (B, R, C) and ω', μ', v' of shape (B, P, C). With F = (dL/dG_ij) exp(ω_ik + ω'_jl) κ_kl,
    d = μ − μ' and S = v + v', the gradients are dω = ΣF, dμ = −n Σ F d/S and, in a form without the cancellation of
    n/4v − n/2S, dv = (n/2) Σ F [d²/S² + (v' − v)/(2vS)].
    """

    @staticmethod
    def forward(ctx: Any, dim: int, *tensors: Tensor) -> Tensor:
        ctx.dim = dim
        ctx.save_for_backward(*tensors)
        a, b = tensors[:3], tensors[3:]
        inner = a[0].new_empty(a[0].shape[0], a[0].shape[1], b[0].shape[1])
        for batch, rows, columns in _tiles(a[0], b[0]):
            tile = _Tile([x[batch, rows] for x in a], [x[batch, columns] for x in b], dim)
            inner[batch, rows, columns] = tile.product.sum((3, 4))
        return inner

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        grad_a, grad_b = [torch.zeros_like(x) for x in a], [torch.zeros_like(x) for x in b]
        for batch, rows, columns in _tiles(a[0], b[0]):
            tile = _Tile([x[batch, rows] for x in a], [x[batch, columns] for x in b], ctx.dim)
            tile_a, tile_b = tile.gradients(grad[batch, rows, columns])
            for whole, part in zip(grad_a, tile_a, strict=True):
                whole[batch, rows] += part
            for whole, part in zip(grad_b, tile_b, strict=True):
                whole[batch, columns] += part
        return (None, *grad_a, *grad_b)


class _Tile:
    """All pairs of components between a few rows of either side, as (B, R, P, C, C) tensors."""

    def __init__(self, a: list[Tensor], b: list[Tensor], dim: int) -> None:
        log_a, mean_a, self.v_a = (x[:, :, None, :, None] for x in a)
        log_b, mean_b, self.v_b = (x[:, None, :, None, :] for x in b)
        self.dim = dim
        self.sum = self.v_a + self.v_b
        self.shift = mean_a - mean_b
        log_kappa = -dim * (_spread(self.v_a, self.v_b) + self.shift.square() / (2 * self.sum))
        log_kappa.clamp_(min=-87)  # e^−87 counts for nothing, and an exp that underflows takes ten times as long
        self.product = log_kappa.exp_().mul_(log_a.exp()).mul_(log_b.exp())

    def gradients(self, grad: Float[Tensor, "B R P"]) -> tuple[Components, Components]:
        """The part of this tile in the gradients of ω, μ, v and of ω', μ', v'."""
        flow = self.product * grad[:, :, :, None, None]  # F
        slope = self.shift / self.sum  # d/S
        pull = flow * slope
        stretch = pull * slope
        apart = flow * (self.v_b - self.v_a) / (2 * self.sum)
        to_a, to_b = (2, 4), (1, 3)
        v_a, v_b = self.v_a[:, :, 0, :, 0], self.v_b[:, 0, :, 0, :]
        grad_v_a = self.dim / 2 * (stretch.sum(to_a) + apart.sum(to_a) / v_a)
        grad_v_b = self.dim / 2 * (stretch.sum(to_b) - apart.sum(to_b) / v_b)
        return (
            (flow.sum(to_a), -self.dim * pull.sum(to_a), grad_v_a),
            (flow.sum(to_b), self.dim * pull.sum(to_b), grad_v_b),
        )


def _tiles(a: Float[Tensor, "B R C"], b: Float[Tensor, "B P C"]) -> Iterator[tuple[slice, slice, slice]]:
    """Slices of batches, rows and columns that together hold at most `TILE` pairs of components."""
    batches, rows, components = a.shape
    columns = b.shape[1]
    pairs = max(1, TILE // components**2)
    step_columns = min(columns, pairs)
    step_rows = min(rows, max(1, pairs // step_columns))
    step_batches = min(batches, max(1, pairs // (step_columns * step_rows)))
    return itertools.product(_slices(batches, step_batches), _slices(rows, step_rows), _slices(columns, step_columns))


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, length, step)]
