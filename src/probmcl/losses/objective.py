"""The objective of ProbMCL: the likelihood (Eq. 2), the sum with the contrast (Eq. 4), and its balanced weight."""

import torch
from jaxtyping import Float
from torch import Tensor

from probmcl.losses.reduction import Reduction, reduce_rows
from probmcl.mixture import IsotropicMixture
from probmcl.runtime.precision import at_least_float32

LARGEST_WEIGHT = 1e6
"""Bound of the balanced weight, reached only where the contrast has almost no gradient left."""


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
