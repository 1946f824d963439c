"""The parts of report.json, the content of a run's report: numbers, text and lists.

Scores are fractions, intervals are pairs, and undefined values are None.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from probmcl.store.evaluation import RiskCoverage

SCHEMA = 1
"""Version of the layout of report.json."""

Status = Literal["ok", "care", "stop"]
Decision = Literal["ready to use", "use with care", "do not use"]
Interval = list[float]
"""The ends of a 95 % interval."""


class RuleCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of the verdict that was applied to a run; `shown` and `limits` are its value and its limits as text."""

    key: str
    title: str
    value: float | None
    shown: str
    limits: str
    status: Status
    reason: str
    advice: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether to use the model: the decision, its reasons, the next step, and all rules that were checked."""

    status: Status
    decision: Decision
    reasons: list[str]
    next_step: str
    checks: list[RuleCheck]


class FrozenScores(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of the frozen probe on the test images, and the gain of the kept model over it."""

    mAP: float  # noqa: N815
    mAP_interval: Interval | None  # noqa: N815
    macro_auroc: float | None
    gain: float
    gain_interval: Interval | None


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The headline numbers on the test images.

    `chance` is the mAP of a model that has learned nothing. `frozen` is None if the probe was kept or not tested.
    """

    images: int
    mAP: float | None  # noqa: N815
    mAP_interval: Interval | None  # noqa: N815
    macro_auroc: float | None
    macro_auroc_interval: Interval | None
    chance: float | None
    classes: int
    classes_scored: int
    CF1: float | None
    OF1: float | None
    macro_F1: float | None  # noqa: N815
    calibration_error: float | None
    calibration_error_interval: Interval | None
    brier: float | None
    frozen: FrozenScores | None


class ClassScores(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of one class on the test images.

    Attributes:
        train: positives in train; `val` and `test` are those in the other splits.
        unknown: unknown labels in test.
        ap: average precision.
        precision: precision at `threshold`; so are the other rates and counts of decisions.
        precision_at_recall: the highest precision at recalls of 0, 0.05, …, 1; empty without positives.
        positives_by_probability: histogram of the probabilities of the positives.
        negatives_by_probability: the same for known negatives.
    """

    name: str
    train: int
    val: int
    test: int
    unknown: int
    ap: float | None
    ap_interval: Interval | None
    precision: float | None
    recall: float | None
    f1: float | None
    threshold: float
    true_positives: int
    false_positives: int
    false_negatives: int
    calibration_error: float | None
    calibration_error_interval: Interval | None
    precision_at_recall: list[float]
    positives_by_probability: list[int]
    negatives_by_probability: list[int]


class ShownLabel(msgspec.Struct, frozen=True, kw_only=True):
    """A label next to an image; `present` is None if it is unknown in the data."""

    name: str
    probability: float
    threshold: float
    present: bool | None
    predicted: bool


class NearestImage(msgspec.Struct, frozen=True, kw_only=True):
    """A training image that is similar to a test image, its labels, and the cosine similarity."""

    path: str
    labels: list[str]
    similarity: float


class ShownImage(msgspec.Struct, frozen=True, kw_only=True):
    """A test image of the gallery.

    Attributes:
        path: the file, relative to the folder that contains all images.
        class_name: the class that is the reason for showing it.
        labels: the most relevant labels.
        more_labels: number of present or predicted labels that are not among them.
        nearest: the nearest training images.
    """

    path: str
    class_name: str = msgspec.field(name="class")
    labels: list[ShownLabel]
    more_labels: int
    uncertainty: float
    nearest: list[NearestImage]


class ImageGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Images that are shown for the same reason."""

    key: str
    title: str
    explanation: str
    images: list[ShownImage]


class Gallery(msgspec.Struct, frozen=True, kw_only=True):
    """The test images on the page.

    Attributes:
        has_neighbors: whether the run keeps the features of its training images.
        heat_maps: why there are no heat maps; empty if they were made or not wanted.
    """

    groups: list[ImageGroup]
    has_neighbors: bool
    heat_maps: str


class ReliabilityPoints(msgspec.Struct, frozen=True, kw_only=True):
    """The points of a reliability diagram: mean probability, fraction of positives and number of labels in each bin."""

    probability: list[float]
    frequency: list[float]
    labels: list[int]


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """The curves on the test images.

    Attributes:
        recall: the recalls of the precision–recall curves.
        micro: precision of all decisions together at these recalls.
        macro: mean precision of the classes; empty if no class has a curve.
        quartiles: lower and upper quartile of the precision of the classes, or an empty list.
        reliability: reliability of the scores `before` calibration and, if the run is calibrated, `after` it.
    """

    recall: list[float]
    micro: list[float]
    macro: list[float]
    quartiles: list[list[float]]
    reliability: dict[Literal["before", "after"], ReliabilityPoints]
    risk_coverage: RiskCoverage


class NewPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two labels that occur together in test images only, and the images in which both are found."""

    classes: list[str]
    images: int
    both_found: int


