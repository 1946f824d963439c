"""The Hugging Face layout for images: one folder per split, with its images and a `metadata.csv` or `.jsonl`."""

from collections.abc import Sequence
from pathlib import Path

from probmcl.data.records import Missing, Records
from probmcl.errors import DataError
from probmcl.readers.file_index import SPLIT_FOLDERS, split_folders
from probmcl.readers.options import ReadOptions
from probmcl.readers.split_tables import read_tables
from probmcl.readers.spreadsheet import SUFFIXES
from probmcl.readers.table.table import has_image_paths


def recognizes(folder: Path) -> bool:
    """Return whether the folder has a split folder with a table of images.

    >>> recognizes(Path("nowhere"))
    False
    """
    tables = [path / f"metadata{suffix}" for path in split_folders(folder) for suffix in SUFFIXES]
    return any(path.is_file() and has_image_paths(path) for path in tables)


def read_hugging_face(
    folder: Path,
    options: ReadOptions = ReadOptions(),
    *,
    images: Path | None = None,
    keep: Sequence[str] = (),
    missing: Missing = "error",
) -> Records:
    """Read the tables of all split folders as one table."""
    if not recognizes(folder):
        raise DataError(f"{folder}: no metadata.csv in {' or '.join(f'{name}/' for name in SPLIT_FOLDERS)}")
    return read_tables(folder, options, images=images, keep=keep, missing=missing)
