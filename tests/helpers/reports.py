"""Finished runs with made-up scores, for tests of the report."""

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace
from PIL import Image

from helpers.evaluations import row_metrics
from helpers.run_folders import FROZEN, POLICY, made_run
from probmcl.console import Console
from probmcl.errors import RunWarning
from probmcl.evaluation.bootstrap import affordable_draws
from probmcl.evaluation.evaluate import EvaluatedModel
from probmcl.evaluation.intervals import EvaluationOptions, evaluate_rows
from probmcl.evaluation.scores import ScoredRows, read_scores, scores_file, write_scores
from probmcl.inference.evaluation import AppliedCalibration, EvaluatedImages, with_provenance
from probmcl.neighbors import TrainingImages
from probmcl.readers.options import DataSource
from probmcl.store import files
from probmcl.store.run_folder import RunFolder
from probmcl.store.run_metadata import SPLITS, CandidateEntry, ClassLabels, StoredCandidate

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</script><b>bold",
    "{{ 7 * 7 }} & 'quoted'",
    "$x_1$ %s",
)
HOSTILE_FILE = "\"><img src=x onerror=alert(3)> & 'q'.png"
COUNTS = {"train": 30, "val": 30, "test": 60}


HAND_NAMES = ("cat", "dog", "bird")
HAND_SCORES = np.array(
    [
        [0.875, 0.8125, 0.125],
        [0.75, 0.25, 0.125],
        [0.625, 0.5625, 0.3125],
        [0.375, 0.125, 0.25],
        [0.25, 0.6875, 0.5625],
        [0.125, 0.3125, 0.4375],
    ],
    dtype=np.float32,
)
HAND_LABELS = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0]], dtype=np.float32)
HAND_KNOWN = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]], dtype=bool)
"""Six test images whose scores are easy to compute by hand; the label "bird" of the fourth image is unknown."""


def hand_made_run(folder: Path, *, neighbors: bool = True) -> Path:
    """Write a finished run with the six test images above; the frozen probe gives the same score to all images."""
    finished_run(folder, names=HAND_NAMES, neighbors=neighbors)
    paths, _ = read_scores(scores_file(folder, "test"))
    rows = ScoredRows(HAND_SCORES, HAND_LABELS, HAND_KNOWN)
    write_scores(scores_file(folder, "test"), list(paths[:6]), rows)
    constant = dataclasses.replace(rows, scores=np.full_like(HAND_SCORES, 0.25))
    write_scores(scores_file(folder / "frozen", "test"), list(paths[:6]), constant)
    write_evaluation(folder, HAND_NAMES)
    with (folder / "split.csv").open("w", newline="") as file:
        splits = [("train0.png", "train"), ("train1.png", "train"), ("val0.png", "val")]
        photos = folder.parent / f"{folder.name}-photos"
        tested = [(path, "test") for path in paths[:6]]
        csv.writer(file).writerows([("path", "split"), *((photos / name, split) for name, split in splits), *tested])
    labels_of_run = ClassLabels(names=HAND_NAMES, counts=(3, 12, 0), hierarchy=None, policy=POLICY)
    RunFolder(folder).write(files.LABELS, labels_of_run)
    if neighbors:
        labels = torch.tensor([[True, True, False], [False, False, True]])
        known = torch.tensor([[True, True, True], [True, False, True]])
        size = TrainingImages.load(folder / "neighbors.safetensors", classes=3).features.shape[1]
        features = torch.ones(2, size).half()
        TrainingImages(("train0.png", "train1.png"), features, labels, known).save(folder / "neighbors.safetensors")
    return folder


