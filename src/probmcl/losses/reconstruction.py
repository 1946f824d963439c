"""The reconstruction loss of KMCL (L_REC): the share of present labels in the kernel mixture at the feature."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from probmcl.losses.contrastive import masked_logsumexp
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
    """Return the negative logarithm of the share that present labels have in the kernel mixture.

    L_REC = Σ_i −log[ Σ_{k present} p_ik g_ik / Σ_{k known} p_ik g_ik ], where p is the weight of a kernel and g its
    value at the feature. A row where no label is present adds 0 and still counts in the mean.

    Reference: KMCL, its reconstruction loss.

    Args:
        log_weight: logarithms of p.
        log_kernel: logarithms of g.
        present: labels that an image has; only those that are known count.
        known: labels that count; None means all.
        kernel_floor: smallest g; the published code has 1.17549e-38. Below it, g has no gradient.
        ratio_floor: smallest share; the published code has 1e-7. Below it, there is no gradient at all.
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
    lowest = torch.finfo(log_part.dtype).min
    log_part = log_part - log_part.masked_fill(~known, lowest).amax(1, keepdim=True).detach()
    loss = (masked_logsumexp(log_part, known) - masked_logsumexp(log_part, present))[:, 0]
    if ratio_floor > 0:
        loss = loss.clamp(max=-math.log(ratio_floor))
    return reduce_rows(loss.where(present.any(1), 0).to(log_weight.dtype), reduction)
