"""A sheet of training images: what the encoder gets, what augmentation makes of it, and the labels that go with it.

A crop that cuts the object off, colors that no camera makes, a label that is not in the picture: a look finds them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from probmcl.data.images import Preprocessing
from probmcl.data.loader import ImageBatches
from probmcl.data.records import Records
from probmcl.run.image_batches import ImageBatchSource

TILE = 160
"""About how many pixels wide a view is shown: a smaller one is enlarged by a whole number, a larger one reduced."""

LOOKED_AT = 20_000
"""Training images, drawn at random, among which those are chosen that are shown."""

GAP, LINE, TEXT = 4, 24, 15
LONGEST = 40  # characters of a name
GRAY, BLACK, WHITE = (110, 110, 110), (0, 0, 0), (255, 255, 255)
Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont
NO_CHARACTER = "\uffff"  # for which every font has only the mark of what it lacks


@dataclass(frozen=True)
class Layout:
    """Where things stand: two images beside each other, each with a caption above its plain view and augmented ones.

    >>> Layout(tile=10, n_images=3, n_views=1).box(2, 0)
    (8, 90, 18, 100)
    """

    tile: int
    n_images: int
    n_views: int

    @property
    def size(self) -> tuple[int, int]:
        """Of the whole sheet."""
        across, down = min(2, self.n_images), (self.n_images + 1) // 2
        return across * self._group + GAP, LINE + down * (LINE + self.tile + 2 * GAP) + GAP

    @property
    def width(self) -> int:
        """Of the views of an image, and of their caption."""
        return (1 + self.n_views) * (self.tile + GAP) - GAP

    @property
    def _group(self) -> int:
        return self.width + 4 * GAP

    def corner(self, image: int) -> tuple[int, int]:
        """Where the caption of an image begins."""
        return 2 * GAP + image % 2 * self._group, LINE + image // 2 * (LINE + self.tile + 2 * GAP)

    def box(self, image: int, view: int) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of a view; view 0 is the plain one."""
        left, top = self.corner(image)
        left, top = left + view * (self.tile + GAP), top + LINE
        return left, top, left + self.tile, top + self.tile


def views_sheet(feed: ImageBatchSource, *, n_images: int = 16, n_views: int = 4) -> Image.Image:
    """Show training images: the plain view, then views as the first epoch draws them, under the labels.

    The images are drawn by the feed's seed, so that many classes are shown. What is shown is the tensor that the
    encoder gets, brought back to colors. Labels that are not known follow in gray, with a question mark.
    """
    rows = choose(feed.records, n_images, feed.seed)
    layout = Layout(_tile(feed.preprocessing.size), len(rows), n_views)
    sheet = Image.new("RGB", layout.size, WHITE)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(TEXT)
    names = [written(name, number, font) for number, name in enumerate(feed.records.label_space.names)]
    for number in range(min(2, len(rows))):
        _write_heading(pen, layout.corner(number)[0], layout, font)
    for number, (row, views) in enumerate(zip(rows, _views(feed, rows, n_views), strict=True)):
        _write_labels(pen, layout.corner(number), _labels(feed.records, row, names), layout.width, font)
        for view, tensor in enumerate(views):
            sheet.paste(_shown(tensor, feed.preprocessing, layout.tile), layout.box(number, view))
    return sheet


