"""Images without labels: found one after the other wherever somebody keeps them, and decoded in several processes."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from probmcl.data import dicom
from probmcl.data.images import Preprocessing, read_image
from probmcl.errors import DataError, ImageError
from probmcl.runtime.workers import default_workers, ignore_interrupts, start_method

PICTURES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".ppm", ".pgm", ".jp2", ".avif")
SUFFIXES = (*PICTURES, *dicom.SUFFIXES)
"""What a folder or a pattern is searched for, in capitals too. A file that is named itself may end in anything."""

LIST = ".txt"

Source = str | Path | Image.Image
"""An image's file, a folder, a pattern such as `photos/*.jpg`, a `.txt` file with a path a line, or an image itself."""


class Item(NamedTuple):
    """One image to decode: its path or, where it was given as an image, its number and the image."""

    path: Path
    image: Image.Image | None = None


class Decoded(NamedTuple):
    """Some images, in the order in which they were found.

    `images` has those that could be read; `rows` are their places in `paths`. `errors` has the others.
    """

    paths: list[Path]
    rows: list[int]
    images: Float[Tensor, "K 3 S S"]
    errors: list[ImageError]


def find(images: Source | Sequence[Source]) -> Iterator[Item]:
    """Every image of what is named, one after the other: no more is held than the names in one folder.

    A folder is searched with all folders in it, each in the order of its names; what begins with a dot is passed over.
    A file that does not exist is found like any other, and whoever reads it says so. A folder, pattern or list without
    any image is an error at once.

    >>> [str(item.path) for item in find(["b.jpg", Path("a.png")])]
    ['b.jpg', 'a.png']
    >>> find("nowhere/*.jpg")
    Traceback (most recent call last):
    ...
    probmcl.data.records.DataError: nowhere/*.jpg: no image matches it; looked for files that end in .jpg, …, .dicom
    """
    sources = [images] if isinstance(images, Source) else images
    if len(sources) == 0:
        raise DataError("no image was given; name image files, folders, patterns or .txt lists of paths")
    for source in sources:
        if not isinstance(source, Image.Image) and not _is_one_image(source):
            _refuse_without_image(source)
    return _items(sources)


def decode(
    images: Source | Sequence[Source],
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    workers: int | None = None,
    start: str | None = None,
) -> Iterator[Decoded]:
    """Find images and make batches of plain tensors of them.

    Args:
        images: what `find` takes.
        preprocessing: from an image to a tensor.
        batch_size: images in each batch; the last may have fewer.
        workers: processes that decode; 0 does it in this one, None takes as many as `default_workers` says.
        start: how processes are started; None leaves it to `start_method`, which forks them on Linux, where a script
            then needs no `if __name__ == "__main__"`.
    """
    if batch_size < 1:
        raise ValueError(f"batch size {batch_size}: a batch has at least one image")
    if workers is not None and workers < 0:
        raise ValueError(f"workers {workers}: 0 decodes in the main process, 2 beside it")
    workers = 0 if _has_images_in_memory(images) else default_workers() if workers is None else workers
    return _batches(find(images), preprocessing, batch_size, workers, start or start_method())


def _batches(
    items: Iterator[Item], preprocessing: Preprocessing, batch_size: int, workers: int, start: str
) -> Iterator[Decoded]:
    yield from DataLoader(
        _Plain(preprocessing),
        batch_sampler=_in_batches(items, batch_size),
        collate_fn=_collate,
        num_workers=workers,
        worker_init_fn=ignore_interrupts,
        multiprocessing_context=start if workers else None,
        generator=torch.Generator().manual_seed(0),  # nothing is drawn from it; without it, torch's own moves on
    )


class _Plain(Dataset[tuple[Path, Tensor | ImageError]]):
    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def __getitem__(self, item: Item) -> tuple[Path, Tensor | ImageError]:
        try:
            return item.path, self.preprocessing(self._image(item))
        except ImageError as error:
            return item.path, error

    def _image(self, item: Item) -> Image.Image:
        if item.image is None:
            return read_image(item.path, self.preprocessing.size, intensity=self.preprocessing.intensity)
        return _upright(item.image, item.path)


def _upright(image: Image.Image, path: Path) -> Image.Image:
    """An image that was given as such, turned as a file would be."""
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


def _in_batches(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while batch := list(itertools.islice(items, size)):
        yield batch


def _has_images_in_memory(images: Source | Sequence[Source]) -> bool:
    if isinstance(images, Source):
        return isinstance(images, Image.Image)
    return any(isinstance(source, Image.Image) for source in images)


# Where the images are.


def _items(sources: Sequence[Source]) -> Iterator[Item]:
    for number, source in enumerate(sources):
        if isinstance(source, Image.Image):
            yield Item(Path(f"image {number}"), source)
        else:
            yield from map(Item, _paths(source))


def _is_one_image(source: str | Path) -> bool:
    """By its name, so that a long list of files is not looked up twice."""
    return _is_image(str(source)) and not glob.has_magic(str(source))


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _refuse_without_image(source: str | Path) -> None:
    if next(_paths(source), None) is not None:
        return
    path, suffixes = Path(source), f"{SUFFIXES[0]}, …, {SUFFIXES[-1]}"
    if path.is_dir():
        raise DataError(f"{path}: no image in this folder or those in it; looked for files that end in {suffixes}")
    if path.is_file():
        raise DataError(f"{path}: names no image; write one path a line")
    if glob.has_magic(str(source)):
        raise DataError(f"{source}: no image matches it; looked for files that end in {suffixes}")
    raise DataError(f"{source}: does not exist; name an image file, a folder, a pattern or a .txt list of paths")


def _paths(source: str | Path) -> Iterator[Path]:
    path = Path(source)
    if path.is_dir():
        yield from _in_folder(path, frozenset())
    elif path.suffix.lower() == LIST and path.is_file():
        yield from _in_list(path)
    elif _is_one_image(source) or path.exists():
        yield path
    elif glob.has_magic(str(source)):
        yield from _matching(str(source))


def _in_folder(folder: Path, above: frozenset[str]) -> Iterator[Path]:
    place = os.path.realpath(folder)
    if place in above:  # a link that leads back up
        return
    files, folders = _entries(folder)
    while files:
        yield folder / files.pop()  # what was found is forgotten, which counts in a folder of a million
    for name in folders:
        yield from _in_folder(folder / name, above | {place})


def _entries(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the images, last one first, and of the folders."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif _is_image(entry.name):
                files.append(entry.name)
    return sorted(files, reverse=True), sorted(folders)


def _in_list(path: Path) -> Iterator[Path]:
    """Lines are paths from the working directory or, where there is no such file, from the list's own folder."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for line in filter(None, map(str.strip, lines)):
            near = path.parent / line
            found = near if not Path(line).exists() and near.exists() else Path(line)
            yield from _in_folder(found, frozenset()) if found.is_dir() else (found,)


def _matching(pattern: str) -> Iterator[Path]:
    """Files that match, sorted within each folder; folders that match are searched, but where `**` does so already."""
    searched = "**" in pattern
    found = glob.iglob(pattern, recursive=True)  # noqa: PTH207  # pathlib's takes no pattern that begins with a folder
    for _, names in itertools.groupby(found, os.path.dirname):
        for name in sorted(names):
            if not searched and Path(name).is_dir():
                yield from _in_folder(Path(name), frozenset())
            elif _is_image(name):
                yield Path(name)
