"""Reading data, each beside a plain way in the same run: decoding, augmenting, COCO's JSON, sparse labels, the cache.

The photographs are scikit-learn's china.jpg and flower.jpg, scaled and saved anew at two sizes. Everything runs in one
process and on one thread.

How long a large image takes depends on what the process did before: in a fresh one glibc asks the system for the memory
of every photograph and gives it back, and the system's part (2,600 page faults at 1280 × 960) takes plain Pillow two
thirds of the time of its own work. Once a process has freed an array of some 30 MB, it keeps such memory. Plain Pillow
gains most by that, since it decodes whole photographs. So decoding is measured in both states, the fresh one first.
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

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch: the rivals use one thread, and so do we

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image

from probmcl.augment import light
from probmcl.data.cache import open_cache
from probmcl.data.formats.coco import read_coco
from probmcl.data.images import Preprocessing, read_image
from probmcl.data.labels import LabelStates, State
from probmcl.data.loader import ROOM
from probmcl.runtime.torchvision_compat import transforms
from rounds import alternate, median_ratio

SIZE = 224
PLAIN = Preprocessing(SIZE, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SIDES = ((640, 480), (1280, 960))


def photographs(folder: Path, width: int, height: int, quality: int) -> list[Path]:
    """Both photographs at a size, as JPEG."""
    paths = [folder / f"{width}_{name}" for name in ("china.jpg", "flower.jpg")]
    for path in paths:
        photo = Image.fromarray(load_sample_image(path.name.split("_")[1]))
        photo.resize((width, height), Image.Resampling.LANCZOS).save(path, quality=quality)
    return paths


def timer(work: Callable[[Path], object], paths: Sequence[Path], times: int) -> Callable[[], float]:
    """Milliseconds an image."""

    def call() -> float:
        start = time.perf_counter()
        for path in itertools.chain.from_iterable([paths] * times):
            work(path)
        return 1000 * (time.perf_counter() - start) / (times * len(paths))

    return call


def versus(title: str, rivals: dict[str, Callable[[], float]], rounds: int, goal: float | None, unit: str) -> None:
    """Print how many times as long the first takes as the second."""
    print(f"\n{title}")
    found = alternate(rivals, rounds, unit)
    slow, fast = rivals
    wanted = "" if goal is None else f" (at least {goal:g} is wanted)"
    print(f"{title}: {slow} takes {median_ratio(found[slow], found[fast]):.2f} times as long as {fast}{wanted}")


def use_the_heap() -> None:
    """Free an array that is large, but not so large that glibc always gives its memory back (32 MiB)."""
    np.ones(31 * 1024**2, dtype=np.uint8)


def plain_pillow(path: Path) -> Image.Image:
    """What everybody writes."""
    with Image.open(path) as image:
        return image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)


def decoding(folder: Path, args: argparse.Namespace) -> None:
    """Decode and resize."""
    for (width, height), goal in zip(SIDES, (1.8, 4.0), strict=True):
        paths = photographs(folder, width, height, args.quality)
        rivals = {
            "plain Pillow": timer(plain_pillow, paths, args.times),
            "probmcl": timer(lambda path: PLAIN.squash(read_image(path, SIZE)), paths, args.times),
        }
        versus(f"decode and resize, {width} × {height}", rivals, args.rounds, goal, "ms")


def augmenting(folder: Path, args: argparse.Namespace) -> None:
    """Decode and augment, as for training."""
    usual = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE, scale=(0.5, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.3, 0.3, 0.3, 0.05),
        ]
    )
    ours = light(SIZE)

    def torchvisions(path: Path) -> object:
        with Image.open(path) as image:
            return usual(image.convert("RGB"))

    for (width, height), goal in zip(SIDES, (None, 3.0), strict=True):
        paths = photographs(folder, width, height, args.quality)
        rivals = {
            "torchvision": timer(torchvisions, paths, args.times),
            "probmcl": timer(lambda path: ours(read_image(path, round(ROOM * SIZE))), paths, args.times),
        }
        versus(f"decode and augment (light), {width} × {height}", rivals, args.rounds, goal, "ms")


def caching(folder: Path, args: argparse.Namespace) -> None:
    """Read images a first and a second time through the cache, and without it."""
    paths = photographs(folder, *SIDES[0], args.quality)
    filled = open_cache(folder / "filled", keep_free=0)
    timer(lambda path: filled.read(path, SIZE), paths, 1)()

    numbers = itertools.count()

    def first_pass(path: Path) -> object:
        return open_cache(folder / f"empty {next(numbers)}", keep_free=0).read(path, SIZE)

    without = timer(lambda path: read_image(path, SIZE), paths, args.times)
    second = timer(lambda path: filled.read(path, SIZE), paths, args.times)
    title = f"read, {SIDES[0][0]} × {SIDES[0][1]}"
    versus(f"{title}, second pass", {"without cache": without, "cache": second}, args.rounds, None, "ms")
    first = timer(first_pass, paths, args.times)
    versus(f"{title}, first pass", {"an empty cache": first, "without cache": without}, args.rounds, None, "ms")


def write_instances(folder: Path, megabytes: int) -> Path:
    """An instances file like MS-COCO's: seven annotations an image, of which each has outlines of some 25 points."""
    rng = np.random.default_rng(0)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(megabytes * 333):
        name = f"COCO_train2014_{number:012d}.jpg"
        page = f"http://images.example.org/train2014/{name}"
        facts = {"license": 3, "coco_url": page, "height": 480, "width": 640, "date_captured": "2013-11-14 11:18:45"}
        images.append({**facts, "file_name": name, "flickr_url": page, "id": number})
        annotations += [made_annotation(rng, number) for _ in range(7)]
    categories = [{"supercategory": "thing", "id": number, "name": f"class {number}"} for number in range(1, 81)]
    table = folder / "annotations" / "instances_train2014.json"
    table.parent.mkdir()
    content = {"info": {}, "images": images, "licenses": [], "annotations": annotations, "categories": categories}
    table.write_text(json.dumps(content))
    (folder / "train2014").mkdir()
    (folder / "train2014" / images[0]["file_name"]).touch()
    return table


