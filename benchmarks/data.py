"""Measure data reading against plain code: decoding, augmentation, COCO's JSON, sparse labels and the image cache.

The photographs are scikit-learn's china.jpg and flower.jpg, resized and saved at two sizes. Everything runs in one
process on one thread.

The time for a large image depends on the history of the process. In a new process, glibc requests the memory of every
photograph from the operating system and returns it afterwards. For plain Pillow, these system calls (2,600 page faults
at 1280 × 960) take two thirds as long as its own work. After a process has freed an array of about 30 MB, it keeps
such memory. Plain Pillow benefits most, because it decodes photographs at full size. Decoding is therefore measured in
both states, first in a new process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch: all competitors use one thread

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image

from probmcl.augment import light
from probmcl.data.image_cache import open_cache
from probmcl.data.images import Preprocessing, read_image
from probmcl.data.labels import LabelStates, State
from probmcl.data.loader import DECODE_SCALE
from probmcl.readers.coco import read_coco
from probmcl.runtime.torchvision_compat import transforms
from rounds import alternate, median_ratio

SIZE = 224
PLAIN = Preprocessing(SIZE, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SIDES = ((640, 480), (1280, 960))


def photographs(folder: Path, width: int, height: int, quality: int) -> list[Path]:
    """Write both photographs as JPEG at a given size and return their paths."""
    paths = [folder / f"{width}_{name}" for name in ("china.jpg", "flower.jpg")]
    for path in paths:
        photo = Image.fromarray(load_sample_image(path.name.split("_")[1]))
        photo.resize((width, height), Image.Resampling.LANCZOS).save(path, quality=quality)
    return paths


def timer(work: Callable[[Path], object], paths: Sequence[Path], times: int) -> Callable[[], float]:
    """Return a function that measures milliseconds per image."""

    def call() -> float:
        start = time.perf_counter()
        for path in itertools.chain.from_iterable([paths] * times):
            work(path)
        return 1000 * (time.perf_counter() - start) / (times * len(paths))

    return call


def print_ratio(
    title: str, competitors: dict[str, Callable[[], float]], rounds: int, goal: float | None, unit: str
) -> None:
    """Print the ratio of the first competitor's time to the second's."""
    print(f"\n{title}")
    times = alternate(competitors, rounds, unit)
    slow, fast = competitors
    target = "" if goal is None else f" (target: at least {goal:g})"
    print(f"{title}: {slow} takes {median_ratio(times[slow], times[fast]):.2f} times as long as {fast}{target}")


def keep_freed_memory() -> None:
    """Make glibc keep freed memory, by freeing an array just below the size that it always returns (32 MiB)."""
    np.ones(31 * 1024**2, dtype=np.uint8)


def plain_pillow(path: Path) -> Image.Image:
    """Decode and resize with the usual lines of Pillow."""
    with Image.open(path) as image:
        return image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)


def decoding(folder: Path, args: argparse.Namespace) -> None:
    """Compare decoding and resizing with plain Pillow."""
    for (width, height), goal in zip(SIDES, (1.8, 4.0), strict=True):
        paths = photographs(folder, width, height, args.quality)
        competitors = {
            "plain Pillow": timer(plain_pillow, paths, args.times),
            "probmcl": timer(lambda path: PLAIN.squash(read_image(path, SIZE)), paths, args.times),
        }
        print_ratio(f"decode and resize, {width} × {height}", competitors, args.rounds, goal, "ms")


def augmenting(folder: Path, args: argparse.Namespace) -> None:
    """Compare decoding and augmentation with torchvision."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE, scale=(0.5, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.05),
        ]
    )
    ours = light(SIZE)

    def torchvision(path: Path) -> object:
        with Image.open(path) as image:
            return transform(image.convert("RGB"))

    for (width, height), goal in zip(SIDES, (None, 3.0), strict=True):
        paths = photographs(folder, width, height, args.quality)
        competitors = {
            "torchvision": timer(torchvision, paths, args.times),
            "probmcl": timer(lambda path: ours(read_image(path, round(DECODE_SCALE * SIZE))), paths, args.times),
        }
        print_ratio(f"decode and augment (light), {width} × {height}", competitors, args.rounds, goal, "ms")


def caching(folder: Path, args: argparse.Namespace) -> None:
    """Compare the first and second passes through the cache with reading without a cache."""
    paths = photographs(folder, *SIDES[0], args.quality)
    filled = open_cache(folder / "filled", keep_free=0)
    timer(lambda path: filled.read(path, SIZE), paths, 1)()

    numbers = itertools.count()

    def first_pass(path: Path) -> object:
        return open_cache(folder / f"empty {next(numbers)}", keep_free=0).read(path, SIZE)

    without = timer(lambda path: read_image(path, SIZE), paths, args.times)
    second = timer(lambda path: filled.read(path, SIZE), paths, args.times)
    title = f"read, {SIDES[0][0]} × {SIDES[0][1]}"
    print_ratio(f"{title}, second pass", {"without cache": without, "cache": second}, args.rounds, None, "ms")
    first = timer(first_pass, paths, args.times)
    print_ratio(f"{title}, first pass", {"an empty cache": first, "without cache": without}, args.rounds, None, "ms")


