"""Metrics of scores and labels, their confidence intervals, and scores per group."""

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
from probmcl.evaluation.metrics import area_under_roc, average_precision, multilabel_metrics
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
