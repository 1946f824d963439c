"""The content of evaluation.json and retrieval.json: how well a classifier does on one split of the data.

Scores are fractions. An undefined score is None, for example the average precision of a class without positives.
"""

import sys
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

# Every number has limits, so NaN and infinity are refused when a file is read.
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
Difference = Annotated[float, msgspec.Meta(ge=-1, le=1)]
Magnitude = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Interval = Annotated[list[Fraction], msgspec.Meta(min_length=2, max_length=2)]

Aggregate = Literal["mean", "max"]
"""How the scores of the images in a group become the score of the group."""


LEGEND = "C: mean over classes; O: all decisions together; P: precision; R: recall; F1: their harmonic mean"
"""Explains the names in `DecisionScores` below a table."""


class KeyedStruct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of a JSON object: a frozen struct whose values are attributes and can also be read by their keys.

    A key is the name of its attribute, unless the struct declares another one. A value that does not apply is None by
    default; its key is left out of the JSON, and is not in the struct.

    >>> class Scores(KeyedStruct, frozen=True, kw_only=True):
    ...     half: float = msgspec.field(name="0.5")
    ...     note: str | None = None
    >>> scores = Scores(half=0.25)
    >>> scores.half, scores["0.5"], "note" in scores, scores.to_dict()
    (0.25, 0.25, False, {'0.5': 0.25})
    """

    def keys(self) -> list[str]:
        """Return the keys in their order in the file."""
        return list(self._attributes())

    def __iter__(self) -> Iterator[str]:
        return iter(self._attributes())

    def __contains__(self, key: object) -> bool:
        return key in self._attributes()

    def __getitem__(self, key: str) -> Any:
        return getattr(self, self._attributes()[key])

    def to_dict(self) -> dict[str, Any]:
        """Return the content as dictionaries, lists, numbers and text."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        return content

    def _attributes(self) -> dict[str, str]:
        """Return the name of the attribute of each key, without the attributes that have their default."""
        attributes = {}
        for field in msgspec.structs.fields(self):
            has_value = getattr(self, field.name) is not field.default
            if has_value:
                attributes[field.encode_name] = field.name
        return attributes


class DecisionScores(KeyedStruct, frozen=True, kw_only=True):
    """Precision, recall and F1 of decisions, as in `multilabel_metrics`.

    C is the mean over classes and O counts all decisions together; CF1 is the harmonic mean of CP and CR, and macro F1
    the mean F1 of the classes.
    """

    CP: Fraction | None
    CR: Fraction | None
    CF1: Fraction | None
    OP: Fraction | None
    OR: Fraction | None
    OF1: Fraction | None
    macro_F1: Fraction | None  # noqa: N815


class ThresholdScores(KeyedStruct, frozen=True, kw_only=True):
    """The decisions at several thresholds: 0.5 and 0.8 on raw scores, and those of the model on probabilities."""

    half: DecisionScores = msgspec.field(name="0.5")
    high: DecisionScores = msgspec.field(name="0.8")
    chosen: DecisionScores | None = None

    @property
    def used(self) -> DecisionScores:
        """The scores at the thresholds by which the model decides."""
        return self.half if self.chosen is None else self.chosen


class DecisionSummary(KeyedStruct, frozen=True, kw_only=True):
    """The decisions over all classes; see `probmcl.evaluation.metrics.Decisions`."""

    threshold: Fraction | Literal["chosen"]
    macro_F1: Fraction | None  # noqa: N815
    micro_F1: Fraction | None  # noqa: N815
    sample_F1: Fraction | None  # noqa: N815
    hamming_loss: Fraction | None
    subset_accuracy: Fraction | None
    images_fully_known: Count
    labels_predicted: Magnitude | None
    labels_true: Magnitude | None


class ClassRates(KeyedStruct, frozen=True, kw_only=True):
    """The decisions of one class at its threshold; `n` is the number of known labels."""

    n: Count
    positives: Count
    sensitivity: Fraction | None
    specificity: Fraction | None
    ppv: Fraction | None
    npv: Fraction | None
    f1: Fraction | None
    threshold: Fraction


