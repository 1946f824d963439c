"""Alignment of labels, which have no order, with the steps of a sequence, and the loss of the sequence."""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from probmcl.losses.binary import Reduction, reduce_known
from probmcl.runtime.precision import at_least_float32, full_precision

Alignment = Literal["predicted", "minimal"]

IGNORED = -100
"""The target of a step that has none; the value that torch's losses ignore."""


@torch.no_grad()
def aligned_targets(
    log_probabilities: Float[Tensor, "N T E"],
    labels: Float[Tensor, "N C"],
    known: Bool[Tensor, "N C"] | None = None,
    *,
    alignment: Alignment = "predicted",
) -> Int[Tensor, "N T"]:
    """Return the target of each step: the n labels of the image in its first n steps, then the end, then none.

    `predicted`: a label that is the most probable answer of one of these n steps stays there, at the first of them.
    The others have the remaining steps, so that −Σ_t log p_t(target_t) is least. `minimal`: the sum is least over all
    orders. An image with more labels than steps has those that fit best, and no end. One of which nothing is known has
    no targets.

    The last of the E = C + 1 answers is the end. Labels that are not known are no targets; a decoder should not be able
    to say them either.

    Reference: Yazici et al., Orderless Recurrent Models for Multi-label Classification, CVPR 2020: predicted label
    alignment (PLA) and minimal loss alignment (MLA).

    >>> steps = torch.tensor([[[0.3, 0.6, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8]]])
    >>> aligned_targets(steps.log(), torch.tensor([[1.0, 1.0]]))
    tensor([[1, 0, 2]])
    """
    if alignment not in ("predicted", "minimal"):
        raise ValueError(f"alignment={alignment!r}; there are 'predicted' and 'minimal'")
    known = torch.ones_like(labels, dtype=torch.bool) if known is None else known
    scores = at_least_float32(log_probabilities.detach()).cpu().numpy()
    present, some = (x.cpu().numpy() for x in ((labels > 0) & known, known.any(1)))
    targets = np.full(scores.shape[:2], IGNORED)
    for row in np.flatnonzero(some):
        sequence = _aligned(scores[row], np.flatnonzero(present[row]), alignment)
        targets[row, : len(sequence)] = sequence
    return torch.from_numpy(targets).to(labels.device)


def _aligned(scores: Float[ndarray, "T E"], labels: Int[ndarray, " L"], alignment: Alignment) -> Int[ndarray, " S"]:
    steps = min(len(labels), len(scores))
    targets = np.full(min(steps + 1, len(scores)), scores.shape[1] - 1)
    targets[:steps] = IGNORED
    if alignment == "predicted":
        for step, answer in enumerate(scores[:steps].argmax(1)):
            if answer in labels and answer not in targets[:steps]:
                targets[step] = answer
    free, left = np.flatnonzero(targets[:steps] == IGNORED), np.setdiff1d(labels, targets)
    # NaN is reported by the check of the loss, not here.
    cost = np.nan_to_num(-scores[free][:, left], nan=0.0, posinf=np.inf)
    at, which = linear_sum_assignment(cost)
    targets[free[at]] = left[which]
    return targets


@full_precision
def sequence_cross_entropy(
    log_probabilities: Float[Tensor, "N T E"], targets: Int[Tensor, "N T"], *, reduction: Reduction = "mean"
) -> Float[Tensor, ""]:
    """Negative log-likelihood of the targets, L = −Σ log p_t(target_t), over the steps that have one.

    Reference: Yazici et al., Orderless Recurrent Models for Multi-label Classification, CVPR 2020.

    >>> steps = torch.tensor([[[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]])
    >>> sequence_cross_entropy(steps.log(), torch.tensor([[1, IGNORED]]))  # log 2
    tensor(0.6931)
    """
    counted = targets != IGNORED
    said = log_probabilities.gather(2, targets.where(counted, 0)[..., None])[..., 0]
    return reduce_known(-said, counted, reduction)
