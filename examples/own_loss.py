"""Two custom losses of a few lines each, and how to compare them with built-in methods.

`smoothed` takes logits and trains the encoder with a linear layer. `soft_contrast` takes similarities and trains the
encoder contrastively. The argument names determine the type of a loss. Train with one, or compare both:

    probmcl train photos/ --loss examples/own_loss.py:smoothed
    probmcl compare photos/ --methods bce supcon examples/own_loss.py:smoothed examples/own_loss.py:soft_contrast

Or run this file: python examples/own_loss.py photos/
"""

import sys
from pathlib import Path

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import probmcl


def smoothed(logits: Tensor, labels: Tensor, known: Tensor) -> Tensor:
    """Return a binary cross-entropy with label smoothing: the targets are 0.05 and 0.95."""
    loss = binary_cross_entropy_with_logits(logits, 0.9 * labels + 0.05, reduction="none")  # (M, C)
    return loss.where(known, 0).sum() / known.sum().clamp(min=1)


def soft_contrast(similarity: Tensor, overlap: Tensor) -> Tensor:
    """Return a contrastive loss without a threshold: each image is a positive in proportion to its label overlap."""
    target = overlap / overlap.sum(1, keepdim=True).clamp(min=1e-6)  # (M, P), without the row itself
    return -(target * (similarity / 0.1).log_softmax(1)).sum(1).mean()


if __name__ == "__main__":
    file = Path(__file__)
    methods = ["bce", "supcon", f"{file}:smoothed", f"{file}:soft_contrast"]
    probmcl.compare(sys.argv[1], methods=methods, seeds=1)
