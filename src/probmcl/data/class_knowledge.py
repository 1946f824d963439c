"""Knowledge about classes from files: vectors of their words, and tables of relations between them."""

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64
from numpy import ndarray

from probmcl.data.formats.table.sheet import Cell, Table, load, named, only_column
from probmcl.errors import DataError

ONE = ("start", "source", "from", "head", "subject", "label_1", "label1", "first")
OTHER = ("end", "target", "to", "tail", "object", "label_2", "label2", "second")
WEIGHT = ("weight", "strength", "score")
CONCEPTNET = b"/a/["  # the first bytes of ConceptNet's own file

OR_LEARN = "or leave out the file of vectors: then they are learned"
OR_WITHOUT = "or leave out the file: then the graph is made of co-occurrence alone"


def words_of(name: str) -> list[str]:
    """Return the words of a class name, in lower case.

    >>> words_of("Traffic light"), words_of("hand_bag"), words_of("T-shirt")
    (['traffic', 'light'], ['hand', 'bag'], ['t', 'shirt'])
    """
    return [word for word in re.split(r"[\s_-]+", name.casefold()) if word]


def label_vectors(path: Path, names: Sequence[str], *, size: int) -> Float32[ndarray, "C size"]:
    """Return a vector of `size` numbers for each class: the mean of its words' vectors, whatever their case.

    Each line of the file, in GloVe's format, has a word and its vector. It is read only as far as needed.
    """
    words = {name: words_of(name) for name in names}
    vectors = _find_vectors(path, {word for of_name in words.values() for word in of_name}, size)
    lacking = [(name, word) for name in names for word in words[name] or [""] if word not in vectors]
    if lacking:
        name, word = lacking[0]
        others = len({name for name, _ in lacking}) - 1
        more = f" (and for {others} more classes)" if others else ""
        remedy = "name the class in words of the file, as in 'dining table' for 'diningtable', give another file"
        raise DataError(f"{path}: class {name!r}: there is no word {word!r}{more}; {remedy}, {OR_LEARN}")
    return np.stack([np.mean([vectors[word] for word in words[name]], axis=0) for name in names]).astype(np.float32)


def _find_vectors(path: Path, wanted: Collection[str], size: int) -> dict[str, ndarray]:
    """Return the vectors of the wanted words; of several spellings that in lower case, or else the first."""
    vectors: dict[str, ndarray] = {}
    open_words = set(wanted)  # those that a better line may still come for
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not open_words:
                    break
                spelling = line.partition(b" ")[0].decode("utf-8", "replace")
                word = spelling.casefold()
                if word not in open_words or (word in vectors and spelling != word):
                    continue
                values = line.split()[1:]
                if len(values) > size and not _is_number(values[0]):
                    continue  # a phrase, of which large files have some: its first word is not its name
                vectors[word] = _vector(values, size, f"{path}: line {number}: {spelling!r}")
                if spelling == word:
                    open_words.discard(word)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give another file, {OR_LEARN}") from error
    return vectors


def _vector(values: Sequence[bytes], size: int, place: str) -> ndarray:
    if not all(map(_is_number, values)):
        raise DataError(f"{place} is not followed by numbers alone; give a text file in GloVe's format, {OR_LEARN}")
    if len(values) != size:
        raise DataError(f"{place} has {len(values)} numbers instead of {size}; give a whole file of that vector size")
    return np.array([float(value) for value in values])


def _is_number(text: bytes | str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def label_knowledge(path: Path, names: Sequence[str]) -> Float64[ndarray, "C C"]:
    """Return how strongly classes are related: a symmetric matrix from 0 to 1, 0 on the diagonal.

    Each row of the table, such as an edge of ConceptNet, joins two labels. A label is a class if its words are the
    same: `/c/en/traffic_light` is `Traffic light`. Columns are found by name, and others, such as the relation, are
    ignored. Without a column of weights each row has weight 1. Rows for the same two classes, in any order, are
    averaged; if a weight is then above 1, all are divided by the largest. A warning counts the rows that do not join
    two classes.
    """
    if path.is_file():
        _refuse_conceptnet(path)
    table = load(path, lambda columns: bool(named(columns, ONE)) and bool(named(columns, OTHER)), row="pair")
    one, other = _column(table, ONE, "one label"), _column(table, OTHER, "the other")
    weight = only_column(table, WEIGHT, set(), "rename those that hold something else")
    weights = [1.0] * len(table.rows) if weight is None else [_weight(table, cell) for cell in table.cells(weight)]
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
    """Refuse ConceptNet's own file, which has no header, before its gigabytes are read."""
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


def _weight(table: Table, cell: Cell) -> float:
    if not _is_number(cell.text) or float(cell.text) < 0:
        place = f"{table.path}: row {cell.line}: column {cell.column!r} holds {cell.text!r}"
        raise DataError(f"{place}; a weight is a number from 0 on, such as 0.5")
    return float(cell.text)


def _finder(names: Sequence[str]) -> Callable[[str], int | None]:
    """Return a function from a label to its class: by its name or, if no two classes share them, by its words."""
    words = [tuple(words_of(name)) for name in names]
    times = Counter(words)
    by_words = {of_name: index for index, of_name in enumerate(words) if of_name and times[of_name] == 1}
    by_name = {name: index for index, name in enumerate(names)}

    def find(label: str) -> int | None:
        address = re.match(r"/c/[^/]+/([^/]+)", label)  # ConceptNet's, as /c/en/traffic_light/n
        return by_name.get(label, by_words.get(tuple(words_of(address[1] if address else label))))

    return find


def _warn_of_unused_rows(table: Table, used: int, pairs: int, columns: tuple[str, str], names: Sequence[str]) -> None:
    rows = len(table.rows)
    if not used:
        a, b = (table.cells(column)[0] for column in columns)
        raise DataError(
            f"{table.path}: row {a.line}: {a.text!r} and {b.text!r} are not two classes of the data, nor are those of "
            f"any other row; name them as in the data, such as {names[0]!r}, {OR_WITHOUT}"
        )
    if used < rows:
        others = f"the others relate {pairs} {'pair' if pairs == 1 else 'pairs'} of classes"
        unused = f"{rows - used} of {rows} rows do not join two classes of the data and are left out"
        warnings.warn(f"{table.path}: {unused}; {others}", stacklevel=3)
