"""The files that a run writes apart from its results: its inputs, its views, its log and run.json."""

import io
import math
import time
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, UInt8
from msgspec.structs import replace
from numpy import ndarray
from PIL import Image
from torch import Tensor

from probmcl.audit.prepare import PreparedData
from probmcl.console import Console
from probmcl.data.image_files import read_all, write_signatures
from probmcl.data.images import Preprocessing
from probmcl.data.labels import State
from probmcl.data.loader import ImageBatches
from probmcl.data.records import Records, Split
from probmcl.errors import RunWarning
from probmcl.evaluation.scores import ScoredRows, scores_file, write_scores
from probmcl.readers.options import METADATA_FILE, ReadOptions
from probmcl.run.activation_cache import ImageBatchSource
from probmcl.run.results import CandidateEntries
from probmcl.runtime.distributed import is_main_process
from probmcl.runtime.tensor_files import content_digest
from probmcl.settings import CONFIG_FILE, Settings
from probmcl.store.files import FOLDS, LABELS, METADATA, METRICS, SPLIT
from probmcl.store.run_folder import RunFolder, refuse_used
from probmcl.store.run_metadata import ClassLabels, FoldRow, RunMetadata, RunStatus, SplitRow, StoredPolicy, environment
from probmcl.training import MetricsLog

TILE = 160
"""Largest width of a view in the picture of views, in pixels.

Smaller views are enlarged by an integer factor, and larger ones are reduced.
"""

SAMPLE = 20_000
"""Number of random training images from which the images of the picture are chosen."""

GAP, LINE = 4, 24
"""The space between two views and the height of a line of text, in pixels."""

FONT, CHARACTER = 12, 7.23
"""The font size and the width of a character in this size, in pixels."""

LONGEST_NAME = 40
"""Largest number of characters of a class name in the picture."""

BLACK, GRAY = "#000000", "#6e6e6e"


class RunRecord:
    """The record of a run in progress. Rank 0 writes it to run.json.

    Attributes:
        log: the training log, which also holds the warnings of the run.
        metadata: the content of run.json.
    """

    def __init__(self, folder: RunFolder, console: Console) -> None:
        self.folder = folder
        self.console = console
        self.metadata = folder.read(METADATA)
        earlier_attempts = self.metadata.seconds
        self.started = time.perf_counter() - earlier_attempts
        self.log = MetricsLog(folder.path / METRICS, on_warning=self._print_warning)
        self.log.warnings += self.metadata.warnings

    def seconds(self) -> float:
        """Return the duration of the run over all attempts."""
        return time.perf_counter() - self.started

    def write(self, status: RunStatus, entries: CandidateEntries | None) -> None:
        """Write run.json with this status and the candidates so far, and the table of metrics."""
        seconds = round(self.seconds(), 1)
        self.metadata = replace(self.metadata, status=status, seconds=seconds, warnings=tuple(self.log.warnings))
        if entries is not None:
            self.metadata = replace(
                self.metadata, candidates=entries.candidates, kept=entries.kept, model=entries.model
            )
        if is_main_process():
            self.folder.write(METADATA, self.metadata)
            self.log.close()

    def add_test_scores(self, scores: dict[str, float | None]) -> None:
        """Add the test mAP of every tested candidate, by its name."""
        self.metadata = replace(self.metadata, test_mAP=scores)

    def replace_warning(self, warning: RunWarning) -> None:
        """Store a warning in place of those of the same kind from an interrupted attempt; an empty one removes them."""
        others = [stored for stored in self.log.warnings if stored.kind != warning.kind]
        self.log.warnings[:] = others  # in place, since the log owns the list
        if warning.message:
            self.log.warnings.append(warning)

    def _print_warning(self, warning: RunWarning) -> None:
        self.console.print(f"warning: {warning.message}")


def create_run(folder: RunFolder, data: PreparedData, settings: Settings, console: Console) -> None:
    """Write the inputs of a run to a new or empty folder. run.json comes last because it marks the folder as a run."""
    records = data.records
    signatures = read_all(records.paths, console) if data.signatures is None else data.signatures
    options = data.source.options if data.source else ReadOptions()
    refuse_used(folder.path)
    folder.write(CONFIG_FILE, settings)
    folder.write(LABELS, class_labels(records, options))
    write_split(folder, records, data.fold_of)
    write_signatures(folder.path, records.paths, signatures)
    folder.seal_inputs()
    started = environment()
    metadata = RunMetadata(
        command=started.command,
        seed=settings.seed,
        versions=started.versions,
        commit=started.commit,
        started=started.started,
        data=data.source,
        records=records_digest(records),
        duplicates=None if data.duplicates is None else dict(data.duplicates),
        status="running",
        seconds=0.0,
        warnings=tuple(data.warnings),
        candidates=(),
        kept=None,
        model=None,
    )
    folder.write(METADATA_FILE, metadata)


def write_split(folder: RunFolder, records: Records, fold_of: Int[ndarray, "N"] | None = None) -> None:
    """Write the split of every image, and its fold if there are folds."""
    paths = records.paths.texts
    folder.write_rows(SPLIT, map(SplitRow, paths, records.split))
    if fold_of is not None:
        folder.write_rows(FOLDS, map(FoldRow, paths, fold_of.tolist()))


