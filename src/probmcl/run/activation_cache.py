"""Batches of images or cached activations for training, probing and scoring.

The outputs of a frozen network are computed once for every view and cached on disk, so training on a CPU takes
minutes instead of hours. `ActivationCache` provides the same batches as `ImageBatchSource`.
"""

import copy
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from numpy import ndarray
from PIL import Image
from torch import Tensor, nn

from probmcl.augment import Augmentation, draw
from probmcl.console import ProgressBar
from probmcl.data.image_cache import ImageCache
from probmcl.data.images import Preprocessing
from probmcl.data.loader import ImageBatches, Order, in_order
from probmcl.data.records import Records, Split
from probmcl.errors import RunError, counted
from probmcl.runtime.distributed import barrier, gather_unequal, is_main_process, rank, shard, world_size
from probmcl.runtime.machine import CPU_PIXELS
from probmcl.runtime.tensor_files import ArrayFile, Block
from probmcl.store.files import PROGRESS, JsonFile
from probmcl.store.run_folder import RunFolder
from probmcl.training.features import FeatureBatches, StoredFeatures, StoredViews

SECONDS_APART = 5.0
"""Time between updates of a cache's manifest."""

NUMPY_DTYPES: dict[torch.dtype, type[np.generic]] = {torch.float16: np.float16, torch.float32: np.float32}
"""The types of stored activations."""

Part = Literal["plain", "augmented"]
"""A part of the file of a split: the plain views, or the augmented ones."""

Progress = Callable[[str, int], AbstractContextManager[ProgressBar]]
"""Opens a progress bar, given the name of a stage and its number of steps."""


