"""A finished run in use: load it, and predict, embed or evaluate with it."""

from probmcl.errors import RunError
from probmcl.inference.loading import load
from probmcl.inference.model import Model
from probmcl.inference.predictions import Predictions

__all__ = ["Model", "Predictions", "RunError", "load"]
