"""Evaluation of calibrated probabilities on the test split of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probmcl.calibration.maps import Calibration
from probmcl.console import Console
from probmcl.data.hierarchy import levels_of, parents_of
from probmcl.evaluation.bootstrap import affordable_draws
from probmcl.evaluation.groups import EvaluationOptions, ScoredRows, evaluate_rows


def evaluate_test(
    raw: ScoredRows,
    calibration: Calibration,
    *,
    names: Sequence[str],
    hierarchy: Mapping[str, str] | None,
    note: str,
    console: Console,
) -> dict[str, Any]:
    """Return the content of evaluation.json, given the raw scores of the test images.

    The number of bootstrap resamples depends on the size of the test split; see `affordable_draws`.
    """
    parents = parents_of(names, hierarchy)
    unchanged = calibration.kind == "none" and not hierarchy
    return evaluate_rows(
        replace(raw, scores=calibration.probabilities(raw.scores, parents), raw=None if unchanged else raw.scores),
        EvaluationOptions(draws=affordable_draws(*raw.scores.shape)),
        None,
        console,
        names=names,
        split="test",
        note=note,
        levels=levels_of(parents).tolist() if hierarchy else (),
        thresholds=calibration.threshold,
    )
