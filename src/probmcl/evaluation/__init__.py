"""Stage 9: how good a model is, from its scores and the labels; how sure that is, and what the model costs."""

from probmcl.evaluation.bootstrap import bootstrapped_map, centred, holm, interval, p_value, resamples
from probmcl.evaluation.metrics import average_precision, multilabel_metrics
from probmcl.evaluation.thresholds import best_thresholds

__all__ = [
    "average_precision",
    "best_thresholds",
    "bootstrapped_map",
    "centred",
    "holm",
    "interval",
    "multilabel_metrics",
    "p_value",
    "resamples",
]
