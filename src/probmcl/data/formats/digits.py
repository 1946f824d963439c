"""A small data set that is always at hand: scenes of handwritten digits, for the demo and for tests.

The handwriting is real, the 1,797 samples of 8 × 8 pixels that scikit-learn carries (Alpaydin and Kaynak, Optical
Recognition of Handwritten Digits, UCI, 1998). The scenes are composed: up to five bright digits on a dark, cluttered
and noisy canvas. Splits share no sample and, as far as the order of the file tells, no writer.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy import ndarray
from numpy.random import Generator
from PIL import Image, ImageDraw

from probmcl.data.records import SPLITS, Records, Split

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

# scikit-learn's file goes writer by writer but does not name them. These rows are among the borders that Inria's course
# on scikit-learn lists (14 blocks, though the file's authors speak of 13 people, so one border may be none).
FIRST_ROWS, ROWS = (0, 1029, 1287), 1797

# A scene takes its digits from one of these overlapping circles: labels depend on each other, as in photographs.
COMPANY = ((0, 1, 2, 3), (3, 4, 5, 6), (5, 6, 7, 8), (7, 8, 9, 0))
SHARES = (0.30, 0.25, 0.25, 0.20)  # of scenes, for each circle
STRANGER = 0.04  # weight of a digit outside the circle, against 1 inside
HOW_MANY = (0.04, 0.20, 0.26, 0.24, 0.16, 0.10)  # share of scenes with 0, 1, … 5 digits

SIDE = (0.22, 0.46)  # of a digit's box, as a share of the scene's side
TURN = 15.0  # degrees at most, either way
EDGE = (5.0, 10.0)  # the gray levels of a sample, of 16, between which paper becomes ink
MOST_COVERED = 0.12  # of the smaller of two boxes: whatever is labeled can be seen
DARK, BRIGHT = (0, 130), (110, 256)  # range of each color channel, for the canvas and for digits
BLOBS, STROKES = 4, 5  # at most, in one scene
NOISE = (6, 25)  # range of the largest change of a channel
SMALLEST_SCENE = 32  # pixels, where the smallest digits have seven; at 64 a person reads them all


@dataclass(frozen=True, eq=False)
class Handwriting:
    """K samples as glyphs, which say how opaque the ink is; the digit each shows, its row in scikit-learn's file."""

    glyphs: UInt8[ndarray, "K 20 20"]
    digits: Int[ndarray, "K"]
    rows: Int[ndarray, "K"]


@dataclass(frozen=True)
class Box:
    """A square in a scene, in pixels."""

    left: int
    top: int
    side: int


@dataclass(frozen=True)
class Placed:
    """One digit in a scene: its value, the row of the sample that shows it, and where it stands."""

    digit: int
    row: int
    box: Box


@dataclass(frozen=True, eq=False)
class Scene:
    """An image and what was drawn in it."""

    pixels: UInt8[ndarray, "S S 3"]
    placed: tuple[Placed, ...]

    @property
    def digits(self) -> tuple[int, ...]:
        """The digits in the scene, in ascending order."""
        return tuple(sorted(one.digit for one in self.placed))


def load_handwriting() -> dict[Split, Handwriting]:
    """The samples of each split; no two splits share a sample.

    >>> {split: len(samples.rows) for split, samples in load_handwriting().items()}
    {'train': 1029, 'val': 258, 'test': 510}
    """
    from sklearn.datasets import load_digits  # slow to import, and needed only here

    file = load_digits()
    glyphs = np.stack([_crisp(sample) for sample in file.images])
    return {
        split: Handwriting(glyphs[start:stop], file.target[start:stop], np.arange(start, stop))
        for split, start, stop in zip(SPLITS, FIRST_ROWS, (*FIRST_ROWS[1:], ROWS), strict=True)
    }


