"""COCO: the released layout of MS-COCO (image folders and `annotations/instances_*.json`), or any COCO JSON file.

Lin et al., Microsoft COCO: Common Objects in Context, ECCV 2014.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from probmcl.data.image_files import named_images
from probmcl.data.labels import LabelStates
from probmcl.data.records import Missing, Origin, Records, Split
from probmcl.errors import DataError, keyword
from probmcl.readers.annotations import read_annotations
from probmcl.readers.coco_json import Instances, annotated, coco_files, names_by_id, read_coco_json

Year = Literal["2014", "2017"]
YEARS: tuple[Year, ...] = get_args(Year)
# The labels of the test images are not public, so papers test on the validation images.
PARTS: tuple[tuple[str, Split], ...] = (("train", "train"), ("val", "test"))


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


def _paths(folder: Path, table: Path, names: list[str], missing: Missing) -> list[Path]:
    part = table.stem.removeprefix("instances_")
    candidates = (folder / part, folder / "images" / part)
    images = next((path for path in candidates if path.is_dir()), None)
    if images is None:
        raise DataError(f"{folder}: no folder {part}/ or images/{part}/; unpack {part}.zip there")
    return named_images(images, names, source=table, remedy=f"unpack {part}.zip there again", missing=missing)
