"""Scenes of handwritten digits: a small multi-label dataset for the demo and for tests.

The digits are the 1,797 samples of 8 × 8 pixels in scikit-learn (Alpaydin and Kaynak, Optical Recognition of
Handwritten Digits, UCI, 1998). A scene has up to five bright digits on a dark, cluttered and noisy canvas. Splits share
no samples and, judging by the order of the file, no writers.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy import ndarray
from numpy.random import Generator
from PIL import Image, ImageDraw

from probmcl.data.records import SPLITS, Records, Split

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

# scikit-learn's file is ordered by writer but does not identify writers. These rows are among the boundaries given
# in Inria's course on scikit-learn. It lists 14 blocks for 13 writers, so one of the boundaries may be wrong.
FIRST_ROWS, ROWS = (0, 1029, 1287), 1797

# Most digits in a scene come from one of these overlapping groups, so labels are correlated as in photographs.
DIGIT_GROUPS = ((0, 1, 2, 3), (3, 4, 5, 6), (5, 6, 7, 8), (7, 8, 9, 0))
GROUP_SHARES = (0.30, 0.25, 0.25, 0.20)  # share of scenes per group
OUTSIDE_WEIGHT = 0.04  # sampling weight of digits outside the group; the weight inside is 1
COUNT_SHARES = (0.04, 0.20, 0.26, 0.24, 0.16, 0.10)  # share of scenes with 0, 1, … 5 digits

BOX_SIDE = (0.22, 0.46)  # range of the side of a digit's box, relative to the scene
MAX_ANGLE = 15.0  # degrees
INK_LEVELS = (5.0, 10.0)  # gray levels of a sample (0 to 16) that map to no ink and full ink
MAX_OVERLAP = 0.12  # share of the smaller of two boxes; all digits stay visible
DARK, BRIGHT = (0, 130), (110, 256)  # range of each color channel, for the canvas and for digits
MAX_BLOBS, MAX_STROKES = 4, 5  # per scene
NOISE = (6, 25)  # range of the noise amplitude, in gray levels
MIN_SIZE = 32  # pixels; the smallest digits are then 7 pixels wide. At 64, a person can read all digits.


@dataclass(frozen=True, eq=False)
class Handwriting:
    """K samples: glyphs (opacity of the ink), their digits, and their rows in scikit-learn's file."""

    glyphs: UInt8[ndarray, "K 20 20"]
    digits: Int[ndarray, "K"]
    rows: Int[ndarray, "K"]


@dataclass(frozen=True)
class Box:
    """A square in a scene, in pixels."""

    left: int
    top: int
    side: int

    @property
    def right(self) -> int:
        """The first column to the right of the square."""
        return self.left + self.side

    @property
    def bottom(self) -> int:
        """The first row below the square."""
        return self.top + self.side


@dataclass(frozen=True)
class PlacedDigit:
    """A digit in a scene: its value, the row of its sample, and its box."""

    digit: int
    row: int
    box: Box


@dataclass(frozen=True, eq=False)
class Scene:
    """An image and the digits in it."""

    pixels: UInt8[ndarray, "S S 3"]
    placed: tuple[PlacedDigit, ...]

    @property
    def digits(self) -> tuple[int, ...]:
        """The digits in the scene, in ascending order."""
        return tuple(sorted(item.digit for item in self.placed))


def load_handwriting() -> dict[Split, Handwriting]:
    """Return the samples of each split. Splits have no samples in common.

    `FIRST_ROWS` has the first row of each split in scikit-learn's file, and `ROWS` is the number of rows.

    >>> {split: len(samples.rows) for split, samples in load_handwriting().items()}
    {'train': 1029, 'val': 258, 'test': 510}
    """
    from sklearn.datasets import load_digits  # slow to import

    file = load_digits()
    glyphs = np.stack([_to_glyph(sample) for sample in file.images])
    handwriting: dict[Split, Handwriting] = {}
    ends = (*FIRST_ROWS[1:], ROWS)
    for split, start, stop in zip(SPLITS, FIRST_ROWS, ends, strict=True):
        rows = np.arange(start, stop)
        handwriting[split] = Handwriting(glyphs[start:stop], file.target[start:stop], rows)
    return handwriting


