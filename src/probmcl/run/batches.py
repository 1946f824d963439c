"""Batches of images or cached activations for training, probing and scoring.

The outputs of a frozen network are computed once for every view and cached on disk, so training on a CPU takes
minutes instead of hours. `ActivationCache` provides the same batches as `ImageBatchSource`.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from numpy import ndarray
from numpy.lib.format import open_memmap
from PIL import Image
from torch import Tensor, nn

from probmcl.augment import Augmentation, draw
from probmcl.console import ProgressBar
from probmcl.data.cache import ImageCache
from probmcl.data.images import Preprocessing
from probmcl.data.loader import ImageBatches, Order, in_order
from probmcl.data.records import Records, Split
from probmcl.files import atomic_write, read_json, write_json
from probmcl.runtime.distributed import barrier, is_main_process, rank, shard, world_size
from probmcl.runtime.machine import CPU_PIXELS
from probmcl.training.features import FeatureBatches, StoredViews

SECONDS_APART = 5.0
"""Time between updates of a cache's manifest."""

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
        rows, share, weights = self.records.rows("train"), (rank(), world_size()), weights_of(self.records, "train")
        order = Order(
            rows, batch_size=batch_size, epochs=epochs, seed=self.seed, share=share, images=images, weights=weights
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
        images = max(1, self.pixels_at_once // self.preprocessing.size**2 // (n_plain + n_augmented))
        order = shard(in_order(self.records.rows(split), images))
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


@dataclass(eq=False)
class ActivationCache:
    """Outputs of a frozen network for the plain view and `n_augmented` augmented views of each image.

    The outputs are computed when they are first needed. Files are filled in order, and a manifest per split and process
    stores the number of finished batches so that an interrupted process can continue.
    """

    images: ImageBatchSource
    network: nn.Module
    folder: Path
    n_augmented: int
    dtype: torch.dtype
    device: str
    progress: Progress

    def __post_init__(self) -> None:
        size = self.images.preprocessing.size
        with torch.inference_mode():
            output = self.network.to(self.device).eval()(torch.zeros(1, 3, size, size, device=self.device))
        self.shape = tuple(output.shape[1:])

    def bytes(self) -> int:
        """Return the size on disk of the complete cache."""
        views = len(self.images.records) + self.n_augmented * len(self.images.records.rows("train"))
        return views * int(np.prod(self.shape)) * self.dtype.itemsize

    def seconds_per_view(self) -> float:
        """Return the measured time to decode and encode a plain training view; 0 if none is cached yet."""
        return float(self._entries("train").get("plain", {}).get("seconds_per_view", 0.0))

    def training(self, *, n_views: int, batch_size: int, epochs: int, images: int | None = None) -> FeatureBatches:
        """Return shuffled training batches with `n_views` views per image, up to `images` images in total."""
        labels, known = targets_of(self.images.records, "train")
        return FeatureBatches(
            self._views("train", 1 + self.n_augmented),
            labels,
            known,
            n_views=n_views,
            batch_size=batch_size,
            epochs=epochs,
            seed=self.images.seed,
            images=images,
            weights=weights_of(self.images.records, "train"),
        )

    def probing(self, *, n_augmented: int) -> StoredViews:
        """Return the training split in order; each image has its plain view first, then augmented views."""
        return self._in_order("train", 1 + min(n_augmented, self.n_augmented))

    def plain(self, split: Split) -> StoredViews:
        """Return the plain view of every image in a split, in order."""
        return self._in_order(split, 1)

    def _in_order(self, split: Split, n_views: int) -> StoredViews:
        records = self.images.records
        return StoredViews(self._views(split, n_views), *labels_of(records, split), records.rows(split))

    def _views(self, split: Split, n_views: int) -> Shaped[Tensor, "V N *output"]:
        """Return the first `n_views` views of a split; missing views are computed."""
        array = self._open(split)
        self._fill(array[:1], split, "plain", self.images.plain(split), f"plain views of {split}")
        if n_views > 1:
            batches = self.images.augmented(split, n_views=self.n_augmented)
            self._fill(array[1:], split, "augmented", batches, f"augmented views of {split}")
        barrier()
        return torch.from_numpy(array)[:n_views]

    def _manifest(self, split: Split) -> Path:
        return self.folder / f"{split}.{rank()}-of-{world_size()}.json"

    def _entries(self, split: Split) -> dict[str, dict[str, Any]]:
        """Return how much of a split's file this process has filled, for plain and augmented views."""
        return read_json(self._manifest(split)) if self._manifest(split).exists() else {}

    def _open(self, split: Split) -> Any:
        """Open the file of a split. It is created at its full size, as a sparse file on most file systems."""
        path, views = self.folder / f"{split}.npy", 1 + (self.n_augmented if split == "train" else 0)
        if is_main_process() and not path.exists():
            self._create(path, (views, len(self.images.records.rows(split)), *self.shape))
        barrier()
        return open_memmap(path, mode="r+")

    def _create(self, path: Path, shape: tuple[int, ...]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for manifest in self.folder.glob(f"{path.stem}.*.json"):  # left over from a deleted file
            manifest.unlink()
        needed, free = int(np.prod(shape)) * self.dtype.itemsize, shutil.disk_usage(self.folder).free
        if needed > free:  # writing to a memory-mapped file on a full disk raises a signal, not an exception
            raise OSError(
                f"{self.folder}: the activation cache needs {needed / 1e6:,.0f} MB, but {free / 1e6:,.0f} MB are free; "
                'choose another folder with `out`, or use `tune="all"`, which needs less space'
            )
        dtype = {torch.float16: np.float16, torch.float32: np.float32}[self.dtype]
        atomic_write(path, lambda part: open_memmap(part, mode="w+", dtype=dtype, shape=shape).flush())

    def _fill(self, array: Any, split: Split, part: str, batches: ImageBatches, title: str) -> None:
        """Compute and store views of all images; each process handles its shard of the batches."""
        entries = self._entries(split)
        # Progress is valid only for the same batch size, which depends on the device.
        layout = [len(batches), max((len(batch) for batch in batches.order), default=0)]
        done = entries[part]["done"] if entries.get(part, {}).get("batches") == layout else 0
        if done == len(batches):
            return
        rows = self.images.records.rows(split)
        with self.progress(title, len(batches) - done) as bar:
            start = saved = time.perf_counter()
            for number, batch in enumerate(batches.starting(done), start=done + 1):
                array[: len(batch.views), np.searchsorted(rows, batch.rows.numpy())] = self._output(batch.views)
                bar.advance(batch.views.shape[0] * batch.views.shape[1])
                if time.perf_counter() - saved > SECONDS_APART or number == len(batches):
                    array.flush()
                    saved = time.perf_counter()
                    entry = {"batches": layout, "seconds_per_view": (saved - start) / max(bar.images, 1)}
                    write_json(self._manifest(split), entries | {part: entry | {"done": number}})

    @torch.inference_mode()
    def _output(self, views: Float[Tensor, "V N *image"]) -> Shaped[ndarray, "V N *output"]:
        output = self.network.eval()(views.flatten(0, 1).to(self.device, memory_format=torch.channels_last))
        stored = output.to(self.dtype).cpu()
        if not stored.isfinite().all():
            raise ValueError(
                'an activation is too large for half precision; use `tune="all"`'
                if output.isfinite().all()
                else "the encoder produced NaN or inf; its weights are damaged or its training diverged"
            )
        array: ndarray = stored.reshape(*views.shape[:2], *stored.shape[1:]).numpy()
        return array


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
