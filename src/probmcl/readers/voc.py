"""PASCAL VOC: the devkit, which has one text file per class and split, or XML files only.

Everingham et al., The PASCAL Visual Object Classes (VOC) Challenge, IJCV 88, 2010.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.data.image_files import is_file, named_images, walk
from probmcl.data.labels import State
from probmcl.data.records import SPLITS, Missing, Origin, Records, Split
from probmcl.errors import DataError, counted
from probmcl.readers.annotations import find_annotated_images, label_states, others_left_out
from probmcl.readers.file_index import split_folders
from probmcl.readers.spreadsheet import read_encoded_text

FOLDERS = ("Annotations", "annotations")
LISTS: tuple[tuple[str, Split], ...] = (("train", "train"), ("val", "val"), ("test", "test"))
START = 4096  # bytes in which the root element must begin

MARKS = ("1", "0", "-1")  # present, present but difficult to see, absent


class _Annotation(NamedTuple):
    file: Path
    image_id: str  # the path of the file in its folder, without suffix
    split: Split


def has_xml(folder: Path) -> bool:
    """Return whether a folder has PASCAL VOC annotations, in `Annotations/`, in split folders or next to the images.

    >>> has_xml(Path("nowhere"))
    False
    """
    return any(_is_voc(annotation.file) for annotation in _annotations(folder)[:1])


def read_voc_xml(folder: Path, *, missing: Missing = "error") -> Records:
    """Read the names of the objects in each XML file as labels. The image has the name of its XML file.

    A class is unknown in an image if all its objects there are difficult, as in the class lists of the devkit. Splits
    are folders (`train/`, `valid/`, `test/`) or the lists `ImageSets/Main/{train,val,test}.txt`; without a train list,
    `trainval.txt` is train. Without splits, all images are in train.
    """
    annotations = _annotations(folder)
    notes: list[str] = []
    lists = _lists(folder / "ImageSets" / "Main")
    if lists:
        annotations, notes = _listed(lists, annotations)
    labels = [_labels(annotation.file) for annotation in annotations]
    names = sorted({name for states in labels for name in states})
    if not names:
        raise DataError(f"{folder}: no XML file has an <object>; pass a folder with labeled images")
    paths = find_annotated_images(
        folder,
        [annotation.file.relative_to(folder).as_posix()[:-4] for annotation in annotations],
        source=folder,
        remedy="copy the images there, with the names of the XML files",
        missing=missing,
    )
    notes += ["difficult labels are unknown"] if any(State.UNKNOWN in states.values() for states in labels) else []
    notes += [] if lists else [others_left_out(paths)]
    description = "\n".join([f"PASCAL VOC, {counted(len(labels), 'XML file')}", *filter(None, notes)])
    splits = [annotation.split for annotation in annotations]
    return Records.from_labels(names, paths, splits, label_states(names, labels), origin=Origin(folder, description))


def _annotations(folder: Path) -> list[_Annotation]:
    """Return the annotations in a folder and in its split folders."""
    annotations: list[_Annotation] = []
    bases: dict[Path, Split] = {folder: "train", **split_folders(folder)}
    for base, split in bases.items():
        inner = next((base / name for name in FOLDERS if (base / name).is_dir()), base)
        below = (Path(entry.path) for entry in walk(inner) if entry.name.endswith(".xml") and is_file(entry))
        files = sorted(file for file in base.glob("*.xml") if file.is_file()) if inner == base else below
        annotations += [_Annotation(file, file.relative_to(inner).as_posix()[:-4], split) for file in files]
    return annotations


def _is_voc(file: Path) -> bool:
    with file.open("rb") as start:
        text = start.read(START)
    return b"<annotation>" in text or b"<annotation " in text


def _labels(file: Path) -> dict[str, State]:
    try:
        root = ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the last two for an unknown encoding
        raise DataError(f"{file}: invalid XML ({error}); export the file again") from error
    if root.tag != "annotation":
        raise DataError(f"{file}: the root element is <{root.tag}>, not <annotation>; move the file to another folder")
    labels: dict[str, State] = {}
    for number, element in enumerate(root.findall("object"), start=1):
        name = (element.findtext("name") or "").strip()
        if not name:
            raise DataError(f"{file}: object {number} has no <name>; add the class, or remove the object")
        if (element.findtext("difficult") or "").strip() != "1":
            labels[name] = State.PRESENT
        labels.setdefault(name, State.UNKNOWN)
    return labels


def _lists(main: Path) -> dict[Split, Path]:
    lists = {split: main / f"{name}.txt" for name, split in LISTS if (main / f"{name}.txt").is_file()}
    trainval = main / "trainval.txt"
    return lists if "train" in lists or not trainval.is_file() else {"train": trainval, **lists}


def _listed(lists: Mapping[Split, Path], annotations: list[_Annotation]) -> tuple[list[_Annotation], list[str]]:
    """Return the annotations of the listed images, and notes. A list without any XML file is left out."""
    by_id = {annotation.image_id: annotation for annotation in annotations}
    listed: dict[str, _Annotation] = {}
    notes = [f"splits from ImageSets/Main/{{{','.join(path.stem for path in lists.values())}}}.txt"]
    for split, path in lists.items():
        ids = _ids(path, by_id)
        absent = [image for image in ids if image not in by_id]
        if absent and len(absent) < len(ids):
            share = f"{len(absent):,} of {len(ids):,} missing"
            raise DataError(f"{path}: image {absent[0]!r} has no XML file ({share}); add it, or remove the line")
        notes += [f"{path.name} left out: no XML file for its {counted(len(ids), 'image')}"] if absent else []
        for image in [] if absent else ids:
            if image in listed:
                both = f"is in {listed[image].split} and in {split}"
                raise DataError(f"{path}: image {image!r} {both}; each image must be in one split")
            listed[image] = by_id[image]._replace(split=split)
    unlisted = len(annotations) - len(listed)
    notes += [f"images in no list left out: {unlisted:,}"] if unlisted else []
    return list(listed.values()), notes


def _ids(path: Path, known: Collection[str]) -> list[str]:
    """Return the image ids in a list, whose lines may also have the suffix of the image or a number after the id."""
    ids: dict[str, None] = {}
    for line in filter(None, map(str.strip, read_encoded_text(path).splitlines())):
        first = line.split()[0]
        spellings = (line, first, line.rpartition(".")[0], first.rpartition(".")[0])
        ids[next((spelling for spelling in spellings if spelling in known), first)] = None
    return list(ids)


def recognizes(folder: Path) -> bool:
    """Return whether the folder is, or contains, a year of the VOC devkit, or has annotations as XML files.

    >>> recognizes(Path("nowhere"))
    False
    """
    return bool(_years(folder))


def read_voc(folder: Path, *, missing: Missing = "error") -> Records:
    """Read one year of PASCAL VOC from its folder (`VOC2007/`), from `VOCdevkit/`, or from the parent of `VOCdevkit/`.

    `ImageSets/Main/<class>_<split>.txt` has 1 (present), -1 (absent) or 0 (difficult) for each image. As in the
    challenge, difficult labels are unknown in training and in evaluation. Classes are in alphabetical order. The splits
    train, val and test are read if they exist; without train files, trainval is used as train. With `missing="keep"`,
    images whose files do not exist are kept. Without class files, the XML files are read.
    """
    years = _years(folder)
    if not years:
        remedy = "pass the folder of one VOC year"
        raise DataError(f"{folder}: no ImageSets/Main/ here or in VOCdevkit/VOC2007/, and no XML files; {remedy}")
    if len(years) > 1:
        raise DataError(f"{folder} has {years[0].name} and {years[1].name}; pass the folder of one, such as {years[0]}")
    year, main = years[0], years[0] / "ImageSets" / "Main"
    sets = {split: files for split in SPLITS if (files := _class_files(main, split))}
    if not sets and has_xml(year):
        return read_voc_xml(year, missing=missing)
    names = _classes(main, sets)
    ids: list[str] = []
    splits: list[Split] = []
    marks = [np.zeros((0, len(names)), dtype=np.int64)]
    for split, files in sets.items():
        split_ids, values = _marks([files[name] for name in names])
        _refuse_shared(main, split, dict(zip(ids, splits, strict=True)), split_ids)
        ids += split_ids
        splits += [split] * len(split_ids)
        marks.append(values)
    images = year / "JPEGImages"
    if not images.is_dir():
        raise DataError(f"{images} does not exist; unpack the images of the devkit there")
    remedy = "unpack both archives there, the one with training and the one with test images"
    paths = named_images(images, [f"{image}.jpg" for image in ids], source=main, remedy=remedy, missing=missing)
    all_marks = np.concatenate(marks)
    labels = (all_marks == 1).astype(np.float32)
    set_names = ",".join(next(iter(files.values())).stem.rpartition("_")[2] for files in sets.values())
    origin = Origin(year, f"PASCAL VOC, ImageSets/Main/<class>_{{{set_names}}}.txt; difficult labels are unknown")
    return Records.from_labels(names, paths, splits, labels, all_marks != 0, origin=origin)


def _years(folder: Path) -> list[Path]:
    candidates = (folder, *sorted(folder.glob("VOC[0-9]*")), *sorted(folder.glob("VOCdevkit/VOC[0-9]*")))
    return [path for path in candidates if (path / "ImageSets" / "Main").is_dir() or has_xml(path)]


def _class_files(main: Path, split: Split) -> dict[str, Path]:
    """Return the files of a split by class. `train_val.txt` has the class train in val; it is not a trainval file."""
    files = sorted(main.glob(f"*_{split}.txt"))
    if not files and split == "train":
        files = sorted(main.glob("*_trainval.txt"))
    return {path.stem.rpartition("_")[0]: path for path in files}


def _classes(main: Path, sets: dict[Split, dict[str, Path]]) -> list[str]:
    if not sets:
        raise DataError(f"{main}: no <class>_train.txt, _trainval.txt, _val.txt or _test.txt; unpack the devkit again")
    names = sorted(set().union(*sets.values()))
    for split, files in sets.items():
        for name in names:
            if name not in files:
                other = next(iter(files.values()))
                raise DataError(f"{main}: class {name!r} lacks a file for {split}, but {other.name} exists; add it")
    return names


def _marks(files: list[Path]) -> tuple[list[str], Int[ndarray, "N C"]]:
    """Return the image ids of a split, in the order of the first file, and their marks for each class."""
    columns = [_column(path) for path in files]
    ids = list(columns[0])
    for path, column in zip(files, columns, strict=True):
        differing = sorted(column.keys() ^ columns[0].keys())
        if differing:
            having, lacking = (path, files[0]) if differing[0] in column else (files[0], path)
            raise DataError(f"{having}: image {differing[0]} is not in {lacking.name}; both must list the same images")
    marks = np.array([[column[image] for column in columns] for image in ids], dtype=np.int64)
    return ids, marks.reshape(len(ids), len(files))


def _column(path: Path) -> dict[str, int]:
    marks: dict[str, int] = {}
    for row, line in enumerate(read_encoded_text(path).splitlines(), start=1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2 or fields[1] not in MARKS:
            raise DataError(f"{path}, row {row}: expected an image id and 1, 0 or -1, got {line!r}")
        if fields[0] in marks:
            raise DataError(f"{path}, row {row}: image {fields[0]} occurs twice; remove one")
        marks[fields[0]] = int(fields[1])
    return marks


def _refuse_shared(main: Path, split: Split, earlier: dict[str, Split], ids: list[str]) -> None:
    shared = [image for image in ids if image in earlier]
    if shared:
        both = f"is in {earlier[shared[0]]} and in {split} ({len(shared)} shared)"
        raise DataError(f"{main}: image {shared[0]} {both}; each image must be in one split")