def draw_scene(samples: Handwriting, rng: Generator, size: int = 64) -> Scene:
    """Draw a scene of `size` × `size` pixels using some of the samples.

    A digit that does not fit without overlapping others is left out.

    >>> scene = draw_scene(load_handwriting()["train"], np.random.default_rng(3))
    >>> scene.pixels.shape, [NAMES[digit] for digit in scene.digits]
    ((64, 64, 3), ['four', 'six'])
    """
    image = _canvas(rng, size)
    placed: list[PlacedDigit] = []
    for digit in _draw_digits(rng):
        sample = int(rng.choice(np.flatnonzero(samples.digits == digit)))
        box = _free_box(rng, size, taken=[item.box for item in placed])
        if box is None:
            continue
        angle = rng.uniform(-MAX_ANGLE, MAX_ANGLE)
        ink = _rotate(samples.glyphs[sample], box.side, angle)
        _paste(image, ink, box, rng)
        placed.append(PlacedDigit(digit, int(samples.rows[sample]), box))
    return Scene(_add_noise(image, rng), tuple(placed))


class _SceneFile(NamedTuple):
    """The image file of a scene, its split, and the digits in the scene in ascending order."""

    path: Path
    split: Split
    digits: tuple[int, ...]


def write_digits(
    folder: Path,
    *,
    train: int = 3000,
    val: int = 500,
    test: int = 1000,
    size: int = 64,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Records:
    """Write a dataset of digit scenes to a new or empty folder, and return its records.

    The folder will contain `images/*.png`, `classes.txt`, and `labels.csv` with the columns `filename`, `split` and
    `labels` (names separated by spaces). The same seed gives the same bytes, and a larger dataset starts with the
    scenes of a smaller one. `progress` is called after each scene with the number of scenes written so far.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     records = write_digits(Path(folder), train=3, val=1, test=1)
    ...     print((Path(folder) / "labels.csv").read_text().strip())
    filename,split,labels
    train_00000.png,train,two five six seven eight
    train_00001.png,train,zero two
    train_00002.png,train,two three
    val_00000.png,val,one two
    test_00000.png,test,three
    """
    counts: dict[Split, int] = {"train": train, "val": val, "test": test}
    _refuse_invalid_arguments(folder, counts, size)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    files: list[_SceneFile] = []
    for split, name, scene in _scenes(counts, size, seed):
        path = folder / "images" / name
        # Noise does not repeat, so Huffman coding alone is faster and gives smaller files.
        Image.fromarray(scene.pixels).save(path, compress_level=1, compress_type=Image.HUFFMAN_ONLY)
        files.append(_SceneFile(path, split, scene.digits))
        if progress is not None:
            progress(len(files))
    _write_tables(folder, files)
    paths = [file.path for file in files]
    splits = [file.split for file in files]
    return Records.from_labels(NAMES, paths, splits, _label_matrix(files))


def _label_matrix(files: Sequence[_SceneFile]) -> Float[ndarray, "N 10"]:
    """Return a row for each scene: 1 for the digits in it, and 0 for the others."""
    labels = np.zeros((len(files), len(NAMES)), dtype=np.float32)
    for row, file in enumerate(files):
        labels[row, list(file.digits)] = 1
    return labels


def digit_boxes(
    *, train: int = 0, val: int = 0, test: int = 0, size: int = 64, seed: int = 0
) -> dict[str, tuple[PlacedDigit, ...]]:
    """Return the digits and boxes of the scenes that `write_digits` writes with these arguments, by file name.

    >>> [(NAMES[item.digit], item.box) for item in digit_boxes(test=1)["test_00000.png"]]
    [('three', Box(left=24, top=31, side=25))]
    """
    counts: dict[Split, int] = {"train": train, "val": val, "test": test}
    return {name: scene.placed for _split, name, scene in _scenes(counts, size, seed)}


def _refuse_invalid_arguments(folder: Path, counts: Mapping[Split, int], size: int) -> None:
    """Raise an error if the scenes are too small or too few, or if the folder is in use."""
    if size < MIN_SIZE:
        raise ValueError(f"digits are not legible in scenes of {size} pixels; size must be at least {MIN_SIZE}")
    for split, count in counts.items():
        least = 1 if split == "train" else 0
        if count < least:
            raise ValueError(f"{split}={count} must be at least {least}")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; choose a new or empty folder for the digit scenes")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; choose a new or empty folder, because files are not overwritten")


