"""Multi-label metrics, their confidence intervals, and evaluation per group of images."""

from probmcl.evaluation.bootstrap import bootstrapped_map, centered, holm, interval, p_value, resamples
from probmcl.evaluation.metrics import area_under_roc, average_precision, decisions_at, multilabel_metrics, rates_at

__all__ = ["area_under_roc", "average_precision", "bootstrapped_map", "centered", "decisions_at"]
__all__ += ["holm", "interval", "multilabel_metrics", "p_value", "rates_at", "resamples"]
