"""Reads data: detects the format and calls its reader. Readers and numpy are imported only when needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from probmcl.errors import DataError, OptionError, keyword, suggestion
from probmcl.readers.options import DataSource, ReadOptions

if TYPE_CHECKING:
    from probmcl.console import Console
    from probmcl.data.records import Missing, Records

FORMATS: Mapping[str, str] = {
    "table": "probmcl.readers.table.table",
    "hugging_face": "probmcl.readers.hugging_face",
    "coco": "probmcl.readers.coco",
    "voc": "probmcl.readers.voc",
    "yolo": "probmcl.readers.yolo",
    "label_studio": "probmcl.readers.label_studio",
    "adp": "probmcl.readers.adp",
    "folders": "probmcl.readers.folders",
}
"""Modules by format. Each defines `recognizes(path)` and `read_NAME(path, missing=…)`; tables take more options."""

FORMATS_OF_FILES: Mapping[str, Sequence[str]] = {
    ".json": ("coco", "label_studio"),
    ".yaml": ("yolo",),
    ".yml": ("yolo",),
}
"""Formats, apart from tables, that DATA can have if it is a file, by its suffix."""

VARIANTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "coco2014": ("coco", {"year": "2014"}),
    "coco2017": ("coco", {"year": "2017"}),
    "adp-l2": ("adp", {"level": "L2"}),
    "adp-l3": ("adp", {"level": "L3"}),
}
"""Formats that are never detected, only requested: the format that reads them, and the arguments of its reader."""


def read(
    data: Path | str,
    images: Path | str | None = None,
    options: ReadOptions = ReadOptions(),
    *,
    keep: Sequence[str] = (),
    seed: int | None = 0,
    missing: Missing = "error",
) -> Records:
    """Read a table, or a folder with a recognized layout.

    Args:
        data: a table, an annotation file (COCO or Label Studio JSON, or the data.yaml of YOLO) or a folder.
        images: the folder that image paths are relative to (default: the table's folder, or `images/` in it).
        options: how the data are read.
        keep: other columns of the table to keep in the records.
        seed: random seed for taking val or test from train if the data have no such split; None keeps the splits in the
            data, or puts all images into train if there are none. Fewer than 20 images are not split.
        missing: with `keep`, images whose files do not exist stay in the records, unless all files are missing.

    >>> from tempfile import TemporaryDirectory
    >>> from probmcl.data import describe
    >>> from probmcl.demo.digits import write_digits
    >>> with TemporaryDirectory() as folder:
    ...     written = write_digits(Path(folder), train=3, val=1, test=1)
    ...     print(describe(read(folder)).replace(folder, "digits"))
    digits/labels.csv: path column 'filename'
      labels: column 'labels', names of classes.txt separated by spaces, 10 labels
      split column 'split'
    5 images: train 3 · val 1 · test 1; 10 classes, 2.4 labels per image
    images without labels: 0; classes without training positives: 3 of 10 (one, four, nine)
    """
    from probmcl.data.splitting import NOT_SPLIT, TooFewImagesError, make_splits, taken_from_train

    data, root = Path(data), None if images is None else Path(images)
    records = _read(_format(data, options.format), data, options, root, keep, missing)
    if seed is None:
        return records
    try:
        divided = make_splits(records, seed=seed)
    except TooFewImagesError:  # only training needs all splits
        return records.with_note(NOT_SPLIT)
    return divided.with_note(taken_from_train(records, divided, seed))


def read_source(source: DataSource, *, keep: Sequence[str] = ()) -> Records:
    """Read the data of a run again, with the splits in the data but without the images that the run skipped.

    Images whose files do not exist are kept, unless all are missing, so that decoding can report every one.
    """
    records = read(source.data, source.images, source.options, keep=keep, seed=None, missing="keep")
    return records.without([image.path for image in source.skipped])


def read_recorded(source: DataSource, console: Console, *, keep: Sequence[str] = ()) -> Records:
    """Read data that only a run folder names, which may come from a stranger.

    The folders that the data come from are printed, and nothing outside of them is read.
    """
    source.refuse_outside(path for path in (source.data, source.images, source.options.hierarchy) if path is not None)
    console.print(f"data of the run: {source.data} (reading only files in {', '.join(map(str, source.folders))})")
    records = read_source(source, keep=keep)
    source.refuse_outside(records.paths.texts)
    return records


def _format(data: Path, name: str | None) -> str:
    if name is not None and name not in {**FORMATS, **VARIANTS}:
        raise OptionError("format", name, f"is not a format; {suggestion(name, {**FORMATS, **VARIANTS})}")
    if not data.exists():
        raise DataError(f"{data} does not exist; `data` must be a table, an annotation file or a folder")
    if data.is_dir():
        return name or _recognized(data)
    formats = FORMATS_OF_FILES.get(data.suffix.lower(), ())
    if name not in (None, "table", *formats):
        raise OptionError("format", name, f"needs a folder, but {data} is a file; pass its folder")
    return name or next((name for name in formats if import_module(FORMATS[name]).recognizes(data)), "table")


def _recognized(folder: Path) -> str:
    from probmcl.readers import split_tables

    matches = [name for name in FORMATS if name != "folders" and import_module(FORMATS[name]).recognizes(folder)]
    if len(matches) > 1:
        choices = " or ".join(keyword("format", name) for name in matches)
        raise DataError(f"{folder} matches {len(matches)} formats; choose {choices}")
    if matches:
        return matches[0]
    if split_tables.recognizes(folder):
        return "table"
    if import_module(FORMATS["folders"]).recognizes(folder):  # tried last, because it matches most folders of images
        return "folders"
    raise DataError(
        f"{folder} has no recognized layout; expected a table (.csv, .tsv, .xlsx, .json or .parquet) of images, "
        "metadata.csv in train/, validation/ and test/, JSON in the format of MS-COCO or Label Studio, PASCAL VOC (XML "
        "files or the devkit), YOLO (data.yaml or classes.txt), the ADP release, or one folder of images per class"
    )


def _read(
    name: str, data: Path, options: ReadOptions, images: Path | None, keep: Sequence[str], missing: Missing
) -> Records:
    format_name, arguments = VARIANTS.get(name, (name, {}))
    reader: Callable[..., Records] = getattr(import_module(FORMATS[format_name]), f"read_{format_name}")
    if name == "table" and data.is_dir():
        from probmcl.readers.split_tables import read_tables as reader
    if name in ("table", "hugging_face"):
        return reader(data, options, images=images, keep=keep, missing=missing)
    for_tables = ({} if images is None else {"images": images}) | replace(options, format=None).set_options()
    for_tables |= {"by": ", ".join(keep)} if keep else {}
    if for_tables:
        (option, value), *others = for_tables.items()
        also = "".join(f", `{other}`" for other, _ in others)
        problem = f"cannot be used: {data} is read as {name}. Options for tables only: `{option}`{also}"
        raise OptionError(option, value, problem)
    return reader(data, missing=missing, **arguments)
