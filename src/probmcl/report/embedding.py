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

NEARLY_ZERO = 1e-12
"""The smallest length that vectors and coordinates are divided by."""


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """Features of some test images: `rows` are their rows in the test split, in ascending order."""

    rows: Int[ndarray, " K"]
    features: Float[ndarray, "K D"]
    frozen: Float[ndarray, "K D"] | None  # of the frozen encoder; None if it is the encoder of the run

    def of(self, row: int) -> Float[ndarray, " D"] | None:
        """Return the feature of a test image, or None if it is not among them."""
        index = np.searchsorted(self.rows, row)  # the rows are sorted
        is_after_last = index == len(self.rows)
        if is_after_last or self.rows[index] != row:
            return None
        feature: Float[ndarray, " D"] = self.features[index]
        return feature


def embed_test_images(run: RunData, model: Model, shown: Sequence[int], console: Console) -> ImageFeatures | None:
    """Compute features of the shown images and of a random sample; None if no image file can be found."""
    if not run.reads_images:
        return None
    paths = run.test.paths
    shuffled = np.random.default_rng(0).permutation(len(paths))
    sample = shuffled[:MAX_POINTS]
    wanted = np.union1d(sample, np.array(shown, dtype=int)).astype(int)  # sorted
    is_file = [Path(paths[row]).is_file() for row in wanted]
    rows = wanted[is_file]
    if not len(rows):
        return None
    files: list[Any] = [Path(paths[row]) for row in rows]
    features = model.embed(files, console=console)
    frozen = None
    if not run.frozen_kept:
        frozen_model = model_with_encoder(run, model, FROZEN_PROBE)
        frozen = frozen_model.embed(files, console=console)
    return ImageFeatures(rows, features, frozen)


def model_with_encoder(run: RunData, model: Model, candidate: CandidateId) -> Model:
    """Return the model with the encoder of another candidate, such as the frozen encoder."""
    prefix = "encoder."
    classifier_state = load_candidate(run.folder, candidate).state
    encoder_state = {}
    for key, value in classifier_state.items():
        if key.startswith(prefix):
            encoder_state[key.removeprefix(prefix)] = value
    classifier = copy.deepcopy(model.classifier)
    classifier.encoder.load_state_dict(encoder_state)
    return Model(
        classifier,
        names=model.names,
        preprocessing=model.preprocessing,
        device=model.device,
        folder=model.folder,
        source=None,
    )


def embedding_map(run: RunData, embedded: ImageFeatures | None) -> EmbeddingMap | None:
    """Return the points of the maps, the labels, errors and uncertainty of the images, and the measures.

    None if there are no features, or too few images for a map.
    """
    if embedded is None or len(embedded.rows) < MIN_POINTS:
        return None
    rows = embedded.rows
    positive = run.test.positive[rows]
    known = run.test.known[rows]
    maps: dict[Literal["run", "frozen"], ProjectedImages] = {}
    maps["run"] = _projected(embedded.features, positive, known)
    if embedded.frozen is not None:
        maps["frozen"] = _projected(embedded.frozen, positive, known)

    paths = [relative_path(run.test.paths[row], run.root) for row in rows]
    labels = [np.flatnonzero(is_present).tolist() for is_present in positive]
    is_wrong = (run.decisions[rows] != positive) & known
    wrong_decisions = is_wrong.sum(axis=1)
    entropy = uncertainty(run.test.probabilities[rows])
    return EmbeddingMap(
        images=len(rows),
        paths=paths,
        labels=labels,
        wrong=wrong_decisions.tolist(),
        uncertainty=entropy.round(4).tolist(),
        maps=maps,
    )


def _projected(
    features: Float[ndarray, "K D"], positive: Bool[ndarray, "K C"], known: Bool[ndarray, "K C"]
) -> ProjectedImages:
    """Project the features of images, and measure how the labels are arranged in them."""
    labels = torch.from_numpy(positive.astype(np.float32))
    measures = topology(torch.from_numpy(features), labels, torch.from_numpy(known))
    points = project(features)
    return ProjectedImages(
        points=points.round(4).tolist(),
        label_agreement=measures.label_agreement,
        alignment=measures.alignment,
        uniformity=measures.uniformity,
    )


def project(features: Float[ndarray, "K D"]) -> Float64[ndarray, "K 2"]:
    """Project features, divided by their lengths, onto their first two principal components, scaled to [−1, 1].

    The sign of a component is arbitrary; here, its largest coordinate is positive.
    """
    vectors = features.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit_vectors = vectors / np.maximum(lengths, NEARLY_ZERO)
    centered = unit_vectors - unit_vectors.mean(axis=0)
    points = _principal_coordinates(centered)

    distances = np.abs(points)
    farthest = distances.argmax(axis=0)  # for each component, the image with the largest coordinate
    components = np.arange(points.shape[1])
    signs = np.sign(points[farthest, components])
    extent = max(distances.max(), NEARLY_ZERO)
    scaled: Float64[ndarray, "K 2"] = points * signs / extent
    return scaled + 0.0  # turns −0 into 0


def _principal_coordinates(x: Float64[ndarray, "K D"]) -> Float64[ndarray, "K 2"]:
    """Return the coordinates of centered rows in their first two principal components.

    The components are eigenvectors v of xᵀx (D, D), and the coordinates are xv. With fewer images than features, the
    eigenvectors u of the smaller matrix xxᵀ (K, K) are used, since xv = ‖xᵀu‖ u up to the sign.
    """
    images, size = x.shape
    if size <= images:
        _, eigenvectors = np.linalg.eigh(x.T @ x)
        components = _last_two(eigenvectors)
        coordinates: Float64[ndarray, "K 2"] = x @ components
        return coordinates
    _, eigenvectors = np.linalg.eigh(x @ x.T)
    directions = _last_two(eigenvectors)
    lengths = np.linalg.norm(x.T @ directions, axis=0)
    scaled: Float64[ndarray, "K 2"] = directions * lengths
    return scaled


def _last_two(eigenvectors: Float64[ndarray, "A A"]) -> Float64[ndarray, "A 2"]:
    """Return the eigenvectors of the two largest eigenvalues, those of the largest one first."""
    two_largest = eigenvectors[:, -2:]  # `eigh` returns them in ascending order
    descending: Float64[ndarray, "A 2"] = two_largest[:, ::-1]
    return descending


def nearest_training_images(run: RunData, feature: Float[ndarray, " D"] | None) -> list[NearestImage]:
    """Return the training images that are most similar to an image, with their labels.

    There are none if the run does not keep the features of its training images, or if the image has no feature.
    """
    if run.training is None or feature is None:
        return []
    query = torch.from_numpy(feature)[None]  # one image
    [rows], [similarities] = run.training.nearest(query, NEAREST)
    present = run.training.labels & run.training.known
    nearest = []
    for row, similarity in zip(rows.tolist(), similarities.tolist(), strict=True):
        path = run.training.paths[row]
        columns = torch.nonzero(present[row]).flatten().tolist()
        labels = [run.names[column] for column in columns]
        nearest.append(NearestImage(path=path, labels=labels, similarity=round(similarity, 4)))
    return nearest