def finished_run(
    folder: Path,
    *,
    names: Sequence[str] = ("cat", "dog", "bird", "fish"),
    pixels: int = 32,
    neighbors: bool = True,
    images: bool = True,
) -> Path:
    """Write a finished run: images of noise, scores that follow the labels, and a random classifier."""
    generator = np.random.default_rng(0)
    photos = folder.parent / f"{folder.name}-photos"
    photos.mkdir(parents=True)
    paths = {split: [photos / f"{split}{number}.png" for number in range(n)] for split, n in COUNTS.items()}
    paths["test"] = [photos / f"{number}{HOSTILE_FILE}" for number in range(COUNTS["test"])]
    for path in (path for split in paths.values() for path in split if images):
        Image.fromarray(generator.integers(0, 255, (pixels, pixels, 3), dtype=np.uint8)).save(path)
    model = made_run(
        folder,
        names=names,
        split=[(p, split) for split in SPLITS for p in paths[split]],
        data=DataSource(photos),
    )
    labels = {split: _labels(generator, n, len(names)) for split, n in COUNTS.items()}
    for split in ("val", "test"):
        for place, noise in ((folder, 1.0), (folder / "frozen", 2.0)):
            logits = 4 * labels[split] - 2 + noise * generator.normal(size=labels[split].shape)
            scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
            known = generator.random(scores.shape) < 0.95 if split == "test" else np.ones(scores.shape, dtype=bool)
            write_scores(scores_file(place, split), paths[split], ScoredRows(scores, labels[split], known))
    if neighbors:
        relative = tuple(path.name for path in paths["train"])
        features = torch.from_numpy(generator.normal(size=(len(relative), model.encoder.features))).half()
        truth = torch.from_numpy(labels["train"] == 1)
        TrainingImages(relative, features, truth, torch.ones_like(truth)).save(folder / "neighbors.safetensors")
    write_evaluation(folder, names)
    _write_metadata(folder, names, labels["train"])
    state = {f"state.{key}": value for key, value in model.state_dict().items()} | {"scores": torch.zeros(1)}
    validation = row_metrics(read_scores(scores_file(folder / "frozen", "val")).rows, names=names, split="val")
    facts = StoredCandidate(
        method="probe",
        settings={},
        validation=validation,
        seconds=1.5,
        fit_seconds=1.0,
        weight_decay=None,
    )
    RunFolder(folder).write_tensors(files.CANDIDATE.named("frozen"), state, facts)
    return folder


def write_evaluation(folder: Path, names: Sequence[str]) -> None:
    """Write the evaluation of the test scores in a folder, which are not calibrated."""
    rows = read_scores(scores_file(folder, "test")).rows
    options = EvaluationOptions(draws=affordable_draws(*rows.scores.shape))
    evaluation = evaluate_rows(rows, EvaluatedModel(names), options, None, Console.quiet())
    images = EvaluatedImages.of_run(rows, names)
    RunFolder(folder).write(files.EVALUATION, with_provenance(evaluation, images, AppliedCalibration(None)))


def _labels(generator: np.random.Generator, images: int, classes: int) -> np.ndarray:
    labels = (generator.random((images, classes)) < min(0.4, 4 / classes)).astype(np.float32)
    labels[: classes % images, 0] = 1
    return labels


def _write_metadata(folder: Path, names: Sequence[str], labels: np.ndarray) -> None:
    counts = labels.sum(0).astype(int).tolist()
    run = RunFolder(folder)
    run.write(files.LABELS, ClassLabels(names=tuple(names), counts=tuple(counts), hierarchy=None, policy=POLICY))
    own_head = CandidateEntry(
        method="bce", head="own head", trial=1, name="bce, own head", validation_mAP=0.8, gain=0.3
    )
    metadata = replace(
        run.read(files.METADATA),
        command=("probmcl", "train", "<b>photos</b>"),
        versions={"python": "3.11", "probmcl": "0.1.0"},
        records="0123456789abcdef",
        duplicates={"exact": 1, "near": 2},
        seconds=12.0,
        warnings=(RunWarning("leak", "allowed: <i>leak</i>"),),
        candidates=(FROZEN, own_head),
        kept=own_head.name,
        test_mAP={own_head.name: 0.8, FROZEN.name: 0.5},
    )
    run.write(files.METADATA, metadata)
    rows = [
        {
            "stage": stage,
            "epoch": 1,
            "step": step,
            "loss": 1 / step,
            "similarity_positive": 0.5,
            "similarity_negative": 0.1,
        }
        for stage in ("bce", "probmcl")
        for step in (10, 20, 30)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
