"""Small datasets with images of colored squares."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from probmcl.data.records import LabelSpace, Records, Split

NAMES = ("red", "green", "blue")  # in the order of the channels of an image


def label_space(classes: int = 3) -> LabelSpace:
    """Make a label space in which every class has one image and no two classes are in the same image."""
    return LabelSpace(
        tuple(f"class {k}" for k in range(classes)),
        np.ones(classes, dtype=np.int64),
        np.zeros((classes, classes), dtype=np.int64),
    )


def colored_records(
    folder: Path, *, train: int = 24, val: int = 9, test: int = 9, size: int = 20, seed: int = 0
) -> Records:
    """Write images of up to three colored squares, a task that every method must be able to learn."""
    rng = np.random.default_rng(seed)
    split_sizes: dict[Split, int] = {"train": train, "val": val, "test": test}
    splits: list[Split] = []
    for split, count in split_sizes.items():
        splits += [split] * count
    labels = (rng.random((len(splits), 3)) < 0.5).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, present in enumerate(labels):
        path = folder / f"{number}.png"
        pixels = rng.integers(0, 80, (size, size, 3))
        for k in np.flatnonzero(present):
            pixels[6 * k : 6 * k + 5, 2:14, k] = 255
        Image.fromarray(pixels.astype(np.uint8)).save(path)
        paths.append(path)
    return Records.from_labels(NAMES, paths, splits, labels)


def folder_of_photographs(folder: Path, count: int = 40) -> Path:
    """Write a folder with images and a table of labels without splits; return the table."""
    records = colored_records(folder / "photos", train=count, val=0, test=0)
    table = folder / "photos" / "labels.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["filename", "tags", "film"])
        for number, (path, tags) in enumerate(zip(records.paths, _label_lists(records), strict=True)):
            rows.writerow([path.name, tags, f"film {number // 2}"])
    return table


def write_labels(records: Records) -> Path:
    """Write the table of labels and splits into the folder of the images, and return the folder."""
    folder = records.paths[0].parent
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["filename", "split", "labels"])
        for path, split, labels in zip(records.paths, records.split, _label_lists(records), strict=True):
            rows.writerow([path.name, split, labels])
    return folder


def _label_lists(records: Records) -> list[str]:
    """Return the labels of each image in the form "red|blue"."""
    names = np.array(records.label_space.names)
    return ["|".join(names[labels > 0]) for labels in records.labels]