def _scenes(counts: Mapping[Split, int], size: int, seed: int) -> Iterator[tuple[Split, str, Scene]]:
    """Yield split, file name and scene. Each scene has its own seed, so it does not depend on the counts."""
    for split_number, (split, samples) in enumerate(load_handwriting().items()):
        for scene_number in range(counts[split]):
            rng = np.random.default_rng((seed, split_number, scene_number))
            scene = draw_scene(samples, rng, size)
            yield split, f"{split}_{scene_number:05d}.png", scene


def _write_tables(folder: Path, files: Sequence[_SceneFile]) -> None:
    """Write `classes.txt` and `labels.csv`, with the same bytes on every system."""
    classes = "".join(f"{name}\n" for name in NAMES)
    (folder / "classes.txt").write_text(classes, encoding="utf-8", newline="\n")
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("filename", "split", "labels"))
        for path, split, digits in files:
            labels = " ".join(NAMES[digit] for digit in digits)
            table.writerow((path.name, split, labels))


def _draw_digits(rng: Generator) -> list[int]:
    """Draw the distinct digits of a scene, most of them from one random group of digits that often occur together."""
    group = DIGIT_GROUPS[rng.choice(len(DIGIT_GROUPS), p=GROUP_SHARES)]
    weight = np.full(len(NAMES), OUTSIDE_WEIGHT)
    weight[list(group)] = 1
    count = rng.choice(len(COUNT_SHARES), p=COUNT_SHARES)
    # The smallest exponential variables form a weighted sample without replacement. This is faster than rng.choice.
    variables = rng.exponential(size=len(NAMES)) / weight
    digits: list[int] = np.argsort(variables).tolist()
    return digits[:count]


def overlap(a: Box, b: Box) -> float:
    """Return the share of the smaller of two boxes that lies in the other.

    >>> overlap(Box(left=0, top=0, side=10), Box(left=5, top=0, side=20))
    0.5
    """
    width = min(a.right, b.right) - max(a.left, b.left)  # negative if the boxes are apart
    height = min(a.bottom, b.bottom) - max(a.top, b.top)
    shared_area = max(width, 0) * max(height, 0)
    smaller_area = min(a.side, b.side) ** 2
    return shared_area / smaller_area


def _free_box(rng: Generator, size: int, taken: list[Box], tries: int = 40) -> Box | None:
    """Return a random box that hardly overlaps the taken ones, or None. Later attempts try smaller boxes."""
    smallest, largest = (round(share * size) for share in BOX_SIDE)
    for attempt in range(tries):
        largest_now = largest - attempt * (largest - smallest) // tries
        side = int(rng.integers(smallest, largest_now, endpoint=True))
        left, top = rng.integers(0, size - side, size=2, endpoint=True).tolist()
        box = Box(left, top, side)
        if all(overlap(box, other) <= MAX_OVERLAP for other in taken):
            return box
    return None


def _to_glyph(sample: Float[ndarray, "8 8"]) -> UInt8[ndarray, "20 20"]:
    """Pad a sample by one pixel, double its size, and sharpen its edges."""
    padded = np.pad(sample, 1).astype(np.float32)
    doubled = Image.fromarray(padded).resize((20, 20), Image.Resampling.BICUBIC)
    ink: Float[ndarray, "20 20"] = np.interp(np.asarray(doubled), INK_LEVELS, (0, 255))
    return ink.astype(np.uint8)


