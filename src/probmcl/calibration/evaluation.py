"""Evaluation of calibrated probabilities on the test split of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probmcl.calibration.maps import Calibration
from probmcl.console import Console
from probmcl.data.hierarchy import levels_of, parents_of
from probmcl.evaluation.bootstrap import affordable_draws
from probmcl.evaluation.evaluate import EvaluatedModel
from probmcl.evaluation.groups import EvaluationOptions, ScoredRows, evaluate_rows
from probmcl.store.evaluation import Evaluation


def evaluate_test(
    raw: ScoredRows,
    calibration: Calibration,
    *,
    names: Sequence[str],
    hierarchy: Mapping[str, str] | None,
    note: str,
    console: Console,
) -> Evaluation:
    """Return the evaluation of the test split, given the raw scores of its images.

    The number of bootstrap resamples depends on the size of the test split; see `affordable_draws`.
    """
    parents = parents_of(names, hierarchy)
    probabilities = calibration.probabilities(raw.scores, parents)
    unchanged = calibration.kind == "none" and not hierarchy
    rows = replace(raw, scores=probabilities, raw=None if unchanged else raw.scores)
    levels = levels_of(parents).tolist() if hierarchy else ()
    model = EvaluatedModel(names, levels, note, thresholds=calibration.threshold)
    options = EvaluationOptions(split="test", draws=affordable_draws(*raw.scores.shape))
    return evaluate_rows(rows, model, options, None, console)
