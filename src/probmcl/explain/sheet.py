"""Pictures of explanations: a photograph and its heat maps, for one run or for two runs side by side."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from numpy import ndarray
from PIL import Image

from probmcl.data.images import read_image
from probmcl.errors import ImageError
from probmcl.explain.explanations import Explanation, Explanations
from probmcl.runtime.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDE = 320  # longest side of a photograph, in pixels; smaller ones are enlarged
DPI = 100
COLUMNS = 4  # heat maps in a row; more labels continue in the next rows
MAX_LABELS = 24  # labels in a picture
TITLE, MARGIN, GAP = 48, 32, 8  # pixels: height of a caption of two lines, width of the caption of a row, space
MAX_NAME = 32  # characters of a file name in a caption
FIRST_MISSING = 0x250  # code point; the font may lack some characters of the scripts that follow the Latin one
MIN_WIDTH = 200  # pixels, for the captions of narrow photographs
OPACITY = 0.7  # of the largest entry of a heat map
COLORS = "inferno"


def write_sheets(
    folder: Path,
    runs: Mapping[str, Explanations],
    captions: Mapping[str, str],
    advance: Callable[[], object] = lambda: None,
) -> dict[Path, str]:
    """Write a PNG file for each readable image, and return the reasons for the others.

    Args:
        folder: folder of the files, which are named after the images.
        runs: explanations of the same images, by the name of the run.
        captions: texts that are drawn for the labels.
        advance: called after each image.
    """
    errors: dict[Path, str] = {}
    stems: set[str] = set()
    for explanations in zip(*runs.values(), strict=True):  # of one image by all runs
        path = explanations[0].path
        error = explanations[0].error
        try:
            if error is not None:
                raise ImageError(path, error)
            photo = read_image(path, SIDE)
            sheet = draw_sheet(photo, dict(zip(runs, explanations, strict=True)), captions)
            atomic_write(folder / f"{_new_stem(path.stem, stems)}.png", sheet)
        except ImageError as problem:
            errors[path] = problem.reason
        advance()
    return errors


def _new_stem(stem: str, used: set[str]) -> str:
    """Return a stem that is not used yet, if necessary with a number, and add it to `used`, which are in lower case."""
    name = stem
    number = 1
    while name.casefold() in used:  # some file systems ignore case
        number += 1
        name = f"{stem}-{number}"
    used.add(name.casefold())
    return name


def draw_sheet(photo: Image.Image, runs: Mapping[str, Explanation], captions: Mapping[str, str]) -> bytes:
    """Draw a photograph and the heat maps of its labels as a PNG file.

    A row of the page has the photograph, then the heat maps of a block of labels by one run. Each block has a row per
    run. Sizes are in pixels.
    """
    from matplotlib.figure import Figure

    photo = _scaled(photo)
    labels = _most_probable(list(runs.values()))
    # Without labels, there is one block without heat maps, so that the photograph is drawn.
    blocks = [labels[first : first + COLUMNS] for first in range(0, len(labels), COLUMNS)] or [[]]
    rows = [(run, explanation, block) for block in blocks for run, explanation in runs.items()]
    cell_width = max(photo.width, MIN_WIDTH) + GAP
    cell_height = photo.height + TITLE
    page_width = (1 + len(blocks[0])) * cell_width + MARGIN
    page_height = len(rows) * cell_height + GAP
    figure = Figure(figsize=(page_width / DPI, page_height / DPI), dpi=DPI)
    for number, (run, explanation, block) in enumerate(rows):
        # Positions are fractions of the page, from the lower left. A layout engine would take most of the time.
        bottom = 1 - ((number + 1) * cell_height) / page_height
        width = photo.width / page_width
        height = photo.height / page_height
        axes = []
        for column in range(1 + len(block)):
            left_of_cell = MARGIN + column * cell_width
            left = (left_of_cell + (cell_width - photo.width) // 2) / page_width
            axes.append(figure.add_axes((left, bottom, width, height)))
        _draw_row(axes, photo, explanation, block, captions)
        if len(runs) > 1:
            axes[0].set_ylabel(_drawable(run), parse_math=False, fontsize=11)
        if number == 0:
            axes[0].set_title(_title(explanation, len(labels)), parse_math=False, fontsize=10)
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def _scaled(photo: Image.Image) -> Image.Image:
    """Return the photograph with its longest side of `SIDE` pixels."""
    scale = SIDE / max(photo.size)
    width = max(1, round(photo.width * scale))
    height = max(1, round(photo.height * scale))
    return photo.resize((width, height))


def _draw_row(
    axes: Sequence[Axes],
    photo: Image.Image,
    explanation: Explanation,
    labels: Sequence[str],
    captions: Mapping[str, str],
) -> None:
    """Draw the photograph in the first of the axes, and the heat map of a label in each of the others."""
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_frame_on(False)
    axes[0].imshow(photo)
    for axis, label in zip(axes[1:], labels, strict=False):
        heat = explanation.enlarged(label, width=photo.width, height=photo.height)
        axis.imshow(photo.convert("L"), cmap="gray", vmin=0, vmax=255)  # gray, so the colors are those of the heat map
        strength = relative(heat)
        axis.imshow(strength, cmap=COLORS, alpha=OPACITY * strength, vmin=0, vmax=1)
        title = f"{captions[label]} {explanation.probabilities[label]:.2f}"
        if not heat.any():
            title += "\nno positive evidence"
        is_assigned = label in explanation.decided
        style: dict[str, Any] = {"fontweight": "bold"} if is_assigned else {"color": "#555555"}
        axis.set_title(title, parse_math=False, fontsize=11, **style)


def _most_probable(runs: Sequence[Explanation]) -> list[str]:
    """Return the labels to draw, in their order; of many labels, those that are most probable in one of the runs."""
    labels = list(runs[0].maps)
    highest = {label: max(run.probabilities[label] for run in runs) for label in labels}
    ranked = sorted(labels, key=lambda label: -highest[label])
    drawn = set(ranked[:MAX_LABELS])
    return [label for label in labels if label in drawn]


def _title(explanation: Explanation, drawn: int) -> str:
    """Return the caption of a photograph with `drawn` heat maps: its name, and why some or all maps are missing."""
    name = _drawable(explanation.path.name)
    if len(name) > MAX_NAME:
        name = f"{name[: MAX_NAME - 1]}…"
    if not explanation.maps:
        return f"{name}\nno label assigned"
    if drawn == len(explanation.maps):
        return name
    return f"{name}\nthe {drawn} most probable of {len(explanation.maps)} labels"


def _drawable(text: str) -> str:
    """Replace the characters that the font may not have by question marks.

    >>> _drawable("café 猫.jpg")
    'café ?.jpg'
    """
    return "".join(char if char.isprintable() and ord(char) < FIRST_MISSING else "?" for char in text)


def relative(heat: Float[ndarray, "H W"]) -> Float[ndarray, "H W"]:
    """Divide a map by its largest entry; a map of zeros stays as it is.

    >>> import numpy as np
    >>> relative(np.array([[1.0, 2.0]])), relative(np.zeros((1, 2)))
    (array([[0.5, 1. ]]), array([[0., 0.]]))
    """
    largest = heat.max()
    return heat / largest if largest > 0 else heat
