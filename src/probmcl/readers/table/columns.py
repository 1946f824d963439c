"""Finds the role of each column in a table: by option, by name or by content."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from probmcl.errors import DataError, OptionError, Question, Reading, keyword, listing, quoted, suggestion
from probmcl.readers.file_index import ID_AS_PATH, PATH, FileIndex, find_path_column
from probmcl.readers.label_policy import CROSSES, flag_value, holds_flags
from probmcl.readers.options import ReadOptions
from probmcl.readers.spreadsheet import LIST_ITEM, Spreadsheet, named, only_column, refuse_missing_column
from probmcl.readers.table.lists import CLASSES, Classes, NoLabelsError

LABELS = (
    *("labels", "label", "tags", "tag", "classes", "class", "categories", "category", "finding_labels"),
    *("finding_label", "findings", "finding", "attributes", "attribute_ids", "label_name", "label_names", "labelname"),
    *("class_name", "class_names", "category_name", "genre", "genres", "diagnosis", "choice", "choices", "objects"),
)
OTHER_LABELS = ("target", "dx", "hashtags", "keywords", "species", "klasse", "klassen")  # if none has a name above
SPLIT = ("split", "set", "subset")
GROUP = (
    *("group", "group_id", "patient", "patient_id", "patientid", "subject", "subject_id", "slide", "slide_id"),
    *("case_id", "place"),
)
WEIGHT = ("weight", "sample_weight")
DIFFICULT = ("difficult",)
PRESENCE = ("confidence", "present", "presence", "value")
ANNOTATOR = (
    *("annotator", "annotator_id", "rater", "rater_id", "reader", "reader_id", "rad_id", "worker", "worker_id"),
    *("labeler", "labeler_id", "expert", "reviewer", "annotated_by", "labeled_by"),
)
BOXES = (  # in a table with such columns, a row is one object of an image
    *(("xmin", "ymin", "xmax", "ymax"), ("x_min", "y_min", "x_max", "y_max"), ("x1", "y1", "x2", "y2")),
    *(("x", "y", "w", "h"), ("x", "y", "width", "height"), ("left", "top", "width", "height")),
    *(("bbox_[x", "y", "w", "h]"), ("bbox",), ("bounding_box",)),
)
NO_NAME = re.compile(r"unnamed: \d+", re.IGNORECASE)  # the name that pandas gives to a column without a name
NUMBERED = re.compile(r"(.*?)[ _-]?(\d+)")
MAX_VOCABULARY = 0.5  # distinct labels per row, above which a column of texts is not a list of labels


@dataclass(frozen=True)
class Columns:
    """The roles of columns; `classes` are used if there are no label columns, and `unread` columns are ignored.

    `presence` has 0 or 1 for the label in the same row. `boxes` are coordinates.
    """

    path: str
    split: str | None
    group: str | None
    weight: str | None
    difficult: str | None
    annotator: str | None
    boxes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    presence: str | None = None
    classes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def has_path_name(names: Sequence[str], path_column: str | None = None) -> bool:
    """Return whether a column has the given name, or a name that indicates image paths."""
    return path_column in names or bool(named(names, (*PATH, *ID_AS_PATH)))


def find_columns(
    table: Spreadsheet, index: FileIndex, classes: Classes, options: ReadOptions, keep: Sequence[str] = ()
) -> Columns:
    """Find the role of each column: by option, otherwise by name, otherwise by content."""
    for option, names in (("ignore", options.ignore), ("by", keep)):
        for column in names:
            refuse_missing_column(table, option, column)
    taken = _columns_of_options(table, options) | set(options.ignore)
    path = options.path_column or find_path_column(table, index, taken)
    taken |= {path}
    split = _role(table, options.split_column, SPLIT, taken, "split_column")
    group = _role(table, options.group, GROUP, taken, "group")
    weight = _role(table, options.weight_column, WEIGHT, taken, "weight_column")
    difficult = only_column(table, DIFFICULT, taken, "rename one")
    annotator = only_column(table, ANNOTATOR, taken, "ignore one with `ignore=COLUMN`")
    if options.annotators and not annotator:
        problem = f"needs a column with the annotators ({', '.join(ANNOTATOR)}), which {table.path} lacks"
        raise OptionError("annotators", options.annotators, problem)
    taken |= {name for name in (split, group, weight, difficult, annotator) if name}
    rest = [name for name in table.columns if name not in taken and not NO_NAME.fullmatch(name)]
    boxes = next((found for names in BOXES if len(found := named(rest, names)) == len(names)), [])
    columns = Columns(path, split, group, weight, difficult, annotator, tuple(boxes))
    columns = _with_labels(table, columns, [name for name in rest if name not in boxes], classes, options)
    return replace(columns, unread=tuple(name for name in columns.unread if name not in keep))


def _columns_of_options(table: Spreadsheet, options: ReadOptions) -> set[str]:
    """Return the columns that the options select. Each must exist and have only one role."""
    taken: dict[str, str] = {}
    for option in ("path_column", "labels_column", "split_column", "group", "weight_column"):
        column = getattr(options, option)
        if column:
            refuse_missing_column(table, option, column)
            if column in taken:
                problem = f"is already `{taken[column]}`; a column of {table.path} can have only one role"
                raise OptionError(option, column, problem)
            taken[column] = option
    return set(taken)


def _role(table: Spreadsheet, value: str | None, names: Sequence[str], taken: set[str], option: str) -> str | None:
    """Return the value of an option (None if blank) or, if it is not set, the only column with one of these names."""
    if value is not None:
        return value or None
    return only_column(table, names, taken, f'choose one with `{option}=COLUMN`, or none with `{option}=""`')


def _with_labels(
    table: Spreadsheet, columns: Columns, rest: list[str], classes: Classes, options: ReadOptions
) -> Columns:
    flags = [name for name in rest if holds_flags(table.texts(name), without=(*CROSSES, *options.unknown_label))]
    labels = _label_columns(table, rest, flags, options)
    texts = {text for name in labels for text in table.texts(name)} - {""}
    if texts == {"-1"}:
        raise NoLabelsError(f"{table.path}: {listing(map(repr, labels))} is -1 or blank in every row; add labels")
    numbers = labels and all(re.fullmatch(r"[\d\W]+", text) for text in texts)
    if columns.difficult and not numbers and holds_flags(table.texts(columns.difficult)):
        raise DataError(
            f"{table.path}: column {columns.difficult!r} contains only 0 and 1, but must list the labels that are "
            f"unknown; list them, rename the column, or use {keyword('ignore', columns.difficult)}"
        )
    if not labels:
        of_classes = _class_columns(table, rest, classes, options)
        return replace(columns, classes=of_classes, unread=tuple(name for name in rest if name not in of_classes))
    if len(labels) > 1 and len(flags) > 1:
        both = f"the labels may be in {quoted(labels)}, or {listing(flags)} may be one column per class"
        raise DataError(f"{table.path}: {both}; ignore the others with `ignore=COLUMN`")
    rest = [name for name in rest if name not in labels]
    ignore = "ignore one with `ignore=COLUMN`"
    presence = None if options.rows == "images" else only_column(table, PRESENCE, {*table.columns} - {*rest}, ignore)
    rest = [name for name in rest if name != presence]
    if not options.labels_column and len(labels) == 1:
        _ask_about_flags(table, labels[0], [name for name in flags if name in rest], rest, classes)
        if not rest and not presence and classes is None and labels[0] in flags:
            raise DataError(
                f"{table.path}: column {labels[0]!r} contains only 0 and 1, which may be the names of two classes or "
                f"the state of one; use {keyword('labels_column', labels[0])} for two, or rename the column to the "
                "class for one"
            )
    return replace(columns, labels=labels, presence=presence, unread=tuple(rest))


def _label_columns(table: Spreadsheet, rest: list[str], flags: list[str], options: ReadOptions) -> tuple[str, ...]:
    """Return the columns with labels: by option, by name, numbered ones such as Type 1 and Type 2, or by content."""
    if options.labels_column:
        return (options.labels_column,)
    by_name = named(rest, LABELS) or named(rest, OTHER_LABELS)
    several = _numbered_columns(table, [name for name in rest if name not in flags])
    if len(by_name) > 1:
        by_name = _without_indices(table, by_name)
    if len(by_name) > 1:
        raise Question(
            f"{table.path}: columns {quoted(by_name)} could all be the {LABELS[0]} column",
            [Reading(f"the labels are in {name!r}", {"labels_column": name}) for name in by_name],
        )
    if several or by_name:
        return tuple(by_name) or several
    if any(holds_flags(table.texts(name), least=0.5, without=options.unknown_label) for name in rest):
        return ()
    lists = [name for name in rest if _holds_lists(table.texts(name))]
    return tuple(lists) if len(lists) == 1 else ()


def _numbered_columns(table: Spreadsheet, names: Sequence[str]) -> tuple[str, ...]:
    """Return columns with one name and different numbers that share labels, such as Type 1 and Type 2."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if match := NUMBERED.fullmatch(name):
            groups[match[1].strip().lower()].append(name)
    for base, columns in groups.items():
        texts = [{text for text in table.texts(name) if flag_value(text) is None} for name in columns]
        shared = len(set().union(*texts)) < sum(map(len, texts))
        if len(columns) > 1 and (base in LABELS or shared) and not _are_numbers(set().union(*texts)):
            if base in ANNOTATOR:
                remedy = "write one row per annotator, or choose a column with `labels_column=COLUMN`"
                raise DataError(f"{table.path}: {quoted(columns)} have the labels of several annotators; {remedy}")
            return tuple(columns)
    return ()


