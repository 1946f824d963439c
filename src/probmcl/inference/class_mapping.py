"""Matching of a model's classes with the classes of a dataset, with optional renames."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from probmcl.data.labels import ROWS_AT_ONCE, LabelStates
from probmcl.errors import DataError, counted, quoted, suggestion
from probmcl.readers.spreadsheet import load_spreadsheet, read_encoded_text

HEADERS = (("data", "model"), ("from", "to"))
"""Headers that define the column order of a rename file; with other headers, the names in the data come first."""


@dataclass(frozen=True)
class ClassMapping:
    """The classes that a model and a dataset have in common, and those that only one of them has."""

    common: tuple[str, ...]  # names in the model, in the model's order
    in_model: list[int]  # index of each common class in the model
    in_data: list[list[int]]  # indices in the data; several classes in the data may map to one class in the model
    only_in_model: list[str]
    only_in_data: list[str]

    def labels(self, states: LabelStates) -> tuple[Float[ndarray, "N K"], Bool[ndarray, "N K"]]:
        """Return the 0/1 labels of the common classes and the mask of known labels.

        If several classes in the data map to one, it is present if any is, absent if all are, and unknown otherwise.

        >>> states = LabelStates.from_states(np.array([[0, 1], [0, 0], [0, 2]], dtype=np.uint8))
        >>> labels, known = match_classes(["cat"], ["tabby", "cat"], {"tabby": "cat"}).labels(states)
        >>> labels.ravel().tolist(), known.ravel().tolist()
        ([1.0, 0.0, 0.0], [True, True, False])
        """
        columns = states.select_classes(np.concatenate(self.in_data))
        starts = np.cumsum([0, *(len(indices) for indices in self.in_data[:-1])])
        labels = np.empty((len(states), len(self.in_data)), dtype=np.float32)
        known = np.empty(labels.shape, dtype=np.bool_)
        for first in range(0, len(states), ROWS_AT_ONCE):
            rows = np.arange(first, min(first + ROWS_AT_ONCE, len(states)))
            values, mask = columns.labels_and_known(rows)
            present = np.logical_or.reduceat((values > 0) & mask, starts, axis=1)
            absent = np.logical_and.reduceat((values == 0) & mask, starts, axis=1)
            labels[rows], known[rows] = present, present | absent
        return labels, known


def match_classes(model: Sequence[str], data: Sequence[str], renames: Mapping[str, str] | None = None) -> ClassMapping:
    """Match classes by name, in the model's order; `renames` maps names in the data to names in the model.

    >>> match_classes(["cat", "dog"], ["emu", "dog"])
    ClassMapping(common=('dog',), in_model=[1], in_data=[[1]], only_in_model=['cat'], only_in_data=['emu'])
    >>> match_classes(["cat", "dog"], ["puppy", "dog"], {"puppy": "dog"}).in_data
    [[0, 1]]
    """
    sources: dict[str, list[int]] = {}
    for index, name in enumerate(data):
        sources.setdefault((renames or {}).get(name, name), []).append(index)
    common = tuple(name for name in model if name in sources)
    if not common:
        hints = "; ".join(f"{name!r} ({suggestion(name, model)})" for name in data[:3])
        problem = "the data and the model have no class in common"
        raise DataError(f"{problem}; use `rename` to map the classes in the data: {hints}")
    return ClassMapping(
        common,
        [index for index, name in enumerate(model) if name in sources],
        [sources[name] for name in common],
        [name for name in model if name not in sources],
        [data[index] for name, indices in sources.items() if name not in model for index in indices],
    )


def read_renames(
    renames: Path | str | Mapping[str, str] | None, *, model: Sequence[str], data: Sequence[str]
) -> dict[str, str]:
    """Return a mapping from class names in the data to class names in the model, read from a file or a mapping.

    A file is a JSON object, or a CSV with a header and two columns: the name in the data and the name in the model.
    Several names in the data may map to the same name in the model. Unknown names and contradictory entries are errors.

    >>> read_renames({"Infiltrate": "Infiltration"}, model=["Infiltration"], data=["Infiltrate", "Mass"])
    {'Infiltrate': 'Infiltration'}
    """
    if renames is None or isinstance(renames, Mapping):
        entries = [("rename", *pair) for pair in (renames or {}).items()]
    else:
        path = Path(renames)
        entries = _read_object(path) if path.suffix.lower() == ".json" else _read_table(path, model, data)
    result: dict[str, str] = {}
    for location, old, new in entries:
        for side, name, names in (("data", old, data), ("model", new, model)):
            if name not in names:
                raise DataError(f"{location}: the {side} has no class {name!r}; {suggestion(name, names)}")
        if result.setdefault(old, new) != new:
            raise DataError(f"{location}: {old!r} is mapped to {quoted([result[old], new])}; choose one of them")
    return result


def _read_table(path: Path, model: Sequence[str], data: Sequence[str]) -> list[tuple[str, str, str]]:
    table = load_spreadsheet(path, lambda columns: len(columns) == 2, row="class")
    if len(table.columns) != 2:
        columns = f"{counted(len(table.columns), 'column')} ({quoted(table.columns)})"
        raise DataError(f"{path}: expected two columns, the name in the data and the name in the model, got {columns}")
    first, second = table.columns
    if first in data and second in model:
        raise DataError(f"{path}, row 1: expected a header; insert this line above it: {','.join(HEADERS[0])}")
    if (second.lower(), first.lower()) in HEADERS:
        first, second = second, first
    pairs = zip(table.cells(first), table.cells(second), strict=True)
    return [(f"{path}, row {old.line}", old.text, new.text) for old, new in pairs]


def _read_object(path: Path) -> list[tuple[str, str, str]]:
    try:
        # A list of pairs, because a dictionary would silently drop all but the last of several equal names.
        pairs: Any = json.loads(read_encoded_text(path), object_pairs_hook=list)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, row {error.lineno}: {error.msg}; the file must be a JSON object") from error
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) and isinstance(pair[1], str) for pair in pairs):
        example = '{"name in the data": "name in the model"}'
        raise DataError(f"{path}: the file must be a JSON object of names, as in {example}")
    return [(str(path), *pair) for pair in pairs]