def choose(records: Records, n_images: int, seed: int) -> list[int]:
    """Rows of training images: each next one is a random image of a class that was shown least so far."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(records.rows("train"))[:LOOKED_AT]
    labels, known = records.states.labels_and_known(rows)
    present = (labels > 0) & known
    shown, free = rng.random(present.shape[1]), np.ones(len(rows), dtype=bool)  # at random among equals
    chosen: list[int] = []
    while len(chosen) < n_images and free.any():
        waiting = present[free].any(axis=0)
        of_class = present[:, np.where(waiting, shown, np.inf).argmin()] if waiting.any() else free
        first = int((free & of_class).argmax())
        free[first] = False
        shown = shown + present[first]
        chosen.append(int(rows[first]))
    return chosen


def _views(feed: ImageBatchSource, rows: Sequence[int], n_views: int) -> list[Float[Tensor, "V 3 S S"]]:
    order = [[(0, row)] for row in rows]
    batches = ImageBatches(feed.records, order, feed.preprocessing, n_augmented=n_views, make_view=feed.view)
    return [batch.views[:, 0] for batch in batches]


def _tile(size: int) -> int:
    return TILE if size > TILE else size * (TILE // size)


def _shown(view: Float[Tensor, "3 S S"], preprocessing: Preprocessing, tile: int) -> Image.Image:
    image = Image.fromarray(colors(view, preprocessing))
    enlarge, reduce = Image.Resampling.NEAREST, Image.Resampling.LANCZOS
    return image.resize((tile, tile), enlarge if tile >= preprocessing.size else reduce)


def colors(view: Float[Tensor, "3 S S"], preprocessing: Preprocessing) -> UInt8[ndarray, "S S 3"]:
    """The pixels that a tensor was made of: preprocessing undone.

    >>> half = Preprocessing(size=1, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    >>> colors(half.tensor(Image.new("RGB", (1, 1), (7, 8, 9))), half)
    array([[[7, 8, 9]]], dtype=uint8)
    """
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    pixels = ((view * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
    shown: UInt8[ndarray, "S S 3"] = pixels.permute(1, 2, 0).numpy()
    return shown


# Words.


def _write_heading(pen: ImageDraw.ImageDraw, left: int, layout: Layout, font: Font) -> None:
    second = left + layout.tile + GAP
    pen.text((left, 2), _cut("plain view", layout.tile, font), GRAY, font)
    pen.text((second, 2), _cut("views as training makes them", left + layout.width - second, font), GRAY, font)


def _write_labels(
    pen: ImageDraw.ImageDraw, corner: tuple[int, int], labels: tuple[list[str], list[str]], width: int, font: Font
) -> None:
    left, top = corner
    present, unknown = labels
    text = _cut_list(present, width, font) if present else "no labels"
    pen.text((left, top + 2), text, BLACK if present else GRAY, font)
    used = round(font.getlength(text + "   "))
    if unknown and used < width:
        pen.text((left + used, top + 2), _cut_list(unknown, width - used, font), GRAY, font)


def _labels(records: Records, row: int, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The labels that an image has, and those of which it is not known whether it has them."""
    labels, known = records.states.labels_and_known(np.array([row]))
    present, unknown = np.flatnonzero((labels[0] > 0) & known[0]), np.flatnonzero(~known[0])
    return [names[k] for k in present.tolist()], [f"{names[k]}?" for k in unknown.tolist()]


def written(name: str, number: int, font: Font) -> str:
    """A name in characters that the font has: without accents, or else as the number of its class; not too long.

    >>> font = ImageFont.load_default(15)
    >>> written("traffic light", 9, font), written("Café", 3, font), written("猫", 7, font)
    ('traffic light', 'Cafe', 'class 7')
    """
    bare = "".join(mark for mark in unicodedata.normalize("NFKD", name) if not unicodedata.combining(mark))
    for text in (name, bare):
        if all(_has(font, mark) for mark in text):
            return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f"class {number}"


def _has(font: Font, mark: str) -> bool:
    return bytes(font.getmask(mark)) != bytes(font.getmask(NO_CHARACTER))


def _cut_list(names: Sequence[str], width: int, font: Font) -> str:
    """As many names as fit, and how many more there are; a first one that is too long alone is cut."""
    fitting = _cut(names[0], width, font)
    for kept in range(1, len(names) + 1):
        text = ", ".join(names[:kept])
        if font.getlength(text) > width:
            break
        text += f" +{len(names) - kept}" if kept < len(names) else ""
        fitting = text if font.getlength(text) <= width else fitting
    return fitting


def _cut(text: str, width: int, font: Font) -> str:
    while text and font.getlength(text) > width:
        text = text.removesuffix("…")[:-1] + "…" if len(text) > 1 else ""
    return text
