"""Unlabeled images: found in files, folders, patterns and lists, and decoded by worker processes."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from probmcl.data.image_files import expand, is_one_image, refuse_without_image
from probmcl.data.images import Preprocessing, read_image
from probmcl.errors import DataError, ImageError, OptionError
from probmcl.runtime.machine import default_workers, ignore_interrupts, start_method

Source = str | Path | Image.Image
"""An image's file, a folder, a pattern such as `photos/*.jpg`, a `.txt` file with a path a line, or an image itself."""


class Item(NamedTuple):
    """One image to decode: its path or, if it was given as an image, its number and the image."""

    path: Path
    image: Image.Image | None = None


class Decoded(NamedTuple):
    """A batch in the order of the sources: the images that could be decoded, with their rows in `paths`."""

    paths: list[Path]
    rows: list[int]
    images: Float[Tensor, "K 3 S S"]
    errors: list[ImageError]


def find(images: Source | Sequence[Source]) -> Iterator[Item]:
    """Return every image that the sources name, one after the other, with at most the names of one folder in memory.

    A file that does not exist is returned like any other. A folder, pattern or list without any image is an error.

    >>> [str(item.path) for item in find(["b.jpg", Path("a.png")])]
    ['b.jpg', 'a.png']
    >>> find("nowhere/*.jpg")
    Traceback (most recent call last):
    ...
    probmcl.errors.DataError: nowhere/*.jpg: no image matches it; looked for files that end in .jpg, …, .dicom
    """
    sources = [images] if isinstance(images, Source) else images
    if len(sources) == 0:
        raise DataError("no image was given; name image files, folders, patterns or .txt lists of paths")
    for source in sources:
        if not isinstance(source, Image.Image) and not is_one_image(source):
            refuse_without_image(source)
    return itertools.chain.from_iterable(
        [Item(Path(f"image {number}"), source)] if isinstance(source, Image.Image) else map(Item, expand(source))
        for number, source in enumerate(sources)
    )


def decode(
    images: Source | Sequence[Source],
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    workers: int | None = None,
    start: str | None = None,
) -> Iterator[Decoded]:
    """Find images as `find` does and make batches of plain tensors of them; the last may be smaller.

    `workers` processes decode, 0 does it in this one, None takes `default_workers`; they start as `start_method` says.
    """
    if any(isinstance(source, Image.Image) for source in ([images] if isinstance(images, Source) else images)):
        workers = 0
    return _batches(find(images), preprocessing, batch_size, workers, start)


def decode_files(
    paths: Iterable[Path], preprocessing: Preprocessing, *, batch_size: int, workers: int | None = None
) -> Iterator[Decoded]:
    """Decode exactly these files, in batches as `decode` does; a folder or a list of paths is an error of its own."""
    return _batches(map(Item, paths), preprocessing, batch_size, workers, None)


def _batches(
    items: Iterator[Item], preprocessing: Preprocessing, batch_size: int, workers: int | None, start: str | None
) -> Iterator[Decoded]:
    if batch_size < 1:
        raise OptionError("batch_size", batch_size, "must be at least 1")
    if workers is not None and workers < 0:
        raise OptionError("workers", workers, "must be 0, to decode in the main process, or more")
    workers = default_workers() if workers is None else workers
    loader = DataLoader(
        _Plain(preprocessing),
        batch_sampler=iter(lambda: list(itertools.islice(items, batch_size)), []),
        collate_fn=_collate,
        num_workers=workers,
        worker_init_fn=ignore_interrupts,
        multiprocessing_context=(start or start_method()) if workers else None,
        generator=torch.Generator().manual_seed(0),  # nothing is drawn from it; without it, torch's own moves on
    )
    return _started(loader)


def _started(loader: Iterable[Decoded]) -> Iterator[Decoded]:
    """Start the workers when the first batch is asked for."""
    yield from loader


@dataclass(frozen=True)
class _Plain(Dataset[tuple[Path, Tensor | ImageError]]):
    preprocessing: Preprocessing

    def __getitem__(self, item: Item) -> tuple[Path, Tensor | ImageError]:
        try:
            if item.image is not None:
                return item.path, self.preprocessing(_upright(item.image, item.path))
            image = read_image(item.path, self.preprocessing.size, intensity=self.preprocessing.intensity)
            return item.path, self.preprocessing(image)
        except ImageError as error:
            return item.path, error


def _upright(image: Image.Image, path: Path) -> Image.Image:
    if image.mode != "RGB":
        raise ImageError(path, f"its mode is {image.mode}; give its file instead, or image.convert('RGB')")
    try:
        return ImageOps.exif_transpose(image)
    except Exception as error:  # one that is decoded only now can be as broken as any file
        raise ImageError(path, str(error) or type(error).__name__) from error


def _collate(decoded: list[tuple[Path, Tensor | ImageError]]) -> Decoded:
    whole = {row: image for row, (_, image) in enumerate(decoded) if isinstance(image, Tensor)}
    errors = [error for _, error in decoded if isinstance(error, ImageError)]
    images = torch.stack(list(whole.values())) if whole else torch.empty(0, 3, 0, 0)
    return Decoded([path for path, _ in decoded], list(whole), images, errors)