class LevelScores(KeyedStruct, frozen=True, kw_only=True):
    """The mean scores of the classes at one level of the class hierarchy."""

    classes: Positive
    classes_scored: Count
    mAP: Fraction | None  # noqa: N815
    chance: Fraction | None
    macro_auroc: Fraction | None


class SplitMetrics(KeyedStruct, frozen=True, kw_only=True):
    """The metrics of a classifier on one split, without intervals.

    A value can also be read by its key in the file, as in `metrics["at"]["0.5"]["CF1"]`, and `to_dict` returns the
    content as dictionaries.

    Attributes:
        split: train, val or test.
        images: number of images.
        classes: number of classes.
        classes_without_negatives: classes that are present in every image whose label is known.
        classes_scored: number of classes with a known positive and a known negative, over which the means are taken.
        mAP: mean average precision.
        chance: the mAP of a model that has learned nothing: the mean prevalence of the scored classes.
        macro_auroc: mean area under the ROC curve.
        ap: average precision of each class.
        auroc: area under the ROC curve of each class.
        at: decisions at several thresholds.
        top3: decisions at a threshold of 0.5, with at most three labels per image.
        decisions: decisions at the thresholds of the model, over all classes.
        per_class: decisions at the thresholds of the model, for each class.
        ap_changes: how calibration changed the average precision of each class whose ranking it changed; None if the
            scores are not calibrated.
        levels: mean scores of each level of the class hierarchy, if there is one.
        note: the classifier's note on its mAP, if it has one.
    """

    split: str
    images: Positive
    classes: Positive
    classes_without_negatives: list[str]
    classes_scored: Count
    mAP: Fraction | None  # noqa: N815
    chance: Fraction | None
    macro_auroc: Fraction | None
    ap: dict[str, Fraction | None]
    auroc: dict[str, Fraction | None]
    at: ThresholdScores
    top3: DecisionScores
    decisions: DecisionSummary
    per_class: dict[str, ClassRates]
    ap_changes: dict[str, Difference] | None = None
    levels: dict[str, LevelScores] | None = None
    note: str | None = None


class RiskCoverage(KeyedStruct, frozen=True, kw_only=True):
    """The fraction of wrong decisions among the most certain images, for several fractions of the images."""

    coverage: list[Fraction]
    risk: list[Fraction | None]

    def __post_init__(self) -> None:
        if len(self.coverage) != len(self.risk):
            raise ValueError("coverage and risk have different lengths")


class ReliabilityDiagram(KeyedStruct, frozen=True, kw_only=True):
    """The bins of a class's reliability diagram: mean probability, fraction of positives, and number of images."""

    probability: list[Fraction]
    frequency: list[Fraction]
    images: list[Count]


class ClassReliability(KeyedStruct, frozen=True, kw_only=True):
    """How well the probabilities of one class agree with frequencies."""

    brier: Fraction | None
    log_loss: Magnitude | None
    calibration_error: Fraction | None
    calibration_error_interval: Interval | None
    reliability: ReliabilityDiagram


class ReliabilitySummary(KeyedStruct, frozen=True, kw_only=True):
    """How well probabilities agree with frequencies; a base rate is the score of a constant, the prevalence."""

    brier: Fraction | None
    log_loss: Magnitude | None
    base_rate_brier: Fraction | None
    base_rate_log_loss: Magnitude | None
    calibration_error: Fraction | None
    calibration_error_interval: Interval | None
    per_class: dict[str, ClassReliability]


