"""Knowledge about classes from files: word vectors, and tables of relations between classes."""

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64
from numpy import ndarray

from probmcl.errors import DataError, counted
from probmcl.readers.spreadsheet import Spreadsheet, SpreadsheetCell, load_spreadsheet, named, only_column

ONE = ("start", "source", "from", "head", "subject", "label_1", "label1", "first")
OTHER = ("end", "target", "to", "tail", "object", "label_2", "label2", "second")
WEIGHT = ("weight", "strength", "score")
CONCEPTNET = b"/a/["  # first bytes of the file that ConceptNet distributes

OR_LEARN = "or omit the file to learn the vectors"
OR_WITHOUT = "or omit the file to build the graph from co-occurrence alone"


def words_of(name: str) -> list[str]:
    """Return the words of a class name, in lower case.

    >>> words_of("Traffic light"), words_of("hand_bag"), words_of("T-shirt")
    (['traffic', 'light'], ['hand', 'bag'], ['t', 'shirt'])
    """
    return [word for word in re.split(r"[\s_-]+", name.casefold()) if word]


def label_vectors(path: Path, names: Sequence[str], *, size: int) -> Float32[ndarray, "C size"]:
    """Return a vector of length `size` for each class: the mean of its words' vectors, ignoring case.

    Each line of the file has a word and its vector (GloVe format). Reading stops when all words are found.
    """
    words = {name: words_of(name) for name in names}
    vectors = _find_vectors(path, {word for name_words in words.values() for word in name_words}, size)
    missing = [(name, word) for name in names for word in words[name] or [""] if word not in vectors]
    if missing:
        name, word = missing[0]
        others = len({name for name, _ in missing}) - 1
        more = f" (and for {counted(others, 'more class', 'more classes')})" if others else ""
        remedy = "rename the class to words in the file ('dining table', not 'diningtable'), use another file"
        raise DataError(f"{path}: no vector for {word!r} in class {name!r}{more}; {remedy}, {OR_LEARN}")
    return np.stack([np.mean([vectors[word] for word in words[name]], axis=0) for name in names]).astype(np.float32)


def _find_vectors(path: Path, wanted: Collection[str], size: int) -> dict[str, ndarray]:
    """Return the vectors of the wanted words. The lowercase spelling takes precedence, then the first spelling."""
    vectors: dict[str, ndarray] = {}
    remaining = set(wanted)  # words whose lowercase spelling has not been found
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not remaining:
                    break
                spelling = line.partition(b" ")[0].decode("utf-8", "replace")
                word = spelling.casefold()
                if word not in remaining or (word in vectors and spelling != word):
                    continue
                values = line.split()[1:]
                if len(values) > size and not _is_number(values[0]):
                    continue  # a phrase that begins with this word
                vectors[word] = _vector(values, size, f"{path}, line {number}: {spelling!r}")
                if spelling == word:
                    remaining.discard(word)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); use another file, {OR_LEARN}") from error
    return vectors


def _vector(values: Sequence[bytes], size: int, where: str) -> ndarray:
    if not all(map(_is_number, values)):
        raise DataError(f"{where} must be followed by numbers only; use a text file in GloVe format, {OR_LEARN}")
    if len(values) != size:
        raise DataError(
            f"{where} has {counted(len(values), 'number')}, expected {size}; use a complete file with that vector size"
        )
    return np.array([float(value) for value in values])


