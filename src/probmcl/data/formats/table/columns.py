"""Finds the role of each column in a table: by option, by name or by content."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from probmcl.data.formats.table.label_lists import CLASSES, Classes
from probmcl.data.formats.table.policy import holds_flags
from probmcl.data.formats.table.sheet import (
    Table,
    columns_of_options,
    listing,
    named,
    only_column,
    quoted,
    refuse_missing_column,
)
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError, suggestion

PATH = (
    *("filename", "file_name", "filepath", "file_path", "file", "path", "image", "image_path", "imagepath"),
    *("image_name", "image_file", "image_filename", "img", "img_path", "img_name", "img_file"),
)
ID_AS_PATH = ("image_index", "imageindex", "image_id", "imageid")
"""Columns that identify an image if there is no path column; otherwise they are ignored."""
LABELS = (
    *("labels", "label", "tags", "tag", "classes", "class", "categories", "category", "finding_labels"),
    *("finding_label", "findings", "attributes", "attribute_ids", "label_name", "label_names", "labelname"),
)
SPLIT = ("split", "set", "subset")
GROUP = (
    *("group", "group_id", "patient", "patient_id", "patientid", "subject", "subject_id", "slide", "slide_id"),
    *("case_id", "place"),
)
WEIGHT = ("weight", "sample_weight")
DIFFICULT = ("difficult",)
PRESENCE = ("confidence", "present", "presence", "value")
NO_NAME = re.compile(r"(unnamed: \d+)?", re.IGNORECASE)  # blank, or the name that pandas gives to such a column


@dataclass(frozen=True)
class Columns:
    """The roles of columns. `classes` has one column per class if there is no label column.

    `presence` has 0 or 1 for the label in the same row. `unread` columns are listed in the output and ignored.
    """

    path: str
    split: str | None
    group: str | None
    weight: str | None
    difficult: str | None
    labels: str | None = None
    presence: str | None = None
    classes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def has_path_column(names: Sequence[str], path_column: str | None = None) -> bool:
    """Return whether a column has the given name, or a name that indicates image paths."""
    return path_column in names or bool(named(names, (*PATH, *ID_AS_PATH)))


def find_columns(table: Table, classes: Classes, options: ReadOptions, keep: Sequence[str] = ()) -> Columns:
    """Find the role of each column: by option, otherwise by name, otherwise by content."""
    for option, names in (("ignore", options.ignore), ("by", keep)):
        for column in names:
            refuse_missing_column(table, option, column)
    roles = ("path_column", "labels_column", "split_column", "group", "weight_column")
    taken = columns_of_options(table, {role: getattr(options, role) for role in roles}) | set(options.ignore)
    path = options.path_column or _path_column(table, taken)
    taken |= {path}
    split = _role(table, options.split_column, SPLIT, taken, "split_column")
    group = _role(table, options.group, GROUP, taken, "group")
    weight = _role(table, options.weight_column, WEIGHT, taken, "weight_column")
    difficult = only_column(table, DIFFICULT, taken, "rename one")
    columns = Columns(path, split, group, weight, difficult)
    taken |= {name for name in (split, group, weight, difficult) if name}
    rest = [name for name in table.columns if name not in taken and not NO_NAME.fullmatch(name)]
    columns = _with_labels(table, columns, rest, classes, options)
    return replace(columns, unread=tuple(name for name in columns.unread if name not in keep))


def _path_column(table: Table, taken: set[str]) -> str:
    for names in (PATH, ID_AS_PATH):
        column = only_column(table, names, taken, "choose one with `path_column=COLUMN`")
        if column is not None:
            return column
    raise DataError(
        f"{table.path}: none of the columns {listing(table.columns)} has the name of a path column "
        f"({', '.join((*PATH, *ID_AS_PATH))}); choose one with `path_column=COLUMN`"
    )


def _role(table: Table, value: str | None, names: Sequence[str], taken: set[str], option: str) -> str | None:
    """Return the value of an option (None if blank) or, if it is not set, the only column with one of these names."""
    if value is not None:
        return value or None
    return only_column(table, names, taken, f"choose one with `{option}=COLUMN`, or none with `{option}=''`")


def _with_labels(table: Table, columns: Columns, rest: list[str], classes: Classes, options: ReadOptions) -> Columns:
    ignore = "ignore one with `ignore=COLUMN`"
    remedy = "choose one with `labels_column=COLUMN`" + ("" if options.ignore else f", or {ignore}")
    labels = options.labels_column or only_column(table, LABELS, {*table.columns} - {*rest}, remedy)
    if labels is None:
        of_classes = _class_columns(table, rest, classes)
        if columns.difficult and holds_flags(table.texts(columns.difficult)):
            raise DataError(
                f"{table.path}: column {columns.difficult!r} contains only 0 and 1, but must list the labels that are "
                f"unknown; list them, or rename the column"
            )
        return replace(columns, classes=of_classes, unread=tuple(name for name in rest if name not in of_classes))
    rest = [name for name in rest if name != labels]
    presence = None if options.rows == "images" else only_column(table, PRESENCE, {*table.columns} - {*rest}, ignore)
    rest = [name for name in rest if name != presence]
    if not options.labels_column:
        _refuse_two_kinds_of_labels(table, labels, rest, classes)
        if not rest and not presence and classes is None and holds_flags(table.texts(labels)):
            raise DataError(
                f"{table.path}: column {labels!r} contains only 0 and 1, which may be the names of two classes or the "
                f"state of one; use `labels_column={labels}` for two, or rename the column to the class for one"
            )
    return replace(columns, labels=labels, presence=presence, unread=tuple(rest))


def _refuse_two_kinds_of_labels(table: Table, labels: str, rest: list[str], classes: Classes) -> None:
    """Refuse a column of labels together with one column per class. One column of flags among others is allowed."""
    flags = [column for column in rest if holds_flags(table.texts(column))]
    listed = classes is not None and not set(flags) & set(classes)
    if flags and (flags == rest or (len(flags) > 1 and not listed)):
        raise DataError(
            f"{table.path}: the labels may be in column {labels!r}, or {listing(flags)} may be one column per class; "
            f"use `labels_column={labels}` for the former, `ignore={labels}` for the latter"
        )


def _class_columns(table: Table, rest: list[str], classes: Classes) -> tuple[str, ...]:
    """Return the columns named in `classes.txt` or, if it does not exist, the columns that contain flags."""
    for name in classes or ():
        if name not in rest:
            raise DataError(f"{table.path}: class {name!r} in {CLASSES} has no column; {suggestion(name, rest)}")
    for column in rest:
        if classes and column not in classes and holds_flags(table.texts(column)):
            similar = suggestion(column, classes)
            raise DataError(
                f"{table.path}: column {column!r} contains 0 and 1 but is not in {CLASSES} ({similar}); add it there, "
                f"or use `ignore={column!r}`"
            )
    columns = classes or tuple(column for column in rest if holds_flags(table.texts(column), least=0.5))
    if not columns:
        others = f" ({quoted(rest[:8])} do not contain 0 and 1)" if rest else ""
        raise DataError(
            f"{table.path}: no labels found: no column named {listing(LABELS)} and no class columns{others}; "
            f"choose the column with `labels_column=COLUMN`"
        )
    return columns
