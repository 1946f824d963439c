"""Folders with several tables: one per split, tables of unlabeled test images, and lists of the files of a split."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probmcl.data.image_files import images_below, is_image, subfolders
from probmcl.data.records import NO_LABELS, SPLITS, Missing, Records, Split
from probmcl.errors import DataError, OptionError, listing
from probmcl.readers.file_index import SPLIT_FOLDERS, FileIndex, find_images, find_index, find_path_column
from probmcl.readers.label_policy import split_at_commas
from probmcl.readers.options import ReadOptions
from probmcl.readers.spreadsheet import SUFFIXES, Spreadsheet, load_spreadsheet, refuse_missing_column
from probmcl.readers.table.columns import has_path_name
from probmcl.readers.table.lists import NoLabelsError
from probmcl.readers.table.table import read_loaded, table_files

SPLIT = "table name"  # name of an added column
SAMPLE = 2000  # rows from which the use of a table is inferred
SUBMISSION = "submission"  # part of the name of an example of a submission, whose labels are made up


@dataclass(frozen=True)
class CandidateTable:
    """A table that names images: its path column, its split if its name or folder has one, and its image folder."""

    path: Path
    column: str
    split: Split | None
    folder: str
    labeled: bool


def read_tables(
    folder: Path,
    options: ReadOptions = ReadOptions(),
    *,
    images: Path | None = None,
    keep: Sequence[str] = (),
    missing: Missing = "error",
) -> Records:
    """Read the table in a folder or, if there are several, one table per split.

    Tables without labels and examples of submissions are not used.
    """
    candidates = _candidates(folder, options, images) or [_only_table(folder)]
    labeled = [candidate for candidate in candidates if candidate.labeled]
    labeled = labeled or [candidate for candidate in candidates if SUBMISSION not in candidate.path.stem.lower()]
    if not labeled:
        raise NoLabelsError(f"{candidates[0].path} is only an example of a submission; pass the table with the labels")
    if len(labeled) > 1:
        labeled = _largest(labeled, options)
    if len(labeled) == 1:
        table = load_spreadsheet(labeled[0].path, lambda names: has_path_name(names, options.path_column))
    else:
        table = _concatenated(folder, labeled, options, images)
        options = replace(options, split_column=SPLIT) if options.split_column is None else options
    index = _index(labeled[0].path, images) if len(labeled) == 1 else find_index(folder, images)
    records = read_loaded(table, options, index, keep=keep, missing=missing)
    if len(labeled) > 1:
        names = listing(str(candidate.path.relative_to(folder)) for candidate in labeled)
        records = records.with_note(f"one table per split: {names}")
    records = _with_listed_splits(records, folder)
    return _with_unlabeled(records, _unlabeled(folder, candidates, records))


def split_of(name: str) -> Split | None:
    """Return the split that a name contains as a word, if it is the only one; `train_val` is train.

    >>> split_of("train_v2"), split_of("RFMiD_Validation_Labels"), split_of("test-jpg"), split_of("trainer")
    ('train', 'val', 'test', None)
    """
    words = re.split(r"[^a-z]+", re.sub(r"train_?val", "train", name.lower()))
    splits = {SPLIT_FOLDERS[word] for word in words if word in SPLIT_FOLDERS}
    return splits.pop() if len(splits) == 1 else None


def recognizes(folder: Path) -> bool:
    """Return whether a folder has a table, or tables of images in split folders."""
    return bool(table_files(folder)) or bool(_candidates(folder, ReadOptions(), None))


def _candidates(folder: Path, options: ReadOptions, images: Path | None) -> list[CandidateTable]:
    """Return the tables in a folder that name images or, if there are none, those in its split folders."""
    problems: list[OptionError] = []
    for find_tables in (table_files, _tables_in_subfolders):
        found = []
        for path in find_tables(folder):
            try:
                found += _candidate(path, folder, options, images)
            except OptionError as error:
                problems.append(error)
            except DataError:
                continue
        if found:
            return found
    if problems:
        raise problems[0]
    return []


def _tables_in_subfolders(folder: Path) -> list[Path]:
    """Return the tables one or two levels below a folder; in a folder with a `metadata` file, only that one."""
    outer = subfolders(folder)
    files = [table_files(sub) for sub in sorted([*outer, *(inner for sub in outer for inner in subfolders(sub))])]
    return [path for tables in files for path in ([p for p in tables if p.stem == "metadata"] or tables)]


def _only_table(folder: Path) -> CandidateTable:
    """Return the only table, although it does not name images, so that its reader reports the problem."""
    files = table_files(folder)
    if len(files) == 1:
        return CandidateTable(files[0], "", None, "", labeled=True)
    if files:
        raise DataError(
            f"{folder} has {len(files)} tables, but none names images in it: {listing(map(str, files), most=5)}; pass "
            f"one as `data`, with `images=FOLDER`. Its first row must name the columns, separated by commas or tabs"
        )
    raise DataError(f"{folder} has no table; expected a file that ends in {' or '.join(SUFFIXES)}")


def _candidate(path: Path, folder: Path, options: ReadOptions, images: Path | None) -> list[CandidateTable]:
    """Return how a table can be used, or nothing if it does not name images."""
    table = load_spreadsheet(path, lambda names: has_path_name(names, options.path_column), most=SAMPLE)
    index = _index(path, images)
    if options.path_column:
        refuse_missing_column(table, "path_column", options.path_column)
    ignored = split_at_commas(options.ignore, table.columns.__contains__)
    column = options.path_column or find_path_column(table, index, {*ignored})
    files = find_images(table, column, index, "keep")[0]
    inner = os.path.commonpath([os.path.dirname(file) or "." for file in files if index.has(file)] or ["."])  # noqa: PTH120
    split = split_of(path.stem) or (split_of(path.parent.name) if path.parent != folder else None)
    if path.parent != folder and split is None:
        return []
    return [CandidateTable(path, column, split, inner, labeled=_has_labels(path, table, index, options))]


def _index(path: Path, images: Path | None) -> FileIndex:
    """Return the index of images for a table: first folders with the name of its split, then all others."""
    split, folders = split_of(path.stem), sorted(path.parent.iterdir()) + sorted((path.parent / "images").glob("*"))
    named = [sub for sub in folders if split and split_of(sub.name) == split and sub.is_dir()]
    return find_index(path.parent, images, named)


def _has_labels(path: Path, table: Spreadsheet, index: FileIndex, options: ReadOptions) -> bool:
    if SUBMISSION in path.stem.lower():
        return False
    try:
        read_loaded(table, options, index, missing="keep")
    except NoLabelsError:
        return False
    except (DataError, OptionError):
        pass  # reported when the table is read
    return True


def _largest(candidates: Sequence[CandidateTable], options: ReadOptions) -> list[CandidateTable]:
    """Return one table per split, or the only table that has the images of all others."""
    by_split: dict[Split | None, list[CandidateTable]] = {}
    for candidate in candidates:
        by_split.setdefault(candidate.split, []).append(candidate)
    if None in by_split and len(by_split) > 1:
        by_split = {None: list(candidates)}
    chosen = [_with_all_images(same, options) for same in by_split.values()]
    order = [None, *SPLITS]
    return sorted(chosen, key=lambda candidate: order.index(candidate.split))


def _with_all_images(candidates: Sequence[CandidateTable], options: ReadOptions) -> CandidateTable:
    if len(candidates) == 1:
        return candidates[0]
    sets = {}
    for candidate in candidates:
        table = load_spreadsheet(candidate.path, lambda names: has_path_name(names, options.path_column))
        sets[candidate] = {*table.texts(candidate.column)}
    most = max(sets, key=lambda candidate: len(sets[candidate]))
    if all(texts < sets[most] for candidate, texts in sets.items() if candidate != most):
        return most
    if most.split:
        both = " and ".join(str(candidate.path) for candidate in candidates[:2])
        raise DataError(f"{both} are both tables for {most.split}; merge them")
    paths = listing((str(candidate.path) for candidate in candidates), most=5)
    raise DataError(f"{most.path.parent} has {len(candidates)} tables; pass one of them as `data`: {paths}")


def _concatenated(
    folder: Path, candidates: Sequence[CandidateTable], options: ReadOptions, images: Path | None
) -> Spreadsheet:
    """Concatenate tables, with paths relative to the common folder and a column for the split."""
    tables = [load_spreadsheet(c.path, lambda names: has_path_name(names, options.path_column)) for c in candidates]
    first = tables[0]
    columns: list[list[str]] = [[] for _ in (*first.columns, SPLIT)]
    lines: list[int] = []
    files: list[tuple[int, Path]] = []
    for candidate, table in zip(candidates, tables, strict=True):
        differing = sorted(set(first.columns) ^ set(table.columns))
        if differing:
            having, lacking = (first, table) if differing[0] in first.columns else (table, first)
            raise DataError(
                f"{having.path} has a column {differing[0]!r} that {lacking.path} lacks; give both the same columns"
            )
        refuse_missing_column(table, "path_column", candidate.column)
        files.append((len(lines), table.path))
        paths = _relative_paths(table, candidate, _index(table.path, images), images or folder)
        for texts, name in zip(columns, first.columns, strict=False):
            texts += paths if name == candidate.column else table.texts(name)
        columns[-1] += [candidate.split or "train"] * len(table)
        lines += table.lines
    return Spreadsheet(folder, (*first.columns, SPLIT), tuple(columns), lines, tuple(files))


def _relative_paths(table: Spreadsheet, candidate: CandidateTable, index: FileIndex, base: Path) -> list[str]:
    files = find_images(table, candidate.column, index, "keep")[0]
    return [os.path.relpath(file, base) for file in files]


def _with_listed_splits(records: Records, folder: Path) -> Records:
    """Apply lists such as `test_list.txt` that assign each image to a split, if the data have no other split."""
    if {*records.split} != {"train"}:
        return records
    split_by_name: dict[str, Split] = {}
    lists = [path for path in sorted(folder.glob("*.txt")) if split_of(path.stem)]
    for path in lists:
        lines = path.read_text(encoding="utf-8", errors="replace").split()
        if not lines or not all(map(is_image, lines)):
            return records
        split = split_of(path.stem) or "train"
        for name in (line.rpartition("/")[2] for line in lines):
            if split_by_name.setdefault(name, split) != split:
                raise DataError(
                    f"{path}: {name!r} is also in a list for {split_by_name[name]}, which is a leak; remove one"
                )
    splits = [split_by_name.get(path.rpartition("/")[2]) for path in records.paths.texts]
    if not lists or None in splits or len({*splits}) == 1:
        return records
    names = listing(path.name for path in lists)
    return records.with_split(np.array(splits)).with_note(f"splits from {names}")


def _unlabeled(folder: Path, candidates: Sequence[CandidateTable], records: Records) -> list[str]:
    """Return the folders of images that only tables without labels name, and test folders that no table names."""
    used = {os.path.dirname(path) for path in records.paths.texts}  # noqa: PTH120
    folders = {candidate.folder for candidate in candidates if not candidate.labeled}
    for sub in sorted(folder.iterdir()):
        is_test = sub.is_dir() and split_of(sub.name) == "test"
        if is_test and not any(Path(path).is_relative_to(sub) for path in used) and any(images_below(sub)):
            folders.add(str(sub))
    return sorted(folders)


def _with_unlabeled(records: Records, folders: Sequence[str]) -> Records:
    if not folders or records.origin is None:
        return records
    description = f"{records.origin.description}\n{NO_LABELS}: {listing(folders)}"
    return replace(records, origin=replace(records.origin, description=description, unlabeled=tuple(folders)))