def _is_number(text: bytes | str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def label_knowledge(path: Path, names: Sequence[str]) -> Float64[ndarray, "C C"]:
    """Return how strongly classes are related: a symmetric matrix of values from 0 to 1, with 0 on the diagonal.

    Each row of the table, such as an edge of ConceptNet, relates two labels. A label matches the class with the same
    words: `/c/en/traffic_light` matches `Traffic light`. Columns are found by name; others, such as the relation, are
    ignored. Without a weight column, each row has weight 1. Rows for the same pair of classes are averaged. If any
    average exceeds 1, all are divided by the largest. A warning reports rows that do not relate two classes.
    """
    if path.is_file():
        _refuse_conceptnet(path)
    table = load_spreadsheet(
        path, lambda columns: bool(named(columns, ONE)) and bool(named(columns, OTHER)), row="pair"
    )
    one, other = _column(table, ONE, "first"), _column(table, OTHER, "second")
    weight = only_column(table, WEIGHT, set(), "rename the others")
    weights = [1.0] * len(table) if weight is None else [_weight(table, cell) for cell in table.cells(weight)]
    find = _finder(names)
    pairs: dict[tuple[int, int], list[float]] = defaultdict(list)
    for row, (a, b) in enumerate(zip(table.cells(one), table.cells(other), strict=True)):
        i, j = find(a.text), find(b.text)
        if i is not None and j is not None and i != j:
            pairs[min(i, j), max(i, j)].append(weights[row])
    _warn_of_unused_rows(table, sum(map(len, pairs.values())), len(pairs), (one, other), names)
    related = np.zeros((len(names), len(names)))
    for (i, j), values in pairs.items():
        related[i, j] = related[j, i] = np.mean(values)
    related /= max(1.0, related.max())
    return related


def _refuse_conceptnet(path: Path) -> None:
    """Refuse the file that ConceptNet distributes without reading it all: it has no header and gigabytes of rows."""
    with path.open("rb") as file:
        if file.read(len(CONCEPTNET)) == CONCEPTNET:
            raise DataError(
                f"{path}, row 1: starts with {CONCEPTNET.decode()!r}, like ConceptNet's own file, which has no header; "
                f"copy the rows that relate two classes to a file with the header 'start,end,weight', {OR_WITHOUT}"
            )


def _column(table: Spreadsheet, names: Sequence[str], which: str) -> str:
    column = only_column(table, names, set(), "rename the others")
    if column is None:
        raise DataError(
            f"{table.path}, row 1: none of the columns {', '.join(table.columns)} is recognized as the "
            f"{which} label of a pair; rename that column to {names[0]!r}, or add the header "
            f"'start,end,weight' if there is none, {OR_WITHOUT}"
        )
    return column


def _weight(table: Spreadsheet, cell: SpreadsheetCell) -> float:
    if not _is_number(cell.text) or float(cell.text) < 0:
        weight = f"{table.path}, row {cell.line}: weight {cell.column!r} is {cell.text!r}"
        raise DataError(f"{weight}, but must be a number of at least 0")
    return float(cell.text)


def _finder(names: Sequence[str]) -> Callable[[str], int | None]:
    """Return a function that finds the class of a label: by name, or by words if only one class has these words."""
    words = [tuple(words_of(name)) for name in names]
    counts = Counter(words)
    by_words = {key: index for index, key in enumerate(words) if key and counts[key] == 1}
    by_name = {name: index for index, name in enumerate(names)}

    def find(label: str) -> int | None:
        uri = re.match(r"/c/[^/]+/([^/]+)", label)  # a ConceptNet URI, such as /c/en/traffic_light/n
        return by_name.get(label, by_words.get(tuple(words_of(uri[1] if uri else label))))

    return find


def _warn_of_unused_rows(
    table: Spreadsheet, used: int, pairs: int, columns: tuple[str, str], names: Sequence[str]
) -> None:
    rows = len(table)
    if not used:
        a, b = (table.cells(column)[0] for column in columns)
        raise DataError(
            f"{table.path}, row {a.line}: {a.text!r} and {b.text!r} are not two classes in the data, and no other row "
            f"relates two classes; use the names in the data, such as {names[0]!r}, {OR_WITHOUT}"
        )
    if used < rows:
        others = f"{'the other relates' if used == 1 else 'the others relate'} {counted(pairs, 'pair')} of classes"
        do, are = ("does", "is") if rows - used == 1 else ("do", "are")
        unused = f"{rows - used:,} of {rows:,} rows {do} not relate two classes in the data and {are} ignored"
        warnings.warn(f"{table.path}: {unused}; {others}", stacklevel=3)
