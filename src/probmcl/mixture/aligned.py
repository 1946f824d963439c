"""How alike two mixtures are whose component k meets component k only (decision 0002)."""

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from probmcl.mixture.density import (
    IsotropicMixture,
    at_most_one,
    check_same_space,
    log_norms,
    one_with_itself,
    slices,
    spread,
)
from probmcl.runtime.precision import full_precision, to_float64

ComponentWeight = Literal["l2", "density"]

BLOCK = 2**19
"""Numbers of the largest tensor that is held at once, a few classes of all pairs of rows."""


@full_precision
def aligned_correlation(
    p: IsotropicMixture, q: IsotropicMixture | None = None, *, component_weight: ComponentWeight = "l2"
) -> Float[Tensor, "M P"]:
    """Correlation coefficient of two mixtures whose component k meets component k only.

    Sim(p, q) = Σ_k w_k w'_k κ_k / √(Σ_k w_k² · Σ_k w'_k²). This is `correlation` for mixtures whose classes live in
    orthogonal places that are far apart: component k at (M·e_k, m_k) with M → ∞. It can be differentiated once.

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
    if component_weight not in get_args(ComponentWeight):
        raise ValueError(f"component_weight={component_weight!r}; there are 'l2' and 'density'")
    check_same_space(p, q or p)
    a, b = _by_class(p, component_weight), None if q is None else _by_class(q, component_weight)
    inner: Tensor = _Aligned.apply(p.dim, b is None, *a, *(b or a))  # type: ignore[no-untyped-call]
    return at_most_one(inner if q is not None else one_with_itself(inner))


def _by_class(p: IsotropicMixture, component_weight: ComponentWeight) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (C, M) whose squares sum to one for each mixture, means (C, M, d) or (C, M, 1), and variances (C, M)."""
    log_weight = log_norms(p) if component_weight == "density" else to_float64(p.log_weight)
    unit = (log_weight - 0.5 * (2 * log_weight).logsumexp(1, keepdim=True)).exp().to(p.variance.dtype)
    return unit.T, means_by_class(p), p.variance.T


def means_by_class(p: IsotropicMixture) -> Float[Tensor, "C M d"]:
    """Mean vectors in float64; a scalar mean is one coordinate, √n μ on the line of all multiples of **1**."""
    mean = to_float64(p.mean)
    return (mean if p.has_vector_means else mean[:, :, None] * p.dim**0.5).transpose(0, 1)


def squared_distance(a: Float[Tensor, "C M d"], b: Float[Tensor, "C P d"]) -> Float[Tensor, "C M P"]:
    """‖a − b‖² = ‖a‖² + ‖b‖² − 2ab: one product of matrices for each class, and no tensor of C·M·P·d numbers.

    Cancellation costs digits that float64 can spare. A common offset is subtracted first.
    """
    center = a.where(a.isfinite(), 0).mean(1, keepdim=True).detach()  # NaN and inf stay in their row
    a, b = a - center, b - center
    squares = a.square().sum(2)[:, :, None] + b.square().sum(2)[:, None, :]
    return torch.baddbmm(squares, a, b.mT, alpha=-2).clamp(min=0)


class _Aligned(torch.autograd.Function):
    """Σ_k w_ik w'_jk κ_k(i, j), a few classes at a time: nothing of size C·M·P outlives its block.

    With F = (dL/dSim_ij) w_ik w'_jk κ, d = m − m' and S = v + v', the gradients are dm = −Σ F d/S and
    dv = Σ F [d²/2S² + n(v' − v)/(4vS)]. Distances and Σ F d/S are products of matrices: in float64, where what they
    lose to cancellation does not matter.
    """

    @staticmethod
    def forward(ctx: Any, dim: int, mirrored: bool, *tensors: Tensor) -> Tensor:
        ctx.dim, ctx.mirrored = dim, mirrored
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
        if ctx.mirrored:  # both sides pull at the same mixtures
            grad = grad + grad.T
        of_a, of_b = [], []
        for classes in _blocks(a[0], b[0]):
            pair = _Pairs([x[classes] for x in a], [x[classes] for x in b], ctx.dim)
            of_a.append(pair.gradients(grad, 0))
            if not ctx.mirrored and any(ctx.needs_input_grad[5:]):
                of_b.append(pair.gradients(grad, 1))
        grad_a, grad_b = ([torch.cat(parts) for parts in zip(*blocks, strict=True)] for blocks in (of_a, of_b))
        return (None, None, *grad_a, *(grad_b or (None,) * 3))


class _Pairs:
    """All pairs of rows for a few classes, as (K, M, P) tensors."""

    def __init__(self, a: list[Tensor], b: list[Tensor], dim: int) -> None:
        self.weights, self.means, self.variances = ([x, y] for x, y in zip(a, b, strict=True))
        self.dim, dtype = dim, a[2].dtype
        down, across = to_float64(a[2])[:, :, None], to_float64(b[2])[:, None, :]
        twice_sum = 2 * (down + across)
        steepness = squared_distance(*self.means) / twice_sum  # d²/2S
        log_kappa = (-dim * spread(down, across)).sub_(steepness)
        log_kappa.clamp_(min=-87)  # e^−87 counts for nothing, and an exp that underflows takes ten times as long
        self.twice_sum, self.steepness = twice_sum.to(dtype), steepness.to(dtype)
        self.kappa = log_kappa.to(dtype).exp_()

    def products(self) -> Float[Tensor, "M P"]:
        """Σ_k w_ik w'_jk κ_k(i, j) over these classes."""
        a, b = self.weights
        return (self.kappa * a[:, :, None] * b[:, None, :]).sum(0)

    def gradients(self, grad: Float[Tensor, "M P"], side: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of the weights, means and variances of one side."""
        (weight, other_weight), (mean, other_mean), (v, other_v) = (
            pair if side == 0 else pair[::-1] for pair in (self.weights, self.means, self.variances)
        )
        pull, twice_sum, steepness = (
            x if side == 0 else x.mT for x in (self.kappa * grad, self.twice_sum, self.steepness)
        )
        pull = pull * other_weight[:, None, :]
        flow = pull * weight[:, :, None] / (0.5 * twice_sum)  # F/S
        fine = to_float64(flow)
        d_mean = torch.bmm(fine, other_mean) - fine.sum(2, keepdim=True) * mean
        apart = (flow * (other_v[:, None, :] - v[:, :, None])).sum(2)
        d_variance = (flow * steepness).sum(2) + self.dim / 4 * apart / v
        return pull.sum(2), d_mean, d_variance


def _blocks(a: Float[Tensor, "C M"], b: Float[Tensor, "C P"]) -> list[slice]:
    return slices(len(a), max(1, BLOCK // max(1, a.shape[1] * b.shape[1])))
