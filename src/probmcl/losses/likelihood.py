"""How well a mixture explains a feature: L_NLL of ProbMCL, Eq. 2."""

from jaxtyping import Float
from torch import Tensor

from probmcl.losses.reduction import Reduction, reduce_rows
from probmcl.mixture import IsotropicMixture


def negative_log_likelihood(
    mixture: IsotropicMixture, z: Float[Tensor, "M n"], *, reduction: Reduction = "mean", per_dimension: bool = False
) -> Float[Tensor, ""]:
    """Negative log-likelihood of each row of z under the mixture of that row.

    L_NLL = Σ_i −log p(z_i|x_i), summed or averaged over rows. `per_dimension` divides by the n dimensions of z, which
    keeps the number comparable between encoders of different widths.

    Reference: ProbMCL, Eq. 2; decision 0001, points 1 and 4.

    >>> import torch
    >>> one = IsotropicMixture(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), dim=4)
    >>> negative_log_likelihood(one, torch.zeros(1, 4), per_dimension=True)  # ½ log 2π
    tensor(0.9189)
    """
    loss = reduce_rows(-mixture.log_prob(z), reduction)
    return loss / mixture.dim if per_dimension else loss
