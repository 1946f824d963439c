"""Alignment of unordered labels with the steps of a predicted sequence, and the sequence loss."""

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
"""Target for steps that do not contribute to the loss; PyTorch's default value of ignore_index."""


@torch.no_grad()
def aligned_targets(
    log_probabilities: Float[Tensor, "N T E"],
    labels: Float[Tensor, "N C"],
    known: Bool[Tensor, "N C"] | None = None,
    *,
    alignment: Alignment = "predicted",
) -> Int[Tensor, "N T"]:
    """Return the targets for a sequence: the n labels of an image in the first n steps, then the end token.

    With `predicted`, a label that is the most probable token at one of these n steps keeps the first such step, and the
    other labels are assigned to the remaining steps so that −Σ_t log p_t(target_t) is minimal. `minimal` minimizes the
    sum over all orders. If an image has more labels than steps, the best subset is used without an end token. Steps
    after the end token, and all steps for an image without known labels, get `IGNORED`.

    The end token is the last of the E = C + 1 tokens. Unknown labels are never targets; the decoder should exclude
    them too.

    Reference: Yazici et al., Orderless Recurrent Models for Multi-label Classification, CVPR 2020: predicted label
    alignment (PLA) and minimal loss alignment (MLA).

    >>> steps = torch.tensor([[[0.3, 0.6, 0.1], [0.5, 0.4, 0.1], [0.1, 0.1, 0.8]]])
    >>> aligned_targets(steps.log(), torch.tensor([[1.0, 1.0]]))
    tensor([[1, 0, 2]])
    """
    if alignment not in ("predicted", "minimal"):
        raise ValueError(f"`alignment` must be 'predicted' or 'minimal', got {alignment!r}")
    known = torch.ones_like(labels, dtype=torch.bool) if known is None else known
    scores = at_least_float32(log_probabilities.detach()).cpu().numpy()
    present = ((labels > 0) & known).cpu().numpy()
    has_known_label = known.any(1).cpu().numpy()
    targets = np.full(scores.shape[:2], IGNORED)
    for row in np.flatnonzero(has_known_label):
        present_labels = np.flatnonzero(present[row])
        sequence = _align(scores[row], present_labels, alignment)
        targets[row, : len(sequence)] = sequence
    return torch.from_numpy(targets).to(labels.device)


def _align(scores: Float[ndarray, "T E"], labels: Int[ndarray, " L"], alignment: Alignment) -> Int[ndarray, " S"]:
    """Return the targets of one image: its labels in the best order, then the end token if a step is left.

    `scores` are the log-probabilities of the E tokens at each of T steps, and `labels` are the indices of the labels.
    """
    end_token = scores.shape[1] - 1
    label_steps = min(len(labels), len(scores))
    targets = np.full(min(label_steps + 1, len(scores)), end_token)
    label_targets = targets[:label_steps]  # a view: assigning to it sets the targets
    label_targets[:] = IGNORED  # not assigned yet

    if alignment == "predicted":
        for step, token in enumerate(scores[:label_steps].argmax(1)):
            if token in labels and token not in label_targets:
                label_targets[step] = token

    free_steps = np.flatnonzero(label_targets == IGNORED)
    free_labels = np.setdiff1d(labels, label_targets)
    # NaN must not raise an error here, because the trainer checks the loss.
    cost = np.nan_to_num(-scores[free_steps][:, free_labels], nan=0.0, posinf=np.inf)
    step_indices, label_indices = linear_sum_assignment(cost)
    label_targets[free_steps[step_indices]] = free_labels[label_indices]
    return targets


@full_precision
def sequence_cross_entropy(
    log_probabilities: Float[Tensor, "N T E"], targets: Int[Tensor, "N T"], *, reduction: Reduction = "mean"
) -> Float[Tensor, ""]:
    """Return the negative log-likelihood of the targets, L = −Σ log p_t(target_t), over steps that are not `IGNORED`.

    Reference: Yazici et al., Orderless Recurrent Models for Multi-label Classification, CVPR 2020.

    >>> steps = torch.tensor([[[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]])
    >>> sequence_cross_entropy(steps.log(), torch.tensor([[1, IGNORED]]))  # log 2
    tensor(0.6931)
    """
    has_target = targets != IGNORED
    token = targets.where(has_target, 0)  # `gather` needs a valid index; reduce_known leaves out these steps
    log_likelihood = log_probabilities.gather(2, token[..., None])[..., 0]
    return reduce_known(-log_likelihood, has_target, reduction)
