"""Everything that the report of a run needs from its folder, and a summary of its images and labels."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from probmcl.calibration import Calibration
from probmcl.console import Console
from probmcl.data.labels import parents_of
from probmcl.errors import DataError, RunError
from probmcl.evaluation.metrics import DEFAULT_THRESHOLD
from probmcl.evaluation.scores import read_scores, scores_file
from probmcl.inference import Model
from probmcl.neighbors import TrainingImages
from probmcl.neighbors.training_images import common_image_folder
from probmcl.readers.options import METADATA_FILE, DataSource
from probmcl.run.results import FROZEN_PROBE
from probmcl.settings import CONFIG_FILE, Settings
from probmcl.store import files
from probmcl.store.evaluation import Evaluation
from probmcl.store.report import DataSummary, DuplicateCounts, ImagesBySplit, UnknownLabels
from probmcl.store.run_folder import RunFolder
from probmcl.store.run_metadata import ClassLabels, RunMetadata
from probmcl.training import MetricsLog

LEAK_WARNINGS = ("leak", "seen_before")
"""Kinds of warnings about images that are both trained on and scored."""


@dataclass(frozen=True, eq=False)
class SplitScores:
    """Probabilities and labels of a split; `positive` implies `known`."""

    paths: tuple[str, ...]
    probabilities: Float64[ndarray, "N C"]
    positive: Bool[ndarray, "N C"]
    known: Bool[ndarray, "N C"]
    group: tuple[str, ...] | None

    @property
    def entries(self) -> tuple[Float64[ndarray, "N C"], Float64[ndarray, "N C"], Bool[ndarray, "N C"]]:
        """Probabilities, 0/1 labels and the mask of known labels, as the metrics expect them."""
        return self.probabilities, self.positive.astype(np.float64), self.known


@dataclass(frozen=True, eq=False)
class RunData:
    """The stored results of a run.

    Attributes:
        names: the classes.
        metadata: the content of run.json.
        settings: the settings of the run; those of its methods are plain values.
        labels: the classes with their training positives, and how the labels were read.
        thresholds: the threshold of each class.
        evaluation: metrics on the test split, with intervals.
        root: folder that contains all images.
        images: number of images in each split.
        val: probabilities of the validation images.
        test: probabilities of the test images.
        frozen: scores of the frozen probe on the test images; None if it was kept or was not tested.
        training: features of the training images; None if the run does not keep them.
        source: the data that the run names.
        reads_images: whether image files may be read; see `may_read_images`.
    """

    folder: RunFolder
    metadata: RunMetadata[DataSource]
    settings: Settings
    labels: ClassLabels
    names: tuple[str, ...]
    thresholds: Float64[ndarray, " C"]
    calibration: Calibration | None
    evaluation: Evaluation
    root: Path
    images: Mapping[str, int]
    val: SplitScores
    test: SplitScores
    frozen: SplitScores | None
    training: TrainingImages | None
    source: DataSource | None
    reads_images: bool = False

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return self.folder.path.resolve().name

    @property
    def decisions(self) -> Bool[ndarray, "N C"]:
        """The predicted labels of the test images."""
        return self.test.probabilities > self.thresholds

    @property
    def kept(self) -> str:
        """The name of the candidate that is the model of the run; a finished run has one."""
        assert self.metadata.kept is not None
        return self.metadata.kept

    @property
    def frozen_kept(self) -> bool:
        """True if the model of the run is the probe on the frozen encoder."""
        return self.kept == FROZEN_PROBE.name

    def log(self) -> list[dict[str, Any]]:
        """Return the rows of the training log."""
        return MetricsLog(self.folder.path / files.METRICS).rows()


def read_run_data(model: Model) -> RunData:
    """Read the stored results of the run that a model comes from."""
    folder = RunFolder(model.folder)
    metadata = folder.read(METADATA_FILE)
    if metadata.status != "finished":
        raise RunError(f"{folder.path} is not finished, so it has no test scores to report; resume it first")
    split_of_path = folder.read_split()
    settings = folder.read(CONFIG_FILE)
    labels = folder.read(files.LABELS)
    evaluation = _read_evaluation(folder, model)
    root = common_image_folder(list(split_of_path))
    val = _read_scores(model, folder.path, "val", model.calibration)
    test = _read_scores(model, folder.path, "test", model.calibration)
    frozen = _read_frozen_scores(model, folder, metadata)
    training = _read_training_images(model, folder)
    return RunData(
        folder=folder,
        metadata=metadata,
        settings=settings,
        labels=labels,
        names=model.names,
        thresholds=_thresholds(model),
        calibration=model.calibration,
        evaluation=evaluation,
        root=root,
        images=Counter(split_of_path.values()),
        val=val,
        test=test,
        frozen=frozen,
        training=training,
        source=metadata.data,
    )


def _read_scores(model: Model, folder: Path, split: str, calibration: Calibration | None) -> SplitScores:
    """Read the scores of a split from a folder of results, and calibrate them if there is a calibration."""
    paths, rows = read_scores(scores_file(folder, split), classes=len(model.names))
    if calibration is None:
        probabilities = rows.scores.astype(np.float64)
    else:
        parents = parents_of(model.names, model.hierarchy)
        probabilities = calibration.probabilities(rows.scores, parents)
    positive = (rows.labels == 1) & rows.known
    return SplitScores(
        paths=paths,
        probabilities=probabilities,
        positive=positive,
        known=rows.known,
        group=rows.group,
    )


def _read_frozen_scores(model: Model, folder: RunFolder, metadata: RunMetadata[DataSource]) -> SplitScores | None:
    """Read the test scores of the frozen probe, which are not calibrated; None if it was kept or not tested."""
    results = folder.results(files.FROZEN.name)
    is_kept = metadata.kept == FROZEN_PROBE.name
    if is_kept or not scores_file(results, "test").is_file():
        return None
    return _read_scores(model, results, "test", calibration=None)


def _read_training_images(model: Model, folder: RunFolder) -> TrainingImages | None:
    """Read the features and labels of the training images; None if the run does not keep them."""
    path = folder.path / files.NEIGHBORS
    if not path.is_file():
        return None
    return TrainingImages.load(path, classes=len(model.names))


def _thresholds(model: Model) -> Float64[ndarray, " C"]:
    """Return the threshold of each class."""
    if model.calibration is None:
        return np.full(len(model.names), DEFAULT_THRESHOLD)
    return model.calibration.threshold


def may_read_images(run: RunData, console: Console, notes: Console) -> bool:
    """True if the run names the folders of its data, which are printed to `notes`, and all its images are in them."""
    if run.source is None:
        notes.print(f"note: {run.folder.path} does not name the folder of its images, so they are not read")
        return False
    folders = ", ".join(str(folder) for folder in run.source.folders)
    notes.print(f"images of the run: reading only files in {folders}")
    paths = [Path(path) for path in run.test.paths]
    if run.training is not None:
        training_paths = [run.root / path for path in run.training.paths]
        paths.extend(training_paths)
    try:
        run.source.refuse_outside(paths, "the report has no photographs and no embedding map")
    except DataError as error:
        console.print(f"note: {error}")
        return False
    return True


def _read_evaluation(folder: RunFolder, model: Model) -> Evaluation:
    """Read the evaluation of the test split; it must have the classes of the model."""
    evaluation = folder.read(files.EVALUATION)
    classes = set(model.names)
    for reliability in evaluation.calibration.parts:
        if reliability.per_class.keys() != classes:
            path = folder.path / files.EVALUATION
            raise RunError(f"{path} does not match the classes in {files.LABELS}; calibrate the run again")
    return evaluation


def data_summary(run: RunData) -> DataSummary:
    """Return counts of images and labels, duplicates, leaks, skipped images, and classes without positives."""
    images = ImagesBySplit(train=run.images["train"], val=run.images["val"], test=run.images["test"])
    positive = run.test.positive
    test_images = len(positive)
    labels_per_image = float(positive.sum() / max(test_images, 1))
    positives_in_test = positive.sum(axis=0).tolist()
    groups_in_test = None
    if run.test.group is not None:
        groups_in_test = len(set(run.test.group))
    skipped = 0
    if run.metadata.data is not None:
        skipped = len(run.metadata.data.skipped)
    leaks = [warning.message for warning in run.metadata.warnings if warning.kind in LEAK_WARNINGS]
    return DataSummary(
        images=images,
        classes=len(run.names),
        labels_per_image=labels_per_image,
        labels=run.labels.policy.labels,
        unknown=_unknown_labels(run),
        groups_in_test=groups_in_test,
        duplicates=_duplicates(run),
        skipped=skipped,
        warnings=leaks,
        without_train_positives=_classes_without_positives(run, run.labels.counts),
        without_test_positives=_classes_without_positives(run, positives_in_test),
    )


def _unknown_labels(run: RunData) -> UnknownLabels:
    """Return the number of unknown labels in each split; None for train if the run does not keep its labels."""
    in_train = None
    if run.training is not None:
        in_train = int((~run.training.known).sum())
    in_val = int((~run.val.known).sum())
    in_test = int((~run.test.known).sum())
    return UnknownLabels(val=in_val, test=in_test, train=in_train)


def _duplicates(run: RunData) -> DuplicateCounts | None:
    """Return the numbers of duplicate images; None if they were not counted."""
    counts = run.metadata.duplicates
    if counts is None:
        return None
    return DuplicateCounts(exact=counts["exact"], near=counts["near"])


def _classes_without_positives(run: RunData, positives: Sequence[int]) -> list[str]:
    """Return the names of the classes without positives, given the number of positives of each class."""
    return [name for name, count in zip(run.names, positives, strict=True) if count == 0]