class NewPairs(msgspec.Struct, frozen=True, kw_only=True):
    """The pairs of labels that no training image has: their number, their images, and the recall on these images."""

    pairs: int
    images: int
    recall: float | None
    recall_of_others: float | None
    most_frequent: list[NewPair]


class LabelPairs(msgspec.Struct, frozen=True, kw_only=True):
    """How often labels occur together.

    Attributes:
        classes: the most frequent classes.
        truth: for each pair of them, the fraction of the images with the first label that have the second.
        predicted: the same for the predicted labels.
        never_seen: pairs that no training image has; None if the run does not keep the labels of these images.
    """

    classes: list[str]
    truth: list[list[float]]
    predicted: list[list[float]]
    never_seen: NewPairs | None


class ProjectedImages(msgspec.Struct, frozen=True, kw_only=True):
    """Features of the images in two dimensions, and measures of the complete features."""

    points: list[list[float]]
    label_agreement: float | None
    alignment: float | None
    uniformity: float | None


class EmbeddingMap(msgspec.Struct, frozen=True, kw_only=True):
    """Some test images, as they are arranged by the encoder of the run and by the frozen encoder.

    Attributes:
        labels: the numbers of the classes that each image has.
        wrong: the number of wrong decisions about each image.
        maps: the arrangement by the encoder of the `run` and, if it was trained, by the `frozen` one.
    """

    images: int
    paths: list[str]
    labels: list[list[int]]
    wrong: list[int]
    uncertainty: list[float]
    maps: dict[Literal["run", "frozen"], ProjectedImages]


class ImagesBySplit(msgspec.Struct, frozen=True, kw_only=True):
    """The number of images in each split."""

    train: int
    val: int
    test: int


class UnknownLabels(msgspec.Struct, frozen=True, kw_only=True):
    """The number of unknown labels in each split; `train` is None if the run does not keep these labels."""

    val: int
    test: int
    train: int | None


class DuplicateCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of exact copies, and of near-duplicate pairs, in all splits together."""

    exact: int
    near: int


class DataSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a run.

    Attributes:
        labels: number of labels by their state in the table.
        groups_in_test: None if the images have no groups.
        duplicates: None if the run has not counted them.
        skipped: number of images that could not be read.
        warnings: the messages about leaks.
    """

    images: ImagesBySplit
    classes: int
    labels_per_image: float
    labels: dict[str, Any] | None
    unknown: UnknownLabels
    groups_in_test: int | None
    duplicates: DuplicateCounts | None
    skipped: int
    warnings: list[str]
    without_train_positives: list[str]
    without_test_positives: list[str]


class LearningCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The loss of a training stage at some steps, and the collapse statistics that `statistics` names."""

    stage: str
    step: list[int]
    statistics: list[str]
    loss: list[float | None]
    effective_components: list[float | None] | msgspec.UnsetType = msgspec.UNSET
    mean_coordinate: list[float | None] | msgspec.UnsetType = msgspec.UNSET
    feature_cosine: list[float | None] | msgspec.UnsetType = msgspec.UNSET
    similarity_positive: list[float | None] | msgspec.UnsetType = msgspec.UNSET
    similarity_negative: list[float | None] | msgspec.UnsetType = msgspec.UNSET
    rows_without_positives: list[float | None] | msgspec.UnsetType = msgspec.UNSET


class CandidateScores(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate of the run: its scores, its gain in validation mAP over the frozen probe, and its training time."""

    name: str
    kept: bool
    validation_mAP: float | None  # noqa: N815
    gain: float | None
    gain_interval: Interval | None
    test_mAP: float | None  # noqa: N815
    seconds: float | None
    note: str


class ModelCost(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the model, and the duration of the run in seconds."""

    encoder: str
    image_size: int
    parameters: int
    model_bytes: int
    seconds: float


class TrainingSection(msgspec.Struct, frozen=True, kw_only=True):
    """The learning curves of all stages, the candidates with the best on validation first, and the cost."""

    curves: list[LearningCurve]
    candidates: list[CandidateScores]
    cost: ModelCost


class RunDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference in test mAP from the first run of the report."""

    mAP: float  # noqa: N815
    interval: Interval | None


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run next to others; `difference` is None for the first run, and for a run with other classes or test images."""

    name: str
    kept: str
    encoder: str
    verdict: Decision
    mAP: float | None  # noqa: N815
    mAP_interval: Interval | None  # noqa: N815
    macro_auroc: float | None
    CF1: float | None
    calibration_error: float | None
    test_images: int
    seconds: float
    difference: RunDifference | None


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is needed to repeat the run; `data_hash` is the hash of paths, labels and splits."""

    command: str
    seed: int
    versions: dict[str, str]
    commit: str | None
    started: str
    data_hash: str
    data: str | None
    thresholds: str | None
    settings: dict[str, Any]
    warnings: list[str]
