"""Similarity of mixtures that compares only components with the same index (decision 0002)."""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from probmcl.mixture.density import (
    IsotropicMixture,
    cap_at_one,
    check_same_space,
    log_norms,
    set_diagonal_to_one,
    slices,
    variance_term,
)
from probmcl.runtime.precision import full_precision, to_float64

ComponentWeight = Literal["l2", "density"]

BLOCK = 2**19
"""Maximum number of elements in a temporary tensor, which holds all pairs of rows for a few classes."""


@full_precision
def aligned_correlation(
    p: IsotropicMixture, q: IsotropicMixture | None = None, *, component_weight: ComponentWeight = "l2"
) -> Float[Tensor, "M P"]:
    """Return the correlation coefficient of two mixtures, comparing only components with the same index.

    Sim(p, q) = Σ_k w_k w'_k κ_k / √(Σ_k w_k² · Σ_k w'_k²). This is the limit of `correlation` when component k is moved
    to (M·e_k, m_k) and M → ∞, which separates the classes. Second derivatives are not supported.

    Reference: decision 0002.

    Args:
        p: M mixtures, with scalar or vector means.
        q: P mixtures; None compares p with itself.
        component_weight: `l2` sets w_k = π_k, which treats components as unit-norm functions; `density` sets
            w_k = π_k σ_k^(−n/2), which is proportional to the norm of the weighted density.

    >>> weight = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    >>> p = IsotropicMixture(weight.log(), torch.zeros(2, 2, 3), torch.ones(2, 2), dim=3)
    >>> aligned_correlation(p)  # cosine of (1, 1) and (1, 0)
    tensor([[1.0000, 0.7071],
            [0.7071, 1.0000]])
    """
    if component_weight not in get_args(ComponentWeight):
        raise ValueError(f"`component_weight` must be 'l2' or 'density', got {component_weight!r}")
    check_same_space(p, q or p)
    a, b = _by_class(p, component_weight), None if q is None else _by_class(q, component_weight)
    inner: Tensor = _Aligned.apply(p.dim, b is None, *a, *(b or a))  # type: ignore[no-untyped-call]
    return cap_at_one(inner if q is not None else set_diagonal_to_one(inner))


