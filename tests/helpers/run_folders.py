"""Run folders written without training."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from helpers.images import NAMES, label_space
from probmcl.data.images import Preprocessing
from probmcl.data.records import Records
from probmcl.encoders import Encoder
from probmcl.evaluation.groups import ScoredRows
from probmcl.evaluation.stored_scores import scores_file, write_scores
from probmcl.methods.base import Classifier
from probmcl.methods.bce import BCE
from probmcl.runtime.tensor_files import save_tensors
from probmcl.store.manifest import write_manifest
from probmcl.store.run_folder import SCHEMA, RunFolder

FROZEN = {"method": "", "head": "frozen", "trial": 1, "name": "frozen probe", "validation_mAP": 0.5}
MODEL = {"method": "bce", "settings": {}}
RUN: dict[str, object] = {
    "schema": SCHEMA,
    "command": ["probmcl", "train", "photos"],
    "seed": 0,
    "versions": {},
    "commit": None,
    "started": "2026-11-18T07:06:17+00:00",
    "data": None,
    "records": "",
    "status": "finished",
    "seconds": 0.0,
    "warnings": [],
    "candidates": [FROZEN],
    "kept": FROZEN["name"],
    "model": MODEL,
}
"""The content of run.json."""

POLICY: dict[str, object] = {"unknown": "", "blank": None, "minus_one": None, "chance_of_uncertain": {}, "labels": {}}
PLAIN = Preprocessing(32, (0.4, 0.5, 0.6), (0.2, 0.3, 0.2), "bilinear")


def classifier(classes: int = 3) -> Classifier:
    """Make a classifier with random weights, large enough for probabilities above and below 0.5."""
    torch.manual_seed(0)
    model = BCE(Encoder("test_resnet", image_size=32), label_space(classes))
    torch.nn.init.normal_(model.linear.weight, std=3.0)
    return model.eval()


def write_held_out(folder: Path, records: Records, scores: Float[ndarray, "N C"], name: str = "val") -> None:
    """Write the scores of all records as the held-out scores of a run."""
    rows = ScoredRows.of(records, np.arange(len(records)), scores)
    write_scores(scores_file(folder, name), list(records.paths), rows)


def made_run(
    folder: Path,
    *,
    names: Sequence[str] = NAMES,
    split: Sequence[tuple[Path | str, str]] = (),
    data: dict[str, object] | None = None,
) -> Classifier:
    """Write the files of a run and return its classifier. The manifest lists no files, so that tests can edit them."""
    model = classifier(len(names))
    contents: dict[str, dict[str, object]] = {
        "config.json": {
            "encoder": {"name": "test_resnet", "image_size": None, "weights": "pretrained"},
            "seed": 0,
        },
        "preprocessing.json": {"size": 32, "mean": PLAIN.mean, "std": PLAIN.std, "interpolation": "bilinear"},
        "labels.json": {"names": list(names), "counts": [1] * len(names), "hierarchy": None, "policy": POLICY},
        "run.json": RUN | {"data": data},
    }
    folder.mkdir(parents=True)
    for name, content in contents.items():
        RunFolder(folder).write(name, content)
    write_manifest(folder, [])
    with (folder / "split.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "split"), *(split or [("elsewhere.jpg", "train")])])
    save_tensors(folder / "model.safetensors", model.state_dict())
    return model
