"""The objective of ProbMCL, Eq. 4: the contrast (Eq. 3, L_PCL) of any similarity matrix, and the likelihood (Eq. 2)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probmcl.errors import check_range
from probmcl.losses.binary import Reduction, reduce_rows
from probmcl.mixture import IsotropicMixture
from probmcl.runtime.precision import at_least_float32, full_precision

LARGEST_WEIGHT = 1e6
"""Bound of the balanced weight, reached only where the contrast has almost no gradient left."""


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


def negative_log_likelihood(
    mixture: IsotropicMixture, z: Float[Tensor, "M n"], *, reduction: Reduction = "mean", per_dimension: bool = False
) -> Float[Tensor, ""]:
    """Negative log-likelihood of each row of z under the mixture of that row.

    L_NLL = Σ_i −log p(z_i|x_i), summed or averaged over rows. `per_dimension` divides by the n dimensions of z, which
    keeps the number comparable between encoders of different widths.

    Reference: ProbMCL, Eq. 2; decision 0001, points 1 and 4.

    >>> one = IsotropicMixture(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), dim=4)
    >>> negative_log_likelihood(one, torch.zeros(1, 4), per_dimension=True)  # ½ log 2π
    tensor(0.9189)
    """
    loss = reduce_rows(-mixture.log_prob(z), reduction)
    return loss / mixture.dim if per_dimension else loss


def objective(
    likelihood: Float[Tensor, ""], contrast: Float[Tensor, ""], *, contrastive_weight: float | Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Likelihood plus weighted contrast, L = L_NLL + λ L_PCL.

    Reference: ProbMCL, Eq. 4.

    >>> objective(torch.tensor(1.0), torch.tensor(2.0), contrastive_weight=0.3)
    tensor(1.6000)
    """
    return likelihood + contrastive_weight * contrast


def balanced_weight(
    likelihood: Float[Tensor, ""], contrast: Float[Tensor, ""], features: Float[Tensor, "M D"]
) -> Float[Tensor, ""]:
    """The λ at which both terms pull equally hard at the features: ‖∂L_NLL/∂h‖ / ‖∂L_PCL/∂h‖.

    The paper says that λ is there "to equalize the gradients", and then fixes it at 0.3; this does what it says. The
    weight itself carries no gradient. It is 0 where the contrast has none.

    Reference: ProbMCL, text below Eq. 4; decision 0003.

    >>> h = torch.ones(1, 2, requires_grad=True)
    >>> balanced_weight(6 * h.sum(), 2 * h.sum(), h)
    tensor(3.)
    """
    if not features.requires_grad:
        raise ValueError("a balanced contrastive weight needs gradients at the features; under no_grad give a number")
    gradients = [torch.autograd.grad(loss, features, retain_graph=True)[0] for loss in (likelihood, contrast)]
    norms = [at_least_float32(gradient).norm() for gradient in gradients]  # a norm in float16 ends at 65504
    ratio: Tensor = norms[0] / norms[1]
    return ratio.where(norms[1] > 0, 0).clamp(max=LARGEST_WEIGHT)
