"""One folder per class; an image that lies in several, as a link or as a copy, has all their labels."""

import os
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probmcl.data.formats.hugging_face import SPLIT_FOLDERS
from probmcl.data.formats.table.label_names import alike_names
from probmcl.data.formats.table.sheet import listing
from probmcl.data.image_files import equal_files, images_below, is_image
from probmcl.data.labels import LabelStates, State
from probmcl.data.records import Missing, Origin, Records, Split
from probmcl.errors import DataError
from probmcl.run_folder import is_run

NOT_A_CLASS = re.compile(
    r"(images?|imgs?|photos?|pictures?|data|masks?|annotations?|labels?|train(ing|val)?|val(id|idation)?|dev|test(ing)?)"
    r"[-_ ]?\d*",
    re.IGNORECASE,
)
"""Names of folders that hold images of many classes."""


class _File(NamedTuple):
    path: str
    split: Split
    label: str


class _Layout(NamedTuple):
    """The folders of classes, by the folder of their split ('' without splits).

    `unsorted` are folders of splits whose images lie in no folder of a class, `sorted` those whose images all do.
    """

    classes: dict[str, list[Path]]
    unsorted: list[Path]
    sorted: list[Path]
    runs: list[str]


def recognizes(folder: Path) -> bool:
    """Return whether at least two folders hold images, and none has a name that is not one of a class.

    Splits of which only some hold folders of classes are recognized too; the reader explains the problem.

    >>> recognizes(Path("nowhere"))
    False
    """
    layout = _scan(folder)
    if layout.unsorted and layout.sorted:
        return True
    names = {place.name for places in layout.classes.values() for place in places}
    return len(names) > 1 and not any(NOT_A_CLASS.fullmatch(name) for name in names)


def read_folders(folder: Path, *, missing: Missing = "error") -> Records:
    """Read ROOT/CLASS/…, or ROOT/train/CLASS/… next to val and test.

    The same image in several folders of one split, whether a link or a copy of the same bytes, is one image with
    several labels; the first of its paths is kept. In two splits it stays two. A broken link is an error; with
    `missing="keep"` it stays.
    """
    layout = _scan(folder)
    if layout.unsorted and layout.sorted:
        raise DataError(
            f"{folder}: {listing(f'{place.name}/' for place in layout.sorted)} has a folder for each class, but the "
            f"images of {listing(f'{place.name}/' for place in layout.unsorted)} lie in none, so that their labels are "
            f"not known; give {layout.sorted[0]} alone as DATA, or sort the others into folders of classes"
        )
    files = [
        _File(str(path), SPLIT_FOLDERS.get(name.lower(), "train"), place.name)
        for name, places in layout.classes.items()
        for place in places
        for path in images_below(place)
    ]
    if not files:
        raise DataError(f"{folder}: has no folder with images in it; name the folder above those of the classes")
    copies: dict[object, list[_File]] = defaultdict(list)
    for file, identity in zip(files, _identities(folder, [file.path for file in files], missing), strict=True):
        copies[file.split, identity].append(file)
    images, names = list(copies.values()), sorted({file.label for file in files})
    paths, splits = [Path(same[0].path) for same in images], [same[0].split for same in images]
    origin = Origin(folder, _understood(layout, names, images))
    return Records.from_labels(names, paths, splits, _states(names, images), origin=origin)


def _states(names: list[str], images: list[list[_File]]) -> LabelStates:
    index = {name: k for k, name in enumerate(names)}
    rows = np.repeat(np.arange(len(images)), [len(copies) for copies in images])
    classes = np.array([index[file.label] for copies in images for file in copies], dtype=np.int64)
    states = np.full(len(rows), State.PRESENT, dtype=np.uint8)
    return LabelStates.from_entries(rows, classes, states, (len(images), len(names)))


def _understood(layout: _Layout, names: list[str], images: list[list[_File]]) -> str:
    several = sum(len({file.label for file in copies}) > 1 for copies in images)
    again = sum(len(copies) - len({file.label for file in copies}) for copies in images)
    splits = [f"{name}/" for name in layout.classes if name]
    parts = [f"one folder a class ({listing(map(repr, names))})"]
    parts += [f"splits {', '.join(splits)}"] if splits else []
    parts.append(f"{len(images):,} images, {several:,} in several classes (links or copies)")
    parts += [f"{again:,} more copies within a class left out"] if again else []
    parts += [f"left out, as it holds runs: {listing(f'{name}/' for name in layout.runs)}"] if layout.runs else []
    return "; ".join([*parts, *alike_names(names)])


def _scan(folder: Path) -> _Layout:
    """Return which subfolders are splits, classes and runs; subfolders are splits if all with images are named so."""
    filled = _with_images(folder)
    splits = filled if all(place.name.lower() in SPLIT_FOLDERS for place in filled) else []
    direct = [place for place in splits if any(is_image(path.name) for path in place.iterdir())]
    classes = {place.name: _with_images(place) for place in splits}
    unsorted = [place for place in direct if not classes[place.name]]
    runs = [place.name for place in _subfolders(folder) if _holds_runs(place)]
    in_classes = [place for place in splits if place not in direct]
    return _Layout(classes if splits and not direct else {"": filled}, unsorted, in_classes, runs)


def _with_images(folder: Path) -> list[Path]:
    """Return the subfolders with images below them, without those of runs."""
    places = (place for place in _subfolders(folder) if not _holds_runs(place))
    return [place for place in places if next(images_below(place), None) is not None]


def _holds_runs(folder: Path) -> bool:
    return any(map(is_run, (folder, *_subfolders(folder))))


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:  # which tells folders from files without asking for each
        names = [entry.name for entry in entries if not entry.name.startswith((".", "__")) and entry.is_dir()]
    return sorted(folder / name for name in names)


def _identities(folder: Path, paths: list[str], missing: Missing) -> list[object]:
    """Return what is equal for equal images: the file that a link leads to, or the bytes of equal files."""
    files = [_file(folder, path, missing) for path in paths]
    first = {file: path for path, file in reversed(list(zip(paths, files, strict=True)))}
    digests = equal_files(first.values())[0]
    return [digests.get(first[file], file) for file in files]


def _file(folder: Path, path: str, missing: Missing) -> object:
    """Return the device and inode of a file, or its path if it is a broken link."""
    try:
        status = Path(path).stat()
    except OSError as error:
        if missing == "keep":
            return path
        raise DataError(f"{folder}: {path}: {error.strerror}; repair the link, or remove it") from error
    return status.st_dev, status.st_ino
