"""Run folders written without training."""

import csv
import json
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

FROZEN = {"method": "", "head": "frozen", "trial": 1, "name": "frozen probe", "validation_mAP": 0.5}
MODEL = {"method": "bce", "settings": {}}
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
    """Write the files of a run and return its classifier."""
    model = classifier(len(names))
    contents: dict[str, object] = {
        "config.json": {
            "schema": 2,
            "encoder": {"name": "test_resnet", "image_size": None, "weights": "pretrained"},
            "seed": 0,
        },
        "preprocessing.json": {"size": 32, "mean": PLAIN.mean, "std": PLAIN.std, "interpolation": "bilinear"},
        "labels.json": {"names": list(names), "counts": [1] * len(names), "policy": None},
        "run.json": {
            "candidates": [FROZEN],
            "kept": FROZEN["name"],
            "model": MODEL,
            "data": data,
            "status": "finished",
        },
    }
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    with (folder / "split.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "split"), *(split or [("elsewhere.jpg", "train")])])
    save_tensors(folder / "model.safetensors", model.state_dict())
    return model
