"""A table of images: CSV or TSV, with a list of labels in each row or with one column a class.

Columns are found by name. Wherever a table can be read in two ways, it is not read but answered with what decides.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probmcl.data.label_lists import CLASSES, Labels, forget, read_classes, read_label_lists, read_lists
from probmcl.data.records import DataError, Missing, Origin, Records, Split
from probmcl.data.sheet import DELIMITERS, Cell, Table, header, load, named, only_column, quoted, refuse_wrong_columns
from probmcl.nearest import suggestion

PATH = ("filename", "file_name", "filepath", "file_path", "file", "path", "image", "image_path", "image_name", "img")
LABELS = ("labels", "label", "tags", "tag", "classes", "class", "categories", "category")
SPLIT = ("split", "set", "subset")
DIFFICULT = ("difficult",)

SPLIT_VALUES: Mapping[str, Split] = {
    "train": "train",
    "trainval": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
FLAG_VALUES: Mapping[str, float | None] = {
    **dict.fromkeys(("0", "0.0", "false"), 0.0),
    **dict.fromkeys(("1", "1.0", "true"), 1.0),
    **dict.fromkeys(("", "-1", "-1.0"), None),  # not known
}


@dataclass(frozen=True)
class Columns:
    """Which column holds what. Without a column of label lists, `classes` are one column a class."""

    path: str
    split: str | None
    group: str | None
    difficult: str | None
    labels: str | None
    classes: tuple[str, ...]


def recognises(folder: Path) -> bool:
    """Whether the folder holds a table with a path column."""
    return bool(find_tables(folder))


def find_tables(folder: Path) -> list[Path]:
    """The tables of a folder whose header has a path column.

    >>> find_tables(Path("no such folder"))
    []
    """
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in DELIMITERS and path.is_file())
    return [path for path in files if _is_of_images(path)]


def read_table(
    path: Path | str,
    *,
    images: Path | str | None = None,
    path_column: str | None = None,
    labels_column: str | None = None,
    split_column: str | None = None,
    group_column: str | None = None,
    missing: Missing = "error",
) -> Records:
    """Read a table with a path column and either a list of labels in each row or one column a class.

    A list holds class names, or 0-based indices into the `classes.txt` beside the table, which gives the order of the
    classes. Labels in a `difficult` column are not known. Paths are relative to `images`, by default the table's folder
    or its `images/`; with `missing="keep"`, images whose file is not there stay, as long as others are. Without a split
    column every image belongs to train.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name:
    ...     folder = Path(name)
    ...     (folder / "1.jpg").touch(), (folder / "2.jpg").touch()
    ...     size = (folder / "labels.csv").write_text("filename,labels\\n1.jpg,cat dog\\n2.jpg,dog\\n")
    ...     records = read_table(folder / "labels.csv")
    (None, None)
    >>> records.label_space.names, records.labels.tolist()
    (('cat', 'dog'), [[1.0, 1.0], [0.0, 1.0]])
    """
    table = load(Path(path), lambda names: _has_a_path_column(names, path_column))
    classes = read_classes(table.path.parent / CLASSES)
    columns = _find_columns(table, classes, path_column, labels_column, split_column, group_column)
    if columns.labels:
        found = read_label_lists(table, columns.labels, columns.difficult, classes)
    else:
        found = _one_column_a_class(table, columns)
    paths = _find_images(table, columns.path, None if images is None else Path(images), missing)
    split = _splits(table, columns.split)
    group = _groups(table, columns.group)
    origin = Origin(table.path, _understood(columns, found.written), table.lines)
    return Records.from_labels(found.names, paths, split, found.values, found.known, group=group, origin=origin)


def _is_of_images(path: Path) -> bool:
    try:
        return _has_a_path_column(header(path, _has_a_path_column)[1])
    except DataError:
        return False


def _has_a_path_column(names: Sequence[str], path_column: str | None = None) -> bool:
    return path_column in names or bool(named(names, PATH))


# Which column is what.


def _find_columns(
    table: Table,
    classes: tuple[str, ...] | None,
    path_column: str | None,
    labels_column: str | None,
    split_column: str | None,
    group_column: str | None,
) -> Columns:
    given = {
        "--path-column": path_column,
        "--labels-column": labels_column,
        "--split-column": split_column,
        "--group": group_column,
    }
    taken = refuse_wrong_columns(table, given)
    path = path_column or only_column(table, PATH, taken, "--path-column COLUMN says which")
    if path is None:
        raise DataError(
            f"{table.path}: none of its columns ({_listing(table.columns)}) has a name that says it holds the images' "
            f"paths ({', '.join(PATH)}); --path-column COLUMN says which"
        )
    split = split_column or only_column(table, SPLIT, {*taken, path}, "--split-column COLUMN says which")
    difficult = only_column(table, DIFFICULT, {*taken, path}, "rename one")
    rest = [name for name in table.columns if name and name not in {*taken, path, split, difficult}]
    if labels_column:
        return Columns(path, split, group_column, difficult, labels_column, ())
    labels = only_column(table, LABELS, {*table.columns} - {*rest}, "--labels-column COLUMN says which")
    if labels is None:
        columns = _class_columns(table, rest, classes)
        _refuse_a_flag_for_a_list(table, difficult)
        return Columns(path, split, group_column, difficult, None, columns)
    _refuse_two_kinds_of_labels(table, labels, [name for name in rest if name != labels], classes)
    return Columns(path, split, group_column, difficult, labels, ())


def _understood(columns: Columns, written: str) -> str:
    """Which column was taken for what, to be said back."""
    labels = f"labels {columns.labels!r} ({written})" if columns.labels else written
    others = {"split": columns.split, "difficult": columns.difficult, "group": columns.group}
    said = [f"{role} {column!r}" for role, column in others.items() if column]
    return ", ".join([f"path column {columns.path!r}", labels, *said])


def _refuse_two_kinds_of_labels(table: Table, labels: str, rest: list[str], classes: tuple[str, ...] | None) -> None:
    if rest and all(_holds_flags(table, column) for column in rest):
        raise DataError(
            f"{table.path}: column {labels!r} may list the labels, and {_listing(rest)} may be one column a class; "
            f"--labels-column {labels} takes the list; for the others, remove {labels!r}"
        )
    if not rest and classes is None and _holds_flags(table, labels):
        raise DataError(
            f"{table.path}: column {labels!r} holds only 0 and 1: two classes, or one that is absent or present? "
            f"--labels-column {labels} means two; for one, give the column the name of the class"
        )


def _holds_flags(table: Table, column: str) -> bool:
    values = {cell.text.lower() for cell in table.cells(column)}
    return values <= FLAG_VALUES.keys() and any(FLAG_VALUES[value] is not None for value in values)


def _class_columns(table: Table, rest: list[str], classes: tuple[str, ...] | None) -> tuple[str, ...]:
    if not rest:
        raise DataError(f"{table.path}: has no labels: no column {_listing(LABELS)}, and none a class; --labels-column")
    for name in classes or ():
        if name not in rest:
            raise DataError(f"{table.path}: {CLASSES} names {name!r}, which is no column; {suggestion(name, rest)}")
    for column in rest:
        if classes and column not in classes and _holds_flags(table, column):
            near = suggestion(column, classes)
            raise DataError(f"{table.path}: column {column!r} holds 0 and 1 but is not in {CLASSES}; {near}")
    return classes or tuple(rest)


def _refuse_a_flag_for_a_list(table: Table, difficult: str | None) -> None:
    if difficult and _holds_flags(table, difficult):
        raise DataError(
            f"{table.path}: column {difficult!r} holds only 0 and 1, but should list the labels that are not known; "
            f"rename it, or list them"
        )


# Labels, one column a class.


def _one_column_a_class(table: Table, columns: Columns) -> Labels:
    values = np.zeros((len(table.rows), len(columns.classes)), dtype=np.float32)
    known = np.ones(values.shape, dtype=bool)
    for place, column in enumerate(columns.classes):
        for row, cell in enumerate(table.cells(column)):
            value = _flag(table, cell)
            values[row, place], known[row, place] = value or 0.0, value is not None
    if columns.difficult:
        lists = read_lists(table, table.cells(columns.difficult), columns.classes)
        forget(values, known, lists.classes)
    return Labels(columns.classes, values, known, f"one column a class ({_listing(map(repr, columns.classes))})")


def _flag(table: Table, cell: Cell) -> float | None:
    try:
        return FLAG_VALUES[cell.text.lower()]
    except KeyError:
        raise DataError(
            f"{table.path}: row {cell.line}: column {cell.column!r} holds {cell.text!r}, not 0, 1, true, false, blank "
            f"or -1; if another column lists the labels, --labels-column says which; if this one is no class, name the "
            f"classes in a {CLASSES}"
        ) from None


# Images, splits and groups.


def _find_images(table: Table, column: str, images: Path | None, missing: Missing) -> tuple[Path, ...]:
    cells = table.cells(column)
    _refuse_blank_or_repeated(table, cells)
    here = table.path.parent
    roots = [images] if images else [here, here / "images"] if (here / "images").is_dir() else [here]
    absent = {root: [cell for cell in cells if not (root / cell.text).is_file()] for root in roots}
    root = min(roots, key=lambda root: len(absent[root]))
    if len(absent[root]) == len(cells):
        raise DataError(_what_is_missing(table, absent[root], roots))
    if absent[root] and missing == "error":
        raise DataError(_what_is_missing(table, absent[root], [root]))
    _refuse_two_roots(table, cells, absent)
    return tuple(root / cell.text for cell in cells)


def _refuse_two_roots(table: Table, cells: list[Cell], absent: Mapping[Path, list[Cell]]) -> None:
    """Two folders that have as many of the images, unless those are the same files, as with absolute paths."""
    fewest = min(map(len, absent.values()))
    found = {
        root: {root / cell.text for cell in cells} - {root / cell.text for cell in lost}
        for root, lost in absent.items()
    }
    best = [root for root, lost in absent.items() if len(lost) == fewest]
    if any(found[root] != found[best[0]] for root in best):
        raise DataError(f"{table.path}: its images exist under {_listing(map(str, best))}; --images FOLDER says which")


def _refuse_blank_or_repeated(table: Table, cells: list[Cell]) -> None:
    first: dict[str, int] = {}
    for cell in cells:
        if not cell.text:
            raise DataError(f"{table.path}: row {cell.line}: column {cell.column!r} is blank; name the image's file")
        path = os.path.normpath(cell.text)
        if path in first:
            rows = f"rows {first[path]} and {cell.line}"
            raise DataError(f"{table.path}: {rows}: both are {cell.text!r}; give each image one row")
        first[path] = cell.line


def _what_is_missing(table: Table, missing: list[Cell], roots: Sequence[Path]) -> str:
    first, more = missing[0], len(missing) - 1
    others = f", nor do {more} more" if more else ""
    where = " or ".join(f"{root}/" for root in roots)
    return (
        f"{table.path}: row {first.line}: {first.text!r} does not exist under {where}{others}; "
        f"--images FOLDER says where the images are"
    )


def _splits(table: Table, column: str | None) -> tuple[Split, ...]:
    if column is None:
        train: Split = "train"
        return (train,) * len(table.rows)
    cells = table.cells(column)
    strange = {cell.text: cell.line for cell in reversed(cells) if cell.text.lower() not in SPLIT_VALUES}
    if strange:
        values = sorted(strange)
        listed = quoted(values[:5]) + (f" and {len(values) - 5} more" if len(values) > 5 else "")
        raise DataError(
            f"{table.path}: row {min(strange.values())}: column {column!r} holds {listed}; a split is one of "
            f"{', '.join(SPLIT_VALUES)}; --split-column COLUMN names another column"
        )
    return tuple(SPLIT_VALUES[cell.text.lower()] for cell in cells)


def _groups(table: Table, column: str | None) -> tuple[str, ...] | None:
    if column is None:
        return None
    cells = table.cells(column)
    for cell in cells:
        if not cell.text:
            raise DataError(f"{table.path}: row {cell.line}: group {column!r} is blank; give every image a group")
    return tuple(cell.text for cell in cells)


def _listing(values: Iterable[str]) -> str:
    values = [value for value in values if value]
    return ", ".join(values[:8]) + (f" and {len(values) - 8} more" if len(values) > 8 else "")
