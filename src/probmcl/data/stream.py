"""Streams of unlabeled images from files, folders, patterns, lists and memory, decoded by worker processes."""

import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor

from probmcl.data.image_files import expand, is_one_image, refuse_without_image
from probmcl.data.images import Preprocessing, decode_image, read_image
from probmcl.data.in_memory import InMemory, refuse_invalid, to_pillow
from probmcl.errors import DataError, ImageError, OptionError
from probmcl.runtime.machine import default_workers, kept_memory, short_spinning
from probmcl.runtime.workers import worker_pool

Source = str | Path | InMemory
"""An image file, a folder, a pattern such as `photos/*.jpg`, a `.txt` list with one path per line, or an image."""


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
