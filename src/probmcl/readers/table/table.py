"""Reading of a table into records; if several readings are possible, the user is asked.

The layout is inferred from the names and contents of the columns and from the files on disk.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int, UInt8
from numpy import ndarray

from probmcl.data.labels import LabelStates, State, parents_of
from probmcl.data.records import Missing, Origin, Paths, Records, Split
from probmcl.errors import DataError, OptionError, ProbmclError, Question, Reading, counted, listing, quoted
from probmcl.readers.annotations import annotation_format
from probmcl.readers.file_index import EXCEL_CELL, SPLIT_FOLDERS, FileIndex, find_images, find_index
from probmcl.readers.hierarchy_file import read_hierarchy
from probmcl.readers.label_policy import split_at_commas
from probmcl.readers.options import ReadOptions
from probmcl.readers.spreadsheet import EXCEL_ROWS, SUFFIXES, Spreadsheet, load_spreadsheet
from probmcl.readers.table.columns import Columns, find_columns, has_path_name
from probmcl.readers.table.entries import Images, LabelEntries, read_entries
from probmcl.readers.table.lists import CLASSES, SEPARATORS, read_classes

SHOWN_ROWS = 3  # rows in a question about columns; others show two
SHOWN_LABELS = 6  # labels of a row in a question
BLOCK = 2_000_000  # labels that are compared at once

SPLIT_VALUES = dict[str, Split](SPLIT_FOLDERS, trainval="train")
del SPLIT_VALUES["dev"]  # in a column, it may mean train or test
WEIGHT = re.compile(r"\+?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)  # a number of at least 0


def answered(read: Callable[[ReadOptions], Records], options: ReadOptions) -> Records:
    """Read data, and ask a question only if its readings give different labels.

    All readings are tried. A reading that is an error is left out; if several remain, the question shows rows in which
    they differ. If all have the same error, it is raised, because no answer would help.
    """
    try:
        return read(options)
    except Question as error:
        question = error
    results, errors, final = list[tuple[Reading, Records | None]](), list[ProbmclError](), True
    for reading in question.readings:
        chosen = _chosen(options, reading)
        try:
            results.append((reading, read(chosen)))
        except Question as another:
            final = False
            results.append((reading, _preview(read, _chosen(chosen, another.readings[0]))))
        except (DataError, OptionError) as error:
            errors.append(error)
    if not results and len({*map(str, errors)}) == 1:
        raise errors[0]
    possible = [records for _, records in results if records is not None]
    rows = _differing_rows(possible)[: SHOWN_ROWS if "labels_column" in question.readings[0].options else 2]
    if possible and final and not rows:
        return possible[0]
    shown = [
        replace(reading, rows=tuple(_row_text(records, row) for row in rows) if records else ())
        for reading, records in results
    ]
    raise Question(question.problem, shown or question.readings)


def _chosen(options: ReadOptions, reading: Reading) -> ReadOptions:
    """Return the options with those of a reading; an option that takes several values keeps its others."""
    values: dict[str, Any] = {
        name: (*now, value) if isinstance(now := getattr(options, name), tuple) else value
        for name, value in reading.options.items()
    }
    return replace(options, **values)


def _preview(read: Callable[[ReadOptions], Records], options: ReadOptions) -> Records | None:
    """Return the labels of a reading that needs another decision, with the first answer to it."""
    try:
        return read(options)
    except (DataError, OptionError):
        return None


def _differing_rows(readings: Sequence[Records]) -> list[int]:
    """Return the first images whose labels differ between readings; a class that a reading lacks is absent there."""
    if not readings:
        return []
    names = {name for records in readings for name in records.label_space.names}
    column_of = {name: column for column, name in enumerate(names)}
    rows, size = list[int](), max(1, BLOCK // len(names))
    for start in range(0, len(readings[0]), size):
        block = np.arange(start, min(start + size, len(readings[0])))
        first, *others = (_states_by_name(records, column_of, block) for records in readings)
        different = np.any([(other != first).any(axis=1) for other in others] or [len(block) * [False]], axis=0)
        rows += (start + np.flatnonzero(different)).tolist()
        if len(rows) >= SHOWN_ROWS:
            break
    return rows[:SHOWN_ROWS]


def _states_by_name(records: Records, column_of: Mapping[str, int], rows: Int[ndarray, "K"]) -> UInt8[ndarray, "K C"]:
    states = np.full((len(rows), len(column_of)), State.ABSENT, dtype=np.uint8)
    labels, known = records.states.labels_and_known(rows)
    states[:, [column_of[name] for name in records.label_space.names]] = np.where(known, labels > 0, State.UNKNOWN)
    return states


def _row_text(records: Records, row: int) -> str:
    """Return the labels of an image, with its row in the table or, if there are several tables, its whole path."""
    labels, known = (values[0] for values in records.states.labels_and_known(np.array([row])))
    names = np.array(records.label_space.names)
    present, unknown = names[(labels > 0) & known].tolist(), names[~known].tolist()
    missing = f" (unknown: {listing(unknown, SHOWN_LABELS)})" if unknown else ""
    image = str(records.paths[row])
    if records.origin is not None and records.origin.lines is not None:
        image = f"row {records.origin.lines[row]}, {records.paths[row].name}"
    return f"{image}: {listing(present, SHOWN_LABELS) or 'no label'}{missing}"


def recognizes(folder: Path) -> bool:
    """Return whether the folder has a table with a column whose name indicates image paths.

    JSON and text files are not considered, because other formats use them too.
    """
    return any(has_image_paths(path) for path in table_files(folder) if path.suffix.lower() not in (".json", ".txt"))


def table_files(folder: Path) -> list[Path]:
    """Return the files in a folder that have the suffix of a table, except class names and annotations in JSON."""
    files = (path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return sorted(path for path in files if path.name != CLASSES and annotation_format(path) is None)


def has_image_paths(path: Path) -> bool:
    """Return whether a file is a table with a column whose name indicates image paths."""
    try:
        return has_path_name(load_spreadsheet(path, has_path_name, most=1).columns)
    except DataError:
        return False


def read_table(
    path: Path | str,
    options: ReadOptions = ReadOptions(),
    *,
    images: Path | None = None,
    keep: Sequence[str] = (),
    missing: Missing = "error",
) -> Records:
    """Read a table of images.

    A list contains class names, or 0-based indices into the `classes.txt` next to the table, which defines the order of
    the classes. Labels in a `difficult` column are unknown. Paths are relative to `images`, by default the table's
    folder or `images/` in it. With `missing="keep"`, images whose files do not exist are kept, unless all files are
    missing. Without a split column, all images are in train. If two readings give different labels, `Question` is
    raised.
    """
    table = load_spreadsheet(Path(path), lambda names: has_path_name(names, options.path_column))
    return read_loaded(table, options, find_index(table.folder, images), keep=keep, missing=missing)


def read_loaded(
    table: Spreadsheet, options: ReadOptions, index: FileIndex, *, keep: Sequence[str] = (), missing: Missing = "error"
) -> Records:
    """Return the records of a loaded table. A question is asked only if its readings give different labels."""
    ignored = split_at_commas(options.ignore, table.columns.__contains__)
    unknown = split_at_commas(options.unknown_label, lambda text: any(_has(cell, text) for cell in chain(*table.data)))
    options = replace(options, ignore=ignored, unknown_label=unknown)
    return answered(lambda options: _records(table, index, options, keep, missing), options)


def _has(cell: str, label: str) -> bool:
    """Return whether a cell is a label, or a list with that label."""
    return label in cell and any(
        label in map(str.strip, cell.split(separator)) for separator in ("\n", " ", *SEPARATORS)
    )


def _records(
    table: Spreadsheet, index: FileIndex, options: ReadOptions, keep: Sequence[str], missing: Missing
) -> Records:
    classes = read_classes(table.folder / CLASSES)
    columns = find_columns(table, index, classes, options, keep)
    paths, notes = find_images(table, columns.path, index, missing)
    images = Images.of(paths)
    split = _splits(table, columns.split, images)  # refuses an image in two splits
    people = table.texts(columns.annotator) if columns.annotator and images.repeated else ()
    units = Images.of(list(zip(paths, people, strict=True))) if people else images  # one annotator of one image
    entries = read_entries(table, columns, classes, units, options)
    states = _states(table, columns, entries, images, units, options)
    if entries.hierarchy:  # PARENT/CHILD in the table implies the parent, which is not worth a warning
        states = states.with_parents(parents_of(entries.names, entries.hierarchy))
    lines = None if table.files else images.select(table.lines)  # ambiguous with several files
    return Records.from_labels(
        entries.names,
        Paths(images.select(paths)),
        split,
        states,
        group=_groups(table, columns.group, images),
        hierarchy=_hierarchy(options.hierarchy, entries),
        origin=Origin(table.path, _describe(table, columns, entries, images, notes), lines),
        weight=_weights(table, columns.weight, images),
        columns={column: tuple(_values(table, column, images)) for column in keep},
    )


def _states(
    table: Spreadsheet, columns: Columns, entries: LabelEntries, images: Images, units: Images, options: ReadOptions
) -> LabelStates:
    chance = options.policy.chance(entries.names)
    if images.repeated:
        from probmcl.readers.table.merging import merge_rows

        merged = merge_rows(table, columns, entries, images, units, options.annotators)
        return replace(merged, chance=chance)
    shape = (len(table), len(entries.names))
    rows, classes, states = entries.rows, entries.classes, entries.states
    return LabelStates.from_entries(rows, classes, states, shape, default=entries.default, chance=chance)


def _describe(table: Spreadsheet, columns: Columns, entries: LabelEntries, images: Images, notes: Sequence[str]) -> str:
    rows = [f"{len(table):,} rows are {counted(len(images.first), 'image')}"] if images.repeated else []
    roles = ("split", "difficult", "group", "weight", "annotator")
    others = [f"{role} column {getattr(columns, role)!r}" for role in roles if getattr(columns, role)]
    paths = "; ".join([f"path column {columns.path!r}", *rows, *notes])
    unread = f"ignored: {listing(map(repr, columns.unread))}" if columns.unread else ""
    lines = [paths, f"labels: {entries.description}", ", ".join(others), unread, *_excel_warnings(table, entries.names)]
    return "\n".join(filter(None, lines))


def _excel_warnings(table: Spreadsheet, names: Sequence[str]) -> list[str]:
    changed = [name for name in names if EXCEL_CELL.fullmatch(name)]
    like = "label {} looks like a date or number" if len(changed) == 1 else "labels {} look like dates or numbers"
    warnings = [f"{like.format(quoted(changed[:3]))} that Excel changed"] if changed else []
    if len(table) + 1 == EXCEL_ROWS:
        warnings.append(f"{EXCEL_ROWS:,} rows are the maximum in Excel; the table may have been cut off")
    return warnings


def _values(table: Spreadsheet, column: str, images: Images) -> Sequence[str]:
    """Return each image's value in a column. Rows of the same image must agree."""
    texts = table.texts(column)
    for row, first in enumerate(images.first[images.of_row].tolist() if images.repeated else ()):
        if texts[row] != texts[first]:
            second = table.where(row) if table.files else f"row {table.lines[row]}"
            raise DataError(
                f"{table.where(first)} and {second}: these rows describe the same image, but column "
                f"{column!r} has {texts[first]!r} and {texts[row]!r}; make them equal"
            )
    return images.select(texts)


