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
    for explanations in zip(*runs.values(), strict=True):
        path, error = explanations[0].path, explanations[0].error
        try:
            if error is not None:
                raise ImageError(path, error)
            sheet = draw_sheet(read_image(path, SIDE), dict(zip(runs, explanations, strict=True)), captions)
            atomic_write(folder / f"{_new_stem(path.stem, stems)}.png", sheet)
        except ImageError as problem:
            errors[path] = problem.reason
        advance()
    return errors


def _new_stem(stem: str, used: set[str]) -> str:
    """Return a file name that was not used before, and mark it as used; case does not make a difference."""
    number, name = 1, stem
    while name.casefold() in used:
        number, name = number + 1, f"{stem}-{number + 1}"
    used.add(name.casefold())
    return name


def draw_sheet(photo: Image.Image, runs: Mapping[str, Explanation], captions: Mapping[str, str]) -> bytes:
    """Draw a photograph and the heat maps of its labels, one row per run, as a PNG file."""
    from matplotlib.figure import Figure

    scale = SIDE / max(photo.size)
    photo = photo.resize((max(1, round(photo.width * scale)), max(1, round(photo.height * scale))))
    labels = _most_probable(list(runs.values()))
    blocks = [labels[first : first + COLUMNS] for first in range(0, len(labels), COLUMNS)] or [[]]
    rows = [(run, explanation, block) for block in blocks for run, explanation in runs.items()]
    width, height = max(photo.width, MIN_WIDTH) + GAP, photo.height + TITLE  # of a cell, in pixels
    page = (1 + len(blocks[0])) * width + MARGIN, len(rows) * height + GAP
    figure = Figure(figsize=(page[0] / DPI, page[1] / DPI), dpi=DPI)
    for number, (run, explanation, block) in enumerate(rows):
        # A layout engine would take most of the time.
        bottom = 1 - ((number + 1) * height) / page[1]
        lefts = [(MARGIN + column * width + (width - photo.width) // 2) / page[0] for column in range(1 + len(block))]
        shape = photo.width / page[0], photo.height / page[1]
        axes = [figure.add_axes((left, bottom, *shape)) for left in lefts]
        _draw_row(axes, photo, explanation, block, captions)
        if len(runs) > 1:
            axes[0].set_ylabel(_drawable(run), parse_math=False, fontsize=11)
        if number == 0:
            axes[0].set_title(_title(explanation, len(labels)), parse_math=False, fontsize=10)
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    return png.getvalue()


def _draw_row(
    axes: Sequence[Axes],
    photo: Image.Image,
    explanation: Explanation,
    labels: Sequence[str],
    captions: Mapping[str, str],
) -> None:
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_frame_on(False)
    axes[0].imshow(photo)
    for axis, label in zip(axes[1:], labels, strict=False):
        heat = explanation.enlarged(label, width=photo.width, height=photo.height)
        axis.imshow(photo.convert("L"), cmap="gray", vmin=0, vmax=255)  # gray, so the colors are those of the heat map
        axis.imshow(relative(heat), cmap=COLORS, alpha=OPACITY * relative(heat), vmin=0, vmax=1)
        note = "" if heat.any() else "\nno positive evidence"
        title = f"{captions[label]} {explanation.probabilities[label]:.2f}{note}"
        style: dict[str, Any] = {"fontweight": "bold"} if label in explanation.decided else {"color": "#555555"}
        axis.set_title(title, parse_math=False, fontsize=11, **style)


def _most_probable(runs: Sequence[Explanation]) -> list[str]:
    """Return the labels to draw, in their order; of many labels, those that are most probable in one of the runs."""
    labels = list(runs[0].maps)
    ranked = sorted(labels, key=lambda label: -max(run.probabilities[label] for run in runs))
    return [label for label in labels if label in set(ranked[:MAX_LABELS])]


def _title(explanation: Explanation, drawn: int) -> str:
    name = _drawable(explanation.path.name)
    name = name if len(name) <= 32 else f"{name[:31]}…"
    if drawn == len(explanation.maps):
        return name if drawn else f"{name}\nno label assigned"
    return f"{name}\nthe {drawn} most probable of {len(explanation.maps)} labels"


def _drawable(text: str) -> str:
    """Replace the characters that the font may not have.

    >>> _drawable("café 猫.jpg")
    'café ?.jpg'
    """
    return "".join(char if char.isprintable() and ord(char) < 0x250 else "?" for char in text)


def relative(heat: Float[ndarray, "H W"]) -> Float[ndarray, "H W"]:
    """Divide a map by its largest entry; a map of zeros stays as it is.

    >>> import numpy as np
    >>> relative(np.array([[1.0, 2.0]])), relative(np.zeros((1, 2)))
    (array([[0.5, 1. ]]), array([[0., 0.]]))
    """
    largest = heat.max()
    return heat / largest if largest > 0 else heat
