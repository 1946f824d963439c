"""The released layout of MS-COCO: image folders and `annotations/instances_*.json`, read for the classes only.

Lin et al., Microsoft COCO: Common Objects in Context, ECCV 2014.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np

from probmcl.data.image_files import named_images
from probmcl.data.labels import LabelStates, State
from probmcl.data.records import Missing, Origin, Records, Split
from probmcl.errors import DataError

Year = Literal["2014", "2017"]
YEARS: tuple[Year, ...] = get_args(Year)
# The labels of the test images are not public, so papers test on the validation images.
PARTS: tuple[tuple[str, Split], ...] = (("train", "train"), ("val", "test"))


class _Image(msgspec.Struct, frozen=True, gc=False):
    id: int
    file_name: str


class _Annotation(msgspec.Struct, frozen=True, gc=False):
    image_id: int
    category_id: int


class _Category(msgspec.Struct, frozen=True, gc=False):
    id: int
    name: str


class _Instances(msgspec.Struct, frozen=True):
    """The fields of an instances file that are needed for labels. The parser skips all others."""

    images: list[_Image]
    annotations: list[_Annotation]
    categories: list[_Category]


def recognizes(folder: Path) -> bool:
    """Return whether the folder has the MS-COCO layout.

    >>> recognizes(Path("nowhere"))
    False
    """
    return bool(_years(folder))


def read_coco(folder: Path, *, year: Year | None = None, missing: Missing = "error") -> Records:
    """Read MS-COCO 2014 or 2017: the given year, or the only one in the folder.

    `annotations/instances_train2014.json` is train, `instances_val2014.json` is test; one of them may be missing.
    Images are in `train2014/` and `val2014/`, or in the same folders under `images/`. Classes are in the order of their
    category ids. Crowd annotations count as labels, as in published loaders. Images without annotations are dropped, as
    in most papers. With `missing="keep"`, images whose files do not exist are kept.
    """
    year = _year(folder, year)
    tables = _tables(folder, year)
    parsed = {split: _parse(table) for split, table in tables.items()}
    categories = _categories(tables, parsed)
    columns = {category: column for column, category in enumerate(categories)}
    paths: list[Path] = []
    splits: list[Split] = []
    labels: list[LabelStates] = []
    for split, instances in parsed.items():
        present = _labels(tables[split], instances, columns)
        kept = np.flatnonzero(np.diff(present.starts))
        paths += _paths(folder, tables[split], [instances.images[row].file_name for row in kept], missing)
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
        remedy = f"use `format=coco{years[0]}` for the other year"
        raise DataError(f"{folder}/annotations: no instances_*{wanted}.json; {remedy}")
    if wanted is None and len(years) > 1:
        both = " and ".join(f"instances_*{year}.json" for year in years)
        options = " or ".join(f"`format=coco{year}`" for year in years)
        raise DataError(f"{folder}/annotations: {both} have images in common; choose {options}")
    return wanted or years[0]


def _parse(table: Path) -> _Instances:
    try:
        return msgspec.json.decode(table.read_bytes(), type=_Instances)
    except msgspec.DecodeError as error:
        raise DataError(f"{table}: {error}; download the annotations again, or correct the file") from error


def _categories(tables: Mapping[Split, Path], parsed: Mapping[Split, _Instances]) -> dict[int, str]:
    by_table = {tables[split]: _names_by_id(tables[split], instances) for split, instances in parsed.items()}
    (first, names), *others = by_table.items()
    for table, other in others:
        if other != names:
            number, name = min(names.items() ^ other.items())
            category = f"id {number}, {name!r}"
            raise DataError(f"{table}: categories differ from {first.name} ({category}); use files from the same year")
    return names


def _names_by_id(table: Path, instances: _Instances) -> dict[int, str]:
    names: dict[int, str] = {}
    for category in sorted(instances.categories, key=lambda category: category.id):
        if category.id in names or category.name in names.values():
            raise DataError(f"{table}: the id or name of category {category.id}, {category.name!r}, is not unique")
        names[category.id] = category.name
    return names


def _labels(table: Path, instances: _Instances, columns: Mapping[int, int]) -> LabelStates:
    rows: dict[int, int] = {}
    for row, image in enumerate(instances.images):
        if rows.setdefault(image.id, row) != row:
            repeated = f"id {image.id} is also the id of images[{rows[image.id]}]"
            raise DataError(f"{table}: images[{row}]: {repeated}; remove one")
    images = [rows.get(annotation.image_id, -1) for annotation in instances.annotations]
    classes = [columns.get(annotation.category_id, -1) for annotation in instances.annotations]
    entries = np.array([images, classes], dtype=np.int64).reshape(2, -1)
    if (entries < 0).any():
        number = int((entries < 0).any(axis=0).argmax())
        annotation = instances.annotations[number]
        no_image = f"no image has the id {annotation.image_id}; remove the annotation"
        no_category = f"no category has the id {annotation.category_id}; add the category"
        raise DataError(f"{table}: annotations[{number}]: {no_image if images[number] < 0 else no_category}")
    states = np.full(entries.shape[1], State.PRESENT, dtype=np.uint8)
    return LabelStates.from_entries(entries[0], entries[1], states, (len(rows), len(columns)))


def _paths(folder: Path, table: Path, names: list[str], missing: Missing) -> list[Path]:
    part = table.stem.removeprefix("instances_")
    candidates = (folder / part, folder / "images" / part)
    images = next((path for path in candidates if path.is_dir()), None)
    if images is None:
        raise DataError(f"{folder}: no folder {part}/ or images/{part}/; unpack {part}.zip there")
    return named_images(images, names, source=table, remedy=f"unpack {part}.zip there again", missing=missing)
