"""One folder a class; an image that lies in several, as a link or as a copy, has all their labels."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probmcl.data.formats.hugging_face import SPLIT_FOLDERS
from probmcl.data.formats.table.alike_names import alike_names
from probmcl.data.formats.table.places import is_image, tree
from probmcl.data.formats.table.sheet import listing
from probmcl.data.labels import LabelStates, State
from probmcl.data.records import Missing, Origin, Records, Split
from probmcl.errors import DataError

NO_CLASS = re.compile(
    r"(images?|imgs?|photos?|pictures?|data|masks?|annotations?|labels?|train(ing|val)?|val(id|idation)?|dev|test(ing)?)"
    r"[-_ ]?\d*",
    re.IGNORECASE,
)
"""Names of folders that hold images of many classes."""
OF_A_RUN = ("run.json", "asked.json")
"""What lies in a folder that training or comparing has written."""
Identity = tuple[object, ...]
HEAD = 4096
"""Bytes of a file that are compared before whole files are."""


class _File(NamedTuple):
    """An image as it lies in a folder."""

    path: str
    split: Split
    label: str


def recognizes(folder: Path) -> bool:
    """Whether at least two folders hold images, none of which is named as those are that hold images of all classes.

    Splits of which only some hold folders of classes are recognized too, for the reader to say what is wrong.

    >>> recognizes(Path("nowhere"))
    False
    """
    if all(_loose_and_sorted(folder)):
        return True
    found = {name for parts in _classes(folder).values() for name in parts}
    return len(found) > 1 and not any(NO_CLASS.fullmatch(name) for name in found)


def read_folders(folder: Path, *, missing: Missing = "error") -> Records:
    """Read ROOT/CLASS/…, or ROOT/train/CLASS/… beside val and test.

    The same image in several folders of one split, whether a link or a copy of the same bytes, is one image with
    several labels; of its paths the first is kept. In two splits it stays two. A link that leads nowhere is an error;
    with `missing="keep"` it stays.
    """
    _refuse_loose(folder)
    files = _files(folder)
    if not files:
        raise DataError(f"{folder}: has no folder with images in it; name the folder above those of the classes")
    same = _identities(folder, [file.path for file in files], missing)
    images: dict[tuple[Split, Identity], list[_File]] = defaultdict(list)
    for file, identity in zip(files, same, strict=True):
        images[file.split, identity].append(file)
    found = list(images.values())
    names = sorted({file.label for file in files})
    return Records.from_labels(
        names,
        [Path(copies[0].path) for copies in found],
        [copies[0].split for copies in found],
        _states(names, found),
        origin=Origin(folder, _understood(folder, names, found)),
    )


def _states(names: list[str], images: list[list[_File]]) -> LabelStates:
    place = {name: k for k, name in enumerate(names)}
    rows = np.repeat(np.arange(len(images)), [len(copies) for copies in images])
    classes = np.array([place[file.label] for copies in images for file in copies], dtype=np.int64)
    states = np.full(len(rows), State.PRESENT, dtype=np.uint8)
    return LabelStates.from_entries(rows, classes, states, (len(images), len(names)))


def _understood(folder: Path, names: list[str], images: list[list[_File]]) -> str:
    splits, runs = _splits(folder), [place.name for place in _all_subfolders(folder) if _holds_runs(place)]
    several = sum(len({file.label for file in copies}) > 1 for copies in images)
    again = sum(len(copies) - len({file.label for file in copies}) for copies in images)
    parts = [f"one folder a class ({listing(map(repr, names))})"]
    parts += [f"splits {', '.join(f'{name}/' for name in splits)}"] if splits else []
    parts.append(f"{len(images):,} images, {several:,} in several classes (links or copies)")
    parts += [f"{again:,} more copies within a class left out"] if again else []
    parts += [f"left out, as it holds runs: {listing(f'{name}/' for name in runs)}"] if runs else []
    parts += alike_names(names)
    return "; ".join(parts)


# Which folders are classes.


def _subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, without those of runs, whose images are figures."""
    return [place for place in _all_subfolders(folder) if not _holds_runs(place)]


def _holds_runs(folder: Path) -> bool:
    """Whether a folder is one of a run, or holds some."""
    return any((place / name).is_file() for place in (folder, *_all_subfolders(folder)) for name in OF_A_RUN)