def made_annotation(rng: np.random.Generator, image: int) -> dict[str, Any]:
    """One object."""
    outline = (rng.integers(0, 64_000, 2 * int(rng.integers(4, 28))) / 100).tolist()
    category, number = int(rng.integers(1, 81)), int(rng.integers(1, 900_000))
    shape = {"segmentation": [outline], "area": outline[0] * 7, "iscrowd": 0, "bbox": outline[:4]}
    return {**shape, "image_id": image, "category_id": category, "id": number}


def plain_loop(table: Path) -> NDArray[np.float32]:
    """COCO's labels by `json` and a loop."""
    with table.open() as file:
        content = json.load(file)
    rows = {image["id"]: row for row, image in enumerate(content["images"])}
    columns = {category["id"]: column for column, category in enumerate(content["categories"])}
    labels = np.zeros((len(rows), len(columns)), dtype=np.float32)
    for annotation in content["annotations"]:
        labels[rows[annotation["image_id"]], columns[annotation["category_id"]]] = 1
    return labels


def coco(folder: Path, args: argparse.Namespace) -> None:
    """Read an instances file."""
    place = folder / "coco"
    place.mkdir()
    table = write_instances(place, args.megabytes)
    every = plain_loop(table)
    assert np.array_equal(every[every.any(axis=1)], read_coco(place, missing="keep").labels)
    print(f"\nboth read the same labels of a file of {table.stat().st_size / 1e6:.0f} MB")
    rivals = {
        "json": timer(lambda path: plain_loop(table), [table], 1),
        "probmcl": timer(lambda path: read_coco(place, missing="keep"), [table], 1),
    }
    versus("read COCO's instances", rivals, args.json_rounds, 5.0, "ms")


def labels(_: Path, args: argparse.Namespace) -> None:
    """Hold labels of all four states: of each image so many are said, half of them absent; the others are unknown."""
    images, classes, entries = args.images, args.classes, args.entries
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, classes - entries, (images, entries), dtype=np.int32), axis=1)
    columns += np.arange(entries, dtype=np.int32)  # so that no class comes twice in an image
    said = np.resize(np.array([State.ABSENT, State.PRESENT, State.ABSENT, State.UNCERTAIN], dtype=np.uint8), entries)
    rows, states = np.repeat(np.arange(images, dtype=np.int32), entries), np.tile(said, images)
    usual = np.full(classes, State.UNKNOWN, dtype=np.uint8)
    start = time.perf_counter()
    held = LabelStates.from_entries(rows, columns.ravel(), states, (images, classes), default=usual)
    seconds = time.perf_counter() - start
    batch = timer(lambda path: held.targets_and_known(rng.integers(0, images, 256)), [Path()], 20)()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"\nlabels of {images:,} images × {classes:,} classes, {entries} said of an image:")
    size = sum(array.nbytes for array in vars(held).values())
    print(f"  {size / 1e6:,.0f} MB held (below 1,000 is wanted), made in {seconds:.2f} s")
    print(f"  256 images laid out in {batch:.1f} ms; the process took at most {peak:.2f} GiB")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parts = ("decoding", "augmenting", "labels", "caching", "coco")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="what is measured")
    parser.add_argument("--rounds", type=int, default=25, help="rounds of images")
    parser.add_argument("--times", type=int, default=4, help="readings of each image in a round")
    parser.add_argument("--quality", type=int, default=90, help="of the JPEGs")
    parser.add_argument("--json-rounds", type=int, default=3, help="rounds of COCO's JSON")
    parser.add_argument("--megabytes", type=int, default=180, help="size of COCO's JSON")
    parser.add_argument("--images", type=int, default=1_000_000, help="rows of the labels")
    parser.add_argument("--classes", type=int, default=10_000, help="columns of the labels")
    parser.add_argument("--entries", type=int, default=20, help="labels that are said of an image")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        measured = {"decoding": decoding, "augmenting": augmenting, "labels": labels, "caching": caching, "coco": coco}
        wanted = [name for name in parts if name in args.parts]
        for name in wanted:
            measured[name](Path(folder), args)
        use_the_heap()
        for name in (name for name in wanted if name in ("decoding", "augmenting")):
            print(f"\n{name} once more, in a process that has freed a large array")
            measured[name](Path(folder), args)


if __name__ == "__main__":
    main()