def write_instances(folder: Path, megabytes: int) -> Path:
    """Write an instances file like MS-COCO's, with seven annotations per image and outlines of up to 27 points."""
    rng = np.random.default_rng(0)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(megabytes * 333):
        name = f"COCO_train2014_{number:012d}.jpg"
        page = f"http://images.example.org/train2014/{name}"
        metadata = {"license": 3, "coco_url": page, "height": 480, "width": 640, "date_captured": "2013-11-14 11:18:45"}
        images.append({**metadata, "file_name": name, "flickr_url": page, "id": number})
        annotations += [random_annotation(rng, number) for _ in range(7)]
    categories = [{"supercategory": "thing", "id": number, "name": f"class {number}"} for number in range(1, 81)]
    table = folder / "annotations" / "instances_train2014.json"
    table.parent.mkdir()
    content = {"info": {}, "images": images, "licenses": [], "annotations": annotations, "categories": categories}
    table.write_text(json.dumps(content))
    (folder / "train2014").mkdir()
    (folder / "train2014" / images[0]["file_name"]).touch()
    return table


def random_annotation(rng: np.random.Generator, image: int) -> dict[str, Any]:
    """Return the annotation of one object."""
    outline = (rng.integers(0, 64_000, 2 * int(rng.integers(4, 28))) / 100).tolist()
    category, number = int(rng.integers(1, 81)), int(rng.integers(1, 900_000))
    shape = {"segmentation": [outline], "area": outline[0] * 7, "iscrowd": 0, "bbox": outline[:4]}
    return {**shape, "image_id": image, "category_id": category, "id": number}


def plain_loop(table: Path) -> NDArray[np.float32]:
    """Return COCO's labels, read with `json` and a loop."""
    with table.open(encoding="utf-8") as file:
        content = json.load(file)
    rows = {image["id"]: row for row, image in enumerate(content["images"])}
    columns = {category["id"]: column for column, category in enumerate(content["categories"])}
    labels = np.zeros((len(rows), len(columns)), dtype=np.float32)
    for annotation in content["annotations"]:
        labels[rows[annotation["image_id"]], columns[annotation["category_id"]]] = 1
    return labels


def coco(folder: Path, args: argparse.Namespace) -> None:
    """Compare reading an instances file with `json` and a loop."""
    root = folder / "coco"
    root.mkdir()
    table = write_instances(root, args.megabytes)
    expected = plain_loop(table)
    assert np.array_equal(expected[expected.any(axis=1)], read_coco(root, missing="keep").labels)
    print(f"\nboth read the same labels from a file of {table.stat().st_size / 1e6:.0f} MB")
    competitors = {
        "json": timer(lambda path: plain_loop(table), [table], 1),
        "probmcl": timer(lambda path: read_coco(root, missing="keep"), [table], 1),
    }
    print_ratio("read COCO's instances", competitors, args.json_rounds, 5.0, "ms")


def labels(_: Path, args: argparse.Namespace) -> None:
    """Measure the memory of sparse labels: half of the entries are absent; classes without an entry are unknown."""
    images, classes, entries = args.images, args.classes, args.entries
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, classes - entries, (images, entries), dtype=np.int32), axis=1)
    columns += np.arange(entries, dtype=np.int32)  # no class occurs twice in an image
    entry_states = np.resize(
        np.array([State.ABSENT, State.PRESENT, State.ABSENT, State.UNCERTAIN], dtype=np.uint8), entries
    )
    rows, states = np.repeat(np.arange(images, dtype=np.int32), entries), np.tile(entry_states, images)
    usual = np.full(classes, State.UNKNOWN, dtype=np.uint8)
    start = time.perf_counter()
    label_states = LabelStates.from_entries(rows, columns.ravel(), states, (images, classes), default=usual)
    seconds = time.perf_counter() - start
    batch = timer(lambda path: label_states.targets_and_known(rng.integers(0, images, 256)), [Path()], 20)()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"\nlabels of {images:,} images × {classes:,} classes, {entries} entries per image:")
    size = sum(array.nbytes for array in vars(label_states).values())
    print(f"  {size / 1e6:,.0f} MB (target: below 1,000), built in {seconds:.2f} s")
    print(f"  dense batch of 256 images in {batch:.1f} ms; peak memory of the process {peak:.2f} GiB")


def main() -> None:
    """Run the selected measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parts = ("decoding", "augmenting", "labels", "caching", "coco")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="measurements to run")
    parser.add_argument("--rounds", type=int, default=25, help="rounds per measurement of images")
    parser.add_argument("--times", type=int, default=4, help="reads of each image per round")
    parser.add_argument("--quality", type=int, default=90, help="JPEG quality")
    parser.add_argument("--json-rounds", type=int, default=3, help="rounds for COCO's JSON")
    parser.add_argument("--megabytes", type=int, default=180, help="size of COCO's JSON")
    parser.add_argument("--images", type=int, default=1_000_000, help="rows of the labels")
    parser.add_argument("--classes", type=int, default=10_000, help="columns of the labels")
    parser.add_argument("--entries", type=int, default=20, help="entries per image")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        functions = {"decoding": decoding, "augmenting": augmenting, "labels": labels, "caching": caching, "coco": coco}
        selected = [name for name in parts if name in args.parts]
        for name in selected:
            functions[name](Path(folder), args)
        keep_freed_memory()
        for name in (name for name in selected if name in ("decoding", "augmenting")):
            print(f"\n{name} again, after a large array was freed")
            functions[name](Path(folder), args)


if __name__ == "__main__":
    main()
