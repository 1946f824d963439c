"""Predictions and metrics of a model on one split, and the scores in one line."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from numpy import ndarray
from torch import Tensor

from probmcl.data.labels import levels_of, parents_of
from probmcl.data.loader import Batch
from probmcl.data.records import Records, Split
from probmcl.errors import counted
from probmcl.evaluation.metrics import (
    DEFAULT_THRESHOLD,
    DecisionCounts,
    area_under_roc,
    average_precision,
    decisions_at,
    precision_recall_f1,
    rates_at,
)
from probmcl.evaluation.scores import Entries, checked
from probmcl.methods.base import Classifier
from probmcl.runtime import distributed
from probmcl.runtime.files import nan_to_none
from probmcl.store.evaluation import (
    ClassRates,
    DecisionScores,
    DecisionSummary,
    Evaluation,
    LevelScores,
    SplitMetrics,
    ThresholdScores,
)
from probmcl.tables import bracketed, percent

THRESHOLDS = (0.5, 0.8)
"""Both are reported, since the paper uses 0.5 and its authors' earlier code uses 0.8 (decision 0001, point 19)."""

ROUNDING = 1e-9
"""A smaller change of an AP is due to rounding."""

CHANCE_AUROC = 0.5
"""The AUROC of a random ranking."""

REMEDY = "check the labels, or add images"


@torch.inference_mode()
def predict(
    classifier: Classifier,
    batches: Iterable[Batch],
    *,
    device: torch.device | str = "cpu",
    done: Callable[[int], None] | None = None,
) -> Float[Tensor, "N C"]:
    """Return the probability of every class for every image, using the first view of each image.

    `done` is called with the number of images in each finished batch. With several processes, `batches` is the
    `distributed.shard` of this process, and all processes receive the scores of all images in the original order.
    """
    classifier.to(device).eval()
    scores = []
    for batch in batches:
        first_view = batch.views[0].to(device)
        logits = classifier.logits(first_view).float()
        scores.append(logits.sigmoid().cpu())
        if done is not None:
            done(len(batch.labels))
    gathered = distributed.unshard(scores)
    if not len(gathered):
        raise ValueError("there are no images to score; choose a split that is not empty")
    return gathered


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """The facts about a model that an evaluation needs: its classes, how it decides them, and its note.

    Attributes:
        names: the classes, in the order of the scores.
        levels: the level of each class in the class hierarchy; empty without a hierarchy.
        note: the classifier's note on its mAP, usually empty; see `probmcl.methods.base.Classifier`.
        thresholds: the chosen threshold of each class; None if none were chosen, so that 0.5 applies.
        limits: the highest probability of each class for a no, and that for a not sure; None without abstention.
    """

    names: Sequence[str]
    levels: Sequence[int] = ()
    note: str = ""
    thresholds: Float64[ndarray, " C"] | None = None
    limits: tuple[Float64[ndarray, " C"], Float64[ndarray, " C"]] | None = None

    @property
    def decision_thresholds(self) -> Float64[ndarray, " C"]:
        """The threshold of each class."""
        if self.thresholds is None:
            return np.full(len(self.names), DEFAULT_THRESHOLD)
        return self.thresholds


class ClassMeans(NamedTuple):
    """Means over the scored classes; None if no class can be scored."""

    classes_scored: int
    mAP: float | None  # noqa: N815
    chance: float | None
    macro_auroc: float | None