def _rotate(glyph: UInt8[ndarray, "20 20"], side: int, degrees: float) -> Image.Image:
    """Rotate a glyph about its center and resize it, in one step."""
    scale = len(glyph) / side
    angle = math.radians(degrees)
    cos = scale * math.cos(angle)
    sin = scale * math.sin(angle)
    center = len(glyph) / 2
    new_center = side / 2
    # Given (a, b, c, d, e, f), Pillow maps (x, y) in the result to (a x + b y + c, d x + e y + f) in the glyph. The
    # numbers c and f map the center of the result to the center of the glyph.
    c = center - new_center * (cos + sin)
    f = center - new_center * (cos - sin)
    return Image.fromarray(glyph).transform(
        size=(side, side),
        method=Image.Transform.AFFINE,
        data=(cos, sin, c, -sin, cos, f),
        resample=Image.Resampling.BICUBIC,
    )


def _paste(image: Image.Image, ink: Image.Image, box: Box, rng: Generator) -> None:
    """Paste a digit in whichever of four random colors contrasts most with the background."""
    area = (box.left, box.top, box.right, box.bottom)
    mean = image.resize((1, 1), Image.Resampling.BOX, box=area)
    background = mean.tobytes()  # red, green and blue
    colors = rng.integers(*BRIGHT, size=(4, 3)).tolist()
    red, green, blue = max(colors, key=lambda color: math.dist(color, background))
    image.paste((red, green, blue), (box.left, box.top), ink)


def _canvas(rng: Generator, size: int) -> Image.Image:
    """Draw the background of a scene: a dark color gradient, with blobs and strokes that are not digits."""
    ends = rng.uniform(*DARK, size=(2, 3))  # two colors
    first, last = ends
    corners = first + rng.random((2, 2, 1)) * (last - first)  # (2, 2, 3)
    small = Image.fromarray(corners.astype(np.uint8))
    image = small.resize((size, size), Image.Resampling.BICUBIC)
    base = ends.mean(axis=0)
    pen = ImageDraw.Draw(image)
    for blob in _clutter(rng, MAX_BLOBS, base, size):
        pen.ellipse(blob.bounds, fill=blob.color)
    # Start and length in degrees. The arcs are open, because a closed arc looks like a zero.
    arcs = rng.uniform((0, 60), (360, 200), size=(MAX_STROKES, 2)).tolist()
    strokes = _clutter(rng, MAX_STROKES, base, size)
    width = max(1, size // 32)
    for stroke, (start, length) in zip(strokes, arcs, strict=False):  # there may be fewer strokes than arcs
        pen.arc(stroke.bounds, start, start + length, fill=stroke.color, width=width)
    return image


class _Shape(NamedTuple):
    """The bounds of a shape in pixels (left, top, right, bottom), and its RGB color."""

    bounds: tuple[float, ...]
    color: tuple[int, ...]


def _clutter(rng: Generator, most: int, base: Float[ndarray, "3"], size: int) -> list[_Shape]:
    """Return 1 to `most` random shapes. Their colors are mixed with the base color so that digits stand out."""
    count = int(rng.integers(1, most, endpoint=True))
    corner = rng.uniform(-0.1, 0.95, size=(count, 2))  # relative to the scene
    extent = rng.uniform(0.08, 0.4, size=(count, 2))
    bounds = np.hstack((corner, corner + extent)) * size
    random_colors = rng.uniform(0, 255, size=(count, 3))
    colors = ((base + random_colors) / 2).astype(int)
    return [_Shape(tuple(bound), tuple(color)) for bound, color in zip(bounds.tolist(), colors.tolist(), strict=True)]


def _add_noise(image: Image.Image, rng: Generator) -> UInt8[ndarray, "S S 3"]:
    """Add uniform noise whose amplitude differs between scenes."""
    pixels = np.asarray(image, dtype=np.int16)
    amplitude = int(rng.integers(*NOISE))
    noise = rng.integers(-amplitude, amplitude, size=pixels.shape, dtype=np.int16, endpoint=True)
    noisy = (pixels + noise).clip(0, 255)
    return noisy.astype(np.uint8)