class ReliabilityChange(KeyedStruct, frozen=True, kw_only=True):
    """The reliability of the raw scores and, if the scores are calibrated, of the probabilities."""

    before: ReliabilitySummary
    after: ReliabilitySummary | None = None

    @property
    def parts(self) -> tuple[ReliabilitySummary, ...]:
        """The reliability before and, if the scores are calibrated, after calibration."""
        if self.after is None:
            return (self.before,)
        return (self.before, self.after)

    @property
    def final(self) -> ReliabilitySummary:
        """The reliability of the scores that the model returns."""
        return self.before if self.after is None else self.after


class AbstentionRates(KeyedStruct, frozen=True, kw_only=True):
    """The fraction of labels that are decided, and the error rates of the yes and the no decisions."""

    coverage: Fraction | None
    coverage_interval: Interval | None
    yes_risk: Fraction | None
    yes_risk_interval: Interval | None
    no_risk: Fraction | None
    no_risk_interval: Interval | None


class Abstention(AbstentionRates, frozen=True, kw_only=True):
    """Decisions that are yes, no or not sure, over all classes and for each class."""

    per_class: dict[str, AbstentionRates]


class IntervalScores(KeyedStruct, frozen=True, kw_only=True):
    """Mean scores of some images with their intervals; `groups` is None if the images have no groups."""

    images: Positive
    groups: Count | None
    classes_scored: Count
    mAP: Fraction | None  # noqa: N815
    chance: Fraction | None
    macro_auroc: Fraction | None
    mAP_interval: Interval | None  # noqa: N815
    macro_auroc_interval: Interval | None


class ValueScores(KeyedStruct, frozen=True, kw_only=True):
    """The scores of the images with each value of a column."""

    column: str
    values: dict[str, IntervalScores]


class Evaluation(SplitMetrics, frozen=True, kw_only=True):
    """The content of evaluation.json: metrics with 95 % bootstrap intervals, and the reliability of probabilities.

    Attributes:
        risk_coverage: wrong decisions if only the most certain images are decided.
        calibration: reliability of the scores before and after calibration.
        abstention: decisions that are yes, no or not sure, if they were requested.
        mAP_interval: interval of the mAP; None without resamples, and with few images.
        macro_auroc_interval: interval of the macro AUROC.
        groups: number of groups of images, such as patients, if the images have groups.
        draws: number of bootstrap resamples.
        resampled: whether single images or whole groups are resampled.
        aggregate: how the images of a group were combined, if groups were evaluated.
        by: scores for each value of a column, if they were requested.
    """

    risk_coverage: RiskCoverage
    calibration: ReliabilityChange
    abstention: Abstention | None = None
    mAP_interval: Interval | None  # noqa: N815
    macro_auroc_interval: Interval | None
    groups: Count | None
    draws: Count
    resampled: Literal["images", "groups"]
    aggregate: Aggregate | None
    by: ValueScores | None = None


class UnscoredImage(KeyedStruct, frozen=True, kw_only=True):
    """An image that could not be read, so it was not scored, and why."""

    path: str
    reason: str


class ModelEvaluation(Evaluation, frozen=True, kw_only=True):
    """The result of `Model.evaluate`: an evaluation, and how the data fit the run.

    Attributes:
        classes_only_in_model: classes that the data do not have, which are not scored.
        classes_only_in_data: classes that the model does not have, which are not scored.
        renamed: class names in the data, and their names in the model.
        trained_on: number of evaluated images that the run was trained on.
        calibrated_on: number of evaluated images that the calibration was fitted to; None if these are not known.
        thresholds: the rule of the thresholds; None for raw scores.
        not_promised: classes for which that rule gives no guarantee.
        skipped: images that could not be read.
    """

    classes_only_in_model: list[str]
    classes_only_in_data: list[str]
    renamed: dict[str, str]
    trained_on: Count
    calibrated_on: Count | None
    thresholds: str | None
    not_promised: list[str]
    skipped: list[UnscoredImage]


class Retrieval(KeyedStruct, frozen=True, kw_only=True):
    """The content of retrieval.json: how well an embedding or predicted probabilities find images with equal labels."""

    jaccard_at_10: Fraction | None
    mAP: Fraction | None  # noqa: N815