def evaluate(entries: Entries, model: EvaluatedModel, split: str, *, raw: Entries | None = None) -> SplitMetrics:
    """Return the metrics of a split as fractions; undefined metrics are None.

    A class is scored if it has a known positive and a known negative. `chance` is the mAP of a model that has learned
    nothing: the mean prevalence of the scored classes.

    If the scores in `entries` are calibrated, `raw` has the scores before calibration, to which 0.5 and 0.8 are applied
    as in the paper. If thresholds were chosen for the model, its decisions are also reported at these thresholds.

    >>> entries = checked(torch.tensor([[0.9], [0.1]]), torch.tensor([[1.0], [0.0]]), None)
    >>> metrics = evaluate(entries, EvaluatedModel(["cat"]), "test")
    >>> metrics.mAP, metrics.chance, metrics.at.high.CF1, metrics.auroc
    (1.0, 0.5, 1.0, {'cat': 1.0})
    """
    names = model.names
    uncalibrated = entries if raw is None else raw

    ap = average_precision(*entries)
    auroc = area_under_roc(*entries)
    # The model decides at the chosen threshold of each class, or at 0.5 if `model.thresholds` is None. What `rates_at`
    # returns are counts, from which the rates follow.
    decision_counts = rates_at(*entries, model.decision_thresholds)
    means = class_means(ap, auroc, decision_counts)

    at_thresholds = _threshold_scores(entries, uncalibrated, chosen=model.thresholds)
    best_three = _decision_scores(uncalibrated, DEFAULT_THRESHOLD, top_k=3)

    ap_changes = None
    if raw is not None:
        raw_ap = average_precision(*raw)
        ap_changes = _ap_changes(names, before=raw_ap, after=ap)
    level_scores = None
    if model.levels:
        level_scores = _level_scores(model.levels, ap, auroc, decision_counts)

    return SplitMetrics(
        split=split,
        images=len(entries.scores),
        classes=len(names),
        classes_without_negatives=_without_negatives(names, decision_counts),
        classes_scored=means.classes_scored,
        mAP=means.mAP,
        chance=means.chance,
        macro_auroc=means.macro_auroc,
        ap=_by_class(names, ap),
        auroc=_by_class(names, auroc),
        at=at_thresholds,
        top3=best_three,
        decisions=_decision_summary(entries, model),
        per_class=_class_rates(model, decision_counts),
        ap_changes=ap_changes,
        levels=level_scores,
        note=model.note or None,
    )


def evaluate_split(records: Records, split: Split, scores: Float[Tensor, "N C"], note: str = "") -> SplitMetrics:
    """Return `evaluate` for the images in a split of the records, including levels if the classes have parents."""
    space = records.label_space
    labels, known = records.states.labels_and_known(records.rows(split))
    levels: Sequence[int] = ()
    if space.hierarchy is not None:
        parents = parents_of(space.names, space.hierarchy)
        levels = levels_of(parents).tolist()
    entries = checked(scores, labels, known)
    model = EvaluatedModel(space.names, levels, note)
    return evaluate(entries, model, split)


def class_means(ap: Float64[Tensor, " C"], auroc: Float64[Tensor, " C"], counts: DecisionCounts) -> ClassMeans:
    """Return the number of scored classes, their mAP and macro AUROC, and the chance level of the mAP."""
    prevalence = counts.prevalence.where(counts.is_scored, torch.nan)
    return ClassMeans(
        classes_scored=int(counts.is_scored.sum()),
        mAP=nan_to_none(ap.nanmean().item()),
        chance=nan_to_none(prevalence.nanmean().item()),
        macro_auroc=nan_to_none(auroc.nanmean().item()),
    )


def _without_negatives(names: Sequence[str], counts: DecisionCounts) -> list[str]:
    """Return the classes that have known positives but no known negative."""
    is_always_positive = (counts.positives > 0) & ~counts.is_scored
    return [name for name, flag in zip(names, is_always_positive.tolist(), strict=True) if flag]


def _by_class(names: Sequence[str], values: Float64[Tensor, " C"]) -> dict[str, float | None]:
    """Return the value of each class by its name; None for NaN."""
    return {name: nan_to_none(value) for name, value in zip(names, values.tolist(), strict=True)}


def _threshold_scores(
    entries: Entries, uncalibrated: Entries, chosen: Float64[ndarray, " C"] | None
) -> ThresholdScores:
    """Return precision, recall and F1 at 0.5 and 0.8, and at the chosen threshold of each class, if there are any.

    The chosen thresholds apply to the scores in `entries`, and the others to the uncalibrated scores.
    """
    half, high = THRESHOLDS
    return ThresholdScores(
        half=_decision_scores(uncalibrated, half),
        high=_decision_scores(uncalibrated, high),
        chosen=None if chosen is None else _decision_scores(entries, chosen),
    )


def _decision_scores(
    entries: Entries, threshold: float | Float64[ndarray, " C"], *, top_k: int | None = None
) -> DecisionScores:
    """Return precision, recall and F1 at a threshold, or at one per class.

    With `top_k`, an image has at most k labels, those with the highest scores. CF1 is the harmonic mean of the mean
    precision CP and the mean recall CR, and macro F1 the mean of the F1 of each class.
    """
    scores = precision_recall_f1(entries, threshold=threshold, top_k=top_k)
    per_class = precision_recall_f1(entries, threshold=threshold, top_k=top_k, f1="per_class")  # here, CF1 is macro F1
    return DecisionScores(
        CP=nan_to_none(scores["CP"]),
        CR=nan_to_none(scores["CR"]),
        CF1=nan_to_none(scores["CF1"]),
        OP=nan_to_none(scores["OP"]),
        OR=nan_to_none(scores["OR"]),
        OF1=nan_to_none(scores["OF1"]),
        macro_F1=nan_to_none(per_class["CF1"]),
    )


