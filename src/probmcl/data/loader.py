"""Batches of views for training, and streams of images for prediction. Worker processes decode the images."""

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from PIL import Image
from torch import Tensor

from probmcl.data.cache import ImageCache
from probmcl.data.image_files import expand, is_one_image, refuse_without_image
from probmcl.data.images import Preprocessing, decode_image, read_image
from probmcl.data.in_memory import InMemory, refuse_invalid, to_pillow
from probmcl.data.labels import sample_labels
from probmcl.data.records import Records
from probmcl.errors import DataError, ImageError, OptionError, counted
from probmcl.runtime.machine import default_workers, kept_memory, short_spinning
from probmcl.runtime.workers import worker_pool

MakeView = Callable[[Image.Image, int, int, int], Image.Image]  # arguments: image, epoch, row, view number
DECODE_SCALE = 1.5  # images are decoded larger than the encoder's input, so a crop of half the area stays sharp

Source = str | Path | InMemory
"""An image file, a folder, a pattern such as `photos/*.jpg`, a `.txt` list with one path per line, or an image."""


class Batch(NamedTuple):
    """V views of N images, with their labels and their rows in the records."""

    views: Float[Tensor, "V N *image"]
    labels: Float[Tensor, "N C"]
    known: Bool[Tensor, "N C"]
    rows: Int[Tensor, "N"]


