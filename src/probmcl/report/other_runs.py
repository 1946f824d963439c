"""The runs next to each other in a report that is about several runs."""

from collections.abc import Sequence
from pathlib import Path

from jaxtyping import Float64, Int32
from numpy import ndarray

from probmcl.evaluation.bootstrap import bootstrapped_map, centered, reliable_interval, resamples
from probmcl.report.run_data import RunData
from probmcl.report.scores import ScoredRun
from probmcl.report.verdict import judge, measurements
from probmcl.store.report import RunDifference, RunSummary

DRAWS = 400
"""Resamples for the interval of a difference."""


def run_summaries(first: RunData, others: Sequence[RunData]) -> list[RunSummary]:
    """Return the scores of all runs, each with its difference from the first one."""
    summaries = [_summary(first, difference=None)]
    for other in others:
        difference = None
        if _has_same_test(other, first):
            difference = _difference(other, first)
        summaries.append(_summary(other, difference))
    return summaries


def _summary(run: RunData, difference: RunDifference | None) -> RunSummary:
    """Return the scores of a run, its verdict, and its difference from the first run."""
    scored = ScoredRun(run)
    headline = scored.headline()
    measured = measurements(run, headline, scored.classes())
    verdict = judge(measured)
    return RunSummary(
        name=run.name,
        kept=run.kept,
        encoder=run.settings.encoder.name,
        verdict=verdict.decision,
        mAP=headline.mAP,
        mAP_interval=headline.mAP_interval,
        macro_auroc=headline.macro_auroc,
        CF1=headline.CF1,
        calibration_error=headline.calibration_error,
        test_images=headline.images,
        seconds=run.metadata.seconds,
        difference=difference,
    )


def _has_same_test(run: RunData, other: RunData) -> bool:
    """Return whether two runs have the same classes and test images. The images may be in different folders."""
    return run.names == other.names and _file_names(run) == _file_names(other)


def _file_names(run: RunData) -> list[str]:
    return [Path(path).name for path in run.test.paths]


def _difference(run: RunData, first: RunData) -> RunDifference | None:
    """Return the difference in mAP from the first run, paired over the same resamples; None if one has no mAP."""
    run_map = run.evaluation.mAP
    first_map = first.evaluation.mAP
    if run_map is None or first_map is None:
        return None
    difference = run_map - first_map

    weights = resamples(len(run.test.paths), run.test.group, draws=DRAWS)
    resampled_run_map = _resampled_map(run, weights)
    resampled_first_map = _resampled_map(first, weights)
    resampled_difference = resampled_run_map - resampled_first_map
    # The mAP of resamples is biased, so the interval is centered on the difference for the original images.
    ends = reliable_interval(centered(resampled_difference, difference))
    interval = None
    if ends is not None:
        interval = list(ends)
    return RunDifference(mAP=difference, interval=interval)


def _resampled_map(run: RunData, weights: Int32[ndarray, "B N"]) -> Float64[ndarray, " B"]:
    """Return the test mAP in each of B resamples; `weights` is how often each image is drawn in each of them."""
    probabilities, labels, known = run.test.entries
    return bootstrapped_map(probabilities, labels, known, weights)
