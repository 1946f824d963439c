"""The training of a run in a report: learning curves, candidates, cost and how to repeat it."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from probmcl.inference import Model
from probmcl.methods.contrast import STATISTICS
from probmcl.report.run_data import RunData
from probmcl.run.results import CandidateId
from probmcl.runtime.conversion import plain_values
from probmcl.store import files
from probmcl.store.decoding import read_tensor_metadata
from probmcl.store.report import (
    CandidateScores,
    LearningCurve,
    ModelCost,
    Reproduction,
    TrainingSection,
)
from probmcl.store.run_metadata import CandidateEntry

MAX_STEPS = 60
"""Points of a learning curve."""

NOT_SHOWN = ("cache",)
"""Settings that do not change the results."""


def training_summary(run: RunData, model: Model) -> TrainingSection:
    """Return how the run was trained: its learning curves, its candidates and its cost."""
    return TrainingSection(
        curves=learning_curves(run),
        candidates=candidates(run),
        cost=cost(run, model),
    )


def learning_curves(run: RunData) -> list[LearningCurve]:
    """Return the loss and the collapse statistics of every stage, thinned out to a few points."""
    stages: dict[str, list[dict[str, Any]]] = {}
    for row in run.log():
        stage = str(row["stage"])
        stages.setdefault(stage, []).append(row)
    return [_learning_curve(stage, rows) for stage, rows in stages.items()]


def _learning_curve(stage: str, rows: Sequence[Mapping[str, Any]]) -> LearningCurve:
    """Return the learning curve of a stage from its rows of the log.

    Of many rows, only every n-th is kept, and always the last one.
    """
    every = math.ceil(len(rows) / MAX_STEPS)
    *earlier, last = rows
    kept = [*earlier[::every], last]
    statistics: dict[str, list[float | None]] = {}
    for key in STATISTICS:
        is_logged = any(isinstance(row.get(key), float) for row in kept)
        if is_logged:
            statistics[key] = _column(kept, key)
    steps = [row["step"] for row in kept]
    loss = _column(kept, "loss")
    curve = LearningCurve(stage=stage, step=steps, statistics=list(statistics), loss=loss)
    return msgspec.structs.replace(curve, **statistics)  # each statistic is a field; the others stay unset


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> list[float | None]:
    """Return the value of a key in each row, with four significant digits; None if it is missing or is not a number."""
    return [_rounded(row.get(key)) for row in rows]


def _rounded(value: Any) -> float | None:
    """Return a number with four significant digits; None for anything else, and for NaN."""
    if not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(f"{value:.4g}")


def candidates(run: RunData) -> list[CandidateScores]:
    """Return the scores and the training time of every candidate, the best on validation first."""
    rows = [_candidate(run, entry) for entry in run.metadata.candidates]
    return sorted(rows, key=lambda row: -(row.validation_mAP or 0.0))


def _candidate(run: RunData, entry: CandidateEntry) -> CandidateScores:
    """Return the scores and the training time of a candidate of the run."""
    is_kept = entry.name == run.kept
    gain_interval = None
    if entry.gain_interval is not None:
        gain_interval = list(entry.gain_interval)
    test_map_by_name = run.metadata.test_mAP or {}
    identity = CandidateId(entry.method, entry.head, entry.trial)
    seconds = _training_seconds(run, identity)
    return CandidateScores(
        name=entry.name,
        kept=is_kept,
        validation_mAP=entry.validation_mAP,
        gain=entry.gain,
        gain_interval=gain_interval,
        test_mAP=test_map_by_name.get(entry.name),
        seconds=seconds,
        note=entry.note,
    )


def _training_seconds(run: RunData, candidate: CandidateId) -> float | None:
    """Return the training time of a candidate; None if the run does not have its checkpoint."""
    checkpoint = files.CANDIDATE.named(candidate.key)
    if not run.folder.has(checkpoint):
        return None
    stored = read_tensor_metadata(run.folder.path, checkpoint)
    return round(stored.seconds, 1)


def cost(run: RunData, model: Model) -> ModelCost:
    """Return the size of the model and the duration of the run."""
    parameters = sum(parameter.numel() for parameter in model.classifier.parameters())
    model_file = run.folder.path / files.MODEL
    model_bytes = model_file.stat().st_size
    return ModelCost(
        encoder=run.settings.encoder.name,
        image_size=model.preprocessing.size,
        parameters=parameters,
        model_bytes=model_bytes,
        seconds=run.metadata.seconds,
    )


def reproduction(run: RunData) -> Reproduction:
    """Return the command, seed, versions, hash of the data, and settings."""
    metadata = run.metadata
    data_name = None
    if metadata.data is not None:
        data_name = metadata.data.data.name
    thresholds = None
    if run.calibration is not None:
        thresholds = run.calibration.thresholds
    settings: dict[str, Any] = plain_values(run.settings)
    shown_settings = {key: value for key, value in settings.items() if key not in NOT_SHOWN}
    warnings = [warning.message for warning in metadata.warnings]
    return Reproduction(
        command=shlex.join(metadata.command),
        seed=metadata.seed,
        versions=metadata.versions,
        commit=metadata.commit,
        started=metadata.started,
        data_hash=metadata.records,
        data=data_name,
        thresholds=thresholds,
        settings=shown_settings,
        warnings=warnings,
    )