class Order:
    """The shuffled batches of all epochs, as lists of (epoch, row). An incomplete last batch is dropped.

    `batch_size` is the number of images per step across all processes, and `share` is the rank and the world size.
    `images` limits the total number of images. With `weights`, the length of an epoch does not change, but images are
    repeated in proportion to their weight, rounded up or down at random.

    >>> list(Order(np.arange(4), batch_size=2, epochs=1, seed=0))
    [[(0, 2), (0, 0)], [(0, 1), (0, 3)]]
    """

    def __init__(
        self,
        rows: Int[ndarray, "K"],
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        share: tuple[int, int] = (0, 1),
        images: int | None = None,
        weights: Float[ndarray, "K"] | None = None,
    ) -> None:
        if len(rows) == 0:
            raise ValueError("there are no training images")
        if weights is not None and not weights.any():
            raise ValueError("all training images have weight 0; at least one weight must be above 0")
        self.rows, self.epochs, self.seed, self.weights = rows, epochs, seed, weights
        self.process, self.processes = share
        self.batch_size = min(batch_size, len(rows)) // self.processes * self.processes
        if self.batch_size == 0:
            images = min(batch_size, len(rows))
            raise ValueError(
                f"there are {self.processes} processes but only {counted(images, 'image')} per step; start fewer"
            )
        self.steps_per_epoch = len(rows) // self.batch_size
        steps = epochs * self.steps_per_epoch
        self.steps = steps if images is None else min(steps, images // self.batch_size)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self.starting(0)

    def starting(self, step: int) -> Iterator[list[tuple[int, int]]]:
        """Yield the same batches as a full iteration, starting at a given step."""
        local_size = self.batch_size // self.processes
        current, order = -1, self.rows
        for number in range(step, self.steps):
            epoch, index = divmod(number, self.steps_per_epoch)
            if epoch != current:
                current, rng = epoch, np.random.default_rng((self.seed, epoch))
                rows = self.rows if self.weights is None else self.rows[_by_weight(self.weights, rng.random())]
                order = rng.permutation(rows)
            first = index * self.batch_size + self.process * local_size
            yield [(epoch, row) for row in order[first : first + local_size].tolist()]


class ImageBatches:
    """Batches in a given order. Each image has `n_plain` (0 or 1) plain views, then `n_augmented` augmented views.

    `workers` is the number of processes that decode and augment; 0 uses this process.
    """

    def __init__(
        self,
        records: Records,
        order: Order | Sequence[Sequence[tuple[int, int]]],
        preprocessing: Preprocessing,
        *,
        n_plain: int = 1,
        n_augmented: int = 0,
        make_view: MakeView | None = None,
        workers: int = 0,
        cache: ImageCache | None = None,
    ) -> None:
        self.steps_per_epoch = order.steps_per_epoch if isinstance(order, Order) else len(order)
        seed = order.seed if isinstance(order, Order) else 0
        self.views = _Views(records, preprocessing, n_plain, n_augmented, make_view, seed, cache)
        self.order, self.workers = order, workers

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        return self.starting(0)

    def starting(self, step: int) -> Iterator[Batch]:
        """Yield the batches starting at a given step, without decoding earlier ones."""
        order = self.order
        batches = order.starting(step) if isinstance(order, Order) else order[step:]
        with worker_pool(self.views.batch, self.workers, files=self.views.files) as map_batches:
            for batch in map_batches(batches):
                yield Batch(*(x.pin_memory() for x in batch)) if torch.cuda.is_available() else batch


def in_order(rows: Int[ndarray, "K"], batch_size: int) -> list[list[tuple[int, int]]]:
    """Return batches that contain every row once, in the given order.

    >>> in_order(np.array([5, 6, 7]), batch_size=2)
    [[(0, 5), (0, 6)], [(0, 7)]]
    """
    starts = range(0, len(rows), batch_size)
    return [[(0, row) for row in rows[start : start + batch_size].tolist()] for start in starts]


def _by_weight(weights: Float[ndarray, "K"], start: float) -> Int[ndarray, "K"]:
    """Return K indices, each repeated in proportion to its weight (systematic sampling with offset `start`)."""
    ends = np.cumsum(weights) / weights.sum() * len(weights)
    ends[-1] = len(weights)  # removes the rounding error
    return np.searchsorted(ends, np.arange(len(weights)) + start, side="right")


@dataclass(frozen=True, eq=False)
class _Views:
    records: Records
    preprocessing: Preprocessing
    n_plain: int
    n_augmented: int
    make_view: MakeView | None
    seed: int
    cache: ImageCache | None

    def batch(self, keys: Sequence[tuple[int, int]]) -> Batch:
        """Return the batch of these epochs and rows."""
        views, labels, known, rows = zip(*(self._image_views(epoch, row) for epoch, row in keys), strict=True)
        return Batch(torch.stack(views, dim=1), torch.stack(labels), torch.stack(known), torch.stack(rows))

    def files(self, keys: Sequence[tuple[int, int]]) -> list[Path]:
        """Return the files of a batch."""
        return [self.records.paths[row] for _, row in keys]

    def _image_views(self, epoch: int, row: int) -> Batch:
        views = torch.stack(list(self._views(epoch, row)))
        targets, known = self.records.states.targets_and_known(np.array([row]))
        labels = torch.from_numpy(sample_labels(targets[0], self.seed, epoch, row))
        return Batch(views, labels, torch.from_numpy(known[0]), torch.tensor(row))

    def _views(self, epoch: int, row: int) -> Iterator[Tensor]:
        for _ in range(self.n_plain):
            yield self.preprocessing(self._image(row, self.preprocessing.size))
        if self.n_augmented and self.make_view is not None:
            image = self._image(row, round(DECODE_SCALE * self.preprocessing.size))
            for view in range(self.n_augmented):
                yield self.preprocessing(self.make_view(image, epoch, row, view))

    def _image(self, row: int, size: int) -> Image.Image:
        read = read_image if self.cache is None else self.cache.read
        return read(self.records.paths[row], size, intensity=self.preprocessing.intensity)


class Item(NamedTuple):
    """An image to decode. The path of an image in memory is its position in the list, such as `image 0`."""

    path: Path
    image: InMemory | None = None


class Decoded(NamedTuple):
    """A batch in the order of the sources. `rows` are the positions in `paths` of the images that could be decoded."""

    paths: list[Path]
    rows: list[int]
    images: Float[Tensor, "K 3 S S"]
    errors: list[ImageError]

    def without(self, failed: Mapping[int, str]) -> "Decoded":
        """Return the batch without images that cannot be used; `failed` has their rows and the reasons."""
        errors = dict(zip(sorted({*range(len(self.paths))} - {*self.rows}), self.errors, strict=True))
        errors |= {row: ImageError(self.paths[row], reason) for row, reason in failed.items()}
        kept = [row not in failed for row in self.rows]
        rows = [row for row in self.rows if row not in failed]
        return Decoded(self.paths, rows, self.images[kept], [errors[row] for row in sorted(errors)])


def find(images: Source | Sequence[Source]) -> Iterator[Item]:
    """Return an iterator over the images in all sources; folders are listed one at a time.

    Files need not exist. A folder, pattern or list without images is an error, and so is an object of another type.

    >>> [str(item.path) for item in find(["b.jpg", Path("a.png")])]
    ['b.jpg', 'a.png']
    >>> find("nowhere/*.jpg")
    Traceback (most recent call last):
    ...
    probmcl.errors.DataError: nowhere/*.jpg: no images match the pattern (files ending in .jpg, …, .dicom)
    """
    sources = _sources(images)
    if len(sources) == 0:
        raise DataError("no images given; expected image files, folders, patterns, .txt lists of paths, or images")
    for number, source in enumerate(sources):
        if not isinstance(source, str | Path):
            refuse_invalid(source, f"image {number}")
        elif not is_one_image(source):
            refuse_without_image(source)
    return itertools.chain.from_iterable(
        map(Item, expand(source)) if isinstance(source, str | Path) else [Item(Path(f"image {number}"), source)]
        for number, source in enumerate(sources)
    )


def _sources(images: Source | Sequence[Source]) -> Sequence[Source]:
    return images if isinstance(images, list | tuple) else [cast(Source, images)]


def decode(
    images: Source | Sequence[Source],
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    workers: int | None = None,
    start: str | None = None,
) -> Generator[Decoded, None, None]:
    """Decode the images that `find` returns into batches of tensors; the last batch may be smaller.

    `workers` is the number of decoding processes (default: `default_workers`); 0 decodes in this process, which always
    decodes images in memory. `start` is the start method of the workers (default: `start_method`).
    """
    items = find(images)
    if not all(isinstance(source, str | Path) for source in _sources(images)):
        workers = 0
    return _batches(items, preprocessing, batch_size, workers, start)


def decode_files(
    paths: Iterable[Path], preprocessing: Preprocessing, *, batch_size: int, workers: int | None = None
) -> Generator[Decoded, None, None]:
    """Decode these files in batches like `decode`, but without expanding folders and lists, which are errors here."""
    return _batches(map(Item, paths), preprocessing, batch_size, workers, None)


def _batches(
    items: Iterator[Item], preprocessing: Preprocessing, batch_size: int, workers: int | None, start: str | None
) -> Generator[Decoded, None, None]:
    if batch_size < 1:
        raise OptionError("batch_size", batch_size, "must be at least 1")
    if workers is not None and workers < 0:
        raise OptionError("workers", workers, "must be at least 0 (0 decodes in the main process)")
    workers = default_workers() if workers is None else workers
    batches = iter(lambda: list(itertools.islice(items, batch_size)), [])
    return _start_lazily(_Decoder(preprocessing), batches, workers, start)


def _start_lazily(
    decoder: "_Decoder", batches: Iterable[list[Item]], workers: int, start: str | None
) -> Generator[Decoded, None, None]:
    """Defer the start of the workers until the first batch is requested, and use the cores well until the last one."""
    # The workers start before the process has more threads.
    with kept_memory(), worker_pool(decoder, workers, files=_files, start=start) as map_batches, short_spinning():
        yield from map_batches(batches)


def _files(items: list[Item]) -> list[Path]:
    return [item.path for item in items]


@dataclass(frozen=True)
class _Decoder:
    preprocessing: Preprocessing

    def __call__(self, items: list[Item]) -> Decoded:
        decoded = [self._image(item) for item in items]
        tensors = {row: image for row, image in enumerate(decoded) if isinstance(image, Tensor)}
        errors = [error for error in decoded if isinstance(error, ImageError)]
        images = torch.stack(list(tensors.values())) if tensors else torch.empty(0, 3, 0, 0)
        return Decoded(_files(items), list(tensors), images, errors)

    def _image(self, item: Item) -> Tensor | ImageError:
        size, intensity = self.preprocessing.size, self.preprocessing.intensity
        try:
            if item.image is None:
                image = read_image(item.path, size, intensity=intensity)
            else:
                image = decode_image(to_pillow(item.image), size, intensity=intensity, name=item.path)
            return self.preprocessing(image)
        except ImageError as error:
            return error
