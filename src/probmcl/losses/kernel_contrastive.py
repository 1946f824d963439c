"""KMCL losses: contrastive loss over the kernels of shared labels (L_KMCL) and reconstruction loss (L_REC)."""

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
    """Return KMCL's contrastive loss, summed over the labels that two images share.

    L_KMCL = Σ_i −1/|A(i)| Σ_{j∈A(i)} Σ_{k shared} log[ J_ij exp(BC_ijk/τ) / Σ_{l≠i} exp(BC_ilk/τ) + ε ], where BC is
    `similarity`, J is `overlap`, τ is `temperature`, ε is `share_offset`, and A(i) is the set of all j ≠ i that share a
    label with i. The index l runs over columns whose label k is known. A row without positives has loss 0 and is
    included in the mean.

    Reference: KMCL, contrastive loss. Unlike in ProbMCL, Eq. 3, the overlap is inside the logarithm, so it affects the
    gradient only if ε is above 0.

    Args:
        similarity: one row per true entry (i, k) of `present`, in row-major order: the similarity of class k of row i
            to class k of every column.
        overlap: label overlap of rows and columns, above 0 if they share a label.
        present: mask of the known positive labels of each row.
        present_in_columns: mask of the labels of each column; defaults to `present`.
        known_in_columns: mask of the known labels of each column; defaults to all.
        temperature: positive divisor of the similarity.
        self_column: column that contains the row itself; defaults to the diagonal.
        share_offset: constant added inside the logarithm; 1e-7 in the published code.
        reduction: `mean` or `sum` over the rows.

    >>> present = torch.tensor([[True], [True], [False]])
    >>> similarity = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> kernel_contrastive(similarity, torch.ones(3, 3), present, reduction="sum")  # log 2 for each of two rows
    tensor(1.3863)
    """
    check_range(above=0, temperature=temperature)
    if present_in_columns is None:
        present_in_columns = present
    other = ~is_self(overlap, self_column)  # (M, P)
    row, label = present.nonzero(as_tuple=True)  # (T,): the image i and the label k of each row of `similarity`
    contrasted = other[row]  # (T, P)
    if known_in_columns is not None:
        contrasted = contrasted & known_in_columns.T[label]
    shared = present_in_columns.T[label] & contrasted
    logits = similarity / temperature
    log_denominator = masked_logsumexp(logits, contrasted)
    log_share = overlap[row].where(shared, 1).log() + logits - log_denominator
    if share_offset > 0:
        log_offset = log_share.new_tensor(math.log(share_offset))
        log_share = torch.logaddexp(log_share, log_offset)
    sum_per_label = log_share.where(shared, 0).sum(1)  # (T,)
    sum_per_row = logits.new_zeros(len(present)).index_add(0, row, sum_per_label)  # (M,)
    shares_a_label = present.float() @ present_in_columns.float().T > 0  # (M, P)
    positives_of_row = (shares_a_label & other).sum(1)  # |A(i)|
    return reduce_rows(-sum_per_row / positives_of_row.clamp(min=1), reduction)


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
    """Return KMCL's reconstruction loss, the negative log of the present labels' share of the kernel mixture.

    L_REC = Σ_i −log[ Σ_{k present} p_ik g_ik / Σ_{k known} p_ik g_ik ], where p is the weight of a kernel and g is its
    value at the feature. A row without present labels has loss 0 and is included in the mean.

    Reference: KMCL, reconstruction loss.

    Args:
        log_weight: log p.
        log_kernel: log g.
        present: mask of the labels of each image; unknown labels are ignored.
        known: mask of the known labels; defaults to all.
        kernel_floor: lower bound on g, below which its gradient is zero; 1.17549e-38 in the published code.
        ratio_floor: lower bound on the share, below which the gradient is zero; 1e-7 in the published code.
        reduction: `mean` or `sum` over the rows.

    >>> present = torch.tensor([[True, False]])
    >>> reconstruction(torch.zeros(1, 2), torch.zeros(1, 2), present)  # share ½, so log 2
    tensor(0.6931)
    """
    if known is None:
        known = torch.ones_like(present)
    present = present & known
    if kernel_floor > 0:
        log_kernel = log_kernel.clamp(min=math.log(kernel_floor))
    log_term = log_weight + log_kernel  # log p_ik g_ik
    # Subtracting the largest known term of the row does not change the share and preserves precision.
    lowest = torch.finfo(log_term.dtype).min
    largest_known = log_term.masked_fill(~known, lowest).amax(1, keepdim=True).detach()
    shifted = log_term - largest_known
    loss = (masked_logsumexp(shifted, known) - masked_logsumexp(shifted, present))[:, 0]
    if ratio_floor > 0:
        loss = loss.clamp(max=-math.log(ratio_floor))
    has_label = present.any(1)
    loss = loss.where(has_label, 0).to(log_weight.dtype)
    return reduce_rows(loss, reduction)
