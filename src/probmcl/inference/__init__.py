"""Inference with a trained model: load a run, then predict, embed or evaluate."""

from probmcl.errors import RunError
from probmcl.inference.loading import load
from probmcl.inference.model import Model
from probmcl.inference.prediction import Prediction
from probmcl.inference.predictions import Predictions

__all__ = ["Model", "Prediction", "Predictions", "RunError", "load"]
