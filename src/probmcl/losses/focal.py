"""The focal loss: binary cross-entropy that passes over what is easy, for positives and negatives alike."""

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
    """Binary cross-entropy in which an entry counts the less, the more probable its label already is.

    L = −Σ α y (1−p)^γ log p + (1−α) (1−y) p^γ log(1−p), where p = sigmoid(logit). The powers are taken in log space,
    so that value and slope are finite for every logit and every γ from 0 on.

    Reference: Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, Eqs. 4 and 5; its values are the defaults.

    Args:
        logits: before the sigmoid.
        labels: 0 or 1.
        known: entries that count; None means all.
        gamma: γ, how strongly easy entries are passed over; 0 passes over none.
        positive_weight: α of the positives, 1−α of the negatives; None weighs neither.
        reduction: over the known entries.

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
