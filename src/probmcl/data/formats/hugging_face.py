"""Hugging Face's layout of images with splits: a folder for each split, with its images and a `metadata.csv`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from probmcl.data.formats.table.columns import PATH, PATH_AS_AN_ID, has_a_path_column
from probmcl.data.formats.table.sheet import SUFFIXES, Table, load, named, refuse_a_column_that_is_not_there
from probmcl.data.formats.table.table import is_of_images, records_of
from probmcl.data.options import ReadOptions
from probmcl.data.records import Missing, Records, Split
from probmcl.errors import DataError

SPLIT_FOLDERS: Mapping[str, Split] = {
    "train": "train",
    "training": "train",
    "validation": "val",
    "valid": "val",
    "val": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""Names of folders of splits, in lower case."""
FOLDER = "folder of the split"  # name of the added column


def recognizes(folder: Path) -> bool:
    """Return whether the folder has a folder of a split with a table of its images.

    >>> recognizes(Path("nowhere"))
    False
    """
    return bool(_tables(folder))


def read_hugging_face(
    folder: Path,
    options: ReadOptions = ReadOptions(),
    *,
    images: Path | None = None,
    keep: Sequence[str] = (),
    missing: Missing = "error",
) -> Records:
    """Read the tables of all splits as one; splits are those of the folders."""
    tables = _tables(folder)
    if not tables:
        raise DataError(f"{folder}: has no {' or '.join(f'{name}/metadata.csv' for name in SPLIT_FOLDERS)}; name it")
    first: dict[Split, Path] = {}
    for path in tables:
        split = SPLIT_FOLDERS[path.parent.name.lower()]
        if first.setdefault(split, path) != path:
            raise DataError(f"{first[split]} and {path} are both of {split}; join them into one")
    loaded = [load(path, lambda names: has_a_path_column(names, options.path_column)) for path in tables]
    column = FOLDER if options.split_column is None else options.split_column
    joined = _joined(folder, loaded, options.path_column)
    records = records_of(joined, replace(options, split_column=column), images, keep, missing)
    if records.origin is None:
        return records
    read = " and ".join(f"{path.relative_to(folder)}" for path in tables)
    understood = f"Hugging Face, {read}: {records.origin.understood}"
    return replace(records, origin=replace(records.origin, understood=understood))


def _tables(folder: Path) -> list[Path]:
    order = list(SPLIT_FOLDERS)
    splits = [path for path in folder.glob("*") if path.name.lower() in order and path.is_dir()]
    splits.sort(key=lambda path: (order.index(path.name.lower()), path.name))
    tables = [path / f"metadata{ending}" for path in splits for ending in SUFFIXES]
    return [path for path in tables if path.is_file() and is_of_images(path)]


def _joined(folder: Path, tables: Sequence[Table], path_column: str | None) -> Table:
    """Return all rows in one table, with paths from the folder above and a column of the split."""
    first = tables[0]
    if path_column:
        refuse_a_column_that_is_not_there(first, "path_column", path_column)
    named_path = named(first.columns, PATH) or named(first.columns, PATH_AS_AN_ID)
    path = first.columns.index(path_column or named_path[0])
    rows: list[tuple[str, ...]] = []
    lines: list[int] = []
    files: list[tuple[int, Path]] = []
    for table in tables:
        differing = sorted(set(first.columns) ^ set(table.columns))
        if differing:
            having, lacking = (first, table) if differing[0] in first.columns else (table, first)
            raise DataError(
                f"{having.path}: has a column {differing[0]!r}, which {lacking.path} lacks; both must agree"
            )
        name = table.path.parent.name
        order = [table.columns.index(column) for column in first.columns]
        files.append((len(rows), table.path))
        for row in table.rows:
            cells = [row[column] for column in order]
            if cells[path] and not cells[path].startswith("/"):
                cells[path] = f"{name}/{cells[path]}"
            rows.append((*cells, SPLIT_FOLDERS[name.lower()]))
        lines += table.lines
    return Table(folder, (*first.columns, FOLDER), tuple(rows), tuple(lines), tuple(files))