def draw_scene(samples: Handwriting, rng: Generator, size: int = 64) -> Scene:
    """Compose one scene of `size` × `size` pixels from some of the samples.

    A digit for which no free place is found is left out, and its label with it.

    >>> scene = draw_scene(load_handwriting()["train"], np.random.default_rng(3))
    >>> scene.pixels.shape, [NAMES[digit] for digit in scene.digits]
    ((64, 64, 3), ['four', 'six'])
    """
    image = _canvas(rng, size)
    placed: list[Placed] = []
    for digit in _company(rng):
        sample = int(rng.choice(np.flatnonzero(samples.digits == digit)))
        box = _free_box(rng, size, [one.box for one in placed])
        if box is not None:
            _write(image, _turned(samples.glyphs[sample], box.side, rng.uniform(-TURN, TURN)), box, rng)
            placed.append(Placed(digit, int(samples.rows[sample]), box))
    return Scene(_grainy(image, rng), tuple(placed))


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
    """Write a data set of digit scenes into a new or empty folder, and return its records.

    The folder receives `images/*.png`, `classes.txt` and `labels.csv`: columns `filename`, `split` and `labels`, the
    names separated by spaces. The same seed gives the same bytes, and a larger set begins with the scenes of a smaller
    one. `progress` is called after each scene with the number done so far.

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
    _refuse_bad_requests(folder, counts, size)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows: list[tuple[Path, Split, tuple[int, ...]]] = []
    for split, name, scene in _scenes(counts, size, seed):
        path = folder / "images" / name
        # Noise has no repeats to look for: Huffman codes alone are faster, and smaller too.
        Image.fromarray(scene.pixels).save(path, compress_level=1, compress_type=Image.HUFFMAN_ONLY)
        rows.append((path, split, scene.digits))
        if progress is not None:
            progress(len(rows))
    _write_tables(folder, rows)
    labels = np.array([[digit in digits for digit in range(len(NAMES))] for _, _, digits in rows], dtype=np.float32)
    return Records.from_labels(NAMES, [path for path, _, _ in rows], [split for _, split, _ in rows], labels)


def _refuse_bad_requests(folder: Path, counts: Mapping[Split, int], size: int) -> None:
    if size < SMALLEST_SCENE:
        raise ValueError(f"scenes of {size} pixels are too small to read digits in; give size={SMALLEST_SCENE} or more")
    for split, count in counts.items():
        least = 1 if split == "train" else 0
        if count < least:
            raise ValueError(f"{split}={count} scenes; give {least} or more")
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; name a new or an empty folder for the digit scenes")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty, and nothing in it is overwritten; name a new or an empty folder")


def _scenes(counts: Mapping[Split, int], size: int, seed: int) -> Iterator[tuple[Split, str, Scene]]:
    """Yield split, file and scene; each has its own generator, so that none depends on how many there are."""
    for number, (split, samples) in enumerate(load_handwriting().items()):
        for i in range(counts[split]):
            scene = draw_scene(samples, np.random.default_rng((seed, number, i)), size)
            yield split, f"{split}_{i:05d}.png", scene


def _write_tables(folder: Path, rows: list[tuple[Path, Split, tuple[int, ...]]]) -> None:
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in NAMES), encoding="utf-8")
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("filename", "split", "labels"))
        for path, split, digits in rows:
            table.writerow((path.name, split, " ".join(NAMES[digit] for digit in digits)))


def _company(rng: Generator) -> list[int]:
    """Different digits that keep company: most from one circle, now and then a stranger."""
    weight = np.full(len(NAMES), STRANGER)
    weight[list(COMPANY[rng.choice(len(COMPANY), p=SHARES)])] = 1
    count = rng.choice(len(HOW_MANY), p=HOW_MANY)
    # The first to arrive at these rates: a weighted draw without replacement, faster than rng.choice has it.
    arrival: list[int] = np.argsort(rng.exponential(size=len(NAMES)) / weight).tolist()
    return arrival[:count]


def covered(a: Box, b: Box) -> float:
    """Share of the smaller of two boxes that lies in the other.

    >>> covered(Box(left=0, top=0, side=10), Box(left=5, top=0, side=20))
    0.5
    """
    width = min(a.left + a.side, b.left + b.side) - max(a.left, b.left)
    height = min(a.top + a.side, b.top + b.side) - max(a.top, b.top)
    return max(width, 0) * max(height, 0) / min(a.side, b.side) ** 2


def _free_box(rng: Generator, size: int, taken: list[Box], tries: int = 40) -> Box | None:
    """A box that covers little of those taken, or None; the later the try, the smaller the box."""
    low, high = (round(share * size) for share in SIDE)
    for attempt in range(tries):
        side = int(rng.integers(low, high - attempt * (high - low) // tries, endpoint=True))
        left, top = rng.integers(0, size - side, size=2, endpoint=True).tolist()
        box = Box(left, top, side)
        if all(covered(box, other) <= MOST_COVERED for other in taken):
            return box
    return None


def _crisp(sample: Float[ndarray, "8 8"]) -> UInt8[ndarray, "20 20"]:
    """A sample with a margin of one pixel, enlarged smoothly to twice its size, its edges made crisp."""
    gray = Image.fromarray(np.pad(sample, 1).astype(np.float32)).resize((20, 20), Image.Resampling.BICUBIC)
    ink: Float[ndarray, "20 20"] = np.interp(np.asarray(gray), EDGE, (0, 255))
    return ink.astype(np.uint8)


def _turned(glyph: UInt8[ndarray, "20 20"], side: int, degrees: float) -> Image.Image:
    """The glyph turned about its middle and brought to size, in one step."""
    scale, angle = len(glyph) / side, math.radians(degrees)
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    there, here = len(glyph) / 2, side / 2  # the two middles
    onto_glyph = (cos, sin, there - here * (cos + sin), -sin, cos, there - here * (cos - sin))
    affine, bicubic = Image.Transform.AFFINE, Image.Resampling.BICUBIC
    return Image.fromarray(glyph).transform((side, side), affine, onto_glyph, resample=bicubic)


def _write(image: Image.Image, ink: Image.Image, box: Box, rng: Generator) -> None:
    """Write one digit, in the one of four colors that stands out most from what is there."""
    corners = (box.left, box.top, box.left + box.side, box.top + box.side)
    mean = image.resize((1, 1), Image.Resampling.BOX, box=corners).tobytes()  # one pixel: red, green, blue
    colors = rng.integers(*BRIGHT, size=(4, 3)).tolist()
    red, green, blue = max(colors, key=lambda color: math.dist(color, mean))
    image.paste((red, green, blue), (box.left, box.top), ink)


def _canvas(rng: Generator, size: int) -> Image.Image:
    """A dark color gradient, with blobs and strokes on it that look a little like handwriting and mean nothing."""
    ends = rng.uniform(*DARK, size=(2, 3))
    corners = ends[0] + rng.random((2, 2, 1)) * (ends[1] - ends[0])  # (2, 2, 3)
    image = Image.fromarray(corners.astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(image)
    for bounds, color in _clutter(rng, BLOBS, ends.mean(axis=0), size):
        pen.ellipse(bounds, fill=color)
    arcs = rng.uniform((0, 60), (360, 200), size=(STROKES, 2)).tolist()  # never closed: that would be a zero
    strokes = _clutter(rng, STROKES, ends.mean(axis=0), size)
    for (bounds, color), (start, length) in zip(strokes, arcs, strict=False):
        pen.arc(bounds, start, start + length, fill=color, width=max(1, size // 32))
    return image


def _clutter(
    rng: Generator, most: int, base: Float[ndarray, "3"], size: int
) -> list[tuple[tuple[float, ...], tuple[int, ...]]]:
    """Bounds and colors of one to `most` shapes; half of each color is the base, so that digits stand out."""
    count = int(rng.integers(1, most, endpoint=True))
    corner, extent = rng.uniform(-0.1, 0.95, size=(count, 2)), rng.uniform(0.08, 0.4, size=(count, 2))
    bounds = (np.hstack((corner, corner + extent)) * size).tolist()
    colors = ((base + rng.uniform(0, 255, size=(count, 3))) / 2).astype(int).tolist()
    return [(tuple(bound), tuple(color)) for bound, color in zip(bounds, colors, strict=True)]


def _grainy(image: Image.Image, rng: Generator) -> UInt8[ndarray, "S S 3"]:
    """The picture as a cheap camera sees it, with more noise in some scenes than in others."""
    pixels = np.asarray(image, dtype=np.int16)
    most = int(rng.integers(*NOISE))
    grain = rng.integers(-most, most, size=pixels.shape, dtype=np.int16, endpoint=True)
    return (pixels + grain).clip(0, 255).astype(np.uint8)
