"""Loss functions on tensors, usable in any training loop."""

from probmcl.losses.alignment import aligned_targets, sequence_cross_entropy
from probmcl.losses.binary import asymmetric, binary_cross_entropy, focal
from probmcl.losses.contrastive import balanced_weight, contrastive, negative_log_likelihood, objective, positives
from probmcl.losses.kernel_contrastive import kernel_contrastive, reconstruction
from probmcl.losses.per_label import per_label_contrastive

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
