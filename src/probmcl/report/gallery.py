"""The gallery of a report: confident mistakes, missed labels, correct predictions and uncertain ones."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from probmcl.evaluation.selective import uncertainty
from probmcl.neighbors.training_images import relative_path
from probmcl.report.embedding import ImageFeatures, nearest_training_images
from probmcl.report.run_data import RunData
from probmcl.store.report import ImageGroup, NearestImage, ShownImage, ShownLabel

IMAGES = 8
"""Images in each group."""

MAX_PER_CLASS = 2
"""Images of one class in a group, so that a single bad class does not fill it."""

LABELS_SHOWN = 6
"""Labels with their probabilities next to an image."""


@dataclass(frozen=True)
class ChosenImage:
    """A test image to show, and the class that is the reason for showing it."""

    row: int
    column: int


@dataclass(frozen=True)
class ChosenGroup:
    """Images that are shown for the same reason."""

    key: str
    title: str
    explanation: str
    images: tuple[ChosenImage, ...]


def choose_images(run: RunData) -> list[ChosenGroup]:
    """Choose the test images of each group; an image appears at most once in a group."""
    mistakes = ChosenGroup(
        "mistakes",
        "Most confident mistakes",
        "The model predicts a label with a high probability, but the data say that it is absent. Look for wrong "
        "labels here: some of these predictions may be right.",
        _confident_mistakes(run),
    )
    missed = ChosenGroup(
        "missed",
        "Missed labels",
        "The label is present according to the data, but its probability is far below the threshold.",
        _missed_labels(run),
    )
    best = ChosenGroup(
        "best",
        "Best predictions",
        "All decisions are right, and the model is certain.",
        _best_predictions(run),
    )
    uncertain = ChosenGroup(
        "uncertain",
        "Most uncertain",
        "The probabilities of several labels are far from 0 and 1. These are not the best images to label next: on "
        "PASCAL VOC and MS-COCO, labels of the most uncertain images improved a linear probe less than labels of "
        "random images.",
        _most_uncertain(run),
    )
    return [mistakes, missed, best, uncertain]


def _confident_mistakes(run: RunData) -> tuple[ChosenImage, ...]:
    p = run.test.probabilities
    is_mistake = run.decisions & ~run.test.positive & run.test.known
    return _highest_entries(np.where(is_mistake, p, -np.inf))


def _missed_labels(run: RunData) -> tuple[ChosenImage, ...]:
    is_missed = ~run.decisions & run.test.positive & run.test.known
    return _highest_entries(np.where(is_missed, _margin(run), -np.inf))


def _best_predictions(run: RunData) -> tuple[ChosenImage, ...]:
    """Choose the most certain of the images whose labels are all found; each is shown for its clearest label."""
    p, positive = run.test.probabilities, run.test.positive
    wrong = (run.decisions != positive) & run.test.known
    all_right = ~wrong.any(axis=1) & positive.any(axis=1)
    certainty = np.where(all_right, -uncertainty(p), -np.inf)
    clearest_label = np.where(positive, p, -1.0).argmax(axis=1)
    return _highest_images(certainty, clearest_label)


def _most_uncertain(run: RunData) -> tuple[ChosenImage, ...]:
    """Choose the images of the highest uncertainty; each is shown for the label closest to its threshold."""
    closest_label = np.argsort(_margin(run), axis=1, kind="stable")[:, 0]
    return _highest_images(uncertainty(run.test.probabilities), closest_label)


def _margin(run: RunData) -> Float[ndarray, "N C"]:
    """Return the distance of every probability from its threshold."""
    margin: Float[ndarray, "N C"] = np.abs(run.test.probabilities - run.thresholds)
    return margin


def _highest_entries(score: Float[ndarray, "N C"]) -> tuple[ChosenImage, ...]:
    """Return the images with the highest scores of an entry."""
    columns = score.argmax(axis=1)
    rows = np.arange(len(score))
    return _highest_images(score[rows, columns], columns)


def _highest_images(score: Float[ndarray, " N"], columns: Int[ndarray, " N"]) -> tuple[ChosenImage, ...]:
    """Return the images with the highest scores, at most two for one class. A score of −inf excludes an image."""
    chosen: list[ChosenImage] = []
    per_class: Counter[int] = Counter()
    for row in np.argsort(-score, kind="stable"):
        if not np.isfinite(score[row]) or len(chosen) == IMAGES:
            break
        column = int(columns[row])
        if per_class[column] < MAX_PER_CLASS:
            per_class[column] += 1
            chosen.append(ChosenImage(int(row), column))
    return tuple(chosen)


def describe_group(run: RunData, group: ChosenGroup, features: ImageFeatures | None) -> ImageGroup:
    """Return the path, the labels, the probabilities and the nearest training images of each image of a group."""
    images = []
    for image in group.images:
        feature = None if features is None else features.of(image.row)
        nearest = nearest_training_images(run, feature)
        images.append(_describe(run, image, nearest))
    return ImageGroup(key=group.key, title=group.title, explanation=group.explanation, images=images)


def _describe(run: RunData, image: ChosenImage, nearest: list[NearestImage]) -> ShownImage:
    p = run.test.probabilities[image.row]
    is_relevant = run.test.positive[image.row] | run.decisions[image.row]
    relevance = p + 2.0 * is_relevant
    relevance[image.column] = 9.0  # the label that the image is shown for always comes first
    columns = np.argsort(-relevance, kind="stable")[:LABELS_SHOWN]
    labels = [_describe_label(run, image.row, int(column)) for column in columns]
    relevant_shown = [label for label in labels if label.present or label.predicted]
    return ShownImage(
        path=relative_path(run.test.paths[image.row], run.root),
        class_name=run.names[image.column],
        labels=sorted(labels, key=lambda label: -label.probability),
        more_labels=int(is_relevant.sum()) - len(relevant_shown),
        uncertainty=round(float(uncertainty(p[None])[0]), 4),
        nearest=nearest,
    )


def _describe_label(run: RunData, row: int, column: int) -> ShownLabel:
    p, threshold = run.test.probabilities[row, column], run.thresholds[column]
    is_known = run.test.known[row, column]
    return ShownLabel(
        name=run.names[column],
        probability=round(float(p), 4),
        threshold=round(float(threshold), 4),
        present=bool(run.test.positive[row, column]) if is_known else None,
        predicted=bool(p > threshold),
    )
