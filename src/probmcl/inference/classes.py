"""Classes of a model beside those of some data: which are the same, and what the data says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from probmcl.data.hierarchy import levels_of, parents_of
from probmcl.data.labels import ROWS_AT_ONCE, LabelStates
from probmcl.errors import DataError, suggestion


@dataclass(frozen=True)
class Classes:
    """Classes that a model and its data have in common, where each has them, and what only one of them has.

    Several classes of the data may stand for one of the model.
    """

    common: tuple[str, ...]
    in_model: list[int]
    in_data: list[list[int]]
    only_in_model: list[str]
    only_in_data: list[str]


def match(model: Sequence[str], data: Sequence[str], renames: Mapping[str, str] | None = None) -> Classes:
    """Match classes by name, in the model's order; `renames` says what a class of the data is called in the model.

    >>> match(["cat", "dog"], ["emu", "dog"])
    Classes(common=('dog',), in_model=[1], in_data=[[1]], only_in_model=['cat'], only_in_data=['emu'])
    >>> match(["cat", "dog"], ["puppy", "dog"], {"puppy": "dog"}).in_data
    [[0, 1]]
    """
    sources: dict[str, list[int]] = {}
    for place, name in enumerate(data):
        sources.setdefault((renames or {}).get(name, name), []).append(place)
    places = {name: place for place, name in enumerate(model)}
    common = tuple(name for name in model if name in sources)
    if not common:
        near = "; ".join(f"{name!r}: {suggestion(name, model)}" for name in data[:3])
        remedy = "--rename FILE says which are the same"
        raise DataError(f"the data and the model have no class in common; {remedy}. Of the data's classes, {near}")
    return Classes(
        common,
        [places[name] for name in common],
        [sources[name] for name in common],
        [name for name in model if name not in sources],
        [data[place] for name, found in sources.items() if name not in places for place in found],
    )


def truth(states: LabelStates, sources: Sequence[Sequence[int]]) -> tuple[Float[ndarray, "N K"], Bool[ndarray, "N K"]]:
    """Labels 0 and 1 of K classes, each told by one class of the data or by several, and which of them are known.

    Told by several, a class is present where any of them is, absent where all of them are, and else not known.

    >>> states = LabelStates.from_states(np.array([[0, 1], [0, 0], [0, 2]], dtype=np.uint8))
    >>> labels, known = truth(states, [[0, 1]])
    >>> labels.ravel().tolist(), known.ravel().tolist()
    ([1.0, 0.0, 0.0], [True, True, False])
    """
    told = states.of_classes(np.concatenate([np.array(places, dtype=np.int64) for places in sources]))
    starts = np.cumsum([0, *(len(places) for places in sources[:-1])])
    labels = np.empty((len(states), len(sources)), dtype=np.float32)
    known = np.empty(labels.shape, dtype=np.bool_)
    for first in range(0, len(states), ROWS_AT_ONCE):
        rows = np.arange(first, min(first + ROWS_AT_ONCE, len(states)))
        said, seen = told.labels_and_known(rows)
        present = np.logical_or.reduceat((said > 0) & seen, starts, axis=1)
        absent = np.logical_and.reduceat((said == 0) & seen, starts, axis=1)
        labels[rows], known[rows] = present, present | absent
    return labels, known


def levels_of_classes(
    places: Sequence[int], names: Sequence[str], hierarchy: Mapping[str, str] | None
) -> list[int] | None:
    """The level of some classes among all that the model has; None where there are no parents.

    >>> levels_of_classes([1], ["cat", "kitten"], {"kitten": "cat"})
    [2]
    """
    if not hierarchy:
        return None
    levels = levels_of(parents_of(names, hierarchy))
    return [int(levels[place]) for place in places]
