"""Metrics of made-up scores."""

from string import ascii_lowercase
from typing import Any

from probmcl.evaluation.evaluate import EvaluatedModel, evaluate
from probmcl.evaluation.scores import ScoredRows, checked
from probmcl.store.evaluation import SplitMetrics


def split_metrics(scores: Any, labels: Any, known: Any = None, *, split: str = "val", **model: Any) -> SplitMetrics:
    """Evaluate uncalibrated scores on a split; `model` are arguments of `EvaluatedModel`."""
    entries = checked(scores, labels, known)
    return evaluate(entries, _evaluated_model(entries.scores.shape[1], **model), split)


def row_metrics(rows: ScoredRows, *, split: str = "test", **model: Any) -> SplitMetrics:
    """Evaluate rows on a split, with their scores before calibration if they have them."""
    evaluated = _evaluated_model(rows.scores.shape[1], **model)
    return evaluate(rows.entries, evaluated, split, raw=rows.raw_entries)


def _evaluated_model(classes: int, **arguments: Any) -> EvaluatedModel:
    """Describe a model by arguments of `EvaluatedModel`; without `names`, its classes are a, b, …"""
    names = arguments.pop("names", ascii_lowercase[:classes])
    return EvaluatedModel(list(names), **arguments)
