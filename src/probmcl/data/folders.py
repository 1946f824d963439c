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

from probmcl.data.hugging_face import SPLIT_FOLDERS
from probmcl.data.labels import LabelStates, State
from probmcl.data.records import DataError, Missing, Origin, Records, Split
from probmcl.data.tables.places import is_image, tree
from probmcl.data.tables.sheet import listing

NO_CLASS = re.compile(
    r"(images?|imgs?|photos?|pictures?|data|masks?|annotations?|labels?|train(ing|val)?|val(id|idation)?|dev|test(ing)?)"
    r"[-_ ]?\d*",
    re.IGNORECASE,
)
"""Names of folders that hold images of many classes."""
Identity = tuple[object, ...]
HEAD = 4096
"""Bytes of a file that are compared before whole files are."""


class _File(NamedTuple):
    """An image as it lies in a folder."""

    path: str
    split: Split
    label: str


def recognises(folder: Path) -> bool:
    """Whether at least two folders hold images, none of which is named as those are that hold images of all classes.

    >>> recognises(Path("nowhere"))
    False
    """
    found = {name for parts in _classes(folder).values() for name in parts}
    return len(found) > 1 and not any(NO_CLASS.fullmatch(name) for name in found)


def read_folders(folder: Path, *, missing: Missing = "error") -> Records:
    """Read ROOT/CLASS/…, or ROOT/train/CLASS/… beside val and test.

    The same image in several folders of one split, whether a link or a copy of the same bytes, is one image with
    several labels; of its paths the first is kept. In two splits it stays two. A link that leads nowhere is an error;
    with `missing="keep"` it stays.
    """
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
        origin=Origin(folder, _understood(names, found, _splits(folder))),
    )


def _states(names: list[str], images: list[list[_File]]) -> LabelStates:
    place = {name: k for k, name in enumerate(names)}
    rows = np.repeat(np.arange(len(images)), [len(copies) for copies in images])
    classes = np.array([place[file.label] for copies in images for file in copies], dtype=np.int64)
    states = np.full(len(rows), State.PRESENT, dtype=np.uint8)
    return LabelStates.from_entries(rows, classes, states, (len(images), len(names)))


def _understood(names: list[str], images: list[list[_File]], splits: Mapping[str, Split]) -> str:
    several = sum(len({file.label for file in copies}) > 1 for copies in images)
    again = sum(len(copies) - len({file.label for file in copies}) for copies in images)
    parts = [f"one folder a class ({listing(map(repr, names))})"]
    parts += [f"splits {', '.join(f'{name}/' for name in splits)}"] if splits else []
    parts.append(f"{len(images):,} images, {several:,} in several classes (links or copies)")
    parts += [f"{again:,} more copies within a class left out"] if again else []
    return "; ".join(parts)


# Which folders are classes.


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith((".", "__")))


def _holds_images(folder: Path) -> bool:
    return any(is_image(entry.name) for entry in tree(folder))


def _splits(folder: Path) -> dict[str, Split]:
    """The folders of splits, where all that hold images are such and hold folders only."""
    found = [place for place in _subfolders(folder) if _holds_images(place)]
    if any(place.name.lower() not in SPLIT_FOLDERS or _images_in(place) for place in found):
        return {}
    return {place.name: SPLIT_FOLDERS[place.name.lower()] for place in found}


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
