"""Photographs cropped from the two sample images of scikit-learn."""

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

CLASSES = ("roof", "petal", "sky")
CROP = (240, 180)
"""Width and height of a crop in pixels."""


@cache
def sample_images() -> tuple[Image.Image, ...]:
    """Load the images of a Chinese temple and a flower."""
    return tuple(Image.fromarray(picture) for picture in load_sample_images().images)


def photograph(number: int, size: tuple[int, int] = (120, 90)) -> Image.Image:
    """Crop, rotate and tint a sample image at random; crops with different numbers overlap little."""
    rng = np.random.default_rng(number)
    picture = sample_images()[number % 2]
    width, height = CROP
    left = int(rng.integers(0, picture.width - width))
    top = int(rng.integers(0, picture.height - height))
    angle = float(rng.uniform(-20, 20))
    crop = picture.crop((left, top, left + width, top + height)).rotate(angle, expand=False)
    tint = rng.uniform(0.6, 1.0, 3)
    pixels = np.array(crop.resize(size)) * tint
    return Image.fromarray(pixels.astype(np.uint8))


def folder(
    path: Path,
    count: int = 30,
    *,
    splits: Sequence[str] | None = None,
    patients: Sequence[str] | None = None,
) -> Path:
    """Write a folder of photographs and return its table; every class is in at least a third of the images."""
    path.mkdir(parents=True)
    columns = {"split": splits, "patient": patients}
    extra_columns = {name: values for name, values in columns.items() if values is not None}
    with (path / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["filename", "labels", *extra_columns])
        for number in range(count):
            photograph(number).save(path / f"{number}.jpg", quality=90)
            extra_cells = [values[number] for values in extra_columns.values()]
            table.writerow([f"{number}.jpg", "|".join(_labels(number)), *extra_cells])
    return path / "labels.csv"


def _labels(number: int) -> list[str]:
    """Return the labels of a photograph; they do not depend on what it shows."""
    labels = []
    for k, name in enumerate(CLASSES):
        if (number // (k + 1)) % 2 or number % 3 == k:
            labels.append(name)
    return labels
