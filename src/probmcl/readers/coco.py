"""COCO: the released layout of MS-COCO (image folders and `annotations/instances_*.json`), or any COCO JSON file.

Lin et al., Microsoft COCO: Common Objects in Context, ECCV 2014.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from probmcl.data.image_files import named_images
from probmcl.data.labels import LabelStates, State
from probmcl.data.records import Missing, Origin, Records, Split
from probmcl.errors import DataError, keyword
from probmcl.readers.annotations import (
    annotation_format,
    find_annotated_images,
    image_root,
    others_left_out,
    read_annotations,
)
from probmcl.readers.file_index import SPLIT_FOLDERS, split_folders

FOLDER = "annotations"
PREFIX = "instances_"

Year = Literal["2014", "2017"]
YEARS: tuple[Year, ...] = get_args(Year)
# The labels of the test images are not public, so papers test on the validation images.
PARTS: tuple[tuple[str, Split], ...] = (("train", "train"), ("val", "test"))


class Image(msgspec.Struct, frozen=True, gc=False):
    """An image: its id and its file name, which may be a path."""

    id: int
    file_name: str


class Annotation(msgspec.Struct, frozen=True, gc=False):
    """An object in an image."""

    image_id: int
    category_id: int


class Category(msgspec.Struct, frozen=True, gc=False):
    """A class. Some tools write a supercategory that is not text."""

    id: int
    name: str
    supercategory: Any = None


class Instances(msgspec.Struct, frozen=True):
    """The fields of a COCO file that are needed for labels. The parser skips all others."""

    images: list[Image]
    annotations: list[Annotation]
    categories: list[Category]


def coco_files(path: Path) -> dict[Path, Split]:
    """Return the COCO files of a folder, in it, in its split folders or in `annotations/`, and the split of each.

    A split is the name of a folder or a part of the file name, otherwise train. The path may also be a COCO file.

    >>> coco_files(Path("nowhere"))
    {}
    """
    if not path.is_dir():
        return {path: "train"} if annotation_format(path) == "coco" else {}
    files: list[Path] = []
    for folders in ([path], split_folders(path), [path / FOLDER]):
        files = files or [
            file for folder in folders for file in sorted(folder.glob("*.json")) if annotation_format(file) == "coco"
        ]
    instances = [file for file in files if file.name.startswith(PREFIX)]  # other files may have keypoints or persons
    return {file: SPLIT_FOLDERS.get(_split_name(file, path).lower(), "train") for file in instances or files}


def read_coco_json(path: Path, *, missing: Missing = "error") -> Records:
    """Read the annotated categories of each image as labels. An image without annotations has no labels.

    Classes are the categories of all files, matched by name, in the order of their ids. A file without any annotations
    is left out, because its labels are not known. Images are searched below the folder, by path or by name.
    """
    files = coco_files(path)
    _refuse_two_per_split(files)
    parsed = {file: read_annotations(file, Instances) for file in files}
    labeled = {file: instances for file, instances in parsed.items() if instances.annotations}
    if not labeled:
        raise DataError(f"{', '.join(map(str, files)) or path}: no COCO annotations; export the labeled images")
    unused = _unused_parents(list(labeled.values()))
    by_id = {file: names_by_id(file, instances, unused) for file, instances in labeled.items()}
    names = list(dict.fromkeys(name for categories in by_id.values() for name in categories.values()))
    column_of = {name: column for column, name in enumerate(names)}
    paths: list[Path] = []
    labels: list[LabelStates] = []
    for file, instances in labeled.items():
        columns = {number: column_of[name] for number, name in by_id[file].items()}
        labels.append(annotated(file, instances, columns, len(names)))
        paths += _image_paths(path, file, instances, missing)
    splits = [files[file] for file, instances in labeled.items() for _ in instances.images]
    states = LabelStates.concatenate(labels)
    notes = [f"{_relative(file, path)} left out: it has no annotations" for file in files if file not in labeled]
    notes += [f"category {name!r} left out: it is only the parent of others" for name in sorted(unused)]
    notes += [others_left_out(paths)]
    read = " and ".join(f"{_relative(file, path)} ({split})" for file, split in files.items() if file in labeled)
    unlabeled = tuple(str(file.parent) for file in files if file not in labeled and file.parent in split_folders(path))
    origin = Origin(path, "\n".join([f"COCO, {read}", *filter(None, notes)]), unlabeled=unlabeled)
    return Records.from_labels(names, paths, splits, states, origin=origin)


def names_by_id(table: Path, instances: Instances, unused: frozenset[str] = frozenset()) -> dict[int, str]:
    """Return the names of the categories in the order of their ids, without unused categories with id 0."""
    names, ids = dict[int, str](), dict[str, int]()
    for category in sorted(instances.categories, key=lambda category: category.id):
        if category.id == 0 and category.name in unused:
            continue
        if category.id in names or ids.setdefault(category.name, category.id) != category.id:
            raise DataError(f"{table}: the id or name of category {category.id}, {category.name!r}, is not unique")
        names[category.id] = category.name
    return names


def annotated(table: Path, instances: Instances, columns: Mapping[int, int], classes: int) -> LabelStates:
    """Return the label states of the images, for classes in the given columns by category id."""
    rows: dict[int, int] = {}
    for row, image in enumerate(instances.images):
        if rows.setdefault(image.id, row) != row:
            repeated = f"id {image.id} is also the id of images[{rows[image.id]}]"
            raise DataError(f"{table}: images[{row}]: {repeated}; remove one")
    images = [rows.get(annotation.image_id, -1) for annotation in instances.annotations]
    column = [columns.get(annotation.category_id, -1) for annotation in instances.annotations]
    entries = np.array([images, column], dtype=np.int64).reshape(2, -1)
    if (entries < 0).any():
        number = int((entries < 0).any(axis=0).argmax())
        annotation = instances.annotations[number]
        no_image = f"no image has the id {annotation.image_id}; remove the annotation"
        no_category = f"no category has the id {annotation.category_id}; add the category"
        raise DataError(f"{table}: annotations[{number}]: {no_image if images[number] < 0 else no_category}")
    states = np.full(entries.shape[1], State.PRESENT, dtype=np.uint8)
    return LabelStates.from_entries(entries[0], entries[1], states, (len(rows), classes))


def _split_name(file: Path, path: Path) -> str:
    """Return the name of the split folder of a file, or the part of the file name that is the name of a split."""
    if file.parent != path and file.parent.name.lower() in SPLIT_FOLDERS:
        return file.parent.name
    return next((word for word in re.findall("[a-z]+", file.stem.lower()) if word in SPLIT_FOLDERS), "")


def _refuse_two_per_split(files: Mapping[Path, Split]) -> None:
    first: dict[Split, Path] = {}
    for file, split in files.items():
        if first.setdefault(split, file) != file:
            raise DataError(f"{first[split]} and {file} are both annotations for {split}; pass one of them as `data`")


def _unused_parents(parsed: Sequence[Instances]) -> frozenset[str]:
    """Return the names of categories with id 0 that no annotation uses and that are the supercategory of another.

    Roboflow adds such a category to every file.
    """
    if any(annotation.category_id == 0 for instances in parsed for annotation in instances.annotations):
        return frozenset()
    categories = [category for instances in parsed for category in instances.categories]
    parents = [category.supercategory for category in categories if category.id != 0]
    return frozenset(category.name for category in categories if category.id == 0 and category.name in parents)


def _image_paths(path: Path, file: Path, instances: Instances, missing: Missing) -> list[Path]:
    """Return the images of a file. Names in several folders are searched in those with the name of the file's part."""
    part = file.stem.removeprefix(PREFIX) if file.name.startswith(PREFIX) else _split_name(file, path)
    names = [f"{part}/{image.file_name}" for image in instances.images]
    return find_annotated_images(image_root(path), names, source=file, remedy="copy the images there", missing=missing)


