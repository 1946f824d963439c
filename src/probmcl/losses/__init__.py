"""Stage 6: numbers to minimize. Functions of tensors, usable in any training loop."""

from probmcl.losses.alignment import aligned_targets, sequence_cross_entropy
from probmcl.losses.asymmetric import asymmetric
from probmcl.losses.binary import binary_cross_entropy
from probmcl.losses.contrastive import contrastive, positives
from probmcl.losses.focal import focal
from probmcl.losses.kernel_contrastive import kernel_contrastive
from probmcl.losses.objective import balanced_weight, negative_log_likelihood, objective
from probmcl.losses.per_label import per_label_contrastive
from probmcl.losses.reconstruction import reconstruction

__all__ = [
    "aligned_targets",
    "asymmetric",
    "balanced_weight",
    "binary_cross_entropy",
    "contrastive",
    "focal",
    "kernel_contrastive",
    "negative_log_likelihood",
    "objective",
    "per_label_contrastive",
    "positives",
    "reconstruction",
    "sequence_cross_entropy",
]
