"""A sheet of training images with their labels: it reveals bad crops, unnatural colors and labels that do not fit."""

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

TILE = 160  # pixels, about the width of a view: a smaller one is enlarged by a whole number, a larger one reduced
SAMPLE = 20_000  # training images, drawn at random, among which those are chosen that are shown
GAP, LINE, FONT, CHARACTER = 4, 24, 12, 7.23  # pixels: between views, line of text, monospaced font, character width
LONGEST_NAME = 40
BLACK, GRAY = "#000000", "#6e6e6e"


def views_sheet(feed: ImageBatchSource, *, n_images: int = 16, n_views: int = 4) -> Image.Image:
    """Draw training images in two columns: the plain view, then views as the first epoch makes them, under the labels.

    The images are drawn by the feed's seed so that many classes are shown. A view is the tensor that the encoder
    receives, with the normalization undone. Unknown labels follow in gray, with a question mark.
    """
    from matplotlib.figure import Figure

    rows = choose(feed.records, n_images, feed.seed)
    names = [drawable(name, number) for number, name in enumerate(feed.records.label_space.names)]
    tile = TILE if feed.preprocessing.size > TILE else feed.preprocessing.size * (TILE // feed.preprocessing.size)
    width, height = (1 + n_views) * (tile + GAP) + 2 * GAP, LINE + tile + 2 * GAP  # of an image with its views
    page = np.full((LINE + (len(rows) + 1) // 2 * height, max(1, min(2, len(rows))) * width, 3), 255, dtype=np.uint8)
    figure = Figure(figsize=(page.shape[1] / 72, page.shape[0] / 72), dpi=72)  # so that a point is a pixel

    def write(x: int | float, y: int, text: str, color: str) -> None:
        style: dict[str, Any] = {"family": "DejaVu Sans Mono", "fontsize": FONT, "va": "center_baseline"}
        place = x / page.shape[1], 1 - (y + LINE / 2) / page.shape[0]
        figure.text(*place, text, color=color, parse_math=False, **style)

    for left in range(GAP, page.shape[1] if rows else 0, width):
        write(left, 0, "plain view"[: int(tile / CHARACTER)], GRAY)
        write(left + tile + GAP, 0, "views as training makes them"[: int(n_views * tile / CHARACTER)], GRAY)
    order = [[(0, row)] for row in rows]
    batches = ImageBatches(feed.records, order, feed.preprocessing, n_augmented=n_views, make_view=feed.view)
    for number, (row, batch) in enumerate(zip(rows, batches, strict=True)):
        x, y = number % 2 * width + GAP, LINE + number // 2 * height
        for text, start, color in _caption(feed.records, row, names, int((width - 3 * GAP) / CHARACTER)):
            write(x + start * CHARACTER, y, text, color)
        for view, tensor in enumerate(batch.views[:, 0]):
            left, top = x + view * (tile + GAP), y + LINE
            image = Image.fromarray(pixels(tensor, feed.preprocessing))
            method = Image.Resampling.NEAREST if tile >= image.width else Image.Resampling.LANCZOS
            page[top : top + tile, left : left + tile] = np.asarray(image.resize((tile, tile), method))
    figure.figimage(page, zorder=-1)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="rgba", dpi=72)
    return Image.frombytes("RGBA", page.shape[1::-1], drawn.getvalue()).convert("RGB")


def choose(records: Records, n_images: int, seed: int) -> list[int]:
    """Choose rows of training images: each next one is a random image of a class that was shown least so far."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(records.rows("train"))[:SAMPLE]
    labels, known = records.states.labels_and_known(rows)
    present = (labels > 0) & known
    shown, free = rng.random(present.shape[1]), np.ones(len(rows), dtype=bool)  # random order among equals
    chosen: list[int] = []
    while len(chosen) < n_images and free.any():
        waiting = present[free].any(axis=0)
        of_class = present[:, np.where(waiting, shown, np.inf).argmin()] if waiting.any() else free
        first = int((free & of_class).argmax())
        free[first] = False
        shown = shown + present[first]
        chosen.append(int(rows[first]))
    return chosen


def pixels(view: Float[Tensor, "3 S S"], preprocessing: Preprocessing) -> UInt8[ndarray, "S S 3"]:
    """Return the pixels that a tensor was made of.

    >>> half = Preprocessing(size=1, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    >>> pixels(half.tensor(Image.new("RGB", (1, 1), (7, 8, 9))), half)
    array([[[7, 8, 9]]], dtype=uint8)
    """
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    scaled = ((view * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    return scaled.permute(1, 2, 0).numpy()


def _caption(records: Records, row: int, names: Sequence[str], room: int) -> list[tuple[str, int, str]]:
    """Return the present and the unknown labels of an image: text, first character, color."""
    labels, known = records.states.labels_and_known(np.array([row]))
    present = [names[k] for k in np.flatnonzero((labels[0] > 0) & known[0]).tolist()]
    unknown = [f"{names[k]}?" for k in np.flatnonzero(~known[0]).tolist()]
    text = fit_names(present, room) if present else "no labels"
    start = len(text) + 3
    parts = [(text, 0, BLACK if present else GRAY)]
    return [*parts, (fit_names(unknown, room - start), start, GRAY)] if unknown and start < room else parts


def drawable(name: str, number: int) -> str:
    """Return a name in characters that the font has: without accents, or else the number of the class; not too long.

    >>> drawable("traffic light", 9), drawable("Café", 3), drawable("猫", 7)
    ('traffic light', 'Café', 'class 7')
    """
    from matplotlib.font_manager import findfont, get_font

    available = get_font(findfont("DejaVu Sans Mono")).get_charmap()
    bare = "".join(mark for mark in unicodedata.normalize("NFKD", name) if not unicodedata.combining(mark))
    for text in (unicodedata.normalize("NFC", name), bare):
        if all(ord(mark) in available and not unicodedata.combining(mark) for mark in text):
            return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
    return f"class {number}"


def fit_names(names: Sequence[str], room: int) -> str:
    """Return as many names as fit into `room` characters, and the number of the others.

    >>> fit_names(["cat", "dog", "owl"], 13), fit_names(["cat", "dog", "owl"], 12), fit_names(["giraffe"], 5)
    ('cat, dog, owl', 'cat, dog +1', 'gira…')
    """
    for kept in range(len(names), 0, -1):
        text = ", ".join(names[:kept]) + (f" +{len(names) - kept}" if kept < len(names) else "")
        if len(text) <= room:
            return text
    return names[0][: room - 1] + "…"
