"""The gallery of a report: which images it shows, and their pictures as data URIs."""

import base64
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int
from numpy import ndarray
from PIL import Image

from probmcl.console import Console
from probmcl.data.images import read_image
from probmcl.data.pixels import IntensityRange
from probmcl.errors import ImageError, ProbmclError
from probmcl.evaluation.reliability import uncertainty
from probmcl.inference import Model
from probmcl.neighbors.training_images import relative_path
from probmcl.report.embedding import ImageFeatures, nearest_training_images
from probmcl.report.run_data import RunData
from probmcl.store.report import ImageGroup, NearestImage, ShownImage, ShownLabel

LARGE, SMALL = 256, 112
"""Longest side of an image in the gallery and of a training image next to it, in pixels."""

QUALITY = 80
HEAT_SIZE = 28
"""Heat maps are stored at this size; coarser maps would show blocks when they are stretched or printed."""

HEAT_COLOR, MAX_ALPHA = (255, 100, 0), 165

IMAGES = 8
"""Images in each group."""

MAX_PER_CLASS = 2
"""Images of one class in a group, so that a single bad class does not fill it."""

LABELS_SHOWN = 6
"""Labels with their probabilities next to an image."""

EXCLUDED = -np.inf
"""The score of an image, or of an image and a class, that is not chosen."""


class Picture(NamedTuple):
    """An image as a data URI, with its width and height in pixels."""

    source: str
    width: int
    height: int


@dataclass(frozen=True)
class Pictures:
    """The pictures of a page, as data URIs. Files that cannot be found or read are left out.

    Attributes:
        photographs: the test images, by path relative to the folder of all images.
        neighbors: the training images, by path.
        heat: a heat map for each image and label.
        problem: why there are no heat maps, for example because the encoder has no feature maps.
    """

    photographs: Mapping[str, Picture] = field(default_factory=dict)
    neighbors: Mapping[str, Picture] = field(default_factory=dict)
    heat: Mapping[tuple[str, str], str] = field(default_factory=dict)
    problem: str = ""

    @property
    def count(self) -> int:
        """The number of photographs on the page."""
        return len(self.photographs) + len(self.neighbors)


def take_pictures(model: Model, root: Path, groups: Sequence[ImageGroup]) -> Pictures:
    """Return the photographs, training images and heat maps of a gallery; `root` is the folder of all images.

    If the model cannot make heat maps, the reason is the `problem` of the result.
    """
    intensity = model.preprocessing.intensity
    images = [image for group in groups for image in group.images]
    paths = [image.path for image in images]
    photographs = _thumbnails(paths, LARGE, root, intensity)
    training_paths = [nearest.path for image in images for nearest in image.nearest]
    neighbors = _thumbnails(training_paths, SMALL, root, intensity)
    readable = [image for image in images if image.path in photographs]
    try:
        heat = _heat_map_images(model, root, readable)
    except ProbmclError as error:
        return Pictures(photographs, neighbors, problem=str(error))
    return Pictures(photographs, neighbors, heat)


def _thumbnails(paths: Iterable[str], side: int, root: Path, intensity: IntensityRange | None) -> dict[str, Picture]:
    """Return the reduced images by path, at most `side` pixels wide and high. Images that cannot be read are left out.

    The paths are relative to `root`.
    """
    thumbnails = {}
    for path in dict.fromkeys(paths):  # an image may be in several groups
        picture = thumbnail(root / path, side, intensity)
        if picture is not None:
            thumbnails[path] = picture
    return thumbnails


def _heat_map_images(model: Model, root: Path, images: Sequence[ShownImage]) -> dict[tuple[str, str], str]:
    """Return a heat map of the class that each image is shown for, by path and class. Empty maps are left out."""
    if not images:
        return {}
    paths = [root / image.path for image in images]
    labels = [image.class_name for image in images]
    maps = heat_maps(model, paths, labels, Console.quiet())
    pictures = {}
    for image, heat in zip(images, maps, strict=True):
        if heat is not None:
            pictures[image.path, image.class_name] = heat_map_image(heat)
    return pictures


def heat_maps(
    model: Model, paths: Sequence[Path], labels: Sequence[str], console: Console
) -> list[Float32[ndarray, "h w"] | None]:
    """Return the heat map of one label in each image, scaled to 1; None if the map is zero or the image unreadable."""
    distinct = sorted(set(labels))
    explanations = model.explain(list(paths), labels=distinct, console=console)
    maps: list[Float32[ndarray, "h w"] | None] = []
    for explanation, label in zip(explanations, labels, strict=True):
        heat = explanation.maps.get(label)  # an unreadable image has no maps
        if heat is None or not heat.max() > 0:
            maps.append(None)
        else:
            maps.append((heat / heat.max()).astype(np.float32))
    return maps


def thumbnail(path: Path, side: int, intensity: IntensityRange | None) -> Picture | None:
    """Return a reduced image as a data URI with its width and height, or None if it cannot be read."""
    try:
        image = read_image(path, side, intensity=intensity)
    except ImageError:
        return None
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    pixels = np.asarray(image.convert("RGB"))
    without_metadata = Image.fromarray(pixels)  # EXIF and comments may be private
    file = io.BytesIO()
    without_metadata.save(file, "JPEG", quality=QUALITY, optimize=True)
    source = _data_uri("image/jpeg", file.getvalue())
    return Picture(source, image.width, image.height)