def _are_numbers(texts: set[str]) -> bool:
    return all(re.fullmatch(r"[+-]?[\d.,]+(e[+-]?\d+)?", text, re.IGNORECASE) for text in texts)


def _without_indices(table: Spreadsheet, names: list[str]) -> list[str]:
    """Return only the column of names if the others have a number for each name."""
    words = [name for name in names if not _are_numbers({*table.texts(name)} - {""})]
    together = {*zip(*(table.texts(name) for name in names), strict=True)}
    distinct = {len({*table.texts(name)}) for name in names}
    return words if len(words) == 1 and distinct == {len(together)} else names


def _holds_lists(texts: Sequence[str]) -> bool:
    """Return whether a column may contain lists of labels: items that recur, at least one list with several."""
    cells = [text for text in texts if text]
    items = [item.strip(" '\"[]{}") for text in cells for item in re.split(rf"[|;,{LIST_ITEM}]", text)]
    several = len(items) > len(cells)
    return several and len(set(items)) <= MAX_VOCABULARY * len(cells) and not _are_numbers(set(items))


def _ask_about_flags(table: Spreadsheet, labels: str, flags: list[str], rest: list[str], classes: Classes) -> None:
    """Ask if the labels may be in a column or in one column per class. One column of flags among others is ignored."""
    listed = classes is not None and not set(flags) & set(classes)
    if flags and (flags == rest or (len(flags) > 1 and not listed)):
        question = f"the labels may be in column {labels!r}, or in {listing(flags)} (one column per class)"
        in_list = Reading(f"the labels are in {labels!r}", {"labels_column": labels})
        raise Question(f"{table.path}: {question}", [in_list, Reading("one column per class", {"ignore": labels})])


