"""The runs next to each other in a report that is about several runs."""

from collections.abc import Sequence
from pathlib import Path

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
        difference = _difference(other, first) if _has_same_test(other, first) else None
        summaries.append(_summary(other, difference))
    return summaries


def _summary(run: RunData, difference: RunDifference | None) -> RunSummary:
    scored = ScoredRun(run)
    headline = scored.headline()
    verdict = judge(measurements(run, headline, scored.classes()))
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
    if run.evaluation["mAP"] is None or first.evaluation["mAP"] is None:
        return None
    weights = resamples(len(run.test.paths), run.test.group, draws=DRAWS)
    ours = bootstrapped_map(*run.test.entries, weights)
    theirs = bootstrapped_map(*first.test.entries, weights)
    difference = run.evaluation["mAP"] - first.evaluation["mAP"]
    interval = reliable_interval(centered(ours - theirs, difference))
    return RunDifference(mAP=difference, interval=None if interval is None else list(interval))
