"""Calibrating the model of a finished run: for an old run, with other thresholds, or for other images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from probmcl.calibration import Calibration, ThresholdRule, fit_calibration
from probmcl.calibration.evaluation import evaluate_test
from probmcl.calibration.fit import FOLDS
from probmcl.calibration.maps import Kind
from probmcl.console import Console
from probmcl.data.hierarchy import parents_of
from probmcl.data.options import DataSource
from probmcl.data.read import read_source
from probmcl.evaluation.groups import ScoredRows
from probmcl.evaluation.stored_scores import read_scores, scores_file, write_scores
from probmcl.inference.class_mapping import match_classes, read_renames
from probmcl.inference.splits import count_trained_on, read_run_splits, select_split
from probmcl.run_folder import CALIBRATION, EVALUATION, OTHER_IMAGES, OUT_OF_FOLD, RunFolder

if TYPE_CHECKING:
    from probmcl.inference.model import Model


def calibrate_run(model: Model, predictions: str, kind: Kind, rule: ThresholdRule, console: Console) -> Calibration:
    """Fit a calibration to stored scores and write it to the run, with a new evaluation of its test split."""
    folder, test = RunFolder(model.folder), scores_file(model.folder, "test")
    rows = read_scores(scores_file(model.folder, predictions)).rows
    with console.progress("calibrating", FOLDS) as bar:
        calibration = fit_calibration(
            rows,
            model.names,
            kind=kind,
            rule=rule,
            parents=parents_of(model.names, model.hierarchy),
            predictions=predictions,
            advance=bar.advance,
        )
    evaluation = None
    if test.is_file():
        evaluation = evaluate_test(
            read_scores(test).rows,
            calibration,
            names=model.names,
            hierarchy=model.hierarchy,
            note=model.classifier.note,
            console=console,
        )
    folder.write(CALIBRATION, calibration)
    if evaluation is not None:
        folder.write(EVALUATION, evaluation)
    return calibration


def stored_held_out_scores(folder: Path) -> str:
    """Return the name of the held-out scores that training has stored: out-of-fold if there are any, otherwise val."""
    return OUT_OF_FOLD if scores_file(folder, OUT_OF_FOLD).is_file() else "val"


def score_other_images(
    model: Model,
    source: DataSource,
    rename: Path | str | Mapping[str, str] | None,
    skip_bad: float | None,
    batch_size: int | None,
    workers: int | None,
    console: Console,
) -> str:
    """Score the validation images of other data, store the raw scores in the run, and return their name.

    Data without a val or test split are used completely, except for images of the run's other splits. Classes are
    matched by name; the labels of classes that the data do not have are unknown.
    """
    records = read_source(source)
    renames = read_renames(rename, model=model.names, data=records.label_space.names)
    mapping, run_splits = match_classes(model.names, records.label_space.names, renames), read_run_splits(model.folder)
    records = select_split(records, "val", run_splits)
    count_trained_on(records.paths, run_splits, "val")  # warns about copies of training images
    records, scores, _ = model.score(records, skip_bad, batch_size, workers, console)
    labels, known = np.zeros(scores.shape, dtype=np.float32), np.zeros(scores.shape, dtype=bool)
    labels[:, mapping.in_model], known[:, mapping.in_model] = mapping.labels(records.states)
    rows = ScoredRows(scores, labels, known, records.group)
    write_scores(scores_file(model.folder, OTHER_IMAGES), [str(path.resolve()) for path in records.paths], rows)
    return OTHER_IMAGES