def _splits(table: Spreadsheet, column: str | None, images: Images) -> tuple[Split, ...]:
    """Return the split of each image; without a split column, all are in train."""
    if column is None:
        train: Split = "train"
        return (train,) * len(images.first)
    texts = table.texts(column)
    invalid = sorted(text for text in set(texts) if text.lower() not in SPLIT_VALUES)
    if invalid:
        listed = quoted(invalid[:5]) + (f" and {len(invalid) - 5} more" if len(invalid) > 5 else "")
        first = next(row for row, text in enumerate(texts) if text in invalid)
        raise DataError(
            f"{table.where(first)}: split column {column!r} has {listed}; expected {', '.join(SPLIT_VALUES)}. "
            f'Choose another column with `split_column=COLUMN`, or none with `split_column=""`'
        )
    try:
        splits = {text: SPLIT_VALUES[text.lower()] for text in set(texts)}
        return tuple(map(splits.__getitem__, _values(table, column, images)))
    except DataError as error:
        raise DataError(f"{error}. An image in two splits is a leak: its score would be too high") from None


def _groups(table: Spreadsheet, column: str | None, images: Images) -> tuple[str, ...] | None:
    if column is None:
        return None
    texts = table.texts(column)
    if "" in texts:
        where = table.where(list(texts).index(""))
        raise DataError(f'{where}: group {column!r} is blank; every image needs a group (or use `group=""`)')
    return tuple(_values(table, column, images))


def _weights(table: Spreadsheet, column: str | None, images: Images) -> Float64[ndarray, "N"] | None:
    """Return the weight of each image, or None without a weight column. At least one weight must be positive."""
    if column is None:
        return None
    for row, text in enumerate(table.texts(column)):
        if not WEIGHT.fullmatch(text):
            raise DataError(
                f"{table.where(row)}: weight {column!r} is {text!r}, but must be a number of at least 0; "
                f'use `weight_column=""` for no weights'
            )
    weights = np.array([float(text) for text in _values(table, column, images)])
    if not weights.any():
        raise DataError(f"{table.path}: weight {column!r} is 0 in every row; at least one must be positive")
    return weights


def _hierarchy(path: Path | None, entries: LabelEntries) -> dict[str, str] | None:
    try:
        return read_hierarchy(path, entries.names) if path else dict(entries.hierarchy) or None
    except DataError as error:
        raise OptionError("hierarchy", path, f"cannot be used: {error}") from error
