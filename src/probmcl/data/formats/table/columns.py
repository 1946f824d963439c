"""Which column of a table holds what: by name or by option; if two columns fit, the error names the option."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from probmcl.data.formats.table.label_lists import CLASSES, Classes
from probmcl.data.formats.table.policy import holds_flags
from probmcl.data.formats.table.sheet import (
    Table,
    listing,
    named,
    only_column,
    quoted,
    refuse_a_column_that_is_not_there,
    refuse_wrong_columns,
)
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError, suggestion

PATH = (
    *("filename", "file_name", "filepath", "file_path", "file", "path", "image", "image_path", "imagepath"),
    *("image_name", "image_file", "image_filename", "img", "img_path", "img_name", "img_file"),
)
PATH_AS_AN_ID = ("image_index", "imageindex", "image_id", "imageid")
"""What names an image where no column has a path; beside one it is a mere number."""
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
NO_NAME = re.compile(r"(unnamed: \d+)?", re.IGNORECASE)  # as pandas calls a column whose name is blank


@dataclass(frozen=True)
class Columns:
    """Which column holds what. Without a column of label lists, `classes` are one column a class.

    `presence` says of a label in the same row whether it is there; `unread` are named and left alone.
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


def has_a_path_column(names: Sequence[str], path_column: str | None = None) -> bool:
    """Whether the names of columns include one of a path."""
    return path_column in names or bool(named(names, (*PATH, *PATH_AS_AN_ID)))


def find_columns(table: Table, classes: Classes, options: ReadOptions, keep: Sequence[str] = ()) -> Columns:
    """The role of every column: as the options say, else by its name, else by what it holds."""
    for option, names in (("ignore", options.ignore), ("by", keep)):
        for column in names:
            refuse_a_column_that_is_not_there(table, option, column)
    roles = ("path_column", "labels_column", "split_column", "group", "weight_column")
    taken = refuse_wrong_columns(table, {role: getattr(options, role) for role in roles}) | set(options.ignore)
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
    for names in (PATH, PATH_AS_AN_ID):
        column = only_column(table, names, taken, "`path_column=COLUMN` says which")
        if column is not None:
            return column
    raise DataError(
        f"{table.path}: none of its columns ({listing(table.columns)}) has a name that says it holds the images' "
        f"paths ({', '.join((*PATH, *PATH_AS_AN_ID))}); `path_column=COLUMN` says which"
    )


def _role(table: Table, given: str | None, names: Sequence[str], taken: set[str], option: str) -> str | None:
    """The column that was given, none for a blank one, else the only one of these names."""
    if given is not None:
        return given or None
    return only_column(table, names, taken, f"`{option}=COLUMN` says which, `{option}=''` that none is")


def _with_labels(table: Table, columns: Columns, rest: list[str], classes: Classes, options: ReadOptions) -> Columns:
    ignore = "`ignore=COLUMN` leaves one out"
    remedy = "`labels_column=COLUMN` says which" + ("" if options.ignore else f", and {ignore}")
    labels = options.labels_column or only_column(table, LABELS, {*table.columns} - {*rest}, remedy)
    if labels is None:
        of_classes = _class_columns(table, rest, classes)
        if columns.difficult and holds_flags(table.texts(columns.difficult)):
            raise DataError(
                f"{table.path}: column {columns.difficult!r} holds only 0 and 1, but should list the labels that are "
                f"not known; rename it, or list them"
            )
        return replace(columns, classes=of_classes, unread=tuple(name for name in rest if name not in of_classes))
    rest = [name for name in rest if name != labels]
    presence = None if options.rows == "images" else only_column(table, PRESENCE, {*table.columns} - {*rest}, ignore)
    rest = [name for name in rest if name != presence]
    if not options.labels_column:
        _refuse_two_kinds_of_labels(table, labels, rest, classes)
        if not rest and not presence and classes is None and holds_flags(table.texts(labels)):
            raise DataError(
                f"{table.path}: column {labels!r} holds only 0 and 1: two classes, or one that is absent or present? "
                f"`labels_column={labels}` means two; for one, give the column the name of the class"
            )
    return replace(columns, labels=labels, presence=presence, unread=tuple(rest))


def _refuse_two_kinds_of_labels(table: Table, labels: str, rest: list[str], classes: Classes) -> None:
    """A list beside one column a class; a single column of flags among others is no sign of that."""
    flags = [column for column in rest if holds_flags(table.texts(column))]
    listed = classes is not None and not set(flags) & set(classes)
    if flags and (flags == rest or (len(flags) > 1 and not listed)):
        raise DataError(
            f"{table.path}: column {labels!r} may list the labels, and {listing(flags)} may be one column a class; "
            f"`labels_column={labels}` takes the list, `ignore={labels}` the others"
        )


def _class_columns(table: Table, rest: list[str], classes: Classes) -> tuple[str, ...]:
    """Those that the list of the classes names or, without one, those that hold flags."""
    for name in classes or ():
        if name not in rest:
            raise DataError(f"{table.path}: {CLASSES} names {name!r}, which is no column; {suggestion(name, rest)}")
    for column in rest:
        if classes and column not in classes and holds_flags(table.texts(column)):
            near = suggestion(column, classes)
            raise DataError(
                f"{table.path}: column {column!r} holds 0 and 1 but is not in {CLASSES}; {near} "
                f"`ignore={column!r}` leaves it out"
            )
    columns = classes or tuple(column for column in rest if holds_flags(table.texts(column), least=0.5))
    if not columns:
        held = f"; {quoted(rest[:8])} hold no 0 and 1" if rest else ""
        raise DataError(
            f"{table.path}: has no labels: no column {listing(LABELS)}, and none a class{held}; "
            f"`labels_column=COLUMN` says which lists them"
        )
    return columns
