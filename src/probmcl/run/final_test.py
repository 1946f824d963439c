"""The final steps of a run: the kept candidate is calibrated, and tested as the model that users load."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from numpy import ndarray
from torch import Tensor

from probmcl.audit.findings import BadImage
from probmcl.calibration import Calibration, ThresholdRule, fit_calibration
from probmcl.calibration.fit import FOLDS, assign_folds
from probmcl.calibration.maps import HeldOutName
from probmcl.console import Console
from probmcl.data.labels import parents_of
from probmcl.data.records import Records
from probmcl.evaluation.scores import ScoredRows, write_scores
from probmcl.inference import Model, load
from probmcl.run.candidates import fit_grid
from probmcl.run.results import FROZEN_PROBE, Candidate
from probmcl.run.state import ModelTest, RunState
from probmcl.run.workspace import Workspace
from probmcl.runtime.distributed import gather_unequal, is_main_process, rank, world_size
from probmcl.settings.model_options import EvaluateOptions
from probmcl.store.files import OUT_OF_FOLD
from probmcl.training.features import LabeledFeatures, extract


def calibrate_candidate(workspace: Workspace, candidate: Candidate, folder: Path) -> Calibration:
    """Fit the calibration and the thresholds of a candidate, as the settings specify.

    They are fitted to validation scores. The frozen probe can be fitted again in seconds, so it has out-of-fold scores
    of all training and validation images instead, which are written to the folder.
    """
    records = workspace.records
    names = records.label_space.names
    rows = np.concatenate([records.rows("train"), records.rows("val")])
    group = None
    if records.group is not None:
        group = [records.group[row] for row in rows]
    fold = assign_folds(len(rows), group)
    has_folds = fold.max() > 0
    predictions: HeldOutName = "val"
    if candidate.id == FROZEN_PROBE and has_folds:
        predictions = "out_of_fold"
        held_out = ScoredRows.of(records, rows, out_of_fold_scores(workspace, candidate, rows, fold))
        if is_main_process():
            paths = [records.paths[row] for row in rows]
            write_scores(folder / OUT_OF_FOLD, paths, held_out, root=folder)
    else:
        held_out = ScoredRows.of(records, records.rows("val"), candidate.scores["val"].numpy())
    with workspace.console.progress("calibrating", FOLDS) as bar:
        return fit_calibration(
            held_out,
            names,
            kind=workspace.settings.calibration,
            rule=ThresholdRule.parse(workspace.settings.thresholds),
            parents=parents_of(names, records.label_space.hierarchy),
            predictions=predictions,
            advance=bar.advance,
        )


def out_of_fold_scores(
    workspace: Workspace, candidate: Candidate, rows: Int[ndarray, "N"], fold: Int[ndarray, "N"]
) -> Float32[ndarray, "N C"]:
    """Score each fold of the training and validation images with a frozen probe that is fitted to the other folds.

    `rows` are the training images followed by the validation images.
    """
    records = workspace.records
    weight_decay = candidate.weight_decay
    assert weight_decay is not None
    settings = replace(workspace.settings.probe, weight_decays=(weight_decay,))
    features = _features_of_training_and_validation(workspace, candidate)
    labels, known_labels = records.states.targets_and_known(rows)
    targets = torch.from_numpy(labels)
    known = torch.from_numpy(known_labels)
    scores = torch.empty(len(rows), len(records.label_space))
    n_folds = int(fold.max()) + 1
    with workspace.console.progress("out-of-fold scores", n_folds) as bar:
        for number in range(n_folds):
            fitted_on = np.flatnonzero(fold != number)
            held_out = np.flatnonzero(fold == number)
            weights = None if records.weight is None else records.weight[rows[fitted_on]]
            others = LabeledFeatures(
                features[:, fitted_on], targets[fitted_on], known[fitted_on], records.label_space, weights
            )
            probe = fit_grid(others, settings, seed=workspace.settings.seed)[weight_decay]
            with torch.inference_mode():
                scores[held_out] = probe.logits(features[0, held_out]).sigmoid()
            bar.advance()
    return scores.numpy()


def _features_of_training_and_validation(workspace: Workspace, candidate: Candidate) -> Float[Tensor, "V N D"]:
    """Return the features of the views that the frozen probe uses, of the training and then the validation images.

    A validation image has only its plain view, which takes the place of its augmented views.
    """
    n_augmented = workspace.settings.probe.frozen_views
    device = workspace.settings.device
    cache, network = workspace.feature_source(candidate.id.key, workspace.backbone.tail)
    with workspace.console.progress("features for calibration", 2) as bar:
        train = extract(network, cache.probing(n_augmented=n_augmented), device=device)
        bar.advance()
        val = extract(network, cache.plain("val"), device=device)
        bar.advance()
    return torch.cat([train, val.expand(len(train), -1, -1)], dim=1)


def evaluate_loaded_model(state: RunState) -> ModelTest:
    """Load the model of the run, and evaluate it on the test split as `Model.evaluate` does.

    The model scores the images with a function that is passed to it, so that several processes can share the images.
    Their batches then differ, and the scores may differ in the last digits. In one process, a later evaluation of the
    run gives the same numbers.
    """
    model = load(state.folder.path, device=state.settings.device)
    options = EvaluateOptions(split="test", workers=state.settings.workers, console=state.console)

    def score(
        records: Records, options: EvaluateOptions, console: Console
    ) -> tuple[Records, Float[ndarray, "N C"], Sequence[BadImage]]:
        """Return the readable images, their raw scores, and the unreadable images, as `evaluate_records` expects."""
        scores = _score_together(model, records, options, console)  # an unreadable image is an error here
        readable = records
        unreadable = ()
        return readable, scores, unreadable

    with warnings.catch_warnings():
        # The model warns about test images that are copies of training images. The run has already refused such leaks,
        # or stored a warning about them if the user allowed them.
        warnings.simplefilter("ignore")
        scored = model.evaluate_records(state.records, options, score)
    return ModelTest(torch.from_numpy(scored.scores), scored.evaluation)


def _score_together(
    model: Model, records: Records, options: EvaluateOptions, console: Console
) -> Float[ndarray, "N C"]:
    """Return the raw scores of all images; each process scores its part. An unreadable image is an error."""
    rows_of_process = np.array_split(np.arange(len(records)), world_size())
    own_rows = rows_of_process[rank()]
    own_scores = np.empty((0, len(model.names)), dtype=np.float32)
    if len(own_rows):
        _, own_scores, _ = model.score(records.take(own_rows), options, console)
    return gather_unequal(torch.from_numpy(own_scores)).numpy()