def _relative(file: Path, path: Path) -> str:
    return file.relative_to(path).as_posix() if path.is_dir() else file.name


def recognizes(path: Path) -> bool:
    """Return whether the folder has the MS-COCO layout or COCO files, or the path is a COCO file.

    >>> recognizes(Path("nowhere"))
    False
    """
    return bool(_years(path) or coco_files(path))


def read_coco(folder: Path, *, year: Year | None = None, missing: Missing = "error") -> Records:
    """Read MS-COCO 2014 or 2017: the given year, or the only one in the folder. Other COCO files are read as they are.

    `annotations/instances_train2014.json` is train, `instances_val2014.json` is test; one of them may be missing.
    Images are in `train2014/` and `val2014/`, or in the same folders under `images/`. Classes are in the order of their
    category ids. Crowd annotations count as labels, as in published loaders. Images without annotations are dropped, as
    in most papers. With `missing="keep"`, images whose files do not exist are kept.
    """
    if year is None and not _years(folder) and coco_files(folder):
        return read_coco_json(folder, missing=missing)
    year = _year(folder, year)
    tables = _tables(folder, year)
    parsed = {split: read_annotations(table, Instances) for split, table in tables.items()}
    categories = _categories(tables, parsed)
    columns = {category: column for column, category in enumerate(categories)}
    paths: list[Path] = []
    splits: list[Split] = []
    labels: list[LabelStates] = []
    for split, instances in parsed.items():
        present = annotated(tables[split], instances, columns, len(columns))
        kept = np.flatnonzero(np.diff(present.starts))
        paths += _released_paths(folder, tables[split], [instances.images[row].file_name for row in kept], missing)
        splits += [split] * len(kept)
        labels.append(present.take(kept))
    read = " and ".join(f"annotations/{table.name} ({split})" for split, table in tables.items())
    dropped = sum(len(instances.images) for instances in parsed.values()) - len(paths)
    without = f"; images without annotations dropped: {dropped:,}" if dropped else ""
    origin = Origin(folder, f"MS-COCO {year}, {read}{without}")
    return Records.from_labels(list(categories.values()), paths, splits, LabelStates.concatenate(labels), origin=origin)


