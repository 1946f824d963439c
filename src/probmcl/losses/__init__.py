"""Stage 6: numbers to minimise. Functions of tensors, usable in any training loop."""

from probmcl.losses.asymmetric import asymmetric
from probmcl.losses.binary import binary_cross_entropy
from probmcl.losses.contrastive import contrastive, positives
from probmcl.losses.likelihood import negative_log_likelihood
from probmcl.losses.objective import balanced_weight, objective

__all__ = [
    "asymmetric",
    "balanced_weight",
    "binary_cross_entropy",
    "contrastive",
    "negative_log_likelihood",
    "objective",
    "positives",
]
