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

from probmcl.data.image_cache import ImageCache
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
        self.rows, self.weights = rows, weights
        self.epochs, self.seed = epochs, seed
        self.process, self.processes = share

        images_per_step = min(batch_size, len(rows))
        self.batch_size = images_per_step // self.processes * self.processes  # the same number for each process
        if self.batch_size == 0:
            only = counted(images_per_step, "image")
            raise ValueError(f"there are {self.processes} processes but only {only} per step; start fewer")
        self.steps_per_epoch = len(rows) // self.batch_size
        self.steps = epochs * self.steps_per_epoch
        if images is not None:
            self.steps = min(self.steps, images // self.batch_size)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        return self.starting(0)

    def starting(self, step: int) -> Iterator[list[tuple[int, int]]]:
        """Yield the same batches as a full iteration, starting at a given step.

        Each batch has the (epoch, row) of this process's images. A step takes `batch_size` images for all processes.
        """
        local_size = self.batch_size // self.processes
        shuffled, shuffled_epoch = self.rows, -1
        for number in range(step, self.steps):
            epoch, step_in_epoch = divmod(number, self.steps_per_epoch)
            if epoch != shuffled_epoch:
                shuffled, shuffled_epoch = self._shuffled(epoch), epoch
            first_of_step = step_in_epoch * self.batch_size
            first = first_of_step + self.process * local_size
            local_rows = shuffled[first : first + local_size]
            yield [(epoch, row) for row in local_rows.tolist()]

    def _shuffled(self, epoch: int) -> Int[ndarray, "K"]:
        """Return the rows of an epoch in random order, which depends only on the seed and the epoch."""
        rng = np.random.default_rng((self.seed, epoch))
        rows = self.rows
        if self.weights is not None:
            rows = rows[_by_weight(self.weights, rng.random())]
        return rng.permutation(rows)


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
        self.order, self.workers = order, workers
        if isinstance(order, Order):
            self.steps_per_epoch, seed = order.steps_per_epoch, order.seed
        else:
            self.steps_per_epoch, seed = len(order), 0
        views = _ViewsOfImage(preprocessing, n_plain, n_augmented, make_view, cache)
        self.maker = _BatchMaker(records, views, seed)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        return self.starting(0)

    def starting(self, step: int) -> Iterator[Batch]:
        """Yield the batches starting at a given step, without decoding earlier ones."""
        keys = self.order.starting(step) if isinstance(self.order, Order) else self.order[step:]
        with worker_pool(self.maker.batch, self.workers, files=self.maker.files) as map_batches:
            for batch in map_batches(keys):
                yield _pinned(batch) if torch.cuda.is_available() else batch


def in_order(rows: Int[ndarray, "K"], batch_size: int) -> list[list[tuple[int, int]]]:
    """Return batches that contain every row once, in the given order.

    >>> in_order(np.array([5, 6, 7]), batch_size=2)
    [[(0, 5), (0, 6)], [(0, 7)]]
    """
    keys = [(0, row) for row in rows.tolist()]  # epoch 0
    return [keys[start : start + batch_size] for start in range(0, len(keys), batch_size)]


def _by_weight(weights: Float[ndarray, "K"], start: float) -> Int[ndarray, "K"]:
    """Return K indices, each repeated in proportion to its weight.

    This is systematic sampling. Each index has an interval of the length K · weight / sum, and the intervals follow one
    another from 0 to K. The K points `start`, `start` + 1, … are looked up, where `start` is drawn between 0 and 1.
    """
    ends = np.cumsum(weights) / weights.sum() * len(weights)
    ends[-1] = len(weights)  # removes the rounding error
    points = np.arange(len(weights)) + start
    return np.searchsorted(ends, points, side="right")


def _pinned(batch: Batch) -> Batch:
    """Return the batch in pinned memory, from which a GPU copies faster."""
    return Batch(*[tensor.pin_memory() for tensor in batch])


@dataclass(frozen=True, eq=False)
class _ViewsOfImage:
    """Decodes an image and makes its views: `n_plain` plain ones, then `n_augmented` augmented ones."""

    preprocessing: Preprocessing
    n_plain: int
    n_augmented: int
    make_view: MakeView | None
    cache: ImageCache | None

    def views(self, path: Path, epoch: int, row: int) -> Float[Tensor, "V *image"]:
        """Return the views of the image in a row of the records; the augmentation depends on the epoch and the row."""
        size = self.preprocessing.size
        views = [self.preprocessing(self._read(path, size)) for _ in range(self.n_plain)]
        if self.n_augmented and self.make_view is not None:
            image = self._read(path, round(DECODE_SCALE * size))
            for number in range(self.n_augmented):
                augmented = self.make_view(image, epoch, row, number)
                views.append(self.preprocessing(augmented))
        return torch.stack(views)

    def _read(self, path: Path, size: int) -> Image.Image:
        """Read an image like `read_image`, from the cache if there is one."""
        read = read_image if self.cache is None else self.cache.read
        return read(path, size, intensity=self.preprocessing.intensity)


@dataclass(frozen=True, eq=False)
class _BatchMaker:
    """Makes a batch of the records from the (epoch, row) of each image. Workers call it."""

    records: Records
    views: _ViewsOfImage
    seed: int

    def batch(self, keys: Sequence[tuple[int, int]]) -> Batch:
        """Return the batch of these epochs and rows."""
        images = [self._image(epoch, row) for epoch, row in keys]
        views, labels, known, rows = zip(*images, strict=True)
        return Batch(torch.stack(views, dim=1), torch.stack(labels), torch.stack(known), torch.stack(rows))

    def files(self, keys: Sequence[tuple[int, int]]) -> list[Path]:
        """Return the files of a batch."""
        return [self.records.paths[row] for _, row in keys]

    def _image(self, epoch: int, row: int) -> Batch:
        """Return the views and labels of one image: a `Batch` without the axis N. Soft labels are sampled."""
        views = self.views.views(self.records.paths[row], epoch, row)
        targets, known = self.records.states.targets_and_known(np.array([row]))
        labels = sample_labels(targets[0], self.seed, epoch, row)
        return Batch(views, torch.from_numpy(labels), torch.from_numpy(known[0]), torch.tensor(row))


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
        all_rows = range(len(self.paths))
        undecoded = sorted(set(all_rows) - set(self.rows))
        error_of_row = dict(zip(undecoded, self.errors, strict=True))
        for row, reason in failed.items():
            error_of_row[row] = ImageError(self.paths[row], reason)
        is_kept = [row not in failed for row in self.rows]
        return Decoded(
            paths=self.paths,
            rows=[row for row in self.rows if row not in failed],
            images=self.images[is_kept],
            errors=[error_of_row[row] for row in sorted(error_of_row)],
        )


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
    return itertools.chain.from_iterable(_items(source, number) for number, source in enumerate(sources))


def _items(source: Source, number: int) -> Iterator[Item]:
    """Yield the images of a source; `number` is its position among all sources."""
    if isinstance(source, str | Path):
        yield from map(Item, expand(source))
    else:
        yield Item(Path(f"image {number}"), source)


def _sources(images: Source | Sequence[Source]) -> Sequence[Source]:
    """Return the sources as a sequence. Only lists and tuples are sequences of sources: a text or an array is one."""
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
    any_in_memory = not all(isinstance(source, str | Path) for source in _sources(images))
    if any_in_memory:
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
    """Check the numbers at once, and return a generator that decodes."""
    if batch_size < 1:
        raise OptionError("batch_size", batch_size, "must be at least 1")
    if workers is not None and workers < 0:
        raise OptionError("workers", workers, "must be at least 0 (0 decodes in the main process)")
    if workers is None:
        workers = default_workers()
    return _start_lazily(_Decoder(preprocessing), _grouped(items, batch_size), workers, start)


def _grouped(items: Iterator[Item], batch_size: int) -> Iterator[list[Item]]:
    """Yield lists of `batch_size` items; the last one may be shorter."""
    while batch := list(itertools.islice(items, batch_size)):
        yield batch


def _start_lazily(
    decoder: "_Decoder", batches: Iterable[list[Item]], workers: int, start: str | None
) -> Generator[Decoded, None, None]:
    """Defer the start of the workers until the first batch is requested, and use the cores well until the last one."""
    # The workers start before the process has more threads.
    with kept_memory(), worker_pool(decoder, workers, files=_files, start=start) as map_batches, short_spinning():
        yield from map_batches(batches)


def _files(items: list[Item]) -> list[Path]:
    """Return the files of a batch."""
    return [item.path for item in items]


@dataclass(frozen=True)
class _Decoder:
    """Decodes and preprocesses a batch of images. Workers call it."""

    preprocessing: Preprocessing

    def __call__(self, items: list[Item]) -> Decoded:
        results = [self._image(item) for item in items]
        tensors = {row: result for row, result in enumerate(results) if isinstance(result, Tensor)}
        errors = [result for result in results if isinstance(result, ImageError)]
        images = torch.empty(0, 3, 0, 0)  # `stack` refuses an empty list
        if tensors:
            images = torch.stack(list(tensors.values()))
        return Decoded(_files(items), list(tensors), images, errors)

    def _image(self, item: Item) -> Tensor | ImageError:
        """Return the preprocessed image, or the error if it cannot be decoded."""
        size, intensity = self.preprocessing.size, self.preprocessing.intensity
        try:
            if item.image is None:
                image = read_image(item.path, size, intensity=intensity)
            else:
                image = decode_image(to_pillow(item.image), size, intensity=intensity, name=item.path)
            return self.preprocessing(image)
        except ImageError as error:
            return error
