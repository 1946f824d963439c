"""From a file or folder to records: finds out which format it has, reads it, and sees to val and test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from probmcl.data.records import SPLITS, DataError, Missing, Records
from probmcl.data.sheet import DELIMITERS
from probmcl.data.split import carve
from probmcl.data.table import find_tables, read_table
from probmcl.nearest import suggestion

FORMATS: Mapping[str, str] = {
    "table": "probmcl.data.table",
    "coco": "probmcl.data.coco",
    "voc": "probmcl.data.voc",
    "adp": "probmcl.data.adp",
}
"""Each module has `recognises(folder)` and `read_NAME(folder, missing=…)`."""

YEARS: Mapping[str, str] = {"coco2014": "probmcl.data.coco", "coco2017": "probmcl.data.coco"}
"""Formats that are read when they are asked for: one of two years in one folder."""

LOOKED_FOR = (
    "one table (.csv or .tsv) with a path column, MS-COCO's annotations/instances_*.json, a PASCAL VOC devkit, "
    "or ADP's released CSV"
)


def read(
    data: Path | str,
    *,
    images: Path | str | None = None,
    format: str | None = None,  # noqa: A002  # the name of the flag
    path_column: str | None = None,
    labels_column: str | None = None,
    split_column: str | None = None,
    group_column: str | None = None,
    seed: int = 0,
    carved: bool = True,
    missing: Missing = "error",
) -> Records:
    """Read a table, or a folder with one recognisable layout; val and test are carved from train where none are given.

    `carved=False` leaves the splits as they are, for data that is only scored; what has no split is train. An image
    whose file does not exist is an error; `missing="keep"` leaves it in the records, for `find_bad_images` to name, as
    long as any image exists.

    >>> from tempfile import TemporaryDirectory
    >>> from probmcl.data.digits import write_digits
    >>> with TemporaryDirectory() as folder:
    ...     written = write_digits(Path(folder), train=3, val=1, test=1)
    ...     print(describe(read(folder)).replace(folder, "digits"))
    digits/labels.csv: path column 'filename', labels 'labels' (names of classes.txt separated by spaces), split 'split'
    5 images: train 3 · val 1 · test 1; 10 classes, 2.4 labels per image, 0.0 % not known
    images without labels: 0; classes without training positives: 3 of 10 (one, four, nine)
    """
    place = Path(data)
    name = _format(place, format)
    flags = {
        "--images": images,
        "--path-column": path_column,
        "--labels-column": labels_column,
        "--split-column": split_column,
        "--group": group_column,
    }
    if name == "table":
        records = read_table(
            _table(place),
            images=images,
            path_column=path_column,
            labels_column=labels_column,
            split_column=split_column,
            group_column=group_column,
            missing=missing,
        )
    else:
        _refuse_flags(place, name, flags)
        records = _read_folder(name, place, missing)
    return _with_val_and_test(records, seed) if carved else records


def describe(records: Records) -> str:
    """What was understood: the file and its columns where these are known, then two lines of what is there."""
    present = (records.labels > 0) & records.known
    splits = " · ".join(f"{split} {len(records.rows(split)):,}" for split in SPLITS)
    names = records.label_space.names
    never = [names[i] for i in np.flatnonzero(records.label_space.counts == 0)]
    per_image = present.sum() / max(len(records), 1)
    unknown = 100 * (1 - records.known.mean()) if records.known.size else 0.0
    listed = ", ".join(never[:5]) + (", …" if len(never) > 5 else "")
    origin = f"{records.origin}\n" if records.origin else ""
    return origin + (
        f"{len(records):,} images: {splits}; {len(names)} classes, {per_image:.1f} labels per image, "
        f"{unknown:.1f} % not known\n"
        f"images without labels: {int((~present.any(axis=1)).sum()):,}; classes without training positives: "
        + (f"{len(never)} of {len(names)} ({listed})" if never else "none")
    )


def _format(place: Path, name: str | None) -> str:
    """The format asked for, or the only one that fits."""
    if name is not None and name not in {**FORMATS, **YEARS}:
        raise DataError(f"--format: there is no format {name!r}; {suggestion(name, {**FORMATS, **YEARS})}")
    if not place.exists():
        raise DataError(f"{place} does not exist; DATA is a table or a folder")
    if place.is_dir():
        return name or _recognised(place)
    if name not in (None, "table"):
        raise DataError(f"{place} is a file, and --format {name} reads a folder; give the folder")
    return "table"


def _recognised(folder: Path) -> str:
    fit = [name for name, module in FORMATS.items() if import_module(module).recognises(folder)]
    if len(fit) > 1:
        flags = " or ".join(f"--format {name}" for name in fit)
        raise DataError(f"{folder} can be read in {len(fit)} ways; {flags} says which")
    if fit:
        return fit[0]
    if _files(folder):
        return "table"  # whose reader says what its columns lack, or was told them
    raise DataError(f"{folder} has no layout that is known here; looked for {LOOKED_FOR}")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in DELIMITERS and path.is_file())


def _table(place: Path) -> Path:
    """The one table of a folder: the only one with a path column or, where none has one, the only one."""
    if not place.is_dir():
        return place
    tables = find_tables(place) or _files(place)
    if len(tables) > 1:
        raise DataError(f"{place} holds {len(tables)} tables; give one as DATA: {', '.join(map(str, tables))}")
    if not tables:
        raise DataError(f"{place} holds no table; looked for a file that ends in {' or '.join(DELIMITERS)}")
    return tables[0]


def _refuse_flags(place: Path, name: str, flags: Mapping[str, object]) -> None:
    given = [flag for flag, value in flags.items() if value is not None]
    if given:
        raise DataError(f"{place} is read as {name}, which takes no {', '.join(given)}; those are for tables")


def _read_folder(name: str, folder: Path, missing: Missing) -> Records:
    reader: Callable[..., Records] = getattr(import_module({**FORMATS, **YEARS}[name]), f"read_{name}")
    return reader(folder, missing=missing)


def _with_val_and_test(records: Records, seed: int) -> Records:
    """Carve what is missing, and say so."""
    carved = carve(records, seed=seed)
    taken = [split for split in SPLITS if len(carved.rows(split)) > len(records.rows(split))]
    if not taken or records.origin is None:
        return carved
    said = f"{records.origin.understood}; {' and '.join(taken)} taken from train with seed {seed}"
    return replace(carved, origin=replace(records.origin, understood=said))
