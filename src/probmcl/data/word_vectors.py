"""Word vectors for class names, from a text file in GloVe's format: on each line a word and its vector."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

from probmcl.errors import DataError

OR_LEARN = "or leave out the file of vectors: then they are learned"


def label_vectors(path: Path, names: Sequence[str], *, size: int) -> Float32[ndarray, "C size"]:
    """Return a vector for each class: the mean of its words' vectors, whatever their case.

    Args:
        path: the text file; it is read line by line, and only as far as needed.
        names: the classes; space, `_` and `-` divide a name into words.
        size: length of a vector.
    """
    words = {name: words_of(name) for name in names}
    found = _find(path, {word for of_name in words.values() for word in of_name}, size)
    _refuse_missing(path, words, found)
    return np.stack([np.mean([found[word] for word in words[name]], axis=0) for name in names]).astype(np.float32)


def words_of(name: str) -> list[str]:
    """Return the words of a class name, in lower case.

    >>> words_of("Traffic light"), words_of("hand_bag"), words_of("T-shirt")
    (['traffic', 'light'], ['hand', 'bag'], ['t', 'shirt'])
    """
    return [word for word in re.split(r"[\s_-]+", name.casefold()) if word]


def _find(path: Path, wanted: Collection[str], size: int) -> dict[str, ndarray]:
    """Return the vectors of the wanted words; of several spellings that in lower case, or else the first."""
    found: dict[str, ndarray] = {}
    open_words = set(wanted)  # those that a better line may still come for
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not open_words:
                    break
                spelling = line.partition(b" ")[0].decode("utf-8", "replace")
                word = spelling.casefold()
                if word not in open_words or (word in found and spelling != word):
                    continue
                values = line.split()[1:]
                if len(values) > size and not _is_number(values[0]):
                    continue  # a phrase, of which large files have some: its first word is not its name
                found[word] = _vector(values, size, f"{path}: line {number}: {spelling!r}")
                if spelling == word:
                    open_words.discard(word)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give another file, {OR_LEARN}") from error
    return found


def _vector(values: Sequence[bytes], size: int, place: str) -> ndarray:
    if not all(map(_is_number, values)):
        raise DataError(f"{place} is not followed by numbers alone; give a text file in GloVe's format, {OR_LEARN}")
    if len(values) != size:
        raise DataError(f"{place} has {len(values)} numbers instead of {size}; give a whole file of that vector size")
    return np.array([float(value) for value in values])


def _is_number(text: bytes) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _refuse_missing(path: Path, words: Mapping[str, Sequence[str]], found: Collection[str]) -> None:
    lacking = [(name, word) for name, of_name in words.items() for word in of_name or [""] if word not in found]
    if lacking:
        name, word = lacking[0]
        others = len({name for name, _ in lacking}) - 1
        more = f" (and for {others} more classes)" if others else ""
        raise DataError(
            f"{path}: class {name!r}: there is no word {word!r}{more}; name the class in words of the file, "
            f"as in 'dining table' for 'diningtable', give another file, {OR_LEARN}"
        )
