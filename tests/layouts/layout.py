"""A layout: data in a form that users have, the command that reads them, and the labels that they expect.

Every layout has the same forty images of beaches, boats and sunsets unless its labels are given. A layout writes these
labels into its own files. The expected labels are computed from `LABELS`, never by reading a file.
"""

import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

States = dict[str, str]  # by label: + present, - absent, ? unknown
Expected = Mapping[str, States]  # by path, relative to photos/

NAMES = ("beach", "boat", "sunset")
SETS = (
    ("beach", "boat"),
    ("sunset",),
    ("boat",),
    ("sunset", "beach"),
    ("beach",),
    ("boat", "sunset"),
    ("sunset", "boat", "beach"),
)
LABELS: Mapping[int, tuple[str, ...]] = {number: SETS[(number - 1) % len(SETS)] for number in range(1, 41)}
TRAIN, VAL, TEST = range(1, 25), range(25, 33), range(33, 41)
TRAIN_VAL = range(TRAIN.start, VAL.stop)


def states(present: Collection[str], unknown: Collection[str] = (), names: Iterable[str] = NAMES) -> States:
    """Return the states of an image in which every label that is neither present nor unknown is absent."""
    result = dict.fromkeys(names, "-")
    for name in result:
        if name in present:
            result[name] = "+"
        elif name in unknown:
            result[name] = "?"
    return result


def expected(
    path: str = "{}.jpg",
    numbers: Iterable[int] = LABELS,
    *,
    present: Callable[[int], Collection[str]] = LABELS.__getitem__,
    unknown: Callable[[int], Collection[str]] = lambda number: (),
    names: Iterable[str] = NAMES,
) -> Expected:
    """Return the expected labels of numbered images.

    Args:
        path: path of an image with a placeholder for its number.
        numbers: numbers of the images.
        present: the labels of the image with a number.
        unknown: the unknown labels of the image with a number.
        names: names of all classes.
    """
    classes = tuple(names)  # read once for each image
    return {path.format(number): states(present(number), unknown(number), classes) for number in numbers}


def table(header: str, row: Callable[[int, tuple[str, ...]], str], numbers: Iterable[int] = LABELS) -> str:
    """Return the text of a table; `row` returns the line, or several lines, of a number and its labels."""
    lines = [header] if header else []
    lines += [row(number, LABELS[number]) for number in numbers]
    return "\n".join(lines) + "\n"


def columns(labels: Collection[str], yes: str, no: str, names: Iterable[str] = NAMES, *, delimiter: str = ",") -> str:
    """Return the cells of class columns.

    >>> columns(["boat"], "1", "0")
    '0,1,0'
    """
    return delimiter.join(yes if name in labels else no for name in names)


@dataclass(frozen=True)
class Layout:
    """Data in a form that users have.

    Attributes:
        id: name of the test.
        have: description in the table of docs/your_data.md.
        files: contents of tables and annotation files, by path relative to photos/; the first is shown in the docs.
        labels: expected labels by path, relative to photos/.
        command: the command, without the answer to a question.
        split: expected splits by path, if the data have splits.
        unlabeled: images that are never scored or treated as negatives.
        readings: for ambiguous data, the expected labels by the options that choose them.
        shown: text whose first lines are shown instead of the first file, for files that are not text.
    """

    id: str
    have: str
    files: Mapping[str, str | bytes]
    labels: Expected = field(default_factory=expected)
    command: str = "probmcl train photos/"
    split: Mapping[str, str] = field(default_factory=dict)
    unlabeled: Sequence[str] = ()
    readings: Mapping[str, Expected] = field(default_factory=dict)
    shown: str = ""

    @property
    def commands(self) -> dict[str, Expected]:
        """The expected labels by the command that reads them; for ambiguous data, one command for each reading."""
        if not self.readings:
            return {self.command: self.labels}
        return {f"{self.command} {options}": labels for options, labels in self.readings.items()}

    @property
    def lines(self) -> list[str]:
        """The first three lines that the docs show, with an arrow for a tab."""
        text = (self.shown or self._first_file).removeprefix("\ufeff")  # the mark with which Windows starts UTF-8 files
        return [line.strip().replace("\t", "→") for line in text.splitlines()[:3]]

    @property
    def _first_file(self) -> str:
        """The text of the first file; empty if there is no file."""
        content = next(iter(self.files.values()), "")
        return content if isinstance(content, str) else content.decode("utf-8")

    @property
    def documented(self) -> str:
        """The row in the table of docs/your_data.md."""
        lines = "<br>".join(f"`{line}`" for line in self.lines).replace("|", r"\|")
        command = f"`{self.command}`"
        if self.readings:
            command += " asks: " + " or ".join(f"`{options}`" for options in self.readings)
        return f"| {self.have} | {lines} | {command} |"

    def write(self, folder: Path) -> None:
        """Write photos/ into a folder; every image has a random texture of its own."""
        contents: dict[str, str | bytes] = dict(self.files)
        for number, path in enumerate([*self.labels, *self.unlabeled]):
            contents[path] = texture(number, Path(path).suffix)
        for path, content in contents.items():
            file = folder / "photos" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)


@cache
def texture(number: int, suffix: str) -> bytes:
    """Return an image file of 16 × 16 random pixels: PNG for the suffix .png, otherwise JPEG."""
    pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="png" if suffix == ".png" else "jpeg", quality=95)
    return file.getvalue()