def class_labels(records: Records, options: ReadOptions) -> ClassLabels:
    """Return the content of labels.json: class names, training positives, parents, and the label policy."""
    space = records.label_space
    chance_of_class = zip(space.names, records.states.chance.tolist(), strict=True)
    labels_by_state = records.states.counts().sum(axis=1)
    policy = StoredPolicy(
        unknown="labels that are not known are ignored everywhere",
        blank=options.blank or None,
        minus_one=options.minus_one or None,
        chance_of_uncertain={name: chance for name, chance in chance_of_class if not math.isnan(chance)},
        labels={state.name.lower(): int(count) for state, count in zip(State, labels_by_state, strict=True)},
    )
    hierarchy = None if space.hierarchy is None else dict(space.hierarchy)
    return ClassLabels(names=space.names, counts=tuple(space.counts.tolist()), hierarchy=hierarchy, policy=policy)


def records_digest(records: Records) -> str:
    """Return a hash of the image paths, labels and splits."""
    texts: list[bytes] = []
    for lines in (records.paths.texts, records.split, records.label_space.names):
        text = "\n".join(lines)
        texts.append(text.encode("utf-8", "surrogateescape"))  # a path may have bytes that are not UTF-8
    return content_digest([*texts, records.states.digest()]).hex()


def write_split_scores(
    run: RunFolder, folder: Path, records: Records, split: Split, scores: Float[Tensor, "N C"]
) -> None:
    """Write the paths, raw scores and labels of a split to the folder of a run or of one of its candidates."""
    rows = records.rows(split)
    paths = [str(records.paths[row]) for row in rows]
    scored = ScoredRows.of(records, rows, scores.numpy())
    write_scores(scores_file(folder, split), paths, scored, root=run.path)


def views_sheet(source: ImageBatchSource, *, n_images: int = 16, n_views: int = 4) -> Image.Image:
    """Draw training images in two columns: labels, the plain view, and the augmented views of the first epoch.

    The images are chosen to show many classes, using the seed of the source. A view is the encoder's input tensor
    without normalization. Unknown labels are shown in gray with a question mark.
    """
    rows = choose(source.records, n_images, source.seed)
    names = [drawable(name, number) for number, name in enumerate(source.records.label_space.names)]
    tile = TILE  # side of a view on the page, in pixels
    if source.preprocessing.size <= TILE:
        whole_factor = TILE // source.preprocessing.size  # enlarges all pixels of a small view alike
        tile = source.preprocessing.size * whole_factor
    cell_width = (1 + n_views) * (tile + GAP) + 2 * GAP  # a cell has an image, its views and its labels
    cell_height = LINE + tile + 2 * GAP
    columns = min(2, len(rows))
    cell_rows = (len(rows) + 1) // 2
    page = _Page(max(1, columns) * cell_width, LINE + cell_rows * cell_height)

    for column in range(columns):
        left = column * cell_width + GAP
        page.write(left, 0, _cut_to_width("plain view", tile), GRAY)
        page.write(left + tile + GAP, 0, _cut_to_width("augmented training views", n_views * tile), GRAY)
    order = [[(0, row)] for row in rows]  # batches of one image, in epoch 0
    batches = ImageBatches(source.records, order, source.preprocessing, n_augmented=n_views, make_view=source.view)
    for number, (row, batch) in enumerate(zip(rows, batches, strict=True)):
        cell_row, column = divmod(number, 2)
        left = column * cell_width + GAP
        top = LINE + cell_row * cell_height
        room = int((cell_width - 3 * GAP) / CHARACTER)  # characters that fit into a cell
        for part in _caption(source.records, row, names, room):
            page.write(left + part.start * CHARACTER, top, part.text, part.color)
        views = batch.views[:, 0]  # (1 + n_views, 3, S, S)
        for view, tensor in enumerate(views):
            image = _resized(Image.fromarray(pixels(tensor, source.preprocessing)), tile)
            page.place(left + view * (tile + GAP), top + LINE, image)
    return page.picture()


def _resized(image: Image.Image, side: int) -> Image.Image:
    """Return a square image with this side; the pixels of an enlarged image stay visible."""
    is_enlarged = side >= image.width
    method = Image.Resampling.NEAREST if is_enlarged else Image.Resampling.LANCZOS
    return image.resize((side, side), method)


