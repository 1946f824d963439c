"""The contrastive loss of ProbMCL, Eq. 3 (L_PCL), for any similarity matrix."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probmcl.errors import check_range
from probmcl.losses.reduction import Reduction, reduce_rows
from probmcl.runtime.precision import full_precision


@full_precision
def contrastive(
    similarity: Float[Tensor, "M P"],
    overlap: Float[Tensor, "M P"],
    *,
    threshold: float,
    temperature: float,
    self_column: Int[Tensor, "M"] | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""]:
    """Return the overlap-weighted contrastive loss over the rows that share enough labels.

    L_PCL = Σ_i −1/|A(i)| Σ_{j∈A(i)} D_ij log[ exp(Sim_ij/τ) / Σ_{l≠i} exp(Sim_il/τ) ],  A(i) = {j ≠ i : D_ij ≥ α},
    where Sim is `similarity`, D `overlap`, α `threshold` and τ `temperature`. A row without positives adds 0 and
    counts in the mean.

    Reference: ProbMCL, Eq. 3.

    Args:
        similarity: of M anchors with P columns.
        overlap: of the same pairs, in [0, 1].
        threshold: smallest overlap of a positive pair.
        temperature: divides the similarity.
        self_column: the column that is the row itself; None means the diagonal of a square matrix.
        reduction: over the rows.

    >>> similarity = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> overlap = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> contrastive(similarity, overlap, threshold=0.5, temperature=1.0, reduction="sum")  # two rows of log 2
    tensor(1.3863)
    """
    check_range(above=0, temperature=temperature)
    other = ~is_self(similarity, self_column)
    positive = positives(overlap, threshold=threshold, self_column=self_column)
    logits = similarity / temperature
    log_denominator = masked_logsumexp(logits, other)
    weighted = (overlap * (logits - log_denominator)).where(positive, 0)
    return reduce_rows(-weighted.sum(1) / positive.sum(1).clamp(min=1), reduction)


@full_precision
def positives(
    overlap: Float[Tensor, "M P"], *, threshold: float, self_column: Int[Tensor, "M"] | None = None
) -> Bool[Tensor, "M P"]:
    """Return the positive set of each row, A(i) = {j ≠ i : D_ij ≥ α}.

    >>> positives(torch.tensor([[1.0, 0.5], [0.5, 1.0]]), threshold=0.5)
    tensor([[False,  True],
            [ True, False]])
    """
    return (overlap >= threshold) & ~is_self(overlap, self_column)


def masked_logsumexp(logits: Float[Tensor, "M P"], mask: Bool[Tensor, "M P"]) -> Float[Tensor, "M 1"]:
    """Return the logsumexp of the masked entries of each row; finite, with finite gradients, if there are none."""
    # The most negative finite number, not −∞, whose gradient would be NaN for a row without entries.
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).logsumexp(1, keepdim=True)


def is_self(matrix: Float[Tensor, "M P"], self_column: Int[Tensor, "M"] | None) -> Bool[Tensor, "M P"]:
    """Mark the column of each row that is the row itself; without `self_column` the diagonal."""
    rows, columns = matrix.shape
    if self_column is None:
        if rows != columns:
            raise ValueError(f"a matrix of {rows} rows and {columns} columns has no diagonal; give self_column")
        self_column = torch.arange(rows, device=matrix.device)
    return self_column[:, None] == torch.arange(columns, device=matrix.device)
