"""The losses of KMCL: the contrast between the kernels of shared labels (L_KMCL) and the reconstruction (L_REC)."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probmcl.errors import check_range
from probmcl.losses.binary import Reduction, reduce_rows
from probmcl.losses.contrastive import is_self, masked_logsumexp
from probmcl.runtime.precision import full_precision


@full_precision
def kernel_contrastive(
    similarity: Float[Tensor, "T P"],
    overlap: Float[Tensor, "M P"],
    present: Bool[Tensor, "M C"],
    present_in_columns: Bool[Tensor, "P C"] | None = None,
    *,
    known_in_columns: Bool[Tensor, "P C"] | None = None,
    temperature: float = 0.17,
    self_column: Int[Tensor, "M"] | None = None,
    share_offset: float = 0.0,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""]:
    """Return the contrastive loss over the labels that two images share, class by class.

    L_KMCL = Σ_i −1/|A(i)| Σ_{j∈A(i)} Σ_{k shared} log[ J_ij exp(BC_ijk/τ) / Σ_{l≠i} exp(BC_ilk/τ) + ε ], where BC is
    `similarity`, J `overlap`, τ `temperature`, ε `share_offset`, and A(i) are all j ≠ i that share a label with i; l
    runs over those of which it is known whether they have k. A row without partners adds 0 and still counts in the
    mean.

    Reference: KMCL, its contrastive loss. The overlap is inside the logarithm, unlike in ProbMCL, Eq. 3: it moves the
    value of the loss, and its gradient only where ε is above 0.

    Args:
        similarity: a row for each true entry (i, k) of `present`, row by row: class k of row i with class k of every
            column.
        overlap: of rows and columns, above 0 where they share a label.
        present: labels that a row has, as far as they are known.
        present_in_columns: labels that a column has; None means that columns are the rows.
        known_in_columns: labels of a column that take part; None means all.
        temperature: divides the similarity.
        self_column: the column that is the row itself; None means the diagonal.
        share_offset: added inside the logarithm; the published code has 1e-7.
        reduction: over the rows.

    >>> present = torch.tensor([[True], [True], [False]])
    >>> similarity = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> kernel_contrastive(similarity, torch.ones(3, 3), present, reduction="sum")  # two rows of log 2
    tensor(1.3863)
    """
    check_range(above=0, temperature=temperature)
    columns = present if present_in_columns is None else present_in_columns
    other = ~is_self(overlap, self_column)  # (M, P)
    anchor, label = present.nonzero(as_tuple=True)  # (T,)
    seen = other[anchor] if known_in_columns is None else other[anchor] & known_in_columns.T[label]  # (T, P)
    shared = columns.T[label] & seen
    logits = similarity / temperature
    log_denominator = masked_logsumexp(logits, seen)
    log_share = overlap[anchor].where(shared, 1).log() + logits - log_denominator
    if share_offset > 0:
        log_share = torch.logaddexp(log_share, log_share.new_tensor(math.log(share_offset)))
    total = logits.new_zeros(len(present)).index_add(0, anchor, log_share.where(shared, 0).sum(1))
    partners = ((present.float() @ columns.float().T > 0) & other).sum(1)  # |A(i)|
    return reduce_rows(-total / partners.clamp(min=1), reduction)


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
