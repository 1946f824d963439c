"""Tables of images (CSV, TSV or Parquet) with a list of labels per row, one row per label, or one column per class.

Columns are found by name. An ambiguous table is an error, and the message lists the options that resolve the ambiguity.
"""

from collections.abc import Sequence
from pathlib import Path

from probmcl.data.formats.table.class_columns import read_class_columns
from probmcl.data.formats.table.columns import Columns, find_columns, has_path_column
from probmcl.data.formats.table.image_columns import groups_of, images_of, repeated, splits_of, values_of, weights_of
from probmcl.data.formats.table.image_paths import find_images
from probmcl.data.formats.table.label_lists import CLASSES, read_classes
from probmcl.data.formats.table.label_names import case_warnings
from probmcl.data.formats.table.long_form import read_label_rows
from probmcl.data.formats.table.sheet import SUFFIXES, Table, listing, load, named, names_of_columns, only_column
from probmcl.data.hierarchy import parents_of
from probmcl.data.options import ReadOptions
from probmcl.data.records import Missing, Origin, Records
from probmcl.errors import DataError, OptionError, suggestion

CHILD = ("child", "class", "name")
PARENT = ("parent", "superclass", "above")


def recognizes(folder: Path) -> bool:
    """Return whether the folder has a table with a path column."""
    return bool(find_tables(folder))


def find_tables(folder: Path) -> list[Path]:
    """Return the tables in a folder that have a path column.

    >>> find_tables(Path("no such folder"))
    []
    """
    return [path for path in table_files(folder) if has_image_paths(path)]


def table_files(folder: Path) -> list[Path]:
    """Return the files in a folder that have the suffix of a table."""
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def has_image_paths(path: Path) -> bool:
    """Return whether a file is a table with a path column."""
    try:
        return has_path_column(names_of_columns(path, has_path_column))
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
    """Read a table with a path column and a list of labels per row, one row per label, or one column per class.

    A list contains class names, or 0-based indices into the `classes.txt` next to the table, which defines the order of
    the classes. Labels in a `difficult` column are unknown. Paths are relative to `images`, by default the table's
    folder or `images/` in it. With `missing="keep"`, images whose files do not exist are kept, unless all files are
    missing. Without a split column, all images are in train.

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
    table = load(Path(path), lambda names: has_path_column(names, options.path_column))
    return records_of(table, options, images, keep, missing)


def records_of(table: Table, options: ReadOptions, root: Path | None, keep: Sequence[str], missing: Missing) -> Records:
    """Return the records of a loaded table; image paths are relative to `root`."""
    classes = read_classes(table.folder / CLASSES)
    columns = find_columns(table, classes, options, keep)
    _refuse_options_for_lists(table, columns, options)
    paths, notes = find_images(table, columns.path, root, missing)
    images = images_of(paths)
    if (columns.labels is None or options.rows == "images") and len(images.first) < len(table.rows):
        raise repeated(table, images, columns.path, "; expected one row per image")
    if columns.labels is None:
        labels = read_class_columns(table, columns.classes, columns.difficult, options.policy)
    else:
        labels = read_label_rows(table, columns, classes, images, options)
    description = _describe(columns, labels.description, [*notes, *case_warnings(labels.names)])
    lines = None if table.files else tuple(table.lines[row] for row in images.first)  # ambiguous with several files
    return Records.from_labels(
        labels.names,
        [Path(paths[row]) for row in images.first],
        splits_of(table, columns.split, images),
        labels.states,
        group=groups_of(table, columns.group, images),
        hierarchy=_hierarchy(options.hierarchy, labels.names),
        origin=Origin(table.path, description, lines),
        weight=weights_of(table, columns.weight, images),
        columns={column: tuple(values_of(table, column, images)) for column in keep},
    )


def _refuse_options_for_lists(table: Table, columns: Columns, options: ReadOptions) -> None:
    if columns.labels is not None:
        return
    if options.rows == "labels":
        problem = (
            f"needs a column of labels, but {table.path} has one column per class "
            f"({listing(map(repr, columns.classes))}); remove the option, or select the label column with "
            f"`labels_column=COLUMN`"
        )
        raise OptionError("rows", "labels", problem)
    if options.none_label:
        problem = f"needs a column of labels, but {table.path} has one column per class"
        remedy = f"use `ignore={options.none_label}` to ignore that column"
        raise OptionError("none_label", options.none_label, f"{problem}; {remedy}")


def _hierarchy(path: Path | None, names: tuple[str, ...]) -> dict[str, str] | None:
    try:
        return read_hierarchy(path, names) if path else None
    except DataError as error:
        raise OptionError("hierarchy", path, f"cannot be used: {error}") from error


def _describe(columns: Columns, labels: str, notes: Sequence[str]) -> str:
    others = {"split": columns.split, "difficult": columns.difficult, "group": columns.group, "weight": columns.weight}
    roles = [f"{role} {column!r}" for role, column in others.items() if column]
    unread = [f"ignored: {listing(map(repr, columns.unread))}"] if columns.unread else []
    return "; ".join([", ".join([f"path column {columns.path!r}", labels, *roles]), *unread, *notes])


def read_hierarchy(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Read the parents of classes from a table with the columns child and parent."""
    table = load(path, lambda columns: bool(named(columns, CHILD)) and bool(named(columns, PARENT)), row="pair")
    columns = [only_column(table, wanted, set(), "rename one") for wanted in (CHILD, PARENT)]
    if columns[0] is None or columns[1] is None:
        raise DataError(f"{path}, row 1: expected the columns child and parent, got {', '.join(table.columns)}")
    parents: dict[str, str] = {}
    for row, pair in enumerate(zip(table.texts(columns[0]), table.texts(columns[1]), strict=True)):
        for name in pair:
            if name not in names:
                raise DataError(f"{table.where(row)}: {name!r} is not a class in the data; {suggestion(name, names)}")
        child, parent = pair
        if parents.setdefault(child, parent) != parent:
            both = f"{parents[child]!r} and {parent!r}"
            raise DataError(f"{table.where(row)}: {child!r} has two parents, {both}; remove one")
    try:
        parents_of(names, parents)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    return parents
