"""Reading of data: detects the format, and loads neither it nor numpy before it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from probmcl.data.options import DataSource, ReadOptions
from probmcl.errors import DataError, OptionError, suggestion

if TYPE_CHECKING:
    from probmcl.data.records import Missing, Records

FORMATS: Mapping[str, str] = {
    "table": "probmcl.data.formats.table.table",
    "hugging_face": "probmcl.data.formats.hugging_face",
    "coco": "probmcl.data.formats.coco",
    "voc": "probmcl.data.formats.voc",
    "adp": "probmcl.data.formats.adp",
    "folders": "probmcl.data.formats.folders",
}
"""Each module has `recognizes(folder)` and `read_NAME(folder, missing=…)`; those of tables take their options too."""

VARIANTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "coco2014": ("coco", {"year": "2014"}),
    "coco2017": ("coco", {"year": "2017"}),
    "adp-l2": ("adp", {"level": "L2"}),
    "adp-l3": ("adp", {"level": "L3"}),
}
"""Formats that are read only on request, each with the format and the arguments of its reader."""


def read(
    data: Path | str,
    images: Path | str | None = None,
    options: ReadOptions = ReadOptions(),
    *,
    keep: Sequence[str] = (),
    seed: int | None = 0,
    missing: Missing = "error",
) -> Records:
    """Read a table, or a folder with one recognizable layout.

    Args:
        data: a table or a folder.
        images: the folder that image paths are relative to; by default that of the table, or its `images/`.
        options: how the data are read.
        keep: further columns whose values the records hold.
        seed: random seed of val and test, which are taken from train if the data have none; None leaves every image in
            the split that the data give, or else in train.
        missing: `keep` leaves images without a file in the records, for the audit to report, as long as any exists.

    >>> from tempfile import TemporaryDirectory
    >>> from probmcl.data import describe
    >>> from probmcl.data.formats.digits import write_digits
    >>> with TemporaryDirectory() as folder:
    ...     written = write_digits(Path(folder), train=3, val=1, test=1)
    ...     print(describe(read(folder)).replace(folder, "digits").replace("), ", "),\\n"))
    digits/labels.csv: path column 'filename', labels 'labels' (names of classes.txt separated by spaces, 10 labels),
    split 'split'
    5 images: train 3 · val 1 · test 1; 10 classes, 2.4 labels per image, 0.0 % not known
    images without labels: 0; classes without training positives: 3 of 10 (one, four, nine)
    """
    from probmcl.data.split import make_splits, taken_from_train

    data, root = Path(data), None if images is None else Path(images)
    records = _read(_format(data, options.format), data, options, root, keep, missing)
    if seed is None:
        return records
    divided = make_splits(records, seed=seed)
    return divided.with_note(taken_from_train(records, divided, seed))


def read_source(source: DataSource, *, keep: Sequence[str] = ()) -> Records:
    """Read the images of a run again, in the splits that the data give and without those that the run skipped.

    Images whose files do not exist are kept, as long as any does: whoever decodes them reports them all.
    """
    records = read(source.data, source.images, source.options, keep=keep, seed=None, missing="keep")
    return records.without([image.path for image in source.skipped])


def _format(data: Path, name: str | None) -> str:
    if name is not None and name not in {**FORMATS, **VARIANTS}:
        raise OptionError("format", name, f"is not a format; {suggestion(name, {**FORMATS, **VARIANTS})}")
    if not data.exists():
        raise DataError(f"{data} does not exist; DATA is a table or a folder")
    if data.is_dir():
        return name or _recognized(data)
    if name not in (None, "table"):
        raise OptionError("format", name, f"reads a folder, but {data} is a file; give the folder")
    return "table"


def _recognized(folder: Path) -> str:
    from probmcl.data.formats.table.table import files_of_tables

    fit = [name for name in FORMATS if name != "folders" and import_module(FORMATS[name]).recognizes(folder)]
    if len(fit) > 1:
        flags = " or ".join(f"`format={name}`" for name in fit)
        raise DataError(f"{folder} can be read in {len(fit)} ways; {flags} says which")
    if fit:
        return fit[0]
    if files_of_tables(folder):
        return "table"  # whose reader says what its columns lack, or was told them
    if import_module(FORMATS["folders"]).recognizes(folder):  # last: nearly any folder of images can be read like this
        return "folders"
    raise DataError(
        f"{folder} has no layout that is known here; looked for one table (.csv, .tsv or .parquet) with a path column, "
        "metadata.csv in train/, validation/ and test/, MS-COCO's annotations/instances_*.json, a PASCAL VOC devkit, "
        "ADP's released CSV, or one folder of images for each class"
    )


def _table(data: Path) -> Path:
    """Return the only table of a folder with a path column or, if none has one, the only table."""
    from probmcl.data.formats.table.sheet import SUFFIXES
    from probmcl.data.formats.table.table import files_of_tables, find_tables

    if not data.is_dir():
        return data
    tables = find_tables(data) or files_of_tables(data)
    if len(tables) > 1:
        raise DataError(f"{data} holds {len(tables)} tables; give one as DATA: {', '.join(map(str, tables))}")
    if not tables:
        raise DataError(f"{data} holds no table; looked for a file that ends in {' or '.join(SUFFIXES)}")
    return tables[0]


def _read(
    name: str, data: Path, options: ReadOptions, images: Path | None, keep: Sequence[str], missing: Missing
) -> Records:
    format_name, arguments = VARIANTS.get(name, (name, {}))
    reader: Callable[..., Records] = getattr(import_module(FORMATS[format_name]), f"read_{format_name}")
    if name in ("table", "hugging_face"):
        table = _table(data) if name == "table" else data
        return reader(table, options, images=images, keep=keep, missing=missing)
    for_tables = ({} if images is None else {"images": images}) | replace(options, format=None).set_options()
    for_tables |= {"by": ", ".join(keep)} if keep else {}
    if for_tables:
        (option, value), *others = for_tables.items()
        also = "".join(f", `{other}`" for other, _ in others)
        problem = f"cannot be used: {data} is read as {name}, and `{option}`{also} are for tables"
        raise OptionError(option, value, problem)
    return reader(data, missing=missing, **arguments)
