"""Photographs cropped from the two sample images of scikit-learn."""

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

CLASSES = ("roof", "petal", "sky")


@cache
def sample_images() -> tuple[Image.Image, ...]:
    """Load the images of a Chinese temple and a flower."""
    return tuple(Image.fromarray(picture) for picture in load_sample_images().images)


def photograph(number: int, size: tuple[int, int] = (120, 90)) -> Image.Image:
    """Crop, rotate and tint a sample image at random; crops with different numbers overlap little."""
    rng = np.random.default_rng(number)
    picture = sample_images()[number % 2]
    left, top = (int(rng.integers(0, room)) for room in (picture.width - 240, picture.height - 180))
    piece = picture.crop((left, top, left + 240, top + 180)).rotate(float(rng.uniform(-20, 20)), expand=False)
    tint = rng.uniform(0.6, 1.0, 3)
    return Image.fromarray((np.array(piece.resize(size)) * tint).astype(np.uint8))


def folder(
    path: Path,
    count: int = 30,
    *,
    splits: Sequence[str] | None = None,
    patients: Sequence[str] | None = None,
) -> Path:
    """Write a folder of photographs and return its table; every class is in at least a third of the images."""
    path.mkdir(parents=True)
    header = ["filename", "labels"] + ["split"] * (splits is not None) + ["patient"] * (patients is not None)
    with (path / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(header)
        for number in range(count):
            photograph(number).save(path / f"{number}.jpg", quality=90)
            labels = [name for k, name in enumerate(CLASSES) if (number // (k + 1)) % 2 or number % 3 == k]
            extra = [column[number] for column in (splits, patients) if column is not None]
            table.writerow([f"{number}.jpg", "|".join(labels), *extra])
    return path / "labels.csv"
