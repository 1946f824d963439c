"""The embedding map of a report: test images in two dimensions, for this run and for the frozen encoder."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from numpy import ndarray

from probmcl.console import Console
from probmcl.evaluation.selective import uncertainty
from probmcl.evaluation.topology import topology
from probmcl.inference import Model
from probmcl.neighbors.training_images import relative_path
from probmcl.report.run_data import RunData
from probmcl.run.checkpoints import load_candidate
from probmcl.run.results import FROZEN_PROBE, CandidateId

MAX_POINTS = 800
"""Test images in the map. Their features are computed when the report is written."""

NEAREST = 3
"""Training images shown next to an image."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """Features of some test images: `rows` are their rows in the test split."""

    rows: Int[ndarray, " K"]
    features: Float[ndarray, "K D"]
    frozen: Float[ndarray, "K D"] | None  # of the frozen encoder; None if it is the encoder of the run

    def of(self, row: int) -> Float[ndarray, " D"] | None:
        """Return the feature of a test image, or None if it is not among them."""
        index = np.searchsorted(self.rows, row)
        return self.features[index] if index < len(self.rows) and self.rows[index] == row else None


def embed_test_images(run: RunData, model: Model, shown: Sequence[int], console: Console) -> Embedding | None:
    """Compute features of the shown images and of a random sample; None if no image file can be found."""
    sample = np.random.default_rng(0).permutation(len(run.test.paths))[:MAX_POINTS]
    rows = np.union1d(sample, np.array(shown, dtype=int)).astype(int)
    rows = rows[[run.reads_images and Path(run.test.paths[row]).is_file() for row in rows]]
    if not len(rows):
        return None
    files: list[Any] = [Path(run.test.paths[row]) for row in rows]
    features = model.embed(files, console=console)
    frozen = None if run.frozen_kept else model_with_encoder(run, model, FROZEN_PROBE).embed(files, console=console)
    return Embedding(rows, features, frozen)


def model_with_encoder(run: RunData, model: Model, candidate: CandidateId) -> Model:
    """Return the model with the encoder of another candidate, such as the frozen encoder."""
    state, prefix = load_candidate(run.folder, candidate).state, "encoder."
    encoder = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    classifier = copy.deepcopy(model.classifier)
    classifier.encoder.load_state_dict(encoder)
    return Model(
        classifier,
        names=model.names,
        preprocessing=model.preprocessing,
        device=model.device,
        folder=model.folder,
        source=None,
    )


def embedding_map(run: RunData, embedding: Embedding | None) -> dict[str, Any] | None:
    """Return the points of the maps, the labels, errors and uncertainty of the images, and the measures."""
    if embedding is None or len(embedding.rows) < 3:
        return None
    rows = embedding.rows
    positive, known = run.test.positive[rows], run.test.known[rows]
    wrong = ((run.decisions[rows] != positive) & known).sum(1)
    labels, mask = torch.from_numpy(positive.astype(np.float32)), torch.from_numpy(known)
    maps = {}
    for key, features in (("run", embedding.features), ("frozen", embedding.frozen)):
        if features is not None:
            measures = topology(torch.from_numpy(features), labels, mask)._asdict()
            maps[key] = {"points": project(features).round(4).tolist(), **measures}
    return {
        "images": len(rows),
        "paths": [relative_path(run.test.paths[row], run.root) for row in rows],
        "labels": [np.flatnonzero(row).tolist() for row in positive],
        "wrong": wrong.tolist(),
        "uncertainty": uncertainty(run.test.probabilities[rows]).round(4).tolist(),
        "maps": maps,
    }


def project(features: Float[ndarray, "K D"]) -> Float64[ndarray, "K 2"]:
    """Project unit vectors onto their first two principal components, scaled to [−1, 1].

    The sign of a component is arbitrary; here, its largest coordinate is positive.
    """
    x = features.astype(np.float64)
    x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    x = x - x.mean(0)
    _, vectors = np.linalg.eigh(x.T @ x if x.shape[1] <= len(x) else x @ x.T)
    top = vectors[:, -2:][:, ::-1]
    points = x @ top if x.shape[1] <= len(x) else top * np.linalg.norm(x.T @ top, axis=0)
    largest = points[np.abs(points).argmax(0), np.arange(points.shape[1])]
    scaled: Float64[ndarray, "K 2"] = points * np.sign(largest) / max(np.abs(points).max(), 1e-12)
    return scaled + 0.0


def nearest_training_images(run: RunData, feature: Float[ndarray, " D"]) -> list[dict[str, Any]]:
    """Return the training images that are most similar to an image, with their labels."""
    assert run.training is not None
    rows, similarity = run.training.nearest(torch.from_numpy(feature)[None], NEAREST)
    present = run.training.labels & run.training.known
    return [
        {
            "path": run.training.paths[row],
            "labels": [run.names[c] for c in torch.nonzero(present[row]).flatten().tolist()],
            "similarity": round(float(cosine), 4),
        }
        for row, cosine in zip(rows[0].tolist(), similarity[0].tolist(), strict=True)
    ]
