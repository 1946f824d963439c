"""A finished run in use: load it, and predict, embed or evaluate with it."""

from probmcl.model.loading import load
from probmcl.model.model import Model
from probmcl.model.predictions import Predictions
from probmcl.model.reading import RunError

__all__ = ["Model", "Predictions", "RunError", "load"]