@dataclass(frozen=True, eq=False)
class ImageBatchSource:
    """Batches of preprocessed images.

    With several processes, each training batch is divided among them; other batches are distributed whole.
    """

    records: Records
    preprocessing: Preprocessing
    augmentation: Augmentation
    seed: int = 0
    workers: int = 0
    pixels_at_once: int = CPU_PIXELS
    cache: ImageCache | None = None

    def training(self, *, n_views: int, batch_size: int, epochs: int, images: int | None = None) -> ImageBatches:
        """Return augmented views of the training split, shuffled in every epoch, up to `images` images in total."""
        order = Order(
            self.records.rows("train"),
            batch_size=batch_size,
            epochs=epochs,
            seed=self.seed,
            share=(rank(), world_size()),
            images=images,
            weights=weights_of(self.records, "train"),
        )
        return self._batches(order, n_plain=0, n_augmented=n_views)

    def plain(self, split: Split) -> ImageBatches:
        """Return the plain view of every image in a split, in order."""
        return self._in_order(split, n_plain=1, n_augmented=0)

    def augmented(self, split: Split, *, n_views: int) -> ImageBatches:
        """Return augmented views of every image in a split, in order."""
        return self._in_order(split, n_plain=0, n_augmented=n_views)

    def view(self, image: Image.Image, epoch: int, row: int, view: int) -> Image.Image:
        """Return an augmented view. It depends only on the seed and the arguments."""
        return draw(self.augmentation, image, seed=self.seed, epoch=epoch, index=row, view=view)

    def _in_order(self, split: Split, *, n_plain: int, n_augmented: int) -> ImageBatches:
        """Return batches of a split that fit into memory; with several processes, those of this process."""
        pixels = self.preprocessing.size**2
        images_per_batch = max(1, self.pixels_at_once // pixels // (n_plain + n_augmented))
        order = shard(in_order(self.records.rows(split), images_per_batch))
        return self._batches(list(order), n_plain=n_plain, n_augmented=n_augmented)

    def _batches(self, order: Order | list[list[tuple[int, int]]], *, n_plain: int, n_augmented: int) -> ImageBatches:
        return ImageBatches(
            self.records,
            order,
            self.preprocessing,
            n_plain=n_plain,
            n_augmented=n_augmented,
            make_view=self.view,
            workers=self.workers,
            cache=self.cache,
        )


@dataclass
class _PartProgress:
    """Progress of one part of a file.

    Attributes:
        batch_size: number of images in a batch, except perhaps the last one.
        checksums: the checksum of each batch in the file; None for a batch that must still be computed.
        seconds_per_view: measured time to compute a view.
    """

    batch_size: int
    checksums: list[int | None]
    seconds_per_view: float = 0.0

    def missing(self) -> list[int]:
        """Return the numbers of the batches that must still be computed."""
        return [number for number, checksum in enumerate(self.checksums) if checksum is None]


PROGRESS_FILE = PROGRESS.holding(dict[Part, _PartProgress])


@dataclass(eq=False)
class ActivationCache:
    """Outputs of a frozen network for the plain view and `n_augmented` augmented views of each image.

    The outputs are computed when they are first needed. A manifest per split and process stores the checksum of each
    finished batch, so that an interrupted process can continue. When a resumed run first uses the outputs of an earlier
    process, it verifies them and computes damaged batches again.
    """

    images: ImageBatchSource
    network: nn.Module
    folder: Path
    n_augmented: int
    dtype: torch.dtype
    device: str
    progress: Progress
    root: Path | None = None  # the run folder, below which symlinks are not followed (default: the parent folder)

    def __post_init__(self) -> None:
        self.run = RunFolder(self.root or self.folder.parent)
        size = self.images.preprocessing.size
        black_image = torch.zeros(1, 3, size, size, device=self.device)
        with torch.inference_mode():
            output = self.network.to(self.device).eval()(black_image)
        self.shape = tuple(output.shape[1:])  # of the output for one view
        self.complete: set[tuple[Split, Part]] = set()  # computed or verified by this process

    def bytes(self) -> int:
        """Return the size on disk of the complete cache."""
        plain = len(self.images.records)
        augmented = self.n_augmented * len(self.images.records.rows("train"))
        values_per_view = int(np.prod(self.shape))
        return (plain + augmented) * values_per_view * self.dtype.itemsize

    def seconds_per_view(self) -> float:
        """Return the measured time to decode and encode a plain training view; 0 if none is cached yet."""
        plain = self._read_manifest("train").get("plain")
        return plain.seconds_per_view if plain else 0.0

    def training(self, *, n_views: int, batch_size: int, epochs: int, images: int | None = None) -> FeatureBatches:
        """Return shuffled training batches with `n_views` views per image, up to `images` images in total."""
        targets, known = targets_of(self.images.records, "train")
        stored = StoredFeatures(
            self._views("train", 1 + self.n_augmented),
            targets,
            known,
            rows=self.images.records.rows("train"),
            weights=weights_of(self.images.records, "train"),
        )
        return FeatureBatches(
            stored, n_views=n_views, batch_size=batch_size, epochs=epochs, seed=self.images.seed, images=images
        )

    def probing(self, *, n_augmented: int) -> StoredViews:
        """Return the training split in order; each image has its plain view first, then augmented views."""
        return self._in_order("train", 1 + min(n_augmented, self.n_augmented))

    def plain(self, split: Split) -> StoredViews:
        """Return the plain view of every image in a split, in order."""
        return self._in_order(split, 1)

    def _in_order(self, split: Split, n_views: int) -> StoredViews:
        """Return the first `n_views` views of every image in a split, in order."""
        records = self.images.records
        views = self._views(split, n_views)
        labels, known = labels_of(records, split)
        return StoredViews(views, labels, known, records.rows(split))

    def _views(self, split: Split, n_views: int) -> Shaped[Tensor, "V N *output"]:
        """Return the first `n_views` views of a split; missing views are computed."""
        file = self._open(split)
        self._fill(file, split, "plain", self.images.plain(split))
        if n_views > 1:
            self._fill(file, split, "augmented", self.images.augmented(split, n_views=self.n_augmented))
        barrier()
        return torch.from_numpy(file.mapped())[:n_views]

    def _open(self, split: Split) -> ArrayFile:
        """Open the file of a split, which is created or repaired if necessary."""
        n_views = 1
        if split == "train":  # augmented views are used only in training
            n_views += self.n_augmented
        n_images = len(self.images.records.rows(split))
        shape = (n_views, n_images, *self.shape)
        file = ArrayFile(self.folder / f"{split}.npy", self.run.path, shape, NUMPY_DTYPES[self.dtype])
        if is_main_process():
            file.prepare()
        barrier()
        return file

    def _manifest(self, split: Split) -> JsonFile[dict[Part, _PartProgress]]:
        """Return the row of the file with the progress of this process on a split."""
        path = self.folder / f"{split}.{rank()}-of-{world_size()}.json"
        return replace(PROGRESS_FILE, name=path.relative_to(self.run.path).as_posix())

    def _read_manifest(self, split: Split) -> dict[Part, _PartProgress]:
        """Return the progress of this process on a split; it is empty if nothing is stored or the file is damaged."""
        file = self._manifest(split)
        if not self.run.has(file):
            return {}
        try:
            return self.run.read(file)
        except RunError:
            path = self.run.path / file
            warnings.warn(f"{path} is damaged; its activations are computed again", stacklevel=2)
            return {}

    def _fill(self, file: ArrayFile, split: Split, part: Part, batches: ImageBatches) -> None:
        """Compute the views of a part of a split that are missing in the file or damaged.

        `batches` are the batches of this process; other processes fill other blocks of the file. The progress is saved
        every few seconds and after the last batch, so that an interrupted process can continue.
        """
        if (split, part) in self.complete:
            return
        blocks = self._blocks(split, part, batches)  # one block of the file per batch
        progress_of_parts = self._read_manifest(split)
        progress_of_part = _progress_on(blocks, progress_of_parts.get(part))
        progress_of_parts[part] = progress_of_part
        _forget_damaged(file, blocks, progress_of_part)
        missing = progress_of_part.missing()  # the numbers of the batches to compute
        if missing:
            with self.progress(f"{part} views of {split}", len(missing)) as bar:
                started = time.perf_counter()
                last_saved = started
                views_so_far = 0
                for number, batch in zip(missing, _selected(batches, missing), strict=True):
                    progress_of_part.checksums[number] = file.write(blocks[number], self._output(batch.views))
                    n_views, n_images = batch.views.shape[:2]
                    views_in_batch = n_views * n_images
                    views_so_far += views_in_batch
                    bar.advance(views_in_batch)  # the bar counts each view as an image
                    now = time.perf_counter()
                    progress_of_part.seconds_per_view = (now - started) / max(views_so_far, 1)
                    is_last = number == missing[-1]
                    if now - last_saved > SECONDS_APART or is_last:
                        self.run.write(self._manifest(split), progress_of_parts)
                        last_saved = now
        self.complete.add((split, part))

    def _blocks(self, split: Split, part: Part, batches: ImageBatches) -> list[Block]:
        """Return the part of the file that each batch fills.

        The file of a split has an array of shape (views, images, …). View 0 is the plain view of an image; the views
        from 1 on are its augmented views. A block is a range of views and a range of images, counted from the start of
        the split. The images of a batch are consecutive in the split.
        """
        views = range(1)  # the plain view
        if part == "augmented":
            views = range(1, 1 + self.n_augmented)
        rows_of_split = self.images.records.rows(split)  # in ascending order
        blocks = []
        for batch in batches.order:
            _, first_row = batch[0]  # an epoch and a row of the records
            start = int(np.searchsorted(rows_of_split, first_row))
            images = range(start, start + len(batch))
            blocks.append(Block(views, images))
        return blocks

    @torch.inference_mode()
    def _output(self, views: Float[Tensor, "V N *image"]) -> Shaped[ndarray, "V N *output"]:
        """Return the outputs of the network for some views, in the type in which they are stored."""
        images = views.flatten(0, 1).to(self.device, memory_format=torch.channels_last)  # (V N, 3, S, S)
        output = self.network.eval()(images)
        stored = output.to(self.dtype).cpu()
        if not output.isfinite().all():
            raise FloatingPointError(
                "the encoder produced NaN or inf; its weights are damaged or its training diverged"
            )
        if not stored.isfinite().all():
            raise ValueError('an activation is too large for half precision; use `tune="all"`')
        n_views, n_images = views.shape[:2]
        array: ndarray = stored.reshape(n_views, n_images, *stored.shape[1:]).numpy()
        return array


def _progress_on(blocks: list[Block], stored: _PartProgress | None) -> _PartProgress:
    """Return the stored progress if it is about the same batches; otherwise no batch counts as finished.

    The batch size depends on the device, so an interrupted process may have had other batches.
    """
    batch_size = max((len(block.rows) for block in blocks), default=0)
    if stored is not None and stored.batch_size == batch_size and len(stored.checksums) == len(blocks):
        return stored
    return _PartProgress(batch_size, [None] * len(blocks))


def _forget_damaged(file: ArrayFile, blocks: list[Block], progress: _PartProgress) -> None:
    """Remove the checksums that do not match the blocks in the file, and warn about the images in these blocks."""
    finished = [number for number, checksum in enumerate(progress.checksums) if checksum is not None]
    actual_checksums = file.checksums([blocks[number] for number in finished])
    damaged_images = 0
    for number, actual in zip(finished, actual_checksums, strict=True):
        if actual != progress.checksums[number]:
            progress.checksums[number] = None
            damaged_images += len(blocks[number].rows)
    images_of_processes = gather_unequal(torch.tensor([damaged_images]))
    images = int(images_of_processes.sum())
    if images:
        message = f"{file.path}: the activations of {counted(images, 'image')} were damaged and are computed again"
        warnings.warn(message, stacklevel=2)


def _selected(batches: ImageBatches, numbers: list[int]) -> ImageBatches:
    """Return the batches with the given numbers."""
    order = list(batches.order)
    selected = copy.copy(batches)
    selected.order = [order[number] for number in numbers]
    return selected


def labels_of(records: Records, split: Split) -> tuple[Float[Tensor, "N C"], Bool[Tensor, "N C"]]:
    """Return the labels of a split and the mask of known labels."""
    labels, known = records.states.labels_and_known(records.rows(split))
    return torch.from_numpy(labels), torch.from_numpy(known)


def targets_of(records: Records, split: Split) -> tuple[Float[Tensor, "N C"], Bool[Tensor, "N C"]]:
    """Return the training targets of a split and the mask of known labels; uncertain labels may be probabilities."""
    targets, known = records.states.targets_and_known(records.rows(split))
    return torch.from_numpy(targets), torch.from_numpy(known)


def weights_of(records: Records, split: Split) -> Float[ndarray, "N"] | None:
    """Return the sampling weights of the images in a split, or None if the records have no weights."""
    return None if records.weight is None else records.weight[records.rows(split)]
