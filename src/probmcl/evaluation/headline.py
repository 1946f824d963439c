"""Printed scores: one line per split, and the warning about a model no better than chance."""

from typing import NamedTuple

from probmcl.errors import counted
from probmcl.store.evaluation import Evaluation, LevelScores, SplitMetrics
from probmcl.tables import bracketed, percent

CHANCE_AUROC = 0.5
"""The AUROC of a random ranking."""

REMEDY = "check the labels, or add images"


class Intervals(NamedTuple):
    """The intervals of the mean scores; None for one that is not printed."""

    mAP: list[float] | None = None  # noqa: N815
    macro_auroc: list[float] | None = None


def headline(metrics: SplitMetrics, *, gain: str = "") -> str:
    """Return the mAP of a split in percent, with its chance level and the macro AUROC.

    Intervals are included if the metrics have them, and `gain` if it is not empty. If no class could be scored, the
    line gives the reason instead.
    """
    if metrics.mAP is None:
        return _undefined(metrics.images)
    intervals = Intervals()
    if isinstance(metrics, Evaluation):
        intervals = Intervals(metrics.mAP_interval, metrics.macro_auroc_interval)
    return _scores_line(metrics, intervals, gain)


def level_headline(level: LevelScores, images: int) -> str:
    """Return the mAP of the classes at one level of the hierarchy, with its chance level and the macro AUROC.

    >>> level = LevelScores(classes=4, classes_scored=3, mAP=0.849, chance=0.831, macro_auroc=0.552)
    >>> level_headline(level, images=80)
    'mAP 84.9 (chance 83.1), AUROC 55.2, over 3 of 4 classes'
    >>> level = LevelScores(classes=4, classes_scored=0, mAP=None, chance=None, macro_auroc=None)
    >>> level_headline(level, images=1)
    'mAP undefined: with only 1 image, no class has both a positive and a negative'
    """
    return _undefined(images) if level.mAP is None else _scores_line(level, Intervals())


def _scores_line(scores: SplitMetrics | LevelScores, intervals: Intervals, gain: str = "") -> str:
    chance = f"chance {percent(scores.chance)}"
    details = f"{gain}, {chance}" if gain else chance
    mean_ap = f"mAP {percent(scores.mAP)}{bracketed(intervals.mAP)} ({details})"
    auroc = f"AUROC {percent(scores.macro_auroc)}{bracketed(intervals.macro_auroc)}"
    if scores.classes_scored == scores.classes:
        return f"{mean_ap}, {auroc}"
    return f"{mean_ap}, {auroc}, over {scores.classes_scored:,} of {counted(scores.classes, 'class', 'classes')}"


def _undefined(images: int) -> str:
    return f"mAP undefined: {_reason(images)}"


def _reason(images: int) -> str:
    alone = "with only 1 image, " if images == 1 else ""
    return f"{alone}no class has both a positive and a negative"


def chance_warning(evaluation: Evaluation) -> str:
    """Return a warning if the model is not better than chance on a split, or '' if both intervals are above chance.

    AUROC must be above 50 % too: with few images, the mAP of a random ranking is higher than the mean prevalence. For
    one positive among five images, it is 46 % instead of 20 %.
    """
    split = evaluation.split
    if evaluation.mAP is None or evaluation.chance is None:
        return f"the model could not be scored on the {split} split: {_reason(evaluation.images)}; {REMEDY}"
    if not _is_above(evaluation.mAP_interval, evaluation.chance):
        score = f"{split} mAP {percent(evaluation.mAP)}{bracketed(evaluation.mAP_interval)}"
        return f"{score} is not clearly above chance ({percent(evaluation.chance)}); {REMEDY}"
    if not _is_above(evaluation.macro_auroc_interval, CHANCE_AUROC):
        score = f"{split} AUROC {percent(evaluation.macro_auroc)}{bracketed(evaluation.macro_auroc_interval)}"
        return f"{score} is not clearly above chance ({percent(CHANCE_AUROC)}); {REMEDY}"
    return ""


def _is_above(interval: list[float] | None, chance: float) -> bool:
    return interval is not None and interval[0] > chance
