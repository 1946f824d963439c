"""The images shown in a report: confident mistakes, missed labels, correct predictions and uncertain ones."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from probmcl.console import Console
from probmcl.evaluation.selective import uncertainty
from probmcl.inference import Model
from probmcl.neighbors.training_images import relative_path
from probmcl.report.run_data import RunData

IMAGES = 8
"""Images in each group."""

MAX_PER_CLASS = 2
"""Images of one class in a group, so that a single bad class does not fill it."""

LABELS_SHOWN = 6
"""Labels with their probabilities next to an image."""


@dataclass(frozen=True)
class Shown:
    """A test image to show, and the class that is the reason for showing it."""

    row: int
    column: int


@dataclass(frozen=True)
class GalleryGroup:
    """Images that are shown for the same reason."""

    key: str
    title: str
    explanation: str
    images: tuple[Shown, ...]


def choose_images(run: RunData) -> list[GalleryGroup]:
    """Choose the test images of each group; an image appears at most once in a group."""
    p, test = run.test.probabilities, run.test
    wrong = (run.decisions != test.positive) & test.known
    margin = np.abs(p - run.thresholds)
    false_positive, missed = run.decisions & wrong, ~run.decisions & wrong
    unsure = uncertainty(p)
    correct = ~wrong.any(1) & test.positive.any(1)
    top = np.where(test.positive, p, -1.0)
    return [
        GalleryGroup(
            "mistakes",
            "Most confident mistakes",
            "The model predicts a label with a high probability, but the data say that it is absent. Look for wrong "
            "labels here: some of these predictions may be right.",
            _by_entry(np.where(false_positive, p, -np.inf)),
        ),
        GalleryGroup(
            "missed",
            "Missed labels",
            "The label is present according to the data, but its probability is far below the threshold.",
            _by_entry(np.where(missed, margin, -np.inf)),
        ),
        GalleryGroup(
            "best",
            "Best predictions",
            "All decisions are right, and the model is certain.",
            _by_image(np.where(correct, -unsure, -np.inf), top.argmax(1)),
        ),
        GalleryGroup(
            "uncertain",
            "Most uncertain",
            "The probabilities of several labels are far from 0 and 1. Labels of such images help most in training.",
            _by_image(unsure, np.argsort(margin, axis=1, kind="stable")[:, 0]),
        ),
    ]


def _by_entry(score: Float32[ndarray, "N C"] | Any) -> tuple[Shown, ...]:
    """Return the images with the highest scores of an entry, at most two per class."""
    columns = score.argmax(1)
    return _by_image(score[np.arange(len(score)), columns], columns)


def _by_image(score: Any, columns: Any) -> tuple[Shown, ...]:
    chosen: list[Shown] = []
    per_class: Counter[int] = Counter()
    for row in np.argsort(-score, kind="stable"):
        column = int(columns[row])
        if not np.isfinite(score[row]) or len(chosen) == IMAGES:
            break
        if per_class[column] < MAX_PER_CLASS:
            per_class[column] += 1
            chosen.append(Shown(int(row), column))
    return tuple(chosen)


def describe_group(run: RunData, group: GalleryGroup) -> dict[str, Any]:
    """Return a group as plain data: the path, labels and probabilities of each image."""
    images = [_describe(run, shown) for shown in group.images]
    return {"key": group.key, "title": group.title, "explanation": group.explanation, "images": images}


def _describe(run: RunData, shown: Shown) -> dict[str, Any]:
    p, positive, known = (x[shown.row] for x in (run.test.probabilities, run.test.positive, run.test.known))
    decided = run.decisions[shown.row]
    relevance = p + 2.0 * (positive | decided)
    relevance[shown.column] = 9.0
    labels = [
        {
            "name": run.names[c],
            "probability": round(float(p[c]), 4),
            "threshold": round(float(run.thresholds[c]), 4),
            "present": bool(positive[c]) if known[c] else None,
            "predicted": bool(decided[c]),
        }
        for c in np.argsort(-relevance, kind="stable")[:LABELS_SHOWN]
    ]
    path = relative_path(run.test.paths[shown.row], run.root)
    return {
        "path": path,
        "class": run.names[shown.column],
        "labels": sorted(labels, key=lambda label: -float(str(label["probability"]))),
        "more_labels": int((positive | decided).sum()) - sum(bool(x["present"] or x["predicted"]) for x in labels),
        "uncertainty": round(float(uncertainty(p[None])[0]), 4),
    }


def heat_maps(
    model: Model, paths: Sequence[Path], labels: Sequence[str], console: Console
) -> list[Float32[ndarray, "h w"] | None]:
    """Return the heat map of one label in each image, scaled to 1; None if the map is zero or the image unreadable."""
    explanations = model.explain(list(paths), labels=sorted(set(labels)), console=console)
    maps: list[Float32[ndarray, "h w"] | None] = []
    for explanation, label in zip(explanations, labels, strict=True):
        heat = explanation.maps.get(label)
        maps.append(None if heat is None or not heat.max() > 0 else (heat / heat.max()).astype(np.float32))
    return maps
