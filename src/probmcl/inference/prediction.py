"""The prediction for one image, and the interface of the predictions for several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Float64
from numpy import ndarray

from probmcl.errors import OptionError, listing, one_line

LABELS = 5  # classes in the text of an image


@dataclass(frozen=True, repr=False)
class Prediction:
    """The prediction for one image.

    >>> prediction = Prediction(Path("a.jpg"), {"cat": 0.2, "dog": 0.9}, ("dog",))
    >>> prediction
    Prediction(a.jpg: dog 0.90)
    >>> prediction.top(2)
    [('dog', 0.9), ('cat', 0.2)]
    """

    path: Path
    probabilities: Mapping[str, float]  # by class name; empty if the image could not be read
    labels: tuple[str, ...] | None  # the assigned classes; None if the image could not be read
    error: str | None = None  # the reason why the image could not be read
    not_sure: tuple[str, ...] = ()  # with abstention, the classes that are neither assigned nor ruled out

    def __repr__(self) -> str:
        return f"Prediction({line(self)})"

    def top(self, k: int) -> list[tuple[str, float]]:
        """Return the `k` most probable classes with their probabilities; nothing for an unreadable image."""
        if k < 1:
            raise OptionError("k", k, "must be at least 1")
        return sorted(self.probabilities.items(), key=lambda pair: -pair[1])[:k]


def line(image: Prediction, *, none: str = "no labels", most: int = LABELS) -> str:
    """Return the path and the assigned labels by descending probability; if there are none, the most probable class."""
    if image.labels is None:
        return one_line(f"{image.path}: ERROR: {image.error}")
    ranked = image.top(len(image.probabilities))
    assigned = [f"{name} {probability:.2f}" for name, probability in ranked if name in image.labels]
    not_sure = [f"{name} {probability:.2f}" for name, probability in ranked if name in image.not_sure]
    text = listing(assigned, most) or none
    if not assigned and not not_sure:
        best, probability = ranked[0]
        text += f"; most probable: {best} {probability:.2f}"
    if not_sure:
        text += f"; not sure: {listing(not_sure, most)}"
    return one_line(f"{image.path}: {text}")


@runtime_checkable
class PredictionBlock(Protocol):
    """The part of `Predictions` that texts and files use."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Prediction]: ...
    def __getitem__(self, rows: slice, /) -> PredictionBlock: ...

    @property
    def names(self) -> tuple[str, ...]:
        """The classes."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The images."""

    @property
    def scores(self) -> Float[ndarray, "N C"]:
        """The probability of each class; NaN for an unreadable image."""

    @property
    def labels(self) -> Bool[np.ma.MaskedArray, "N C"]:
        """The decisions; open decisions and unreadable images are masked."""

    @property
    def uncertainty(self) -> Float64[ndarray, " N"]:
        """The uncertainty of each image."""

    @property
    def reasons(self) -> tuple[str | None, ...]:
        """The reason why each image could not be read; None for a readable image."""

    @property
    def threshold(self) -> float | Float64[ndarray, " C"]:
        """The threshold of yes decisions: one, or one per class."""

    @property
    def no_up_to(self) -> Float64[ndarray, " C"] | None:
        """With abstention, the limit of no decisions."""
