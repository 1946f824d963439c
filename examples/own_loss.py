"""Two losses of one's own, each a few lines, and how they join a comparison.

One is on logits and trains encoder and linear layer, the other on similarities and trains the contrast; the names of
its arguments say which a loss is. Train with one, or compare both with what there is:

    probmcl train photos/ --loss examples/own_loss.py:smoothed
    probmcl compare photos/ --methods bce,supcon,examples/own_loss.py:smoothed,examples/own_loss.py:soft_contrast

or run this file: python examples/own_loss.py photos/
"""

import sys
from pathlib import Path

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import probmcl


def smoothed(logits: Tensor, labels: Tensor, known: Tensor) -> Tensor:
    """Binary cross-entropy that believes each label to 95 %."""
    loss = binary_cross_entropy_with_logits(logits, 0.9 * labels + 0.05, reduction="none")  # (M, C)
    return loss.where(known, 0).sum() / known.sum().clamp(min=1)


def soft_contrast(similarity: Tensor, overlap: Tensor) -> Tensor:
    """A contrast without a threshold: every other image is a positive to the degree to which it shares labels."""
    target = overlap / overlap.sum(1, keepdim=True).clamp(min=1e-6)  # (M, P), without the row itself
    return -(target * (similarity / 0.1).log_softmax(1)).sum(1).mean()


if __name__ == "__main__":
    here = Path(__file__)
    methods = ["bce", "supcon", f"{here}:smoothed", f"{here}:soft_contrast"]
    probmcl.compare(sys.argv[1], methods=",".join(methods), seeds=1)
