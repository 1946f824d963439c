"""PASCAL VOC: the devkit, which has one text file per class and split, or XML files only.

Everingham et al., The PASCAL Visual Object Classes (VOC) Challenge, IJCV 88, 2010.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.data.image_files import named_images
from probmcl.data.records import SPLITS, Missing, Origin, Records, Split
from probmcl.errors import DataError
from probmcl.readers.spreadsheet import read_encoded_text
from probmcl.readers.voc_xml import has_xml, read_voc_xml

MARKS = ("1", "0", "-1")  # present, present but difficult to see, absent


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
