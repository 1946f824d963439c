"""A contact sheet of training images with their labels and augmented views, to spot bad crops, colors or labels."""

import io
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from probmcl.data.images import Preprocessing
from probmcl.data.loader import ImageBatches
from probmcl.data.records import Records
from probmcl.run.batches import ImageBatchSource

TILE = 160  # width of a view in pixels; smaller views are enlarged by an integer factor, larger ones reduced
SAMPLE = 20_000  # number of random training images to choose from
GAP, LINE, FONT, CHARACTER = 4, 24, 12, 7.23  # in pixels: gap, line height, font size, width of a character
LONGEST_NAME = 40
BLACK, GRAY = "#000000", "#6e6e6e"


def views_sheet(source: ImageBatchSource, *, n_images: int = 16, n_views: int = 4) -> Image.Image:
    """Draw training images in two columns: labels, the plain view, and the augmented views of the first epoch.

    The images are chosen to show many classes, using the seed of the source. A view is the encoder's input tensor
    without normalization. Unknown labels are shown in gray with a question mark.
    """
    from matplotlib.figure import Figure

    rows = choose(source.records, n_images, source.seed)
    names = [drawable(name, number) for number, name in enumerate(source.records.label_space.names)]
    tile = TILE if source.preprocessing.size > TILE else source.preprocessing.size * (TILE // source.preprocessing.size)
    width, height = (1 + n_views) * (tile + GAP) + 2 * GAP, LINE + tile + 2 * GAP  # of one image and its views
    page = np.full((LINE + (len(rows) + 1) // 2 * height, max(1, min(2, len(rows))) * width, 3), 255, dtype=np.uint8)
    figure = Figure(figsize=(page.shape[1] / 72, page.shape[0] / 72), dpi=72)  # a point is a pixel

    def write(x: int | float, y: int, text: str, color: str) -> None:
        style: dict[str, Any] = {"family": "DejaVu Sans Mono", "fontsize": FONT, "va": "center_baseline"}
        position = x / page.shape[1], 1 - (y + LINE / 2) / page.shape[0]
        figure.text(*position, text, color=color, parse_math=False, **style)

    for left in range(GAP, page.shape[1] if rows else 0, width):
        write(left, 0, "plain view"[: int(tile / CHARACTER)], GRAY)
        write(left + tile + GAP, 0, "augmented training views"[: int(n_views * tile / CHARACTER)], GRAY)
    order = [[(0, row)] for row in rows]
    batches = ImageBatches(source.records, order, source.preprocessing, n_augmented=n_views, make_view=source.view)
    for number, (row, batch) in enumerate(zip(rows, batches, strict=True)):
        x, y = number % 2 * width + GAP, LINE + number // 2 * height
        for text, start, color in _caption(source.records, row, names, int((width - 3 * GAP) / CHARACTER)):
            write(x + start * CHARACTER, y, text, color)
        for view, tensor in enumerate(batch.views[:, 0]):
            left, top = x + view * (tile + GAP), y + LINE
            image = Image.fromarray(pixels(tensor, source.preprocessing))
            method = Image.Resampling.NEAREST if tile >= image.width else Image.Resampling.LANCZOS
            page[top : top + tile, left : left + tile] = np.asarray(image.resize((tile, tile), method))
    figure.figimage(page, zorder=-1)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="rgba", dpi=72)
    return Image.frombytes("RGBA", page.shape[1::-1], drawn.getvalue()).convert("RGB")


def choose(records: Records, n_images: int, seed: int) -> list[int]:
    """Choose training images, each a random image of the class with the fewest chosen images so far."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(records.rows("train"))[:SAMPLE]
    labels, known = records.states.labels_and_known(rows)
    present = (labels > 0) & known
    shown, free = rng.random(present.shape[1]), np.ones(len(rows), dtype=bool)  # random values break ties
    chosen: list[int] = []
    while len(chosen) < n_images and free.any():
        available = present[free].any(axis=0)
        of_class = present[:, np.where(available, shown, np.inf).argmin()] if available.any() else free
        first = int((free & of_class).argmax())
        free[first] = False
        shown = shown + present[first]
        chosen.append(int(rows[first]))
    return chosen


def pixels(view: Float[Tensor, "3 S S"], preprocessing: Preprocessing) -> UInt8[ndarray, "S S 3"]:
    """Return the pixels of a normalized view.

    >>> half = Preprocessing(size=1, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    >>> pixels(half.tensor(Image.new("RGB", (1, 1), (7, 8, 9))), half)
    array([[[7, 8, 9]]], dtype=uint8)
    """
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    scaled = ((view * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    return scaled.permute(1, 2, 0).numpy()


def _caption(records: Records, row: int, names: Sequence[str], room: int) -> list[tuple[str, int, str]]:
    """Return the present and the unknown labels of an image as (text, offset in characters, color)."""
    labels, known = records.states.labels_and_known(np.array([row]))
    present = [names[k] for k in np.flatnonzero((labels[0] > 0) & known[0]).tolist()]
    unknown = [f"{names[k]}?" for k in np.flatnonzero(~known[0]).tolist()]
    text = fit_names(present, room) if present else "no labels"
    start = len(text) + 3
    parts = [(text, 0, BLACK if present else GRAY)]
    return [*parts, (fit_names(unknown, room - start), start, GRAY)] if unknown and start < room else parts


def drawable(name: str, number: int) -> str:
    """Return a name that the font can draw: the name, possibly truncated or without accents, or the class number.

    >>> drawable("traffic light", 9), drawable("Café", 3), drawable("猫", 7)
    ('traffic light', 'Café', 'class 7')
    """
    from matplotlib.font_manager import findfont, get_font

    available = get_font(findfont("DejaVu Sans Mono")).get_charmap()
    plain = "".join(char for char in unicodedata.normalize("NFKD", name) if not unicodedata.combining(char))
    for text in (unicodedata.normalize("NFC", name), plain):
        if all(ord(char) in available and not unicodedata.combining(char) for char in text):
            return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
    return f"class {number}"


def fit_names(names: Sequence[str], room: int) -> str:
    """Return the names that fit into `room` characters, and the number of names left out.

    >>> fit_names(["cat", "dog", "owl"], 13), fit_names(["cat", "dog", "owl"], 12), fit_names(["giraffe"], 5)
    ('cat, dog, owl', 'cat, dog +1', 'gira…')
    """
    for kept in range(len(names), 0, -1):
        text = ", ".join(names[:kept]) + (f" +{len(names) - kept}" if kept < len(names) else "")
        if len(text) <= room:
            return text
    return names[0][: room - 1] + "…"
