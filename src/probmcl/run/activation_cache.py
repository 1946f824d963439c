"""What a frozen network made of every view, computed once and kept on disk: minutes of training on a CPU, not hours.

A store has the same three ways out as a `Feed`, so that whoever trains, probes or scores need not know which it is.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from numpy import ndarray
from numpy.lib.format import open_memmap
from torch import Tensor, nn

from probmcl.console import ProgressBar
from probmcl.data.loader import ImageBatches
from probmcl.data.records import Records, Split
from probmcl.files import atomic_write, read_json, write_json
from probmcl.run.image_batches import ImageBatchSource
from probmcl.runtime.distributed import barrier, is_main_process, rank, world_size
from probmcl.training.features import FeatureBatches, StoredViews

SECONDS_APART = 5.0
"""Between two notes of how far a store is filled."""

Stage = Callable[[str, int], AbstractContextManager[ProgressBar]]
"""Opens a bar for a stage of so many steps."""


class ActivationCache:
    """The outputs of a frozen network for the plain view and `n_augmented` others of each image, as they are needed.

    Files are filled in order and say how far they are: after a kill, filling goes on where it was.
    """

    def __init__(
        self,
        feed: ImageBatchSource,
        network: nn.Module,
        folder: Path,
        *,
        n_augmented: int,
        dtype: torch.dtype,
        device: str,
        stage: Stage,
    ) -> None:
        self.feed, self.network, self.folder = feed, network, folder
        self.n_augmented, self.dtype, self.device, self.stage = n_augmented, dtype, device, stage
        self.seconds_per_view = 0.0  # unknown until something is filled
        size = feed.preprocessing.size
        with torch.inference_mode():
            self.shape = tuple(network.to(device).eval()(torch.zeros(1, 3, size, size, device=device)).shape[1:])

    def bytes(self) -> int:
        """Size on disk when everything is filled."""
        views = len(self.feed.records) + self.n_augmented * len(self.feed.records.rows("train"))
        return views * int(np.prod(self.shape)) * self.dtype.itemsize

    def training(self, *, n_views: int, batch_size: int, epochs: int, images: int | None = None) -> FeatureBatches:
        """Views of the training split, some of each image in every epoch, of at most so many `images` in all."""
        views = self._views("train", 1 + self.n_augmented)
        labels, known = targets_of(self.feed.records, "train")
        return FeatureBatches(
            views,
            labels,
            known,
            n_views=n_views,
            batch_size=batch_size,
            epochs=epochs,
            seed=self.feed.seed,
            images=images,
            weights=weights_of(self.feed.records, "train"),
        )

    def probing(self, *, n_augmented: int) -> StoredViews:
        """The training split in order: of each image the plain view first, then augmented ones."""
        return self._in_order("train", 1 + min(n_augmented, self.n_augmented))

    def plain(self, split: Split) -> StoredViews:
        """The plain view of every image of a split, in order."""
        return self._in_order(split, 1)

    def _in_order(self, split: Split, n_views: int) -> StoredViews:
        records = self.feed.records
        return StoredViews(self._views(split, n_views), *labels_of(records, split), records.rows(split))

    def _views(self, split: Split, n_views: int) -> Shaped[Tensor, "V N *output"]:
        """The first so many views of a split; what is not there yet is computed."""
        array = self._array(split)
        self._fill(array, 0, self.feed.plain(split), f"plain views of {split}")
        if n_views > 1:
            batches = self.feed.augmented(split, n_views=self.n_augmented)
            self._fill(array, 1, batches, f"{self.n_augmented} augmented views of {split}")
        barrier()
        return torch.from_numpy(array)[:n_views]

    def _array(self, split: Split) -> Any:
        """The file of a split, of its full size from the start; what is not filled takes no room on most disks."""
        path = self.folder / f"{split}.npy"
        views = 1 + (self.n_augmented if split == "train" else 0)
        shape = (views, len(self.feed.records.rows(split)), *self.shape)
        if is_main_process() and not path.exists():
            self._make(path, shape)
        barrier()
        return open_memmap(path, mode="r+")

    def _make(self, path: Path, shape: tuple[int, ...]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for note in self.folder.glob(f"* of {path.stem}, *.json"):  # of a file that is no more
            note.unlink()
        needed, free = int(np.prod(shape)) * self.dtype.itemsize, shutil.disk_usage(self.folder).free
        if needed > free:  # a mapped file on a full disk would end in a signal and not in a message
            raise OSError(
                f"{self.folder}: {needed / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free; "
                "give another folder with --out, or --tune all, which needs less"
            )
        atomic_write(path, lambda part: open_memmap(part, mode="w+", dtype=_NUMPY[self.dtype], shape=shape).flush())

    def _fill(self, array: Any, start: int, batches: ImageBatches, name: str) -> None:
        """Views from number `start` on, of all images, each process its share of the batches."""
        note = self.folder / f"{name}, {rank() + 1} of {world_size()}.json"
        done = self._done(note, batches)
        if done == len(batches):
            return
        splits = np.array(self.feed.records.split)
        with self.stage(name, len(batches) - done) as bar:
            begun = noted = time.perf_counter()
            for number, batch in enumerate(batches.starting(done), start=done + 1):
                rows = batch.rows.numpy()
                places = np.searchsorted(np.flatnonzero(splits == splits[rows[0]]), rows)
                array[start : start + len(batch.views), places] = self._output(batch.views)
                bar.advance(batch.views.shape[0] * batch.views.shape[1])
                if time.perf_counter() - noted > SECONDS_APART or number == len(batches):
                    array.flush()
                    noted = time.perf_counter()
                    write_json(note, {"batches": number, "of": _order(batches)})
            self.seconds_per_view = (noted - begun) / max(bar.images, 1)

    def _done(self, note: Path, batches: ImageBatches) -> int:
        """Batches that a note says are done, if it speaks of the same batches: another device has others."""
        said: dict[str, Any] = read_json(note) if note.exists() else {}
        return int(said["batches"]) if said.get("of") == _order(batches) else 0

    @torch.inference_mode()
    def _output(self, views: Float[Tensor, "V N *image"]) -> Shaped[ndarray, "V N *output"]:
        rows = views.flatten(0, 1).to(self.device, memory_format=torch.channels_last)
        output = self.network.eval()(rows)
        kept = output.to(self.dtype).cpu()
        if not kept.isfinite().all():
            raise ValueError(
                "an activation is too large for half precision; train with --tune all"
                if output.isfinite().all()
                else "the encoder gives numbers that are none; its weights are damaged or its training diverged"
            )
        again: ndarray = kept.reshape(*views.shape[:2], *kept.shape[1:]).numpy()
        return again


def _order(batches: ImageBatches) -> list[int]:
    """How many batches, of how many images: the same for the same images in the same batches."""
    return [len(batches), max((len(batch) for batch in batches.order), default=0)]


_NUMPY = {torch.float16: np.float16, torch.float32: np.float32}


def labels_of(records: Records, split: Split) -> tuple[Float[Tensor, "N C"], Bool[Tensor, "N C"]]:
    """The labels of a split, and which of them are known."""
    labels, known = records.states.labels_and_known(records.rows(split))
    return torch.from_numpy(labels), torch.from_numpy(known)


def targets_of(records: Records, split: Split) -> tuple[Float[Tensor, "N C"], Bool[Tensor, "N C"]]:
    """The same to train on: an uncertain label may be a chance between 0 and 1."""
    targets, known = records.states.targets_and_known(records.rows(split))
    return torch.from_numpy(targets), torch.from_numpy(known)


def weights_of(records: Records, split: Split) -> Float[ndarray, "N"] | None:
    """How often the images of a split are trained on, compared with each other; None where all are alike."""
    return None if records.weight is None else records.weight[records.rows(split)]
