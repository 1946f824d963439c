"""From a file or folder to records: finds out which format it has, reads it, and sees to val and test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from probmcl.data.formats.table.columns import TableOptions
from probmcl.data.formats.table.policy import Said
from probmcl.data.formats.table.sheet import SUFFIXES
from probmcl.data.formats.table.table import files_of_tables, find_tables, read_table
from probmcl.data.labels import State
from probmcl.data.records import SPLITS, Missing, Records
from probmcl.data.split import make_splits
from probmcl.errors import DataError, OptionError, suggestion

FORMATS: Mapping[str, str] = {
    "table": "probmcl.data.formats.table.table",
    "hugging_face": "probmcl.data.formats.hugging_face",
    "coco": "probmcl.data.formats.coco",
    "voc": "probmcl.data.formats.voc",
    "adp": "probmcl.data.formats.adp",
    "folders": "probmcl.data.formats.folders",
}
"""Each module has `recognizes(folder)` and `read_NAME(folder, missing=…)`."""

VARIANTS: Mapping[str, str] = {
    "coco2014": "probmcl.data.formats.coco",
    "coco2017": "probmcl.data.formats.coco",
    "adp-l2": "probmcl.data.formats.adp",
    "adp-l3": "probmcl.data.formats.adp",
}
"""Formats that are read when they are asked for: one of two years in one folder, more levels of classes."""

OF_TABLES = ("table", "hugging_face")
"""Formats that take what may be said of a table."""

LAST = "folders"
"""Nearly any folder of images could be read so; only one that is nothing else is."""

LOOKED_FOR = (
    "one table (.csv, .tsv or .parquet) with a path column, metadata.csv in train/, validation/ and test/, MS-COCO's "
    "annotations/instances_*.json, a PASCAL VOC devkit, ADP's released CSV, or one folder of images for each class"
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
    weight_column: str | None = None,
    rows: str | None = None,
    blank: Said = None,
    minus_one: Said = None,
    none_label: str | None = None,
    ignore: Sequence[str] = (),
    hierarchy: Path | str | None = None,
    keep: Sequence[str] = (),
    seed: int = 0,
    carved: bool = True,
    missing: Missing = "error",
) -> Records:
    """Read a table, or a folder with one recognizable layout; val and test are carved from train where none are given.

    `carved=False` leaves the splits as they are, for data that is only scored; what has no split is train. An image
    whose file does not exist is an error; `missing="keep"` leaves it in the records, for `find_bad_images` to name, as
    long as any image exists.

    Args:
        data: a table, or a folder.
        images: the folder that the paths of a table begin at.
        format: one of FORMATS or VARIANTS, where a folder can be read in two ways.
        path_column: the column of the images' paths.
        labels_column: that of label lists, or of single labels in long form.
        split_column: that of train, val and test; blank for none.
        group_column: that of what keeps images together; blank for none.
        weight_column: that of the images' weights; blank for none.
        rows: `images` for one row an image, `labels` for one row a label.
        blank: what a blank cell means, `negative` or `unknown`; CLASS=MEANING for one class.
        minus_one: what −1 means, `unknown`, `negative`, `positive` or `soft:P`; CLASS=MEANING for one class.
        none_label: the label that means none of them; blank, if a label that is named so is a class.
        ignore: columns that are not read.
        hierarchy: a table with the columns child and parent.
        keep: further columns, whose values the records shall hold.
        seed: of what is carved.
        carved: whether val and test are made where there are none.
        missing: what to do about files that are not there.

    >>> from tempfile import TemporaryDirectory
    >>> from probmcl.data.formats.digits import write_digits
    >>> with TemporaryDirectory() as folder:
    ...     written = write_digits(Path(folder), train=3, val=1, test=1)
    ...     print(describe(read(folder)).replace(folder, "digits").replace("), ", "),\\n"))
    digits/labels.csv: path column 'filename', labels 'labels' (names of classes.txt separated by spaces, 10 labels),
    split 'split'
    5 images: train 3 · val 1 · test 1; 10 classes, 2.4 labels per image, 0.0 % not known
    images without labels: 0; classes without training positives: 3 of 10 (one, four, nine)
    """
    place = Path(data)
    name = _format(place, format)
    options = TableOptions(
        images=None if images is None else Path(images),
        path_column=path_column,
        labels_column=labels_column,
        split_column=split_column,
        group_column=group_column,
        weight_column=weight_column,
        rows=rows,
        blank=blank,
        minus_one=minus_one,
        none_label=none_label,
        ignore=tuple(ignore),
        hierarchy=None if hierarchy is None else Path(hierarchy),
        keep=tuple(keep),
    )
    records = _read(name, place, options, missing)
    return _with_val_and_test(records, seed) if carved else records


def describe(records: Records) -> str:
    """What was understood: the file and its columns where these are known, then what is there."""
    present = records.present()
    splits = " · ".join(f"{split} {len(records.rows(split)):,}" for split in SPLITS)
    names = records.label_space.names
    never = [names[i] for i in np.flatnonzero(records.label_space.counts == 0)]
    unknown = 100 * (1 - records.states.known_share()) if len(records) and names else 0.0
    listed = ", ".join(never[:5]) + (", …" if len(never) > 5 else "")
    without = int((np.diff(present.indptr) == 0).sum())
    lines = [
        str(records.origin) if records.origin else "",
        f"{len(records):,} images: {splits}; {len(names):,} classes, "
        f"{present.nnz / max(len(records), 1):.1f} labels per image, {unknown:.1f} % not known",
        _beside_labels(records),
        f"images without labels: {without:,}; classes without training positives: "
        + (f"{len(never):,} of {len(names):,} ({listed})" if never else "none"),
    ]
    return "\n".join(line for line in lines if line)


def _beside_labels(records: Records) -> str:
    """Labels that are not simply there or not, groups and weights; nothing where there are none of these."""
    counts = records.states.counts()
    counts[State.UNCERTAIN, np.isin(records.states.chance, (0.0, 1.0))] = 0  # taken for absent or present
    parts = [
        f"{counts[state].sum():,} {state.name.lower()}"
        for state in (State.UNKNOWN, State.UNCERTAIN)
        if counts[state].any()
    ]
    said = [f"labels: {', '.join(parts)}"] if parts else []
    if records.group is not None:
        groups = len(set(records.group))
        said.append(f"{groups:,} {'group' if groups == 1 else 'groups'}")
    if records.weight is not None:
        said.append(f"weights from {records.weight.min():g} to {records.weight.max():g}")
    return "; ".join(said)


def _format(place: Path, name: str | None) -> str:
    """The format asked for, or the only one that fits."""
    if name is not None and name not in {**FORMATS, **VARIANTS}:
        raise OptionError(f"--format: there is no format {name!r}; {suggestion(name, {**FORMATS, **VARIANTS})}")
    if not place.exists():
        raise DataError(f"{place} does not exist; DATA is a table or a folder")
    if place.is_dir():
        return name or _recognized(place)
    if name not in (None, "table"):
        raise OptionError(f"{place} is a file, and --format {name} reads a folder; give the folder")
    return "table"


def _recognized(folder: Path) -> str:
    fit = [name for name, module in FORMATS.items() if name != LAST and import_module(module).recognizes(folder)]
    if len(fit) > 1:
        flags = " or ".join(f"--format {name}" for name in fit)
        raise DataError(f"{folder} can be read in {len(fit)} ways; {flags} says which")
    if fit:
        return fit[0]
    if files_of_tables(folder):
        return "table"  # whose reader says what its columns lack, or was told them
    if LAST in FORMATS and import_module(FORMATS[LAST]).recognizes(folder):
        return LAST
    raise DataError(f"{folder} has no layout that is known here; looked for {LOOKED_FOR}")


def _table(place: Path) -> Path:
    """The one table of a folder: the only one with a path column or, where none has one, the only one."""
    if not place.is_dir():
        return place
    tables = find_tables(place) or files_of_tables(place)
    if len(tables) > 1:
        raise DataError(f"{place} holds {len(tables)} tables; give one as DATA: {', '.join(map(str, tables))}")
    if not tables:
        raise DataError(f"{place} holds no table; looked for a file that ends in {' or '.join(SUFFIXES)}")
    return tables[0]


def _read(name: str, place: Path, options: TableOptions, missing: Missing) -> Records:
    if name == "table":
        return read_table(_table(place), options, missing=missing)
    reader: Callable[..., Records] = getattr(
        import_module({**FORMATS, **VARIANTS}[name]), f"read_{name}".replace("-", "_")
    )
    if name in OF_TABLES:
        return reader(place, options, missing=missing)
    given = [flag for flag, value in options.by_flag().items() if value is not None and value != ()]
    if given:
        raise OptionError(f"{place} is read as {name}, which takes no {', '.join(given)}; those are for tables")
    return reader(place, missing=missing)


def _with_val_and_test(records: Records, seed: int) -> Records:
    """Carve what is missing, and say so."""
    carved = make_splits(records, seed=seed)
    taken = [split for split in SPLITS if len(carved.rows(split)) > len(records.rows(split))]
    if not taken or records.origin is None:
        return carved
    said = f"{records.origin.understood}; {' and '.join(taken)} taken from train with seed {seed}"
    return replace(carved, origin=replace(records.origin, understood=said))
