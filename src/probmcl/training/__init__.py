"""Stage 8: one trainer for every method."""

from probmcl.training.features import FeatureBatches, extract
from probmcl.training.fit import Event, Watcher, fit
from probmcl.training.journal import Journal
from probmcl.training.optim import Training

__all__ = ["Event", "FeatureBatches", "Journal", "Training", "Watcher", "extract", "fit"]
