"""Metrics of made-up scores."""

from string import ascii_lowercase
from typing import Any

from probmcl.evaluation.evaluate import EvaluatedModel, evaluate
from probmcl.evaluation.scores import ScoredRows, checked
from probmcl.store.evaluation import SplitMetrics


def split_metrics(scores: Any, labels: Any, known: Any = None, *, split: str = "val", **model: Any) -> SplitMetrics:
    """Evaluate uncalibrated scores of classes a, b, … on a split; `model` are arguments of `EvaluatedModel`."""
    entries = checked(scores, labels, known)
    names = model.pop("names", ascii_lowercase[: entries.scores.shape[1]])
    return evaluate(entries, EvaluatedModel(list(names), **model), split)


def row_metrics(rows: ScoredRows, *, split: str = "test", **model: Any) -> SplitMetrics:
    """Evaluate rows, with their scores before calibration if they have them."""
    names = model.pop("names", ascii_lowercase[: rows.scores.shape[1]])
    return evaluate(rows.entries, EvaluatedModel(list(names), **model), split, raw=rows.raw_entries)