def _all_subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:  # which knows what is a folder without asking for each file
        return sorted(
            folder / entry.name for entry in entries if not entry.name.startswith((".", "__")) and entry.is_dir()
        )


def _holds_images(folder: Path) -> bool:
    return any(is_image(entry.name) for entry in tree(folder))


def _splits(folder: Path) -> dict[str, Split]:
    """The folders of splits, where all that hold images are such and hold folders only."""
    found = _named_as_splits(folder)
    if any(_images_in(place) for place in found):
        return {}
    return {place.name: SPLIT_FOLDERS[place.name.lower()] for place in found}


def _named_as_splits(folder: Path) -> list[Path]:
    """The folders that hold images, where all are named as splits are."""
    folders = _subfolders(folder)
    others = (place for place in folders if place.name.lower() not in SPLIT_FOLDERS)
    if any(_holds_images(place) for place in others):
        return []
    return [place for place in folders if place.name.lower() in SPLIT_FOLDERS and _holds_images(place)]


def _loose_and_sorted(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders of splits whose images lie in no folder of a class, and those whose images all do."""
    found = [(place, _images_in(place)) for place in _named_as_splits(folder)]
    loose = [place for place, has_images in found if has_images and not _holds_classes(place)]
    return loose, [place for place, has_images in found if not has_images]


def _refuse_loose(folder: Path) -> None:
    loose, whole = _loose_and_sorted(folder)
    if loose and whole:
        raise DataError(
            f"{folder}: {listing(f'{place.name}/' for place in whole)} has a folder for each class, but the images of "
            f"{listing(f'{place.name}/' for place in loose)} lie in none, so that their labels are not known; give "
            f"{whole[0]} alone as DATA, or sort the others into folders of classes"
        )


def _holds_classes(folder: Path) -> bool:
    return any(_holds_images(place) for place in _subfolders(folder))


def _images_in(folder: Path) -> bool:
    return any(is_image(place.name) for place in folder.iterdir())


def _classes(folder: Path) -> dict[str, list[str]]:
    """The names of the classes in each folder of a split, or under a blank name without splits."""
    splits = _splits(folder)
    places = {name: folder / name for name in splits} or {"": folder}
    return {name: [sub.name for sub in _subfolders(place) if _holds_images(sub)] for name, place in places.items()}


def _files(folder: Path) -> list[_File]:
    """Every image, split after split, class after class."""
    splits: dict[str, Split] = _splits(folder) or {"": "train"}
    classes = _classes(folder)
    return [
        _File(entry.path, split, label)
        for name, split in splits.items()
        for label in classes[name]
        for entry in tree(folder / name / label)
        if is_image(entry.name)
    ]


# Which files are the same image.


def _identities(folder: Path, paths: list[str], missing: Missing) -> list[Identity]:
    """What is equal for equal images: the file that a link leads to, or its bytes where another has the same."""
    found = [_stat(folder, path, missing) for path in paths]
    keys = [
        (0, 0, path) if stat is None else (stat.st_dev, stat.st_ino, "")
        for path, stat in zip(paths, found, strict=True)
    ]
    files: dict[Identity, str] = {
        key: path for key, path, stat in zip(keys, paths, found, strict=True) if stat is not None
    }
    contents: dict[Identity, Identity] = {
        key: (stat.st_size,) for key, stat in zip(keys, found, strict=True) if stat is not None
    }
    for read in (_head, _whole):
        alike = _alike(contents)
        contents = {key: (*contents[key], read(files[key])) for key in alike}
    return [contents.get(key, key) for key in keys]


def _alike(contents: Mapping[Identity, Identity]) -> list[Identity]:
    """The files whose content, as far as it is known, is that of another."""
    times = Counter(contents.values())
    return [key for key, content in contents.items() if times[content] > 1]


def _stat(folder: Path, path: str, missing: Missing) -> os.stat_result | None:
    try:
        return Path(path).stat()
    except OSError as error:
        if missing == "keep":
            return None
        raise DataError(f"{folder}: {path}: {error.strerror}; mend the link, or remove it") from error


def _head(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.sha256(file.read(HEAD)).digest()


def _whole(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