def _by_class(p: IsotropicMixture, component_weight: ComponentWeight) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights (C, M) with unit norm per mixture, means (C, M, d) or (C, M, 1), and variances (C, M)."""
    log_weight = log_norms(p) if component_weight == "density" else to_float64(p.log_weight)
    unit_weight = (log_weight - 0.5 * (2 * log_weight).logsumexp(1, keepdim=True)).exp().to(p.variance.dtype)
    return unit_weight.T, means_by_class(p), p.variance.T


def means_by_class(p: IsotropicMixture) -> Float[Tensor, "C M d"]:
    """Return the means in float64; a scalar mean becomes √n μ, the coordinate of μ·1 along the direction **1**/√n."""
    mean = to_float64(p.mean)
    return (mean if p.has_vector_means else mean[:, :, None] * p.dim**0.5).transpose(0, 1)


def squared_distance(a: Float[Tensor, "C M d"], b: Float[Tensor, "C P d"]) -> Float[Tensor, "C M P"]:
    """Return ‖a − b‖² = ‖a‖² + ‖b‖² − 2ab, using one matrix product per class instead of a (C, M, P, d) tensor.

    The float64 inputs are centered first, which makes the loss of digits through cancellation harmless.
    """
    center = a.where(a.isfinite(), 0).mean(1, keepdim=True).detach()  # keeps NaN and inf within their rows
    a, b = a - center, b - center
    squares = a.square().sum(2)[:, :, None] + b.square().sum(2)[:, None, :]
    return torch.baddbmm(squares, a, b.mT, alpha=-2).clamp(min=0)


class _Aligned(torch.autograd.Function):
    """Autograd function for Σ_k w_ik w'_jk κ_k(i, j) that processes a few classes at a time to limit memory.

    With F = (dL/dSim_ij) w_ik w'_jk κ, d = m − m' and S = v + v', the gradients are dm = −Σ F d/S and
    dv = Σ F [d²/2S² + n(v' − v)/(4vS)]. Distances and Σ F d/S are matrix products that suffer from cancellation, so
    they are computed in float64.
    """

    @staticmethod
    def forward(ctx: Any, dim: int, symmetric: bool, *tensors: Tensor) -> Tensor:
        ctx.dim, ctx.symmetric = dim, symmetric
        ctx.save_for_backward(*tensors)
        a, b = tensors[:3], tensors[3:]
        similarity = a[0].new_zeros(a[0].shape[1], b[0].shape[1])
        for classes in _blocks(a[0], b[0]):
            pair = _Pairs([x[classes] for x in a], [x[classes] for x in b], dim)
            similarity += pair.products()
        return similarity

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        if ctx.symmetric:  # the same mixtures are on both sides
            grad = grad + grad.T
        blocks_a, blocks_b = [], []
        for classes in _blocks(a[0], b[0]):
            pair = _Pairs([x[classes] for x in a], [x[classes] for x in b], ctx.dim)
            blocks_a.append(pair.gradients(grad, 0))
            if not ctx.symmetric and any(ctx.needs_input_grad[5:]):
                blocks_b.append(pair.gradients(grad, 1))
        grad_a, grad_b = ([torch.cat(parts) for parts in zip(*blocks, strict=True)] for blocks in (blocks_a, blocks_b))
        return (None, None, *grad_a, *(grad_b or (None,) * 3))


class _Pairs:
    """All pairs of rows for K classes, as (K, M, P) tensors."""

    def __init__(self, a: list[Tensor], b: list[Tensor], dim: int) -> None:
        self.weights, self.means, self.variances = ([x, y] for x, y in zip(a, b, strict=True))
        self.dim, dtype = dim, a[2].dtype
        row_variance, column_variance = to_float64(a[2])[:, :, None], to_float64(b[2])[:, None, :]
        twice_sum = 2 * (row_variance + column_variance)
        distance_term = squared_distance(*self.means) / twice_sum  # d²/2S
        log_kappa = (-dim * variance_term(row_variance, column_variance)).sub_(distance_term)
        log_kappa.clamp_(min=-87)  # e^−87 is negligible, and exp is ten times slower when it underflows
        self.twice_sum, self.distance_term = twice_sum.to(dtype), distance_term.to(dtype)
        self.kappa = log_kappa.to(dtype).exp_()

    def products(self) -> Float[Tensor, "M P"]:
        """Return Σ_k w_ik w'_jk κ_k(i, j) over these classes."""
        a, b = self.weights
        return (self.kappa * a[:, :, None] * b[:, None, :]).sum(0)

    def gradients(self, grad: Float[Tensor, "M P"], side: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients for the weights, means and variances of one side."""
        (weight, other_weight), (mean, other_mean), (v, other_v) = (
            pair if side == 0 else pair[::-1] for pair in (self.weights, self.means, self.variances)
        )
        weighted_kappa, twice_sum, distance_term = (
            x if side == 0 else x.mT for x in (self.kappa * grad, self.twice_sum, self.distance_term)
        )
        weighted_kappa = weighted_kappa * other_weight[:, None, :]
        f_over_s = weighted_kappa * weight[:, :, None] / (0.5 * twice_sum)  # F/S
        f_over_s64 = to_float64(f_over_s)
        d_mean = torch.bmm(f_over_s64, other_mean) - f_over_s64.sum(2, keepdim=True) * mean
        variance_shift = (f_over_s * (other_v[:, None, :] - v[:, :, None])).sum(2)
        d_variance = (f_over_s * distance_term).sum(2) + self.dim / 4 * variance_shift / v
        return weighted_kappa.sum(2), d_mean, d_variance


def _blocks(a: Float[Tensor, "C M"], b: Float[Tensor, "C P"]) -> list[slice]:
    return slices(len(a), max(1, BLOCK // max(1, a.shape[1] * b.shape[1])))
