"""YOLO: one text file per image with the objects in it, and the class names in `data.yaml` or `classes.txt`."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probmcl.data.image_files import IMAGE_SUFFIXES, images_below, refuse_absent, walk
from probmcl.data.labels import State
from probmcl.data.records import SPLITS, Missing, Origin, Records, Split
from probmcl.errors import DataError, counted
from probmcl.readers.annotations import find_annotated_images, label_states
from probmcl.readers.file_index import SPLIT_FOLDERS, split_folders
from probmcl.readers.spreadsheet import read_encoded_text

SUFFIXES = (".yaml", ".yml")
NAMES_FILES = ("classes.txt", "labels/classes.txt", "obj.names")
IS_CONFIG = re.compile(r"^names\s*:", re.MULTILINE), re.compile(r"^(train|val|nc|path)\s*:", re.MULTILINE)

Sources = dict[Split, list[Path]]

REMEDY = "copy the images there, or remove their annotations"


class YoloConfig(NamedTuple):
    """The file with the names, the names by class index, and the folders or lists of images by split."""

    file: Path
    names: dict[int, str]
    sources: Sources
    notes: list[str]


def config_files(path: Path) -> list[Path]:
    """Return the YAML files in a folder that describe YOLO data, or the given file if it does.

    >>> config_files(Path("nowhere"))
    []
    """
    files = sorted(file for suffix in SUFFIXES for file in path.glob(f"*{suffix}")) if path.is_dir() else [path]
    files = [file for file in files if file.suffix.lower() in SUFFIXES and file.is_file()]
    texts = {file: file.read_text(encoding="utf-8", errors="replace") for file in files}
    return [file for file, text in texts.items() if all(pattern.search(text) for pattern in IS_CONFIG)]


def names_file(folder: Path) -> Path | None:
    """Return the text file with the class names, one per line, if there is one."""
    return next((folder / name for name in NAMES_FILES if (folder / name).is_file()), None)


def read_config(path: Path) -> YoloConfig:
    """Read the YAML file, or the class names of a folder without one."""
    files = config_files(path)
    if len(files) > 1:
        raise DataError(f"{path} has {files[0].name} and {files[1].name}; pass one of them as `data`")
    if files or path.is_file():
        file = files[0] if files else path
        content = _load(file)
        return YoloConfig(file, _names(file, content), *_sources(file, content))
    file_of_names = names_file(path)
    if file_of_names is None:
        raise DataError(f"{path}: no data.yaml and no {' or '.join(NAMES_FILES)} with the names of the classes")
    lines = read_encoded_text(file_of_names).splitlines()
    names = {index: name.strip() for index, name in enumerate(lines) if name.strip()}
    return YoloConfig(file_of_names, _unique(file_of_names, names), _sources_in(path), [])


def _load(file: Path) -> dict[str, Any]:
    import yaml

    try:
        # This loader reads every value as text, so that the class names `no` and `1e3` stay as they are.
        content = yaml.load(file.read_text(encoding="utf-8-sig"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: invalid YAML ({' '.join(str(error).split())}); correct the file") from error
    if not isinstance(content, dict) or not isinstance(content.get("names"), list | dict):
        raise DataError(f"{file}: expected `names:` with a list of class names")
    return content


def _names(file: Path, content: Mapping[str, Any]) -> dict[int, str]:
    given = content["names"]
    by_index = given if isinstance(given, dict) else {str(index): name for index, name in enumerate(given)}
    wrong = [index for index in by_index if not index.isdecimal()]
    if wrong:
        raise DataError(f"{file}: names: the class index {wrong[0]!r} must be a whole number, such as 0")
    if str(content.get("nc", len(by_index))) != str(len(by_index)):
        entries = counted(len(by_index), "entry", "entries")
        raise DataError(f"{file}: nc is {content['nc']}, but names has {entries}; correct one of them")
    return _unique(file, dict(sorted((int(index), str(name)) for index, name in by_index.items())))


def _unique(file: Path, names: dict[int, str]) -> dict[int, str]:
    first: dict[str, int] = {}
    for index, name in names.items():
        if first.setdefault(name, index) != index:
            raise DataError(f"{file}: classes {first[name]} and {index} are both named {name!r}; rename one")
    return names


def _sources(file: Path, content: Mapping[str, Any]) -> tuple[Sources, list[str]]:
    """Return the folders or lists of each split, and notes on those that are not used."""
    sources: Sources = {}
    notes: list[str] = []
    for key, split in SPLIT_FOLDERS.items():
        given = content.get(key) or []
        for entry in map(str, [given] if isinstance(given, str) else given):
            source = _resolve(file.parent, str(content.get("path") or ""), entry)
            if source is None and split == "train":
                raise DataError(f"{file}: {key}: {entry!r} does not exist; correct the path, relative to {file.parent}")
            if source is None or any(source in others for others in sources.values()):
                reason = "does not exist" if source is None else "is also used for another split"
                notes.append(f"{key} left out: {entry} {reason}")
            else:
                sources.setdefault(split, []).append(source)
    return sources or _sources_in(file.parent), notes


def _resolve(folder: Path, root: str, entry: str) -> Path | None:
    """Return the path of an entry, relative to `path:` or to the YAML file.

    If neither exists, the last two or more parts of the entry are tried: Roboflow writes `../train/images` for
    `train/images`, and the path may come from another computer.
    """
    parts = [part for part in Path(entry).parts if part not in ("/", "..", ".")]
    tails = [Path(*parts[start:]) for start in range(max(len(parts) - 1, 1))]
    candidates = (folder / root / entry, folder / entry, *(folder / tail for tail in tails))
    return next((Path(os.path.normpath(path)) for path in candidates if path.exists()), None)


def _sources_in(folder: Path) -> Sources:
    """Return the lists `train.txt`, …, or the split folders in `images/` or in the folder, or all images as train."""
    lists = [(split, folder / f"{name}.txt") for name, split in SPLIT_FOLDERS.items()]
    images = folder / "images" if (folder / "images").is_dir() else folder
    found = [(split, path) for split, path in lists if path.is_file()]
    found = found or [(split, path) for path, split in (split_folders(images) or split_folders(folder)).items()]
    sources = {split: [path for name, path in found if name == split] for split in SPLITS}
    return {split: paths for split, paths in sources.items() if paths} or {"train": [images]}


def recognizes(path: Path) -> bool:
    """Return whether the path is a `data.yaml`, or a folder with one or with class names and text files of objects.

    >>> recognizes(Path("nowhere"))
    False
    """
    names = names_file(path)
    return bool(config_files(path)) or (names is not None and (names.name == "obj.names" or _has_label_files(path)))


def read_yolo(path: Path, *, missing: Missing = "error") -> Records:
    """Read the classes of the objects in each text file as labels. An image without a text file has no labels.

    The text file of `images/train/1.jpg` is `labels/train/1.txt` or, if it does not exist, `images/train/1.txt`. A text
    file in `labels/` without an image is an error; with `missing="keep"`, its image is kept. All names are classes, in
    the order of their indices. A split without any text file is left out, because its labels are not known.
    """
    config = read_config(path)
    paths: list[Path] = []
    splits: list[Split] = []
    labels: list[Mapping[str, State]] = []
    notes, unlabeled = list(config.notes), []
    for split, sources in config.sources.items():
        images = [image for source in sources for image in _images(source, config.file.parent, missing)]
        files = [_label_file(image) for image in images]
        if not any(files):
            notes.append(f"{split} left out: no text file for its {counted(len(images), 'image')}")
            unlabeled += [str(source) for source in sources]
            continue
        labels += [{} if file is None else _labels(file, config) for file in files]
        paths += images
        splits += [split] * len(images)
    if not paths:
        raise DataError(f"{config.file}: no image has a text file; expected the folder labels/ next to images/")
    names = list(config.names.values())
    description = "\n".join([f"YOLO, {counted(len(names), 'name')} from {config.file.name}", *notes])
    origin = Origin(path, description, unlabeled=tuple(unlabeled))
    return Records.from_labels(names, paths, splits, label_states(names, labels), origin=origin)


def _has_label_files(folder: Path) -> bool:
    """Return whether there are text files in the `labels/` of a folder or of its splits, or next to images."""
    labels = [base / "labels" for base in (folder, *split_folders(folder)) if (base / "labels").is_dir()]
    if any(_has_objects(entry.name) for base in labels for entry in walk(base)):
        return True
    return any(file.with_suffix(suffix).is_file() for file in folder.glob("*.txt") for suffix in IMAGE_SUFFIXES)


def _has_objects(name: str) -> bool:
    return name.endswith(".txt") and name != "classes.txt"


def _images(source: Path, folder: Path, missing: Missing) -> list[Path]:
    """Return the images in a folder or a list, and the absent images of the text files for the folder."""
    if source.is_file():
        names = list(filter(None, map(str.strip, read_encoded_text(source).splitlines())))
        below = folder if source.is_relative_to(folder) else source.parent
        return find_annotated_images(below, names, source=source, remedy=REMEDY, missing=missing)
    images, labels = list(images_below(source)), _labels_folder(source)
    if labels == source:
        return images
    present = {str(image.relative_to(source).with_suffix("")) for image in images}
    files = [Path(entry.path).relative_to(labels) for entry in walk(labels) if _has_objects(entry.name)]
    absent = [str(file.with_suffix(".jpg")) for file in files if str(file.with_suffix("")) not in present]
    refuse_absent(absent, len(images) + len(absent), source, source=labels, remedy=REMEDY, missing=missing)
    return [*images, *(source / name for name in absent)]


def _labels_folder(images: Path) -> Path:
    """Return the folder of the text files: the path with the last `images` replaced by `labels`, or the same folder."""
    parts = list(images.parts)
    if "images" not in parts:
        return images
    last = len(parts) - 1 - parts[::-1].index("images")
    labels = Path(*parts[:last], "labels", *parts[last + 1 :])
    return labels if labels.is_dir() else images


def _label_file(image: Path) -> Path | None:
    name = f"{image.stem}.txt"
    candidates = (_labels_folder(image.parent) / name, image.parent / name)
    return next((path for path in candidates if path.is_file()), None)


def _labels(file: Path, config: YoloConfig) -> dict[str, State]:
    indices: set[int] = set()
    for number, line in enumerate(file.read_text(encoding="utf-8-sig", errors="replace").splitlines(), start=1):
        fields = line.split()
        if fields:
            indices.add(_class_index(f"{file}, line {number}", fields, config))
    return {config.names[index]: State.PRESENT for index in sorted(indices)}


def _class_index(where: str, fields: Sequence[str], config: YoloConfig) -> int:
    try:
        index, *box = map(float, fields[:5])
    except ValueError:
        index, box = 0.5, []
    if not index.is_integer() or len(box) < 4:
        text = " ".join(fields)[:60]
        raise DataError(f"{where}: expected a class index and at least 4 coordinates, got {text!r}; correct the line")
    if int(index) not in config.names:
        problem = f"class index {int(index)} has no name in {config.file} (0 to {max(config.names, default=-1)})"
        raise DataError(f"{where}: {problem}; add the name, or correct the line")
    return int(index)