def heat_map_image(heat: Float32[ndarray, "h w"]) -> str:
    """Return a heat map between 0 and 1 as a transparent image; the opacity grows with the square of the heat."""
    size = (HEAT_SIZE, HEAT_SIZE)
    original = Image.fromarray(heat.astype(np.float32))
    resized = original.resize(size, Image.Resampling.BICUBIC)
    smooth = np.clip(np.asarray(resized), 0, 1)  # bicubic interpolation overshoots
    alpha = MAX_ALPHA * smooth**2  # weak regions stay clear
    pixels = np.zeros((*size, 4), dtype=np.uint8)  # red, green, blue and opacity
    pixels[..., :3] = HEAT_COLOR
    pixels[..., 3] = alpha.round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(file, "PNG", optimize=True)
    return _data_uri("image/png", file.getvalue())


def _data_uri(kind: str, content: bytes) -> str:
    encoded = base64.b64encode(content).decode()
    return f"data:{kind};base64,{encoded}"


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
    return [
        _confident_mistakes(run),
        _missed_labels(run),
        _best_predictions(run),
        _most_uncertain(run),
    ]


def _confident_mistakes(run: RunData) -> ChosenGroup:
    """Choose images by their most confident mistake: a predicted label that is known to be absent."""
    is_mistake = run.decisions & ~run.test.positive & run.test.known
    score = np.where(is_mistake, run.test.probabilities, EXCLUDED)
    return ChosenGroup(
        key="mistakes",
        title="Most confident mistakes",
        explanation=(
            "The model predicts a label with a high probability, but the data say that it is absent. Look for wrong "
            "labels here: some of these predictions may be right."
        ),
        images=_highest_entries(score),
    )


def _missed_labels(run: RunData) -> ChosenGroup:
    """Choose images by their clearest miss: the present label whose probability is farthest below its threshold."""
    is_missed = ~run.decisions & run.test.positive & run.test.known
    score = np.where(is_missed, _margin(run), EXCLUDED)
    return ChosenGroup(
        key="missed",
        title="Missed labels",
        explanation="The label is present according to the data, but its probability is far below the threshold.",
        images=_highest_entries(score),
    )


def _best_predictions(run: RunData) -> ChosenGroup:
    """Choose the most certain of the images whose labels are all found; each is shown for its clearest label."""
    probabilities = run.test.probabilities
    positive = run.test.positive
    wrong = (run.decisions != positive) & run.test.known
    all_right = ~wrong.any(axis=1) & positive.any(axis=1)
    certainty = np.where(all_right, -uncertainty(probabilities), EXCLUDED)
    clearest_label = np.where(positive, probabilities, -1.0).argmax(axis=1)
    return ChosenGroup(
        key="best",
        title="Best predictions",
        explanation="All decisions are right, and the model is certain.",
        images=_highest_images(certainty, clearest_label),
    )


def _most_uncertain(run: RunData) -> ChosenGroup:
    """Choose the images of the highest uncertainty; each is shown for the label closest to its threshold."""
    closest_first = np.argsort(_margin(run), axis=1, kind="stable")
    return ChosenGroup(
        key="uncertain",
        title="Most uncertain",
        explanation=(
            "The probabilities of several labels are far from 0 and 1. These are not the best images to label next: on "
            "PASCAL VOC and MS-COCO, labels of the most uncertain images improved a linear probe less than labels of "
            "random images."
        ),
        images=_highest_images(uncertainty(run.test.probabilities), closest_first[:, 0]),
    )


def _margin(run: RunData) -> Float[ndarray, "N C"]:
    """Return the distance of every probability from its threshold."""
    margin: Float[ndarray, "N C"] = np.abs(run.test.probabilities - run.thresholds)
    return margin


def _highest_entries(score: Float[ndarray, "N C"]) -> tuple[ChosenImage, ...]:
    """Choose images by the highest score of their classes; each is shown for the class with that score."""
    columns = score.argmax(axis=1)
    rows = np.arange(len(score))
    return _highest_images(score[rows, columns], columns)


def _highest_images(score: Float[ndarray, " N"], columns: Int[ndarray, " N"]) -> tuple[ChosenImage, ...]:
    """Choose the images with the highest scores, at most two for one class. A score of −inf excludes an image.

    `columns` is the class that each image would be shown for.
    """
    chosen: list[ChosenImage] = []
    per_class: Counter[int] = Counter()
    for row in np.argsort(-score, kind="stable"):
        only_excluded_left = not np.isfinite(score[row])
        if only_excluded_left or len(chosen) == IMAGES:
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
    """Return an image with its most relevant labels, the most probable label first.

    The class that is the reason for showing the image is always among them. Present and predicted labels are more
    relevant than others.
    """
    probabilities = run.test.probabilities[image.row]
    is_relevant = run.test.positive[image.row] | run.decisions[image.row]
    relevance = probabilities + 2.0 * is_relevant  # 2 is more than any probability
    relevance[image.column] = np.inf
    columns = np.argsort(-relevance, kind="stable")[:LABELS_SHOWN]
    labels = [_describe_label(run, image.row, int(column)) for column in columns]
    by_probability = sorted(labels, key=lambda label: -label.probability)

    relevant_shown = [label for label in labels if label.present or label.predicted]
    relevant_hidden = int(is_relevant.sum()) - len(relevant_shown)
    [entropy] = uncertainty(probabilities[None])
    return ShownImage(
        path=relative_path(run.test.paths[image.row], run.root),
        class_name=run.names[image.column],
        labels=by_probability,
        more_labels=relevant_hidden,
        uncertainty=round(float(entropy), 4),
        nearest=nearest,
    )


def _describe_label(run: RunData, row: int, column: int) -> ShownLabel:
    """Return a label of a test image; the row and the column are those of the image and of the class."""
    probability = float(run.test.probabilities[row, column])
    threshold = float(run.thresholds[column])
    present = None
    if run.test.known[row, column]:
        present = bool(run.test.positive[row, column])
    return ShownLabel(
        name=run.names[column],
        probability=round(probability, 4),
        threshold=round(threshold, 4),
        present=present,
        predicted=probability > threshold,
    )
