"""The files that a run writes apart from its results: its inputs, its views, its log and run.json."""

import io
import time
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
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
from probmcl.run.batches import ImageBatchSource
from probmcl.run.results import CandidateEntries
from probmcl.runtime.distributed import is_main_process
from probmcl.runtime.tensor_files import content_digest
from probmcl.settings import CONFIG_FILE, Settings
from probmcl.store.files import FOLDS, LABELS, METADATA, METRICS, SPLIT
from probmcl.store.run_folder import RunFolder, refuse_used
from probmcl.store.run_metadata import ClassLabels, FoldRow, RunMetadata, RunStatus, SplitRow, StoredPolicy, environment
from probmcl.training import MetricsLog

TILE = 160  # width of a view in pixels; smaller views are enlarged by an integer factor, larger ones reduced
SAMPLE = 20_000  # number of random training images to choose from
GAP, LINE, FONT, CHARACTER = 4, 24, 12, 7.23  # in pixels: gap, line height, font size, width of a character
LONGEST_NAME = 40
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
        self.metadata = replace(
            self.metadata, status=status, seconds=round(self.seconds(), 1), warnings=tuple(self.log.warnings)
        )
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
        self.log.warnings[:] = others
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
    space, states = records.label_space, records.states
    chances = zip(space.names, states.chance.tolist(), strict=True)
    counts = states.counts().sum(axis=1)
    policy = StoredPolicy(
        unknown="labels that are not known are ignored everywhere",
        blank=options.blank or None,
        minus_one=options.minus_one or None,
        chance_of_uncertain={name: chance for name, chance in chances if chance == chance},  # NaN: unknown
        labels={state.name.lower(): int(count) for state, count in zip(State, counts, strict=True)},
    )
    hierarchy = None if space.hierarchy is None else dict(space.hierarchy)
    return ClassLabels(names=space.names, counts=tuple(space.counts.tolist()), hierarchy=hierarchy, policy=policy)


def records_digest(records: Records) -> str:
    """Return a hash of the image paths, labels and splits."""
    texts = ["\n".join(part) for part in (records.paths.texts, records.split, records.label_space.names)]
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    return content_digest([*encoded, records.states.digest()]).hex()


def write_split_scores(
    run: RunFolder, folder: Path, records: Records, split: Split, scores: Float[Tensor, "N C"]
) -> None:
    """Write the paths, raw scores and labels of a split to the folder of a run or of one of its candidates."""
    rows = records.rows(split)
    paths = [str(records.paths[row]) for row in rows]
    write_scores(scores_file(folder, split), paths, ScoredRows.of(records, rows, scores.numpy()), root=run.path)


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