def _decision_summary(entries: Entries, model: EvaluatedModel) -> DecisionSummary:
    """Return the means over all decisions of the model; undefined values are None."""
    decisions = decisions_at(*entries, model.decision_thresholds)
    threshold: float | Literal["chosen"] = DEFAULT_THRESHOLD if model.thresholds is None else "chosen"
    return DecisionSummary(
        threshold=threshold,
        macro_F1=nan_to_none(decisions.macro_f1),
        micro_F1=nan_to_none(decisions.micro_f1),
        sample_F1=nan_to_none(decisions.sample_f1),
        hamming_loss=nan_to_none(decisions.hamming_loss),
        subset_accuracy=nan_to_none(decisions.subset_accuracy),
        images_fully_known=decisions.images_fully_known,
        labels_predicted=nan_to_none(decisions.labels_predicted),
        labels_true=nan_to_none(decisions.labels_true),
    )


def _class_rates(model: EvaluatedModel, counts: DecisionCounts) -> dict[str, ClassRates]:
    """Return the rates of the decisions for each class by its name; undefined rates are None."""
    thresholds = model.decision_thresholds
    known = counts.known.tolist()
    positives = counts.positives.tolist()
    sensitivity = counts.sensitivity.tolist()
    specificity = counts.specificity.tolist()
    ppv = counts.ppv.tolist()
    npv = counts.npv.tolist()
    f1 = counts.f1.tolist()
    rates = {}
    for c, name in enumerate(model.names):
        rates[name] = ClassRates(
            n=known[c],
            positives=positives[c],
            sensitivity=nan_to_none(sensitivity[c]),
            specificity=nan_to_none(specificity[c]),
            ppv=nan_to_none(ppv[c]),
            npv=nan_to_none(npv[c]),
            f1=nan_to_none(f1[c]),
            threshold=float(thresholds[c]),
        )
    return rates


def _ap_changes(names: Sequence[str], before: Float64[Tensor, " C"], after: Float64[Tensor, " C"]) -> dict[str, float]:
    """Return how calibration changed the AP of each class whose ranking it changed."""
    changes = zip(names, (after - before).tolist(), strict=True)
    return {name: change for name, change in changes if abs(change) > ROUNDING}


def _level_scores(
    levels: Sequence[int], ap: Float64[Tensor, " C"], auroc: Float64[Tensor, " C"], counts: DecisionCounts
) -> dict[str, LevelScores]:
    """Return the mean scores of the classes at each level, from the level and the scores of each class."""
    scores = {}
    for level in sorted(set(levels)):
        is_member = torch.tensor(levels) == level
        means = class_means(ap[is_member], auroc[is_member], counts.of(is_member))
        scores[str(level)] = LevelScores(
            classes=int(is_member.sum()),
            classes_scored=means.classes_scored,
            mAP=means.mAP,
            chance=means.chance,
            macro_auroc=means.macro_auroc,
        )
    return scores


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
    if level.mAP is None:
        return _undefined(images)
    return _scores_line(level, Intervals())


def _scores_line(scores: SplitMetrics | LevelScores, intervals: Intervals, gain: str = "") -> str:
    """Return mAP and AUROC in percent, and the number of scored classes if some are not scored.

    The chance level is in brackets after the mAP, behind `gain` if it is not empty.
    """
    chance = f"chance {percent(scores.chance)}"
    details = f"{gain}, {chance}" if gain else chance
    mean_ap = f"mAP {percent(scores.mAP)}{bracketed(intervals.mAP)} ({details})"
    auroc = f"AUROC {percent(scores.macro_auroc)}{bracketed(intervals.macro_auroc)}"
    if scores.classes_scored == scores.classes:
        return f"{mean_ap}, {auroc}"
    classes = counted(scores.classes, "class", "classes")
    return f"{mean_ap}, {auroc}, over {scores.classes_scored:,} of {classes}"


def _undefined(images: int) -> str:
    """Return the line that replaces the scores if no class could be scored."""
    return f"mAP undefined: {_reason(images)}"


def _reason(images: int) -> str:
    """Return why no class could be scored."""
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
    """Return whether the whole interval is above chance; without an interval, this is not known."""
    if interval is None:
        return False
    low, _ = interval
    return low > chance
