"""Stage 9: how good a model is, from its scores and the labels."""

from probmcl.evaluation.metrics import average_precision, multilabel_metrics

__all__ = ["average_precision", "multilabel_metrics"]
