"""The asymmetric loss, which trains ProbMCL's linear classifier and most methods it is compared with."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from probmcl.losses.reduction import Reduction, reduce_known
from probmcl.runtime.precision import full_precision


@full_precision
def asymmetric(
    logits: Float[Tensor, "N C"],
    labels: Float[Tensor, "N C"],
    known: Bool[Tensor, "N C"] | None = None,
    *,
    gamma_negative: float = 4.0,
    gamma_positive: float = 0.0,
    clip: float = 0.05,
    focusing_gradient: bool = False,
    reduction: Reduction = "sum",
) -> Float[Tensor, ""]:
    """Return the binary cross-entropy with less weight on easy entries, above all on easy negatives.

    L = −Σ y (1−p)^γ₊ log p + (1−y) q^γ₋ log(1−q) over known entries, where p = sigmoid(logit), q = max(p − clip, 0),
    γ₊ is `gamma_positive` and γ₋ `gamma_negative`. Computed from log-sigmoids, which need no clamp at either end.

    Reference: Ridnik et al., Asymmetric Loss for Multi-Label Classification, ICCV 2021; its published values are the
    defaults here (decision 0001, point 17).

    Args:
        logits: before the sigmoid.
        labels: 0 or 1.
        known: entries that count; None means all.
        gamma_negative: focusing exponent for negatives.
        gamma_positive: the same for positives.
        clip: probability below which a negative has no loss.
        focusing_gradient: whether the factors (1−p)^γ₊ and q^γ₋ are differentiated too; the published code does not.
        reduction: over the known entries.

    >>> asymmetric(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))  # log 2, and 0.45⁴ · −log 0.55
    tensor(0.7177)
    """
    labels = labels if known is None else labels.where(known, 0)
    focused = logits if focusing_gradient else logits.detach()
    positive = _power(torch.sigmoid(-focused), gamma_positive) * logsigmoid(logits)
    log_not_q = logsigmoid(-logits) if clip == 0 else (torch.sigmoid(-logits) + clip).clamp(max=1).log()
    negative = _power(torch.sigmoid(focused) - clip, gamma_negative) * log_not_q
    loss = -(labels * positive + (1 - labels) * negative)
    return reduce_known(loss, known, reduction)


def _power(base: Tensor, exponent: float) -> Tensor:
    # Zero has an infinite slope for exponents below one, and 0 · ∞ is NaN: stay off it by the smallest number there is.
    return base.clamp(min=torch.finfo(base.dtype).tiny).pow(exponent)
