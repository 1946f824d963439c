"""Data with one folder per class. An image in several folders, as a link or a copy, has all their labels."""

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from probmcl.data.image_files import equal_files, images_below, is_image, subfolders
from probmcl.data.labels import State
from probmcl.data.records import NO_LABELS, Missing, Origin, Records, Split
from probmcl.errors import DataError, counted, listing
from probmcl.readers.annotations import label_states
from probmcl.readers.file_index import SPLIT_FOLDERS
from probmcl.store.run_folder import is_run

NOT_A_CLASS = re.compile(
    r"(images?|imgs?|photos?|pictures?|data|masks?|annotations?|labels?|train(ing|val)?|val(id|idation)?|dev|test(ing)?)"
    r"[-_ ]?\d*",
    re.IGNORECASE,
)
"""Names of folders that contain images of many classes."""
MOST_SINGLE = 10  # folders with a single image each that may be classes


class _File(NamedTuple):
    path: str
    split: Split
    label: str


class _Layout(NamedTuple):
    """The class folders, by the name of their split folder ('' without splits).

    `unsorted` has the split folders with images but no class folders, and `sorted` those with class folders only. If
    there are sorted ones, an unsorted test folder is in `unlabeled` instead.
    """

    classes: dict[str, list[Path]]
    unsorted: list[Path]
    sorted: list[Path]
    unlabeled: list[Path]
    runs: list[str]


def recognizes(folder: Path) -> bool:
    """Return whether at least two folders contain images and all of these have names that could be classes.

    If only some of the split folders have class folders, this also returns True, so that the reader can report it.

    >>> recognizes(Path("nowhere"))
    False
    """
    layout = _scan(folder)
    if layout.unsorted and layout.sorted:
        return True
    names = {path.name for folders in layout.classes.values() for path in folders}
    return len(names) > 1 and not any(NOT_A_CLASS.fullmatch(name) for name in names)


def read_folders(folder: Path, *, missing: Missing = "error") -> Records:
    """Read images from ROOT/CLASS/…, or from ROOT/train/CLASS/… and likewise for val and test.

    Within a split, links to the same file and files with the same bytes are merged into one image with several labels
    and the first path. Images are not merged across splits. A broken link is an error, unless `missing="keep"`. If
    only test has no class folders, it is not used, because its labels are not known.
    """
    layout = _scan(folder)
    if layout.unsorted and layout.sorted:
        raise DataError(
            f"{folder}: {listing(f'{path.name}/' for path in layout.sorted)} has one folder per class, but the images "
            f"in {listing(f'{path.name}/' for path in layout.unsorted)} are not in class folders, so their labels are "
            f"unknown; pass {layout.sorted[0]} as `data`, or move the other images into class folders"
        )
    files = [
        _File(str(path), SPLIT_FOLDERS.get(name.lower(), "train"), class_folder.name)
        for name, class_folders in layout.classes.items()
        for class_folder in class_folders
        for path in images_below(class_folder)
    ]
    if not files:
        raise DataError(f"{folder}: no subfolder contains images; pass the parent of the class folders")
    names = sorted({file.label for file in files})
    if len(names) == len(files) > MOST_SINGLE:
        raise DataError(
            f"{folder}: each of the {len(names):,} folders has only one image, so their names cannot be classes; write "
            f"a table with one row per image"
        )
    copies: dict[object, list[_File]] = defaultdict(list)
    for file, identity in zip(files, _identities(folder, [file.path for file in files], missing), strict=True):
        copies[file.split, identity].append(file)
    images = list(copies.values())
    paths, splits = [Path(files[0].path) for files in images], [files[0].split for files in images]
    origin = Origin(folder, _describe(layout, names, images), unlabeled=tuple(map(str, layout.unlabeled)))
    labels = [dict.fromkeys((file.label for file in files), State.PRESENT) for files in images]
    return Records.from_labels(names, paths, splits, label_states(names, labels), origin=origin)


def _describe(layout: _Layout, names: list[str], images: list[list[_File]]) -> str:
    several = sum(len({file.label for file in copies}) > 1 for copies in images)
    repeated = sum(len(copies) - len({file.label for file in copies}) for copies in images)
    splits = [f"{name}/" for name in layout.classes if name]
    parts = [f"one folder per class ({listing(map(repr, names))})"]
    parts += [f"{'split' if len(splits) == 1 else 'splits'} {', '.join(splits)}"] if splits else []
    parts.append(f"{counted(len(images), 'image')}, {several:,} in several classes (links or copies)")
    parts += [f"{counted(repeated, 'copy', 'copies')} within a class left out"] if repeated else []
    parts += [f"ignored run folders: {listing(f'{name}/' for name in layout.runs)}"] if layout.runs else []
    unused = [f"{NO_LABELS}: {listing(map(str, layout.unlabeled))}"] if layout.unlabeled else []
    return "\n".join(["; ".join(parts), *unused])


def _scan(folder: Path) -> _Layout:
    """Find the split, class and run folders. Subfolders are splits if all that contain images have names of splits."""
    filled = _with_images(folder)
    splits = filled if all(split.name.lower() in SPLIT_FOLDERS for split in filled) else []
    direct = [split for split in splits if any(is_image(path.name) for path in split.iterdir())]
    in_classes = [split for split in splits if split not in direct]
    classes = {split.name: _with_images(split) for split in splits}
    unsorted = [split for split in direct if not classes[split.name]]
    unlabeled = [split for split in unsorted if in_classes and SPLIT_FOLDERS[split.name.lower()] == "test"]
    by_split = splits and direct == unlabeled
    classes = {split.name: classes[split.name] for split in in_classes} if by_split else {"": filled}
    runs = [path.name for path in subfolders(folder) if _contains_runs(path)]
    return _Layout(classes, [split for split in unsorted if split not in unlabeled], in_classes, unlabeled, runs)


def _with_images(folder: Path) -> list[Path]:
    """Return the subfolders that contain images at any depth, except those with runs."""
    others = (path for path in subfolders(folder) if not _contains_runs(path))
    return [path for path in others if next(images_below(path), None) is not None]


def _contains_runs(folder: Path) -> bool:
    return any(map(is_run, (folder, *subfolders(folder))))


def _identities(folder: Path, paths: list[str], missing: Missing) -> list[object]:
    """Return a key for each path, equal for links to the same file and for files with the same bytes."""
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
        raise DataError(f"{folder}: {path}: {error.strerror}; repair or remove the link") from error
    return status.st_dev, status.st_ino
