"""The training of a run in a report: learning curves, candidates, cost, data and how to repeat it."""

import shlex
from typing import Any

import msgspec

from probmcl.inference import Model
from probmcl.methods.contrast import STATISTICS
from probmcl.report.run_data import RunData
from probmcl.run.results import CandidateId
from probmcl.store import files
from probmcl.store.decoding import read_tensor_metadata

MAX_STEPS = 60
"""Points of a learning curve."""


def learning_curves(run: RunData) -> list[dict[str, Any]]:
    """Return the loss and the collapse statistics of every stage, thinned out to a few points."""
    stages: dict[str, list[dict[str, Any]]] = {}
    for row in run.log():
        stages.setdefault(str(row["stage"]), []).append(row)
    return [{"stage": stage, **_curve(rows)} for stage, rows in stages.items()]


def _curve(rows: list[dict[str, Any]]) -> dict[str, Any]:
    every = -(-len(rows) // MAX_STEPS)
    kept = [*rows[:-1:every], rows[-1]]
    statistics = [key for key in STATISTICS if any(isinstance(row.get(key), float) for row in kept)]
    columns = {key: [_rounded(row.get(key)) for row in kept] for key in ("loss", *statistics)}
    return {"step": [row["step"] for row in kept], "statistics": statistics, **columns}


def _rounded(value: Any) -> float | None:
    return float(f"{value:.4g}") if isinstance(value, int | float) and value == value else None


def candidates(run: RunData) -> list[dict[str, Any]]:
    """Return the scores and the training time of every candidate, the best on validation first."""
    tested = run.metadata.test_mAP or {}
    rows = []
    for entry in run.metadata.candidates:
        identity = CandidateId(entry.method, entry.head, entry.trial)
        row = files.CANDIDATE.named(identity.key)
        stored = read_tensor_metadata(run.folder.path, row) if run.folder.has(row) else None
        rows.append(
            {
                "name": entry.name,
                "kept": entry.name == run.metadata.kept,
                "validation_mAP": entry.validation_mAP,
                "gain": entry.gain,
                "gain_interval": entry.gain_interval,
                "test_mAP": tested.get(entry.name),
                "seconds": None if stored is None else round(stored.seconds, 1),
                "note": entry.note,
            }
        )
    return sorted(rows, key=lambda row: -(row["validation_mAP"] or 0.0))


def cost(run: RunData, model: Model) -> dict[str, Any]:
    """Return the size of the model and the duration of the run."""
    path = run.folder.path / files.MODEL
    return {
        "encoder": run.settings.encoder.name,
        "image_size": model.preprocessing.size,
        "parameters": sum(parameter.numel() for parameter in model.classifier.parameters()),
        "model_bytes": path.stat().st_size,
        "seconds": run.metadata.seconds,
    }


def data_summary(run: RunData) -> dict[str, Any]:
    """Return counts of images and labels, duplicates, leaks, skipped images, and classes without positives."""
    counts, positives = run.labels.counts, run.test.positive.sum(0)
    source = run.metadata.data
    warnings = [warning for warning in run.metadata.warnings if warning.kind in ("leak", "seen_before")]
    return {
        "images": {split: run.images[split] for split in ("train", "val", "test")},
        "classes": len(run.names),
        "labels_per_image": float(run.test.positive.sum() / max(len(run.test.positive), 1)),
        "labels": run.labels.policy.labels,
        "unknown": {
            "val": int((~run.val.known).sum()),
            "test": int((~run.test.known).sum()),
            "train": None if run.training is None else int((~run.training.known).sum()),
        },
        "groups_in_test": None if run.test.group is None else len(set(run.test.group)),
        "duplicates": run.metadata.duplicates,
        "skipped": 0 if source is None else len(source.skipped),
        "warnings": [warning.message for warning in warnings],
        "without_train_positives": [name for name, count in zip(run.names, counts, strict=True) if not count],
        "without_test_positives": [name for name, count in zip(run.names, positives, strict=True) if not count],
    }


def reproduction(run: RunData) -> dict[str, Any]:
    """Return the command, seed, versions, hash of the data, and settings."""
    metadata = run.metadata
    settings: dict[str, Any] = msgspec.to_builtins(run.settings)
    return {
        "command": shlex.join(metadata.command),
        "seed": metadata.seed,
        "versions": metadata.versions,
        "commit": metadata.commit,
        "started": metadata.started,
        "data_hash": metadata.records,
        "data": None if metadata.data is None else metadata.data.data.name,
        "thresholds": None if run.calibration is None else run.calibration.thresholds,
        "settings": {key: value for key, value in settings.items() if key != "cache"},
        "warnings": [warning.message for warning in metadata.warnings],
    }
