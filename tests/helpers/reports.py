"""Finished runs with made-up scores, for tests of the report."""

import csv
import dataclasses
import json
from collections.abc import Mapping, Sequence
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
from probmcl.methods.base import Classifier
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
"""Number of images in each split of a finished run."""

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
    all_paths, _ = read_scores(scores_file(folder, "test"))
    paths = list(all_paths[:6])
    rows = ScoredRows(HAND_SCORES, HAND_LABELS, HAND_KNOWN)
    constant_rows = dataclasses.replace(rows, scores=np.full_like(HAND_SCORES, 0.25))
    write_scores(scores_file(folder, "test"), paths, rows)
    write_scores(scores_file(folder / "frozen", "test"), paths, constant_rows)
    write_evaluation(folder, HAND_NAMES)
    _write_hand_made_split(folder, paths)
    labels_of_run = ClassLabels(names=HAND_NAMES, counts=(3, 12, 0), hierarchy=None, policy=POLICY)
    RunFolder(folder).write(files.LABELS, labels_of_run)
    if neighbors:
        _write_hand_made_neighbors(folder)
    return folder


def _write_hand_made_split(folder: Path, test_paths: Sequence[str]) -> None:
    """Write the split of a run with two training images, one validation image and these test images."""
    photos = _photos(folder)
    with (folder / "split.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "split"])
        table.writerow([photos / "train0.png", "train"])
        table.writerow([photos / "train1.png", "train"])
        table.writerow([photos / "val0.png", "val"])
        table.writerows([path, "test"] for path in test_paths)


def _write_hand_made_neighbors(folder: Path) -> None:
    """Write two training images with equal features; one label of the second image is unknown."""
    path = folder / "neighbors.safetensors"
    feature_size = TrainingImages.load(path, classes=3).features.shape[1]
    features = torch.ones(2, feature_size).half()
    labels = torch.tensor([[True, True, False], [False, False, True]])
    known = torch.tensor([[True, True, True], [True, False, True]])
    TrainingImages(("train0.png", "train1.png"), features, labels, known).save(path)


def finished_run(
    folder: Path,
    *,
    names: Sequence[str] = ("cat", "dog", "bird", "fish"),
    pixels: int = 32,
    neighbors: bool = True,
    images: bool = True,
) -> Path:
    """Write a finished run: images of noise, scores that follow the labels, and a random classifier.

    Args:
        folder: the run folder; the images are next to it, in a folder whose name ends in -photos.
        names: names of the classes.
        pixels: width and height of the images.
        neighbors: whether to write the features of the training images.
        images: whether to write the images.
    """
    generator = np.random.default_rng(0)
    photos = _photos(folder)
    photos.mkdir(parents=True)
    paths = _image_paths(photos)
    if images:
        _write_images(paths, generator, pixels)
    split = [(path, name) for name in SPLITS for path in paths[name]]
    model = made_run(folder, names=names, split=split, data=DataSource(photos))
    labels = {name: _labels(generator, count, len(names)) for name, count in COUNTS.items()}
    for name in ("val", "test"):
        for place, noise in ((folder, 1.0), (folder / "frozen", 2.0)):
            rows = _scored_rows(generator, labels[name], noise, all_known=name == "val")
            write_scores(scores_file(place, name), paths[name], rows)
    if neighbors:
        _write_neighbors(folder, generator, model.encoder.features, paths["train"], labels["train"])
    write_evaluation(folder, names)
    _write_metadata(folder, names, labels["train"])
    _write_log(folder)
    _write_frozen_probe(folder, names, model)
    return folder


def _photos(folder: Path) -> Path:
    """Return the folder with the images of a run."""
    return folder.parent / f"{folder.name}-photos"


def _image_paths(photos: Path) -> dict[str, list[Path]]:
    """Return the images of each split; the names of the test images contain markup."""
    paths = {}
    for split, count in COUNTS.items():
        suffix = HOSTILE_FILE if split == "test" else ".png"
        prefix = "" if split == "test" else split
        paths[split] = [photos / f"{prefix}{number}{suffix}" for number in range(count)]
    return paths


def _write_images(paths: Mapping[str, Sequence[Path]], generator: np.random.Generator, pixels: int) -> None:
    """Write square images of noise."""
    for split_paths in paths.values():
        for path in split_paths:
            noise = generator.integers(0, 255, (pixels, pixels, 3), dtype=np.uint8)
            Image.fromarray(noise).save(path)


def _labels(generator: np.random.Generator, images: int, classes: int) -> np.ndarray:
    """Draw labels: 40 % are present, or about four per image of many classes. The first images have the first class."""
    labels = (generator.random((images, classes)) < min(0.4, 4 / classes)).astype(np.float32)
    labels[: classes % images, 0] = 1
    return labels


def _scored_rows(generator: np.random.Generator, labels: np.ndarray, noise: float, *, all_known: bool) -> ScoredRows:
    """Draw scores whose logits are ±2 by the label, plus noise; unless all labels are known, 5 % are unknown."""
    logits = 4 * labels - 2 + noise * generator.normal(size=labels.shape)
    scores = (1 / (1 + np.exp(-logits))).astype(np.float32)
    known = np.ones(scores.shape, dtype=bool)
    if not all_known:
        known = generator.random(scores.shape) < 0.95
    return ScoredRows(scores, labels, known)


def _write_neighbors(
    folder: Path, generator: np.random.Generator, feature_size: int, paths: Sequence[Path], labels: np.ndarray
) -> None:
    """Write random features of the training images with their labels, which are all known."""
    names = tuple(path.name for path in paths)
    features = torch.from_numpy(generator.normal(size=(len(names), feature_size))).half()
    present = torch.from_numpy(labels == 1)
    TrainingImages(names, features, present, torch.ones_like(present)).save(folder / "neighbors.safetensors")


def write_evaluation(folder: Path, names: Sequence[str]) -> None:
    """Write the evaluation of the test scores in a folder, which are not calibrated."""
    rows = read_scores(scores_file(folder, "test")).rows
    options = EvaluationOptions(draws=affordable_draws(*rows.scores.shape))
    evaluation = evaluate_rows(rows, EvaluatedModel(names), options, None, Console.quiet())
    images = EvaluatedImages.of_run(rows, names)
    RunFolder(folder).write(files.EVALUATION, with_provenance(evaluation, images, AppliedCalibration(None)))


def _write_metadata(folder: Path, names: Sequence[str], labels: np.ndarray) -> None:
    """Write the classes, and the metadata of a run that kept the own head of `bce`; some texts are markup."""
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


def _write_log(folder: Path) -> None:
    """Write the log of two methods that were trained for thirty steps each."""
    lines = []
    for stage in ("bce", "probmcl"):
        for step in (10, 20, 30):
            row = {
                "stage": stage,
                "epoch": 1,
                "step": step,
                "loss": 1 / step,
                "similarity_positive": 0.5,
                "similarity_negative": 0.1,
            }
            lines.append(f"{json.dumps(row)}\n")
    (folder / "metrics.jsonl").write_text("".join(lines))


def _write_frozen_probe(folder: Path, names: Sequence[str], model: Classifier) -> None:
    """Write the frozen probe as a finished candidate."""
    state = {f"state.{key}": value for key, value in model.state_dict().items()}
    state["scores"] = torch.zeros(1)
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
