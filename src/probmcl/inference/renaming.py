"""Other data, other words: a file that says which class of the data is which class of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probmcl.data.formats.table.sheet import Table, load, quoted, read_text
from probmcl.errors import DataError, suggestion

HEADERS = (("data", "model"), ("from", "to"))
"""Names of the two columns that say by themselves which is which, in any order."""


class _Rename(NamedTuple):
    where: str
    data: str
    model: str


def read_renames(
    given: Path | str | Mapping[str, str] | None, *, model: Sequence[str], data: Sequence[str]
) -> dict[str, str]:
    """What classes of the data are called in the model, from a file or a mapping.

    A file is a CSV of two columns under a header, the name in the data and the name in the model, or a JSON object. Of
    several names in the data that have one name in the model, each says that the class is there. A name that one of
    both sides does not have, or one that is said to be two, is an error.

    >>> read_renames({"Infiltrate": "Infiltration"}, model=["Infiltration"], data=["Infiltrate", "Mass"])
    {'Infiltrate': 'Infiltration'}
    """
    found: dict[str, str] = {}
    for entry in _entries(given, model, data):
        _refuse_other(entry.where, entry.data, data, "the data")
        _refuse_other(entry.where, entry.model, model, "the model")
        if found.setdefault(entry.data, entry.model) != entry.model:
            both = quoted([found[entry.data], entry.model])
            raise DataError(f"{entry.where}: {entry.data!r} is said to be {both}; it can be one of them")
    return found


def _entries(given: Path | str | Mapping[str, str] | None, model: Sequence[str], data: Sequence[str]) -> list[_Rename]:
    if given is None or isinstance(given, Mapping):
        return [_Rename("rename", *pair) for pair in (given or {}).items()]
    path = Path(given)
    return _of_object(path) if path.suffix.lower() == ".json" else _of_table(path, model, data)


def _of_table(path: Path, model: Sequence[str], data: Sequence[str]) -> list[_Rename]:
    table = load(path, lambda columns: len(columns) == 2, row="class")
    if len(table.columns) != 2:
        said = f"{len(table.columns)} columns ({quoted(table.columns)})"
        raise DataError(f"{path}: {said}; renames have two, the name in the data and the name in the model")
    if table.columns[0] in data and table.columns[1] in model:
        raise DataError(f"{path}: row 1 renames already; put a header above it: {','.join(HEADERS[0])}")
    first, second = _in_order(table)
    pairs = zip(table.cells(first), table.cells(second), strict=True)
    return [_Rename(f"{path}: row {one.line}", one.text, other.text) for one, other in pairs]


def _in_order(table: Table) -> tuple[str, str]:
    """The column of the data's names and that of the model's."""
    first, second = table.columns
    return (second, first) if (second.lower(), first.lower()) in HEADERS else (first, second)


def _of_object(path: Path) -> list[_Rename]:
    try:
        # Pairs as they stand: in an object a name that is given twice would be the last one without a word.
        pairs: Any = json.loads(read_text(path), object_pairs_hook=list)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: row {error.lineno}: {error.msg}; renames are one object of names") from error
    whole = isinstance(pairs, list) and all(isinstance(pair, tuple) and isinstance(pair[1], str) for pair in pairs)
    if not whole:
        raise DataError(
            f"{path}: renames are one object of names, as in " + '{"name in the data": "name in the model"}'
        )
    return [_Rename(str(path), *pair) for pair in pairs]


def _refuse_other(where: str, name: str, names: Sequence[str], side: str) -> None:
    if name not in names:
        raise DataError(f"{where}: {side} has no class {name!r}; {suggestion(name, names)}")
