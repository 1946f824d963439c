"""The evaluation of a model on labeled images, given their raw scores.

`train`, `evaluate` and `calibrate` share it, so that evaluation.json has the scores of the model that users load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from jaxtyping import Bool, Float, Float64
from numpy import ndarray

from probmcl.audit.findings import BadImage
from probmcl.calibration import Calibration
from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.evaluation.groups import EvaluationOptions
from probmcl.evaluation.stored_scores import ScoredRows
from probmcl.inference.class_mapping import ClassMapping, match_classes
from probmcl.settings.model_options import EvaluateOptions
from probmcl.store.evaluation import Evaluation, ModelEvaluation, UnscoredImage


@dataclass(frozen=True, eq=False)
class EvaluatedImages:
    """Labeled images that are evaluated, and how they fit the run.

    Attributes:
        labels: 0/1 labels of the classes that the model and the data share.
        known: mask of known labels.
        group: group of each image, if the images have groups.
        values: value of each image, or group, in the column by which the evaluation is divided.
        mapping: the classes that the model and the data share.
        renames: class names in the data, and their names in the model.
        trained_on: number of images that the run was trained on.
        skipped: images that could not be read.
    """

    labels: Float[ndarray, "N K"]
    known: Bool[ndarray, "N K"]
    group: tuple[str, ...] | None
    mapping: ClassMapping
    values: tuple[str, ...] | None = None
    renames: Mapping[str, str] | None = None
    trained_on: int = 0
    skipped: Sequence[UnscoredImage] = ()

    @classmethod
    def of_records(cls, records: Records, mapping: ClassMapping, how: EvaluationOptions) -> EvaluatedImages:
        """Return the images of records."""
        labels, known = mapping.labels(records.states)
        return cls(labels, known, records.group, mapping, how.values(records))

    @classmethod
    def of_run(cls, rows: ScoredRows, names: Sequence[str]) -> EvaluatedImages:
        """Return the test images of a run. It was not trained on them, and it could read all of them."""
        return cls(rows.labels, rows.known, rows.group, match_classes(names, names))


@dataclass(frozen=True, eq=False)
class AppliedCalibration:
    """How scores become probabilities and decisions in an evaluation.

    Attributes:
        calibration: None if raw scores are evaluated.
        calibrated_on: number of evaluated images that it was fitted to; None if these are not known.
        limits: the highest probability of each class for a no, and that for a not sure; None without abstention.
    """

    calibration: Calibration | None
    calibrated_on: int | None = 0
    limits: tuple[Float64[ndarray, " C"], Float64[ndarray, " C"]] | None = None


class ScoredEvaluation(NamedTuple):
    """The evaluation of records, with the readable ones and their raw scores."""

    records: Records
    scores: Float[ndarray, "N C"]
    evaluation: ModelEvaluation


ScoreRecords = Callable[[Records, EvaluateOptions, Console], tuple[Records, Float[ndarray, "N C"], Sequence[BadImage]]]
"""Returns the readable records, their raw scores, and the images that could not be read."""


def unscored(bad: Sequence[BadImage]) -> list[UnscoredImage]:
    """Return the images that could not be read in the form of evaluation.json."""
    return [UnscoredImage(path=str(image.path), reason=image.reason) for image in bad]


def with_provenance(evaluation: Evaluation, images: EvaluatedImages, applied: AppliedCalibration) -> ModelEvaluation:
    """Return an evaluation together with how its images fit the run."""
    calibration = applied.calibration
    not_promised = () if calibration is None else calibration.not_promised
    return ModelEvaluation(
        **msgspec.structs.asdict(evaluation),
        classes_only_in_model=images.mapping.only_in_model,
        classes_only_in_data=images.mapping.only_in_data,
        renamed=dict(images.renames or {}),
        trained_on=images.trained_on,
        calibrated_on=applied.calibrated_on,
        thresholds=None if calibration is None else calibration.thresholds,
        not_promised=[name for name in images.mapping.common if name in not_promised],
        skipped=list(images.skipped),
    )
