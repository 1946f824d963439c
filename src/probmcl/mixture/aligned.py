"""Similarity of mixtures that compares only components with the same index (decision 0002)."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

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

        Sim(p, q) = Σ_k w_k w'_k κ_k / √(Σ_k w_k² · Σ_k w'_k²)
        κ_k = (2σ_k σ'_k / S_k)^(n/2) exp(−‖m_k − m'_k‖² / 2S_k)

    where w_k, m_k and σ_k are the weight, mean and standard deviation of component k of p, those with ' belong to q,
    and S_k = σ_k² + σ'_k². κ_k is 1 if both components k are equal. `correlation` compares every component with every
    other; Sim is what remains if components with different indices are moved so far apart that they do not overlap.
    Second derivatives are not supported.

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
    symmetric = q is None
    check_same_space(p, q or p)
    # Weights, means and variances; the weights are divided by √Σ_k w_k², which is the denominator of Sim.
    components_p = _unit_weight_components(p, component_weight)
    components_q = components_p if q is None else _unit_weight_components(q, component_weight)
    # The numerator of Sim, which is Sim itself with these weights.
    similarity: Tensor = _WeightedKappa.apply(  # type: ignore[no-untyped-call]
        p.dim, symmetric, *components_p, *components_q
    )
    if symmetric:
        similarity = set_diagonal_to_one(similarity)
    return cap_at_one(similarity)


class _ByClass(NamedTuple):
    """One component of M mixtures for each class, with the class as the first axis."""

    weight: Float[Tensor, "C M"]  # Σ_k w_k² = 1 for each mixture
    mean: Float[Tensor, "C M d"]  # in float64; d = 1 for scalar means
    variance: Float[Tensor, "C M"]

    def block(self, classes: slice) -> "_ByClass":
        """Return the components of a few classes."""
        return _ByClass._make(x[classes] for x in self)


def _unit_weight_components(p: IsotropicMixture, component_weight: ComponentWeight) -> _ByClass:
    """Return the components with the class as the first axis, and with weights of unit norm per mixture."""
    log_weight = log_class_weights(p, component_weight)
    log_length = 0.5 * (2 * log_weight).logsumexp(1, keepdim=True)  # log √Σ_k w_k²
    unit_weight = (log_weight - log_length).exp().to(p.variance.dtype)
    return _ByClass(unit_weight.T, means_by_class(p), p.variance.T)


def log_class_weights(p: IsotropicMixture, component_weight: ComponentWeight) -> Float[Tensor, "M C"]:
    """Return log w_k in float64: log π_k for `l2`, and log π_k σ_k^(−n/2) up to a constant per row for `density`."""
    if component_weight == "density":
        return log_norms(p)
    return to_float64(p.log_weight)


def means_by_class(p: IsotropicMixture) -> Float[Tensor, "C M d"]:
    """Return the means in float64; a scalar mean becomes √n μ, the coordinate of μ·1 along the direction **1**/√n."""
    mean = to_float64(p.mean)
    if not p.has_vector_means:
        mean = mean[:, :, None] * p.dim**0.5  # (M, C, 1)
    return mean.transpose(0, 1)


def squared_distance(a: Float[Tensor, "C M d"], b: Float[Tensor, "C P d"]) -> Float[Tensor, "C M P"]:
    """Return ‖a − b‖² = ‖a‖² + ‖b‖² − 2ab, using one matrix product per class instead of a (C, M, P, d) tensor.

    The float64 inputs are centered first, which makes the loss of digits through cancellation harmless.
    """
    center = a.where(a.isfinite(), 0).mean(1, keepdim=True).detach()  # keeps NaN and inf within their rows
    a, b = a - center, b - center
    sum_of_squares = a.square().sum(2)[:, :, None] + b.square().sum(2)[:, None, :]
    return torch.baddbmm(sum_of_squares, a, b.mT, alpha=-2).clamp(min=0)


class _WeightedKappa(torch.autograd.Function):
    """Autograd function for Σ_k w_ik w'_jk κ_k(i, j) that processes a few classes at a time to limit memory.

    κ_k(i, j) = (2σσ'/S)^(n/2) exp(−d²/2S) compares component k of rows i and j, with d = m − m' and S = v + v', where
    m and v = σ² are the mean and the variance. With F = (dL/dSim_ij) w_ik w'_jk κ, the gradients are dm = −Σ F d/S and
    dv = Σ F [d²/2S² + n(v' − v)/(4vS)]. Distances and Σ F d/S are matrix products that suffer from cancellation, so
    they are computed in float64.
    """

    @staticmethod
    def forward(ctx: Any, dim: int, symmetric: bool, *tensors: Tensor) -> Tensor:
        """Return Σ_k w_ik w'_jk κ_k(i, j) of shape (M, P), where κ_k compares component k of row i with that of row j.

        `tensors` are the weights, means and variances of M mixtures, then those of P mixtures, with the class k as the
        first axis. If `symmetric`, both are the same.
        """
        ctx.dim, ctx.symmetric = dim, symmetric
        ctx.save_for_backward(*tensors)
        a, b = _ByClass(*tensors[:3]), _ByClass(*tensors[3:])
        similarity = a.weight.new_zeros(a.weight.shape[1], b.weight.shape[1])  # (M, P)
        for classes in _blocks(a, b):
            pairs = _compare(a.block(classes), b.block(classes), dim)
            similarity += pairs.weighted_sum()
        return similarity

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the weights, means and variances of both sides; κ is computed again for each block.

        If the same mixtures are on both sides, those of side `a` get the gradients of both.
        """
        a, b = _ByClass(*ctx.saved_tensors[:3]), _ByClass(*ctx.saved_tensors[3:])
        tensors_of_b = slice(5, None)  # of the inputs: after `dim`, `symmetric` and the three tensors of `a`
        needs_b = not ctx.symmetric and any(ctx.needs_input_grad[tensors_of_b])
        if ctx.symmetric:  # a mixture is row i of the similarity, and also column i
            grad = grad + grad.T
        blocks_a, blocks_b = [], []
        for classes in _blocks(a, b):
            pairs = _compare(a.block(classes), b.block(classes), ctx.dim)
            blocks_a.append(pairs.gradients(grad))
            if needs_b:
                blocks_b.append(pairs.transposed().gradients(grad.T))
        if not needs_b:
            return None, None, *_join(blocks_a), None, None, None
        return None, None, *_join(blocks_a), *_join(blocks_b)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """All pairs of rows of two sides, for K classes."""

    a: _ByClass
    b: _ByClass
    dim: int
    kappa: Float[Tensor, "K M P"]
    twice_sum: Float[Tensor, "K M P"]  # 2S
    distance_term: Float[Tensor, "K M P"]  # d²/2S

    def transposed(self) -> "_Pairs":
        """Return the same pairs with the sides swapped."""
        return _Pairs(self.b, self.a, self.dim, self.kappa.mT, self.twice_sum.mT, self.distance_term.mT)

    def weighted_sum(self) -> Float[Tensor, "M P"]:
        """Return Σ_k w_ik w'_jk κ_k(i, j) over these classes."""
        return (self.kappa * self.a.weight[:, :, None] * self.b.weight[:, None, :]).sum(0)

    def gradients(self, grad: Float[Tensor, "M P"]) -> _ByClass:
        """Return the gradients of the weights, means and variances of `a`, given dL/dSim as `grad`.

        With F = (dL/dSim_ij) w_ik w'_jk κ, d = m − m' and S = v + v', they are dw = Σ F/w, dm = −Σ F d/S and
        dv = Σ F [d²/2S² + n(v' − v)/(4vS)], summed over the rows j of `b`.
        """
        weighted_kappa = self.kappa * grad * self.b.weight[:, None, :]  # F/w
        f_over_s = weighted_kappa * self.a.weight[:, :, None] / (0.5 * self.twice_sum)  # F/S
        f_over_s64 = to_float64(f_over_s)
        # −Σ F d/S = Σ (F/S) m' − m Σ F/S
        d_mean = torch.bmm(f_over_s64, self.b.mean) - f_over_s64.sum(2, keepdim=True) * self.a.mean
        distance_sum = (f_over_s * self.distance_term).sum(2)  # Σ F d²/2S²
        variance_sum = (f_over_s * (self.b.variance[:, None, :] - self.a.variance[:, :, None])).sum(2)  # Σ F (v' − v)/S
        d_variance = distance_sum + self.dim / 4 * variance_sum / self.a.variance
        return _ByClass(weighted_kappa.sum(2), d_mean, d_variance)


def _compare(a: _ByClass, b: _ByClass, dim: int) -> _Pairs:
    """Compute κ = exp(−n · variance term − d²/2S) for all pairs of rows in each class, with exponents in float64.

    Here d = m − m' is the difference of the means, and S = v + v' is the sum of the variances. The terms that the
    gradient needs are kept.
    """
    dtype = a.variance.dtype
    variance_a, variance_b = to_float64(a.variance)[:, :, None], to_float64(b.variance)[:, None, :]
    twice_sum = 2 * (variance_a + variance_b)
    distance_term = squared_distance(a.mean, b.mean) / twice_sum
    log_kappa = -dim * variance_term(variance_a, variance_b)
    log_kappa -= distance_term
    log_kappa.clamp_(min=-87)  # e^−87 is negligible, and exp is ten times slower when it underflows
    kappa = log_kappa.to(dtype).exp_()
    return _Pairs(a, b, dim, kappa, twice_sum.to(dtype), distance_term.to(dtype))


def _blocks(a: _ByClass, b: _ByClass) -> list[slice]:
    """Return slices of classes for which all pairs of rows have at most `BLOCK` elements."""
    classes, rows = a.weight.shape
    elements_per_class = max(1, rows * b.weight.shape[1])
    return slices(classes, max(1, BLOCK // elements_per_class))


def _join(blocks: list[_ByClass]) -> _ByClass:
    """Concatenate the blocks of all classes."""
    return _ByClass._make(torch.cat(parts) for parts in zip(*blocks, strict=True))
