"""ProbMCL objective (Eq. 4): contrastive loss on a similarity matrix (Eq. 3) and negative log-likelihood (Eq. 2)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from probmcl.errors import check_range, counted
from probmcl.losses.binary import Reduction, reduce_rows
from probmcl.mixture import IsotropicMixture
from probmcl.runtime.precision import at_least_float32, full_precision

LARGEST_WEIGHT = 1e6
"""Upper bound on the balanced weight, reached if the contrastive gradient is almost zero."""


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
    """Return ProbMCL's contrastive loss, in which positives are weighted by their label overlap.

    L_PCL = Σ_i −1/|A(i)| Σ_{j∈A(i)} D_ij log[ exp(Sim_ij/τ) / Σ_{l≠i} exp(Sim_il/τ) ],  A(i) = {j ≠ i : D_ij ≥ α},
    where Sim is `similarity`, D is `overlap`, α is `threshold` and τ is `temperature`. A row without positives has
    loss 0 and is included in the mean.

    Reference: ProbMCL, Eq. 3.

    Args:
        similarity: similarity of M anchors to P columns.
        overlap: label overlap of the same pairs, in [0, 1].
        threshold: minimum overlap of a positive pair.
        temperature: positive divisor of the similarity.
        self_column: column that contains the anchor itself; defaults to the diagonal of a square matrix.
        reduction: `mean` or `sum` over the rows.

    >>> similarity = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> overlap = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> contrastive(similarity, overlap, threshold=0.5, temperature=1.0, reduction="sum")  # log 2 for each of two rows
    tensor(1.3863)
    """
    check_range(above=0, temperature=temperature)
    other = ~is_self(similarity, self_column)
    positive = positives(overlap, threshold=threshold, self_column=self_column)
    logits = similarity / temperature
    log_denominator = masked_logsumexp(logits, other)  # (M, 1): log Σ_{l≠i} exp(Sim_il/τ)
    weighted = (overlap * (logits - log_denominator)).where(positive, 0)
    positives_of_row = positive.sum(1).clamp(min=1)  # |A(i)|, or 1 to avoid a division by zero
    loss = -weighted.sum(1) / positives_of_row
    return reduce_rows(loss, reduction)


@full_precision
def positives(
    overlap: Float[Tensor, "M P"], *, threshold: float, self_column: Int[Tensor, "M"] | None = None
) -> Bool[Tensor, "M P"]:
    """Return a mask of the positives of each row, A(i) = {j ≠ i : D_ij ≥ α}.

    >>> positives(torch.tensor([[1.0, 0.5], [0.5, 1.0]]), threshold=0.5)
    tensor([[False,  True],
            [ True, False]])
    """
    return (overlap >= threshold) & ~is_self(overlap, self_column)


def masked_logsumexp(logits: Float[Tensor, "M P"], mask: Bool[Tensor, "M P"]) -> Float[Tensor, "M 1"]:
    """Return the log-sum-exp of the selected entries in each row; without any, value and gradient are finite."""
    lowest = torch.finfo(logits.dtype).min  # −∞ would give NaN gradients for a row without entries
    return logits.masked_fill(~mask, lowest).logsumexp(1, keepdim=True)


def is_self(matrix: Float[Tensor, "M P"], self_column: Int[Tensor, "M"] | None) -> Bool[Tensor, "M P"]:
    """Return a mask of the entries that pair a row with itself; `self_column` defaults to the diagonal."""
    rows, columns = matrix.shape
    if self_column is None:
        if rows != columns:
            size = f"{counted(rows, 'row')} and {counted(columns, 'column')}"
            raise ValueError(f"`self_column` is required for a matrix with {size}")
        self_column = torch.arange(rows, device=matrix.device)
    return self_column[:, None] == torch.arange(columns, device=matrix.device)


def negative_log_likelihood(
    mixture: IsotropicMixture, z: Float[Tensor, "M n"], *, reduction: Reduction = "mean", per_dimension: bool = False
) -> Float[Tensor, ""]:
    """Return the negative log-likelihood of each row of z under the mixture of that row.

    L_NLL = Σ_i −log p(z_i|x_i), summed or averaged over rows. `per_dimension` divides by the dimension n of z, which
    makes encoders with different feature sizes comparable.

    Reference: ProbMCL, Eq. 2; decision 0001, points 1 and 4.

    >>> one = IsotropicMixture(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), dim=4)
    >>> negative_log_likelihood(one, torch.zeros(1, 4), per_dimension=True)  # ½ log 2π
    tensor(0.9189)
    """
    loss = reduce_rows(-mixture.log_prob(z), reduction)
    if per_dimension:
        return loss / mixture.dim
    return loss


def objective(
    likelihood: Float[Tensor, ""], contrast: Float[Tensor, ""], *, contrastive_weight: float | Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Return the sum of the negative log-likelihood and the weighted contrastive loss, L = L_NLL + λ L_PCL.

    Reference: ProbMCL, Eq. 4.

    >>> objective(torch.tensor(1.0), torch.tensor(2.0), contrastive_weight=0.3)
    tensor(1.6000)
    """
    return likelihood + contrastive_weight * contrast


def balanced_weight(
    likelihood: Float[Tensor, ""], contrast: Float[Tensor, ""], features: Float[Tensor, "M D"]
) -> Float[Tensor, ""]:
    """Return the λ that gives both terms the same gradient norm with respect to `features`: ‖∂L_NLL/∂h‖ / ‖∂L_PCL/∂h‖.

    The paper introduces λ "to equalize the gradients" but fixes it at 0.3. The weight is detached. It is 0 if the
    contrastive gradient is zero.

    Reference: ProbMCL, text below Eq. 4; decision 0003.

    >>> h = torch.ones(1, 2, requires_grad=True)
    >>> balanced_weight(6 * h.sum(), 2 * h.sum(), h)
    tensor(3.)
    """
    if not features.requires_grad:
        raise ValueError("a balanced weight needs `features` that require gradients; under no_grad, use a number")
    likelihood_norm = _gradient_norm(likelihood, features)
    contrast_norm = _gradient_norm(contrast, features)
    return norm_ratio(likelihood_norm, contrast_norm)


def norm_ratio(likelihood_norm: Float[Tensor, ""], contrast_norm: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Return the ratio of two gradient norms, the λ of `balanced_weight`.

    It is at most `LARGEST_WEIGHT`, and 0 if the contrastive gradient is zero.

    >>> norm_ratio(torch.tensor(6.0), torch.tensor(2.0)), norm_ratio(torch.tensor(6.0), torch.tensor(0.0))
    (tensor(3.), tensor(0.))
    """
    ratio = likelihood_norm / contrast_norm
    return ratio.where(contrast_norm > 0, 0).clamp(max=LARGEST_WEIGHT)


def _gradient_norm(loss: Float[Tensor, ""], features: Float[Tensor, "M D"]) -> Float[Tensor, ""]:
    """Return ‖∂loss/∂features‖, and keep the autograd graph for the training step."""
    (gradient,) = torch.autograd.grad(loss, features, retain_graph=True)
    norm: Tensor = at_least_float32(gradient).norm()  # float16 norms overflow at 65504
    return norm