def _class_columns(table: Spreadsheet, rest: list[str], classes: Classes, options: ReadOptions) -> tuple[str, ...]:
    """Return the columns named in `classes.txt` or, if it does not exist, the columns that contain flags."""
    for name in classes or ():
        if name not in rest:
            raise DataError(f"{table.path}: class {name!r} in {CLASSES} has no column; {suggestion(name, rest)}")
    for column in rest:
        if classes and column not in classes and holds_flags(table.texts(column)):
            similar = suggestion(column, classes)
            raise DataError(
                f"{table.path}: column {column!r} contains 0 and 1 but is not in {CLASSES} ({similar}); add it there, "
                f"or use {keyword('ignore', column)}"
            )
    columns = classes or tuple(
        name for name in rest if holds_flags(table.texts(name), least=0.5, without=options.unknown_label)
    )
    if not columns:
        recurring = [name for name in rest if len({*table.texts(name)}) <= MAX_VOCABULARY * len(table)]
        others = f", and no column contains only 0 and 1 ({listing(map(repr, rest))})" if rest else ""
        choices = [keyword("labels_column", name) for name in recurring[:3]]
        raise NoLabelsError(
            f"{table.path}: no labels found: no column has a name such as 'labels', 'tags' or 'class'{others}; "
            f"choose the column with {' or '.join(choices) or '`labels_column=COLUMN`'}"
        )
    return columns
