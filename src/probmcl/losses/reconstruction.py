"""How much of a kernel mixture at the feature comes from the labels that an image has: L_REC of KMCL."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probmcl.losses.reduction import Reduction, reduce_rows
from probmcl.runtime.precision import full_precision


@full_precision
def reconstruction(
    log_weight: Float[Tensor, "M C"],
    log_kernel: Float[Tensor, "M C"],
    present: Bool[Tensor, "M C"],
    known: Bool[Tensor, "M C"] | None = None,
    *,
    kernel_floor: float = 0.0,
    ratio_floor: float = 0.0,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""]:
    """Negative logarithm of the share that present labels have in the kernel mixture.

    L_REC = Σ_i −log[ Σ_{k present} p_ik g_ik / Σ_{k known} p_ik g_ik ], where p is the weight of a kernel and g its
    value at the feature. A row where no label is present adds 0 and still counts in the mean.

    Reference: KMCL, its reconstruction loss.

    Args:
        log_weight: logarithms of p.
        log_kernel: logarithms of g.
        present: labels that an image has; only those that are known count.
        known: labels that count; None means all.
        kernel_floor: smallest g; the published code has 1.17549e-38. From there on, no gradient comes through g.
        ratio_floor: smallest share; the published code has 1e-7. From there on, no gradient comes through at all.
        reduction: over the rows.

    >>> present = torch.tensor([[True, False]])
    >>> reconstruction(torch.zeros(1, 2), torch.zeros(1, 2), present)  # one of two: log 2
    tensor(0.6931)
    """
    known = torch.ones_like(present) if known is None else known
    present = present & known
    if kernel_floor > 0:
        log_kernel = log_kernel.clamp(min=math.log(kernel_floor))
    log_part = log_weight + log_kernel
    # Relative to the largest known part of the row, which the share divides out: this keeps the digits that matter.
    log_part = log_part - _only(log_part, known).amax(1, keepdim=True).detach()
    loss = _only(log_part, known).logsumexp(1) - _only(log_part, present).logsumexp(1)
    if ratio_floor > 0:
        loss = loss.clamp(max=-math.log(ratio_floor))
    return reduce_rows(loss.where(present.any(1), 0).to(log_weight.dtype), reduction)


def _only(log_part: Float[Tensor, "M C"], chosen: Bool[Tensor, "M C"]) -> Float[Tensor, "M C"]:
    # The most negative finite number, not −∞, whose gradient would be NaN for a row where nothing is chosen.
    return log_part.masked_fill(~chosen, torch.finfo(log_part.dtype).min)
