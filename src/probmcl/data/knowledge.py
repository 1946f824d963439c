"""Relations between classes from a table whose rows each join two of them, such as ConceptNet's edges."""

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from probmcl.data.formats.table.sheet import Cell, Table, load, named, only_column
from probmcl.data.word_vectors import words_of
from probmcl.errors import DataError

ONE = ("start", "source", "from", "head", "subject", "label_1", "label1", "first")
OTHER = ("end", "target", "to", "tail", "object", "label_2", "label2", "second")
WEIGHT = ("weight", "strength", "score")

OR_WITHOUT = "or leave out the file: then the graph is made of co-occurrence alone"

CONCEPTNET = b"/a/["  # the first bytes of ConceptNet's own file


def label_knowledge(path: Path, names: Sequence[str]) -> Float64[ndarray, "C C"]:
    """Return how strongly classes are related: a symmetric matrix from 0 to 1, 0 on the diagonal.

    Each row of the table joins two labels; columns are found by name, and others, such as the relation, are ignored.
    Without a column of weights each row has weight 1. Rows for the same two classes, in any order, are averaged; if a
    weight is then above 1, all are divided by the largest. A warning counts the rows that do not join two classes.

    Args:
        path: a table, .csv or .tsv.
        names: the classes. A label of the table is a class if its words are the same: `/c/en/traffic_light` of
            ConceptNet is `Traffic light`.
    """
    _refuse_conceptnet(path)
    table = load(path, lambda columns: bool(named(columns, ONE)) and bool(named(columns, OTHER)), row="pair")
    one, other = _column(table, ONE, "one label"), _column(table, OTHER, "the other")
    weights, find = _weights(table), _finder(names)
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row, (a, b) in enumerate(zip(table.cells(one), table.cells(other), strict=True)):
        i, j = find(a.text), find(b.text)
        if i is not None and j is not None and i != j:
            found[min(i, j), max(i, j)].append(weights[row])
    _warn_of_unused_rows(table, sum(map(len, found.values())), len(found), (one, other), names)
    related = np.zeros((len(names), len(names)))
    for (i, j), values in found.items():
        related[i, j] = related[j, i] = np.mean(values)
    related /= max(1.0, related.max())
    return related


def _refuse_conceptnet(path: Path) -> None:
    """Refuse ConceptNet's own file, which has no header, before its gigabytes are read."""
    if not path.is_file():
        return  # reported when it is read
    with path.open("rb") as file:
        if file.read(len(CONCEPTNET)) == CONCEPTNET:
            raise DataError(
                f"{path}: row 1: begins with {CONCEPTNET.decode()!r}: this is ConceptNet's own file, without a header; "
                f"put what joins two of your classes into another, below a row 'start,end,weight', {OR_WITHOUT}"
            )


def _column(table: Table, names: Sequence[str], holds: str) -> str:
    column = only_column(table, names, set(), "rename those that hold something else")
    if column is None:
        raise DataError(
            f"{table.path}: row 1: none of its columns ({', '.join(table.columns)}) has a name that says it holds "
            f"{holds} of the two that a row joins; name it {names[0]!r}, or put a row "
            f"'start,end,weight' above all others if they have no header, {OR_WITHOUT}"
        )
    return column


def _weights(table: Table) -> list[float]:
    column = only_column(table, WEIGHT, set(), "rename those that hold something else")
    return [1.0] * len(table.rows) if column is None else [_weight(table, cell) for cell in table.cells(column)]


def _weight(table: Table, cell: Cell) -> float:
    try:
        weight = float(cell.text)
    except ValueError:
        weight = np.nan
    if not 0 <= weight < np.inf:
        raise DataError(
            f"{table.path}: row {cell.line}: column {cell.column!r} holds {cell.text!r}; "
            "a weight is a number from 0 on, such as 0.5"
        )
    return weight


def _finder(names: Sequence[str]) -> Callable[[str], int | None]:
    """Return a function from a label to its class: by its name or, if no two classes share them, by its words."""
    words = [tuple(words_of(name)) for name in names]
    times = Counter(words)
    by_words = {of_name: index for index, of_name in enumerate(words) if of_name and times[of_name] == 1}
    by_name = {name: index for index, name in enumerate(names)}
    return lambda label: by_name.get(label, by_words.get(tuple(words_of(_term(label)))))


def _term(label: str) -> str:
    """Return the words of a ConceptNet address; any other label as it is.

    >>> _term("/c/en/traffic_light/n"), _term("traffic light")
    ('traffic_light', 'traffic light')
    """
    address = re.match(r"/c/[^/]+/([^/]+)", label)
    return address[1] if address else label


def _warn_of_unused_rows(table: Table, used: int, pairs: int, columns: tuple[str, str], names: Sequence[str]) -> None:
    rows = len(table.rows)
    if not used:
        a, b = (table.cells(column)[0] for column in columns)
        raise DataError(
            f"{table.path}: row {a.line}: {a.text!r} and {b.text!r} are not two classes of the data, nor are those of "
            f"any other row; name them as in the data, such as {names[0]!r}, {OR_WITHOUT}"
        )
    if used < rows:
        warnings.warn(
            f"{table.path}: {rows - used} of {rows} rows do not join two classes of the data and are left out; "
            f"the others relate {pairs} {'pair' if pairs == 1 else 'pairs'} of classes",
            stacklevel=3,
        )
