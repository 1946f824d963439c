"""The focal loss: binary cross-entropy with less weight on easy positives and negatives."""

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from probmcl.errors import check_range
from probmcl.losses.reduction import Reduction, reduce_known
from probmcl.runtime.precision import full_precision


@full_precision
def focal(
    logits: Float[Tensor, "N C"],
    labels: Float[Tensor, "N C"],
    known: Bool[Tensor, "N C"] | None = None,
    *,
    gamma: float = 2.0,
    positive_weight: float | None = 0.25,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""]:
    """Return the binary cross-entropy in which an entry counts less, the more probable its label already is.

    L = −Σ α y (1−p)^γ log p + (1−α) (1−y) p^γ log(1−p) over the known entries, where p = sigmoid(logit), γ is `gamma`
    and α `positive_weight`; None weighs neither. The powers are taken in log space, so that value and slope are finite
    for every logit and every γ ≥ 0.

    Reference: Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, Eqs. 4 and 5; its values are the defaults.

    >>> import torch
    >>> focal(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), reduction="sum")  # 0.5² log 2
    tensor(0.1733)
    """
    check_range(at_least=0, gamma=gamma)
    check_range(at_least=0, at_most=1, positive_weight=positive_weight)
    labels = labels if known is None else labels.where(known, 0)
    log_p, log_not_p = logsigmoid(logits), logsigmoid(-logits)
    positive, negative = (gamma * log_not_p).exp() * log_p, (gamma * log_p).exp() * log_not_p
    if positive_weight is not None:
        positive, negative = positive_weight * positive, (1 - positive_weight) * negative
    return reduce_known(-(labels * positive + (1 - labels) * negative), known, reduction)
