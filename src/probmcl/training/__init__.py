"""The trainer, which is the same for every method."""

from probmcl.training.features import FeatureBatches
from probmcl.training.fit import Callback, Checkpoint, StepEvent, fit
from probmcl.training.metrics_log import MetricsLog
from probmcl.training.optimizer import Training

__all__ = ["Callback", "Checkpoint", "FeatureBatches", "MetricsLog", "StepEvent", "Training", "fit"]