class _Page:
    """A white page. Texts and images are placed on it by their top left corner, in pixels."""

    def __init__(self, width: int, height: int) -> None:
        from matplotlib.figure import Figure

        self.width = width
        self.height = height
        self.pixels = np.full((height, width, 3), 255, dtype=np.uint8)
        self.figure = Figure(figsize=(width / 72, height / 72), dpi=72)  # a point is a pixel

    def write(self, left: int | float, top: int, text: str, color: str) -> None:
        """Write a line of text; `top` is the top of the line."""
        style: dict[str, Any] = {"family": "DejaVu Sans Mono", "fontsize": FONT, "va": "center_baseline"}
        x = left / self.width
        y = 1 - (top + LINE / 2) / self.height  # in matplotlib, the bottom is 0
        self.figure.text(x, y, text, color=color, parse_math=False, **style)

    def place(self, left: int, top: int, image: Image.Image) -> None:
        """Copy an image to the page."""
        self.pixels[top : top + image.height, left : left + image.width] = np.asarray(image)

    def picture(self) -> Image.Image:
        """Return the finished page."""
        self.figure.figimage(self.pixels, zorder=-1)  # behind the texts
        drawn = io.BytesIO()
        self.figure.savefig(drawn, format="rgba", dpi=72)
        return Image.frombytes("RGBA", (self.width, self.height), drawn.getvalue()).convert("RGB")


def _cut_to_width(text: str, width: int) -> str:
    """Return the beginning of a text that fits into a width in pixels."""
    return text[: int(width / CHARACTER)]


def choose(records: Records, n_images: int, seed: int) -> list[int]:
    """Choose training images, each a random image of the class with the fewest chosen images so far."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(records.rows("train"))[:SAMPLE]
    labels, known = records.states.labels_and_known(rows)
    present = (labels > 0) & known
    times_shown = rng.random(len(records.label_space))  # of each class; the random fractions break ties
    free = np.ones(len(rows), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < n_images and free.any():
        image = _free_image_of_rarest_class(present, times_shown, free)
        free[image] = False
        times_shown = times_shown + present[image]
        chosen.append(int(rows[image]))
    return chosen


def _free_image_of_rarest_class(
    present: Bool[ndarray, "N C"], times_shown: Float64[ndarray, "C"], free: Bool[ndarray, "N"]
) -> int:
    """Return the first free image of the class that was shown least, among the classes that a free image has.

    If no free image has a class, it is the first free image.
    """
    is_available = present[free].any(axis=0)
    if not is_available.any():
        return int(free.argmax())
    rarest = np.where(is_available, times_shown, np.inf).argmin()
    images = free & present[:, rarest]
    return int(images.argmax())


def pixels(view: Float[Tensor, "3 S S"], preprocessing: Preprocessing) -> UInt8[ndarray, "S S 3"]:
    """Return the pixels of a normalized view.

    >>> half = Preprocessing(size=1, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    >>> pixels(half.tensor(Image.new("RGB", (1, 1), (7, 8, 9))), half)
    array([[[7, 8, 9]]], dtype=uint8)
    """
    mean = torch.tensor(preprocessing.mean).view(3, 1, 1)
    std = torch.tensor(preprocessing.std).view(3, 1, 1)
    scaled = ((view * std + mean) * 255).round().clamp(0, 255)
    return scaled.to(torch.uint8).permute(1, 2, 0).numpy()


class _CaptionPart(NamedTuple):
    """A text in the caption of an image, its offset in characters, and its color."""

    text: str
    start: int
    color: str


def _caption(records: Records, row: int, names: Sequence[str], room: int) -> list[_CaptionPart]:
    """Return the present and then the unknown labels of an image, in a line with room for `room` characters."""
    labels, known = records.states.labels_and_known(np.array([row]))
    is_present = (labels[0] > 0) & known[0]
    present = [names[label] for label in np.flatnonzero(is_present).tolist()]
    unknown = [f"{names[label]}?" for label in np.flatnonzero(~known[0]).tolist()]
    first = _CaptionPart("no labels", 0, GRAY)
    if present:
        first = _CaptionPart(fit_names(present, room), 0, BLACK)
    parts = [first]
    start = len(first.text) + 3
    if unknown and start < room:
        parts.append(_CaptionPart(fit_names(unknown, room - start), start, GRAY))
    return parts


def drawable(name: str, number: int) -> str:
    """Return a name that the font can draw: the name, possibly truncated or without accents, or the class number.

    >>> drawable("traffic light", 9), drawable("Café", 3), drawable("猫", 7)
    ('traffic light', 'Café', 'class 7')
    """
    from matplotlib.font_manager import findfont, get_font

    drawable_characters = get_font(findfont("DejaVu Sans Mono")).get_charmap()
    composed = unicodedata.normalize("NFC", name)  # letters with their accents, such as é
    decomposed = unicodedata.normalize("NFKD", name)
    without_accents = "".join(char for char in decomposed if not unicodedata.combining(char))
    for text in (composed, without_accents):
        if all(ord(char) in drawable_characters and not unicodedata.combining(char) for char in text):
            return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"
    return f"class {number}"


def fit_names(names: Sequence[str], room: int) -> str:
    """Return the names that fit into `room` characters, and the number of names left out.

    >>> fit_names(["cat", "dog", "owl"], 13), fit_names(["cat", "dog", "owl"], 12), fit_names(["giraffe"], 5)
    ('cat, dog, owl', 'cat, dog +1', 'gira…')
    """
    for kept in range(len(names), 0, -1):
        left_out = len(names) - kept
        text = ", ".join(names[:kept])
        if left_out:
            text += f" +{left_out}"
        if len(text) <= room:
            return text
    return names[0][: room - 1] + "…"
