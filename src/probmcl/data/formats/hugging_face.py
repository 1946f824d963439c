"""The Hugging Face layout for images: one folder per split, with its images and a `metadata.csv`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from probmcl.data.formats.table.columns import ID_AS_PATH, PATH, has_path_column
from probmcl.data.formats.table.sheet import SUFFIXES, Table, load, named, refuse_missing_column
from probmcl.data.formats.table.table import has_image_paths, records_of
from probmcl.data.image_files import SPLIT_FOLDERS, split_folders
from probmcl.data.options import ReadOptions
from probmcl.data.records import Missing, Records, Split
from probmcl.errors import DataError

FOLDER = "split folder"  # name of an added column


def recognizes(folder: Path) -> bool:
    """Return whether the folder has a split folder with a table of images.

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
    """Read the tables of all split folders as one table."""
    tables = _tables(folder)
    if not tables:
        raise DataError(f"{folder}: no metadata.csv in {' or '.join(f'{name}/' for name in SPLIT_FOLDERS)}")
    first: dict[Split, Path] = {}
    for path in tables:
        split = SPLIT_FOLDERS[path.parent.name.lower()]
        if first.setdefault(split, path) != path:
            raise DataError(f"{first[split]} and {path} are both tables for {split}; merge them")
    loaded = [load(path, lambda names: has_path_column(names, options.path_column)) for path in tables]
    column = FOLDER if options.split_column is None else options.split_column
    table = _concatenate(folder, loaded, options.path_column)
    records = records_of(table, replace(options, split_column=column), images, keep, missing)
    if records.origin is None:
        return records
    names = " and ".join(f"{path.relative_to(folder)}" for path in tables)
    description = f"Hugging Face, {names}: {records.origin.description}"
    return replace(records, origin=replace(records.origin, description=description))


def _tables(folder: Path) -> list[Path]:
    tables = [path / f"metadata{suffix}" for path in split_folders(folder) for suffix in SUFFIXES]
    return [path for path in tables if path.is_file() and has_image_paths(path)]


def _concatenate(folder: Path, tables: Sequence[Table], path_column: str | None) -> Table:
    """Concatenate the tables, with paths relative to the common folder and a column for the split."""
    first = tables[0]
    if path_column:
        refuse_missing_column(first, "path_column", path_column)
    path_columns = named(first.columns, PATH) or named(first.columns, ID_AS_PATH)
    path = first.columns.index(path_column or path_columns[0])
    rows: list[tuple[str, ...]] = []
    lines: list[int] = []
    files: list[tuple[int, Path]] = []
    for table in tables:
        differing = sorted(set(first.columns) ^ set(table.columns))
        if differing:
            having, lacking = (first, table) if differing[0] in first.columns else (table, first)
            raise DataError(
                f"{having.path} has a column {differing[0]!r} that {lacking.path} lacks; give both the same columns"
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
