"""Stage 9: how good a model is, from its scores and the labels; how sure that is, and what the model costs."""

from probmcl.evaluation.bootstrap import (
    bootstrapped_areas,
    bootstrapped_map,
    centered,
    holm,
    interval,
    p_value,
    resamples,
)
from probmcl.evaluation.decisions import decisions_at, rates_at
from probmcl.evaluation.metrics import average_precision, multilabel_metrics
from probmcl.evaluation.roc import area_under_roc
from probmcl.evaluation.thresholds import best_thresholds

__all__ = [
    "area_under_roc",
    "average_precision",
    "best_thresholds",
    "bootstrapped_areas",
    "bootstrapped_map",
    "centered",
    "decisions_at",
    "holm",
    "interval",
    "multilabel_metrics",
    "p_value",
    "rates_at",
    "resamples",
]
