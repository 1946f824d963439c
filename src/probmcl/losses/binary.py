"""Binary cross-entropy over the labels that are known."""

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from probmcl.losses.reduction import Reduction, reduce_known
from probmcl.runtime.precision import full_precision


@full_precision
def binary_cross_entropy(
    logits: Float[Tensor, "N C"],
    labels: Float[Tensor, "N C"],
    known: Bool[Tensor, "N C"] | None = None,
    *,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""]:
    """Return the negative log-likelihood of independent labels.

    L = −Σ y log p + (1−y) log(1−p) over the known entries, with p = sigmoid(logit).

    >>> import torch
    >>> binary_cross_entropy(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))  # log 2
    tensor(0.6931)
    """
    labels = labels if known is None else labels.where(known, 0)
    return reduce_known(binary_cross_entropy_with_logits(logits, labels, reduction="none"), known, reduction)
