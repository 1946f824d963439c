"""Small datasets with images of colored squares."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image

from probmcl.data.records import LabelSpace, Records, Split

NAMES = ("red", "green", "blue")


def label_space(classes: int = 3) -> LabelSpace:
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
    count = train + val + test
    labels = (rng.random((count, 3)) < 0.5).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for i, present in enumerate(labels):
        pixels = rng.integers(0, 80, (size, size, 3))
        for k in np.flatnonzero(present):
            pixels[6 * k : 6 * k + 5, 2:14, k] = 255
        paths.append(folder / f"{i}.png")
        Image.fromarray(pixels.astype(np.uint8)).save(paths[-1])
    counts: dict[Split, int] = {"train": train, "val": val, "test": test}
    splits = [split for split, number in counts.items() for _ in range(number)]
    return Records.from_labels(NAMES, paths, splits, labels)


def folder_of_photographs(folder: Path, count: int = 40) -> Path:
    """Write a folder with images and a table of labels without splits; return the table."""
    records = colored_records(folder / "photos", train=count, val=0, test=0)
    with (folder / "photos" / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["filename", "tags", "film"])
        for number, (path, labels) in enumerate(zip(records.paths, records.labels, strict=True)):
            table.writerow([path.name, "|".join(np.array(NAMES)[labels > 0]), f"film {number // 2}"])
    return folder / "photos" / "labels.csv"


def write_labels(records: Records) -> Path:
    """Write the table of labels and splits into the folder of the images, and return the folder."""
    folder, names = records.paths[0].parent, np.array(records.label_space.names)
    rows = zip(records.paths, records.split, records.labels, strict=True)
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["filename", "split", "labels"])
        table.writerows([path.name, split, "|".join(names[labels > 0])] for path, split, labels in rows)
    return folder
