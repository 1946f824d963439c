"""Losses for independent labels, computed over known labels: binary cross-entropy, asymmetric and focal loss."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from probmcl.errors import check_range
from probmcl.runtime.precision import full_precision

Reduction = Literal["mean", "sum"]


def reduce_rows(loss: Float[Tensor, "M"], reduction: Reduction) -> Float[Tensor, ""]:
    """Return the sum or mean over all rows.

    >>> reduce_rows(torch.tensor([1.0, 3.0]), "mean")
    tensor(2.)
    """
    _check_reduction(reduction)
    return loss.mean() if reduction == "mean" else loss.sum()


def reduce_known(
    loss: Float[Tensor, "N C"], known: Bool[Tensor, "N C"] | None, reduction: Reduction
) -> Float[Tensor, ""]:
    """Return the sum or mean over entries with a known label, or 0 if there are none.

    >>> reduce_known(torch.tensor([[1.0, 5.0]]), torch.tensor([[True, False]]), "mean")
    tensor(1.)
    """
    _check_reduction(reduction)
    if known is None:
        return reduce_rows(loss.flatten(), reduction)
    total = loss.where(known, 0).sum()
    if reduction == "sum":
        return total
    return total / known.sum().clamp(min=1)


def _check_reduction(reduction: str) -> None:
    """Raise ValueError if the reduction is unknown."""
    if reduction not in ("mean", "sum"):
        raise ValueError(f"`reduction` must be 'mean' or 'sum', got {reduction!r}")


def _fill_unknown(labels: Float[Tensor, "N C"], known: Bool[Tensor, "N C"] | None) -> Float[Tensor, "N C"]:
    """Replace the values of unknown labels by 0, because they may be NaN."""
    if known is None:
        return labels
    return labels.where(known, 0)


@full_precision
def binary_cross_entropy(
    logits: Float[Tensor, "N C"],
    labels: Float[Tensor, "N C"],
    known: Bool[Tensor, "N C"] | None = None,
    *,
    reduction: Reduction = "mean",
) -> Float[Tensor, ""]:
    """Return the binary cross-entropy of independent labels.

    L = −Σ y log p + (1−y) log(1−p) over the known entries, with p = sigmoid(logit).

    >>> binary_cross_entropy(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))  # log 2
    tensor(0.6931)
    """
    loss = binary_cross_entropy_with_logits(logits, _fill_unknown(labels, known), reduction="none")
    return reduce_known(loss, known, reduction)


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
    """Return the asymmetric loss, a binary cross-entropy that down-weights easy entries, especially negatives.

    L = −Σ y (1−p)^γ₊ log p + (1−y) q^γ₋ log(1−q) over known entries, where p = sigmoid(logit), q = max(p − clip, 0),
    γ₊ is `gamma_positive` and γ₋ is `gamma_negative`. Log-sigmoids keep the loss finite for logits of any size.

    Reference: Ridnik et al., Asymmetric Loss for Multi-Label Classification, ICCV 2021, whose published values are
    the defaults (decision 0001, point 17).

    Args:
        logits: scores before the sigmoid.
        labels: 0 or 1.
        known: mask of the entries with a known label; defaults to all.
        gamma_negative: focusing exponent for negatives.
        gamma_positive: focusing exponent for positives.
        clip: probability below which a negative has zero loss.
        focusing_gradient: differentiate through the factors (1−p)^γ₊ and q^γ₋; the published code does not.
        reduction: `sum` or `mean` over the known entries.

    >>> asymmetric(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]))  # log 2 − 0.45⁴ log 0.55
    tensor(0.7177)
    """
    labels = _fill_unknown(labels, known)
    focusing_logits = logits if focusing_gradient else logits.detach()
    positive = _power(torch.sigmoid(-focusing_logits), gamma_positive) * logsigmoid(logits)  # (1−p)^γ₊ log p
    log_not_q = _log_not_clipped(logits, clip)
    negative = _power(torch.sigmoid(focusing_logits) - clip, gamma_negative) * log_not_q  # q^γ₋ log(1−q)
    loss = -(labels * positive + (1 - labels) * negative)
    return reduce_known(loss, known, reduction)


def _log_not_clipped(logits: Float[Tensor, "N C"], clip: float) -> Float[Tensor, "N C"]:
    """Return log(1 − q) for the clipped probability q = max(p − clip, 0), which is log min(1 − p + clip, 1)."""
    if clip == 0:
        return logsigmoid(-logits)  # finite for logits of any size
    return (torch.sigmoid(-logits) + clip).clamp(max=1).log()


def _power(base: Tensor, exponent: float) -> Tensor:
    """Raise max(base, 0) to a power, with a finite gradient.

    At zero, powers with exponents below 1 have an infinite derivative, which would give NaN gradients. The base is
    therefore at least the smallest normal number.
    """
    smallest = torch.finfo(base.dtype).tiny
    return base.clamp(min=smallest).pow(exponent)


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
    """Return the focal loss, a binary cross-entropy that down-weights entries with a confident, correct prediction.

    L = −Σ α y (1−p)^γ log p + (1−α) (1−y) p^γ log(1−p) over the known entries, where p = sigmoid(logit), γ is `gamma`
    and α is `positive_weight` (None disables the weights). The powers are computed in log space, so the value and
    gradient are finite for every logit and every γ ≥ 0.

    Reference: Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, Eqs. 4 and 5; its values are the defaults.

    >>> focal(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), reduction="sum")  # 0.5² log 2
    tensor(0.1733)
    """
    check_range(at_least=0, gamma=gamma)
    check_range(at_least=0, at_most=1, positive_weight=positive_weight)
    labels = _fill_unknown(labels, known)
    log_p, log_not_p = logsigmoid(logits), logsigmoid(-logits)
    positive = (gamma * log_not_p).exp() * log_p  # (1−p)^γ log p
    negative = (gamma * log_p).exp() * log_not_p  # p^γ log(1−p)
    if positive_weight is not None:
        positive = positive_weight * positive
        negative = (1 - positive_weight) * negative
    loss = -(labels * positive + (1 - labels) * negative)
    return reduce_known(loss, known, reduction)
