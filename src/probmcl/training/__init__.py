"""Stage 8: one trainer for every method."""

from probmcl.training.checkpoint import Checkpoint
from probmcl.training.features import FeatureBatches, StoredViews, extract
from probmcl.training.fit import Event, Watcher, fit
from probmcl.training.metrics_log import Journal
from probmcl.training.optimizer import Training

__all__ = ["Checkpoint", "Event", "FeatureBatches", "Journal", "StoredViews", "Training", "Watcher", "extract", "fit"]
