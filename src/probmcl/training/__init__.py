"""Stage 8: one trainer for every method."""

from probmcl.training.checkpoint import Checkpoint
from probmcl.training.features import FeatureBatches
from probmcl.training.fit import Callback, StepEvent, fit
from probmcl.training.metrics_log import MetricsLog
from probmcl.training.optimizer import Training

__all__ = ["Callback", "Checkpoint", "FeatureBatches", "MetricsLog", "StepEvent", "Training", "fit"]
