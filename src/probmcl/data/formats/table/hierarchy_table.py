"""A table that says which class is the parent of which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probmcl.data.formats.table.sheet import load, named, only_column
from probmcl.data.hierarchy import parents_of
from probmcl.errors import DataError, suggestion

CHILD = ("child", "class", "name")
PARENT = ("parent", "superclass", "above")


def read_hierarchy(path: Path, names: Sequence[str]) -> dict[str, str]:
    """The parent of each class that has one, from a table with the columns child and parent."""
    table = load(path, lambda columns: bool(named(columns, CHILD)) and bool(named(columns, PARENT)), row="pair")
    columns = [only_column(table, wanted, set(), "rename one") for wanted in (CHILD, PARENT)]
    if columns[0] is None or columns[1] is None:
        raise DataError(f"{path}: row 1: its columns are {', '.join(table.columns)}; name them child and parent")
    found: dict[str, str] = {}
    for row, pair in enumerate(zip(table.texts(columns[0]), table.texts(columns[1]), strict=True)):
        for name in pair:
            if name not in names:
                raise DataError(f"{table.where(row)}: {name!r} is no class of the data; {suggestion(name, names)}")
        child, parent = pair
        if found.setdefault(child, parent) != parent:
            raise DataError(f"{table.where(row)}: {child!r} has the parents {found[child]!r} and {parent!r}; leave one")
    try:
        parents_of(names, found)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    return found
