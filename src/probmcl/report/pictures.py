"""Images as data URIs, so that a page needs no other file. Only pixels are copied, never metadata such as EXIF."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32
from numpy import ndarray
from PIL import Image

from probmcl.console import Console
from probmcl.data.images import read_image
from probmcl.data.intensity import IntensityRange
from probmcl.errors import ImageError, ProbmclError
from probmcl.inference import Model
from probmcl.store.report import ImageGroup, ShownImage

LARGE, SMALL = 256, 112
"""Longest side of an image in the gallery and of a training image next to it, in pixels."""

QUALITY = 80
HEAT_SIZE = 28
"""Heat maps are stored at this size; coarser maps would show blocks when they are stretched or printed."""

HEAT_COLOR, MAX_ALPHA = (255, 100, 0), 165


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
    """Return the photographs, training images and heat maps of a gallery; `root` is the folder of all images."""
    intensity = model.preprocessing.intensity
    images = [image for group in groups for image in group.images]
    photographs = _thumbnails([image.path for image in images], LARGE, root, intensity)
    training_paths = [nearest.path for image in images for nearest in image.nearest]
    neighbors = _thumbnails(training_paths, SMALL, root, intensity)
    found = [image for image in images if image.path in photographs]
    try:
        heat = _heat_map_images(model, root, found)
    except ProbmclError as error:
        return Pictures(photographs, neighbors, problem=str(error))
    return Pictures(photographs, neighbors, heat)


def _thumbnails(paths: Iterable[str], side: int, root: Path, intensity: IntensityRange | None) -> dict[str, Picture]:
    thumbnails = {}
    for path in dict.fromkeys(paths):  # an image may be in several groups
        picture = thumbnail(root / path, side, intensity)
        if picture is not None:
            thumbnails[path] = picture
    return thumbnails


def _heat_map_images(model: Model, root: Path, images: Sequence[ShownImage]) -> dict[tuple[str, str], str]:
    """Return a heat map of the class that each image is shown for, by path and class."""
    if not images:
        return {}
    paths = [root / image.path for image in images]
    labels = [image.class_name for image in images]
    pictures = {}
    for image, heat in zip(images, heat_maps(model, paths, labels, Console.quiet()), strict=True):
        if heat is not None:
            pictures[image.path, image.class_name] = heat_map_image(heat)
    return pictures


def heat_maps(
    model: Model, paths: Sequence[Path], labels: Sequence[str], console: Console
) -> list[Float32[ndarray, "h w"] | None]:
    """Return the heat map of one label in each image, scaled to 1; None if the map is zero or the image unreadable."""
    explanations = model.explain(list(paths), labels=sorted(set(labels)), console=console)
    maps: list[Float32[ndarray, "h w"] | None] = []
    for explanation, label in zip(explanations, labels, strict=True):
        heat = explanation.maps.get(label)
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
    file = io.BytesIO()
    Image.fromarray(np.asarray(image.convert("RGB"))).save(file, "JPEG", quality=QUALITY, optimize=True)
    return Picture(_data_uri("image/jpeg", file.getvalue()), image.width, image.height)


def heat_map_image(heat: Float32[ndarray, "h w"]) -> str:
    """Return a heat map between 0 and 1 as a transparent image; the opacity grows with the square of the heat."""
    size = (HEAT_SIZE, HEAT_SIZE)
    smooth = Image.fromarray(heat.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    alpha = MAX_ALPHA * np.clip(np.asarray(smooth), 0, 1) ** 2  # weak regions stay clear
    pixels = np.zeros((*size, 4), dtype=np.uint8)
    pixels[..., :3] = HEAT_COLOR
    pixels[..., 3] = alpha.round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels, "RGBA").save(file, "PNG", optimize=True)
    return _data_uri("image/png", file.getvalue())


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