def _tables(folder: Path, year: Year) -> dict[Split, Path]:
    tables = {split: folder / "annotations" / f"instances_{part}{year}.json" for part, split in PARTS}
    return {split: table for split, table in tables.items() if table.is_file()}


def _years(folder: Path) -> list[Year]:
    return [year for year in YEARS if _tables(folder, year)]


def _year(folder: Path, wanted: Year | None) -> Year:
    years = _years(folder)
    if not years:
        raise DataError(f"{folder}: no annotations/instances_*2014.json or *2017.json; pass the MS-COCO folder")
    if wanted is not None and wanted not in years:
        remedy = f"use {keyword('format', f'coco{years[0]}')} for the other year"
        raise DataError(f"{folder}/annotations: no instances_*{wanted}.json; {remedy}")
    if wanted is None and len(years) > 1:
        both = " and ".join(f"instances_*{year}.json" for year in years)
        options = " or ".join(keyword("format", f"coco{year}") for year in years)
        raise DataError(f"{folder}/annotations: {both} have images in common; choose {options}")
    return wanted or years[0]


def _categories(tables: Mapping[Split, Path], parsed: Mapping[Split, Instances]) -> dict[int, str]:
    by_table = {tables[split]: names_by_id(tables[split], instances) for split, instances in parsed.items()}
    (first, names), *others = by_table.items()
    for table, other in others:
        if other != names:
            number, name = min(names.items() ^ other.items())
            category = f"id {number}, {name!r}"
            raise DataError(f"{table}: categories differ from {first.name} ({category}); use files from the same year")
    return names


def _released_paths(folder: Path, table: Path, names: list[str], missing: Missing) -> list[Path]:
    part = table.stem.removeprefix("instances_")
    candidates = (folder / part, folder / "images" / part)
    images = next((path for path in candidates if path.is_dir()), None)
    if images is None:
        raise DataError(f"{folder}: no folder {part}/ or images/{part}/; unpack {part}.zip there")
    return named_images(images, names, source=table, remedy=f"unpack {part}.zip there again", missing=missing)
