"""Calibrating the model of a finished run with another rule for thresholds, or for other images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from probmcl.audit.findings import BadImage
from probmcl.calibration import Calibration, ThresholdRule, fit_calibration
from probmcl.calibration.fit import FOLDS
from probmcl.calibration.maps import CALIBRATION_FILE, HeldOutName, Kind
from probmcl.console import Console
from probmcl.data.labels import parents_of
from probmcl.data.records import Records
from probmcl.errors import RunError, call, counted, listing
from probmcl.evaluation.bootstrap import affordable_draws
from probmcl.evaluation.intervals import EvaluationOptions
from probmcl.evaluation.scores import ScoredRows, StoredScores, read_scores, scores_content, scores_file
from probmcl.inference.evaluation import (
    AppliedCalibration,
    EvaluatedImages,
    count_calibrated_on,
    count_trained_on,
    match_classes,
    read_renames,
    read_run_splits,
    select_split,
)
from probmcl.methods.base import Classifier
from probmcl.readers.options import DataSource
from probmcl.readers.read import read_source
from probmcl.runtime.folders import locked
from probmcl.settings.model_options import CalibrateOptions
from probmcl.store.decoding import encoded_struct
from probmcl.store.evaluation import ModelEvaluation
from probmcl.store.files import EVALUATION, METADATA, OTHER_IMAGES, OUT_OF_FOLD, File
from probmcl.store.run_folder import RunFolder


class HeldOut(NamedTuple):
    """Held-out scores, and their name in the predictions of the run."""

    name: HeldOutName
    scores: StoredScores


@runtime_checkable
class ScoringModel(Protocol):
    """The part of `Model` that a calibration uses."""

    classifier: Classifier
    names: tuple[str, ...]
    hierarchy: Mapping[str, str] | None
    folder: Path
    calibration: Calibration | None

    def score(
        self, records: Records, options: CalibrateOptions, console: Console
    ) -> tuple[Records, Float[ndarray, "N C"], list[BadImage]]:
        """Return the readable records, their raw scores, and the unreadable images."""

    def evaluate_scores(
        self,
        scores: Float[ndarray, "N C"],
        images: EvaluatedImages,
        applied: AppliedCalibration,
        how: EvaluationOptions,
        console: Console,
    ) -> ModelEvaluation:
        """Evaluate the raw scores of images."""


def refuse_unfinished(folder: Path) -> None:
    """Raise an error for a run in progress: its model may still change, and training calibrates it at the end."""
    if RunFolder(folder).read(METADATA).status != "finished":
        raise RunError(f"{folder} is not finished; resume it first: {call('train', {'resume': folder})}")


def calibrate_run(
    model: ScoringModel, held_out: HeldOut, kind: Kind, rule: ThresholdRule, console: Console
) -> Calibration:
    """Fit a calibration to held-out scores and write it to the run, with a new evaluation of its test split.

    Classes without any known label keep their calibration and threshold.
    """
    with console.progress("calibrating", FOLDS) as bar:
        calibration = fit_calibration(
            held_out.scores.rows,
            model.names,
            kind=kind,
            rule=rule,
            parents=parents_of(model.names, model.hierarchy),
            predictions=held_out.name,
            advance=bar.advance,
        )
    if model.calibration is not None:
        before = model.calibration.classes
        fitted = calibration.classes
        unlabeled = [name for name, new in fitted.items() if new.positives + new.negatives == 0]
        kept = {name: before[name] for name in unlabeled}
        calibration = replace(calibration, classes={**fitted, **kept})
    _write(model, held_out, calibration, console)
    return calibration


def _write(model: ScoringModel, held_out: HeldOut, calibration: Calibration, console: Console) -> None:
    """Write a calibration, and the evaluation of the test split with it.

    The folder is updated in the order of `contents`, so a file is written before those that refer to it.
    """
    folder = RunFolder(model.folder)
    contents: dict[File, bytes] = {}
    if held_out.name == OTHER_IMAGES.key:
        contents[OTHER_IMAGES] = scores_content(*held_out.scores)
    contents[CALIBRATION_FILE] = encoded_struct(CALIBRATION_FILE, calibration)
    if scores_file(model.folder, "test").is_file():
        evaluation = _evaluate_test(model, held_out, calibration, console)
        contents[EVALUATION] = encoded_struct(EVALUATION, evaluation)
    with locked(folder.path):
        folder.update(contents)


def _evaluate_test(
    model: ScoringModel, held_out: HeldOut, calibration: Calibration, console: Console
) -> ModelEvaluation:
    """Return the evaluation of the test split with a new calibration, from the stored raw scores."""
    stored = read_scores(scores_file(model.folder, "test"), classes=len(model.names))
    images = EvaluatedImages.of_run(stored.rows, model.names)
    paths = [Path(path) for path in stored.paths]
    calibrated_on = count_calibrated_on(paths, held_out.scores.paths)
    how = EvaluationOptions(split="test", draws=affordable_draws(*stored.rows.scores.shape))
    applied = AppliedCalibration(calibration, calibrated_on)
    return model.evaluate_scores(stored.rows.scores, images, applied, how, console)


def stored_held_out_scores(model: ScoringModel) -> HeldOut:
    """Return the scores of the present calibration or, without one, those that training has stored."""
    name: HeldOutName = "val"
    if model.calibration is not None:
        name = model.calibration.predictions
    elif RunFolder(model.folder).has(OUT_OF_FOLD):
        name = "out_of_fold"
    return HeldOut(name, read_scores(scores_file(model.folder, name), classes=len(model.names)))


def score_other_images(model: ScoringModel, source: DataSource, options: CalibrateOptions, console: Console) -> HeldOut:
    """Score the validation images of other data.

    Data without a val or test split are used completely, except for images of the run's other splits. Classes are
    matched by name; the labels of classes that the data do not have are unknown.
    """
    with console.working("reading the data"):
        records = read_source(source)
    renames = read_renames(options.rename, model=model.names, data=records.label_space.names)
    mapping = match_classes(model.names, records.label_space.names, renames)
    run_splits = read_run_splits(model.folder)
    _print_unmatched(mapping.only_in_model, "not in the data, so unchanged", console)
    _print_unmatched(mapping.only_in_data, "ignored", console)
    selected = select_split(records, "val", run_splits, remedy="all images are in other splits of the run; use others")
    count_trained_on(selected.paths, run_splits, "val")  # warns about copies of training images

    readable, scores, _ = model.score(selected, options, console)
    labels = np.zeros(scores.shape, dtype=np.float32)
    known = np.zeros(scores.shape, dtype=bool)
    labels[:, mapping.in_model], known[:, mapping.in_model] = mapping.labels(readable.states)
    rows = ScoredRows(scores, labels, known, readable.group)
    paths = tuple(str(path.resolve()) for path in readable.paths)
    return HeldOut("calibration", StoredScores(paths, rows))


def _print_unmatched(names: Sequence[str], meaning: str, console: Console) -> None:
    """Print a note about the classes that only the model or only the data have, and what this means for them."""
    if names:
        console.print(f"note: {counted(len(names), 'class is', 'classes are')} {meaning}: {listing(names)}")
