"""YOLO: one text file per image with the objects in it, and the class names in `data.yaml` or `classes.txt`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from probmcl.data.image_files import IMAGE_SUFFIXES, images_below, refuse_absent, split_folders, walk
from probmcl.data.labels import State
from probmcl.data.records import Missing, Origin, Records, Split
from probmcl.errors import DataError, counted
from probmcl.readers.annotations import find_annotated_images, label_states
from probmcl.readers.spreadsheet import read_encoded_text
from probmcl.readers.yolo_config import YoloConfig, config_files, names_file, read_config

REMEDY = "copy the images there, or remove their annotations"


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
