"""The embedding map of a report: test images in two dimensions, for this run and for the frozen encoder."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from numpy import ndarray

from probmcl.console import Console
from probmcl.evaluation.embedding import topology
from probmcl.evaluation.reliability import uncertainty
from probmcl.inference import Model
from probmcl.neighbors.training_images import relative_path
from probmcl.report.run_data import RunData
from probmcl.run.results import FROZEN_PROBE, CandidateId
from probmcl.run.state import load_candidate
from probmcl.store.report import EmbeddingMap, NearestImage, ProjectedImages

MAX_POINTS = 800
"""Test images in the map. Their features are computed when the report is written."""

MIN_POINTS = 3
"""With fewer images, there is no map."""

NEAREST = 3
"""Training images shown next to an image."""


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """Features of some test images: `rows` are their rows in the test split."""

    rows: Int[ndarray, " K"]
    features: Float[ndarray, "K D"]
    frozen: Float[ndarray, "K D"] | None  # of the frozen encoder; None if it is the encoder of the run

    def of(self, row: int) -> Float[ndarray, " D"] | None:
        """Return the feature of a test image, or None if it is not among them."""
        index = np.searchsorted(self.rows, row)
        if index == len(self.rows) or self.rows[index] != row:
            return None
        feature: Float[ndarray, " D"] = self.features[index]
        return feature


def embed_test_images(run: RunData, model: Model, shown: Sequence[int], console: Console) -> ImageFeatures | None:
    """Compute features of the shown images and of a random sample; None if no image file can be found."""
    if not run.reads_images:
        return None
    sample = np.random.default_rng(0).permutation(len(run.test.paths))[:MAX_POINTS]
    wanted = np.union1d(sample, np.array(shown, dtype=int)).astype(int)
    is_file = [Path(run.test.paths[row]).is_file() for row in wanted]
    rows = wanted[is_file]
    if not len(rows):
        return None
    files: list[Any] = [Path(run.test.paths[row]) for row in rows]
    features = model.embed(files, console=console)
    frozen = None
    if not run.frozen_kept:
        frozen = model_with_encoder(run, model, FROZEN_PROBE).embed(files, console=console)
    return ImageFeatures(rows, features, frozen)


def model_with_encoder(run: RunData, model: Model, candidate: CandidateId) -> Model:
    """Return the model with the encoder of another candidate, such as the frozen encoder."""
    prefix = "encoder."
    state = load_candidate(run.folder, candidate).state
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


def embedding_map(run: RunData, embedded: ImageFeatures | None) -> EmbeddingMap | None:
    """Return the points of the maps, the labels, errors and uncertainty of the images, and the measures."""
    if embedded is None or len(embedded.rows) < MIN_POINTS:
        return None
    rows = embedded.rows
    positive, known = run.test.positive[rows], run.test.known[rows]
    wrong = (run.decisions[rows] != positive) & known
    maps: dict[Literal["run", "frozen"], ProjectedImages] = {}
    maps["run"] = _projected(embedded.features, positive, known)
    if embedded.frozen is not None:
        maps["frozen"] = _projected(embedded.frozen, positive, known)
    return EmbeddingMap(
        images=len(rows),
        paths=[relative_path(run.test.paths[row], run.root) for row in rows],
        labels=[np.flatnonzero(labels).tolist() for labels in positive],
        wrong=wrong.sum(axis=1).tolist(),
        uncertainty=uncertainty(run.test.probabilities[rows]).round(4).tolist(),
        maps=maps,
    )


def _projected(
    features: Float[ndarray, "K D"], positive: Bool[ndarray, "K C"], known: Bool[ndarray, "K C"]
) -> ProjectedImages:
    """Project the features of images, and measure how the labels are arranged in them."""
    labels = torch.from_numpy(positive.astype(np.float32))
    measures = topology(torch.from_numpy(features), labels, torch.from_numpy(known))
    return ProjectedImages(
        points=project(features).round(4).tolist(),
        label_agreement=measures.label_agreement,
        alignment=measures.alignment,
        uniformity=measures.uniformity,
    )


def project(features: Float[ndarray, "K D"]) -> Float64[ndarray, "K 2"]:
    """Project unit vectors onto their first two principal components, scaled to [−1, 1].

    The sign of a component is arbitrary; here, its largest coordinate is positive.
    """
    x = features.astype(np.float64)
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    x = x / np.maximum(lengths, 1e-12)
    x = x - x.mean(axis=0)
    points = _principal_coordinates(x)
    largest = points[np.abs(points).argmax(axis=0), np.arange(points.shape[1])]
    scaled: Float64[ndarray, "K 2"] = points * np.sign(largest) / max(np.abs(points).max(), 1e-12)
    return scaled + 0.0  # turns −0 into 0


def _principal_coordinates(x: Float64[ndarray, "K D"]) -> Float64[ndarray, "K 2"]:
    """Return the coordinates of centered rows in their first two principal components.

    The eigenvectors are those of the smaller of the matrices xᵀx and xxᵀ, which have the same positive eigenvalues.
    """
    images, size = x.shape
    if size <= images:
        _, vectors = np.linalg.eigh(x.T @ x)  # eigenvalues are in ascending order
        components = vectors[:, -2:][:, ::-1]
        coordinates: Float64[ndarray, "K 2"] = x @ components
        return coordinates
    _, vectors = np.linalg.eigh(x @ x.T)
    directions = vectors[:, -2:][:, ::-1]
    lengths = np.linalg.norm(x.T @ directions, axis=0)
    scaled: Float64[ndarray, "K 2"] = directions * lengths
    return scaled


def nearest_training_images(run: RunData, feature: Float[ndarray, " D"] | None) -> list[NearestImage]:
    """Return the training images that are most similar to an image, with their labels.

    There are none if the run does not keep the features of its training images, or if the image has no feature.
    """
    if run.training is None or feature is None:
        return []
    rows, similarities = run.training.nearest(torch.from_numpy(feature)[None], NEAREST)
    present = run.training.labels & run.training.known
    nearest = []
    for row, similarity in zip(rows[0].tolist(), similarities[0].tolist(), strict=True):
        columns = torch.nonzero(present[row]).flatten().tolist()
        labels = [run.names[column] for column in columns]
        nearest.append(NearestImage(path=run.training.paths[row], labels=labels, similarity=round(similarity, 4)))
    return nearest
