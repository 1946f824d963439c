"""Files that name the parent of each class."""

from collections.abc import Sequence
from pathlib import Path

from probmcl.data.labels import parents_of
from probmcl.errors import DataError, suggestion
from probmcl.readers.spreadsheet import load_spreadsheet, named, only_column

CHILD = ("child", "class", "name")
PARENT = ("parent", "superclass", "above")


def read_hierarchy(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Read the parents of classes from a table with the columns child and parent."""
    table = load_spreadsheet(
        path, lambda columns: bool(named(columns, CHILD)) and bool(named(columns, PARENT)), row="pair"
    )
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
