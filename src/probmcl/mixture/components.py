"""Components of mixtures as similarities need them: their norms, means and variances."""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from probmcl.mixture.density import IsotropicMixture
from probmcl.runtime.precision import to_float64

LEFT_OUT = {torch.float32: 1e-8, torch.float64: 1e-17}
"""Largest sum of the norms of all components that are left out, relative to the largest norm."""


class Components(NamedTuple):
    """K components in each of M rows: ω = log ‖π_k N_k‖ up to a constant in each row, μ_k and v_k."""

    log_norm: Float[Tensor, "M K"]
    mean: Float[Tensor, "M K"]
    variance: Float[Tensor, "M K"]


def check_same_space(p: IsotropicMixture, q: IsotropicMixture) -> None:
    """Refuse mixtures that cannot be compared."""
    sizes = [(m.variance.shape[1], m.dim) for m in (p, q)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            "mixtures of {} components in {} dimensions and of {} in {} differ".format(*sizes[0], *sizes[1])
        )


def log_norms(p: IsotropicMixture) -> Float[Tensor, "M C"]:
    """Logarithm of ‖π_k N_k‖ up to a constant in each row, which every similarity here divides out; its maximum is 0.

    In float64: (n/4) log v reaches thousands, of which the digits after the point are the ones that count.
    """
    log_norm = to_float64(p.log_weight) - p.dim / 4 * to_float64(p.variance).log()
    return log_norm - log_norm.amax(1, keepdim=True).detach()


def components_that_count(p: IsotropicMixture, dtype: torch.dtype) -> Components:
    """The components of scalar means without those whose norm is next to nothing; as many in each row.

    A weight is π_k σ_k^(−n/2): in many dimensions the narrow components leave nothing to the others, and what is
    computed over pairs or nodes gets cheaper by as much.
    """
    log_norm: Tensor = _ScaleFree.apply(log_norms(p))  # type: ignore[no-untyped-call]
    everything = Components(log_norm.to(dtype), p.mean.to(dtype), p.variance.to(dtype))
    rows, components = log_norm.shape
    if rows == 0 or components == 1:
        return everything
    count = (log_norm > math.log(LEFT_OUT[dtype] / components)).sum(1).amax()
    most = max(8, math.ceil(int(count) / 8) * 8)
    if most > 0.8 * components:
        return everything
    heaviest = everything.log_norm.topk(most).indices
    log_norm, mean, variance = (x.gather(1, heaviest) for x in everything)
    return Components(log_norm + 0 * p.mean.sum(1, keepdim=True), mean, variance)  # a mean that is NaN must propagate


def spread(v_a: Tensor, v_b: Tensor) -> Tensor:
    """How far two variances are apart: −½ log(2σσ'/S), without logarithm of a number near one.

    2σσ'/S = (1 − t)/(1 + t) with t = ((σ − σ')/(σ + σ'))², hence ½ log = −atanh t.
    """
    return torch.atanh(((v_a - v_b) / (v_a.sqrt() + v_b.sqrt()).square()).square())


def at_most_one(similarity: Tensor) -> Tensor:
    """Take off what rounding put above one, and leave the gradient alone (a clamp would make it zero there)."""
    return similarity - (similarity - 1).clamp(min=0).detach()


def of_nothing(p: IsotropicMixture, q: IsotropicMixture) -> Float[Tensor, "M P"]:
    """The similarities where a side has no rows: no numbers, but of the right shape and with gradients of their own."""
    sums = [x.flatten(1).sum(1)[:, None] for m in (p, q) for x in (m.log_weight, m.mean, m.variance)]
    return sum(sums[:3]) * sum(sums[3:]).T  # type: ignore[union-attr]  # a sum of tensors


def one_with_itself(similarity: Float[Tensor, "M M"]) -> Float[Tensor, "M M"]:
    """Put ones on the diagonal, which pull nowhere: what rounding made of them would."""
    diagonal = similarity.diagonal()
    return similarity - torch.diag(diagonal - torch.where(diagonal.isnan(), diagonal, 1).detach())


def slices(length: int, step: int) -> list[slice]:
    """One after the other, of `step` each; the last one may be shorter.

    >>> slices(5, 3)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


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
