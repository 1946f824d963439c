"""Predictions for images, and their CSV and JSON files."""

import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

PATH, ERROR, DECISION = "path", "error", ":decision"
DIGITS = 6


@dataclass(frozen=True, eq=False)
class Predictions:
    """Probabilities and decisions for each image and class.

    >>> predictions = Predictions(("cat", "dog"), (Path("a.jpg"),), np.array([[0.9, 0.5]], dtype=np.float32), 0.5, {})
    >>> predictions.labels.tolist()
    [[True, False]]
    """

    names: tuple[str, ...]
    paths: tuple[Path, ...]  # in the order of the images
    scores: Float[ndarray, "N C"]  # probabilities; NaN for an unreadable image
    threshold: float  # a class is predicted if its probability is above this value
    errors: Mapping[Path, str]  # the reason for each unreadable image

    def __len__(self) -> int:
        return len(self.paths)

    @classmethod
    def concatenate(cls, names: Sequence[str], threshold: float, blocks: Iterable["Predictions"]) -> "Predictions":
        """Concatenate blocks of predictions, possibly none."""
        empty = cls(tuple(names), (), np.empty((0, len(names)), dtype=np.float32), threshold, {})
        parts = [empty, *blocks]
        paths = tuple(path for part in parts for path in part.paths)
        errors = {path: reason for part in parts for path, reason in part.errors.items()}
        return cls(tuple(names), paths, np.concatenate([part.scores for part in parts]), threshold, errors)

    @property
    def labels(self) -> Bool[ndarray, "N C"]:
        """Decisions: True where the probability is above the threshold."""
        return self.scores > self.threshold

    def to_csv(self, path: Path | str) -> None:
        """Write a CSV with the columns path, error, the probability of each class, and `NAME:decision` (0 or 1)."""
        _write(Path(path), _write_csv, iter([self]))

    def to_json(self, path: Path | str) -> None:
        """Write JSON with names, threshold and, per image, its path, error, probabilities and decisions by name."""
        _write(Path(path), _write_json, iter([self]))


def write_predictions(path: Path, blocks: Iterable[Predictions]) -> None:
    """Write blocks of predictions as they are computed, as CSV or JSON depending on the suffix.

    They are written to `partial_path(path)`, which is renamed at the end. After an error, the partial file remains.
    """
    refuse_output(path)
    _write(path, WRITERS[path.suffix.lower()], iter(blocks))


def partial_path(path: Path) -> Path:
    """Return the file that predictions are written to until they are complete.

    >>> partial_path(Path("predictions.csv")).name
    'predictions.csv.part'
    """
    return path.with_name(f"{path.name}.part")


def refuse_output(path: Path) -> None:
    """Raise an error if predictions cannot be written to a file; call it before computing them."""
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"{path}: the name must end in {' or '.join(WRITERS)}, which determines the format")
    _refuse_existing(path)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise FileExistsError(f"{path} already exists; choose another name or delete it")
    if partial_path(path).exists():
        cause = "another command is writing it, or an earlier one was interrupted"
        raise FileExistsError(f"{partial_path(path)} already exists: {cause}; choose another name or delete it")


def _write(
    path: Path, write: Callable[[TextIO, Predictions, Iterator[Predictions]], None], blocks: Iterator[Predictions]
) -> None:
    _refuse_existing(path)
    first = next(blocks)  # an error in the first block leaves no file
    columns = {PATH, ERROR, *(f"{name}{DECISION}" for name in first.names)}
    ambiguous = [name for name in first.names if name in columns]
    if ambiguous and write is _write_csv:
        raise ValueError(
            f"{path}: class {ambiguous[0]!r} has the same name as another column; write a .json file instead"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Undecodable bytes in a file name are written unchanged.
    with partial_path(path).open("x", encoding="utf-8", errors="surrogateescape", newline="") as file:
        write(file, first, itertools.chain([first], blocks))
    if path.exists():
        raise FileExistsError(f"{path} was created by another process; the predictions are in {partial_path(path)}")
    partial_path(path).replace(path)


def _write_csv(file: TextIO, first: Predictions, blocks: Iterator[Predictions]) -> None:
    table = csv.writer(file)
    table.writerow([PATH, ERROR, *first.names, *(f"{name}{DECISION}" for name in first.names)])
    for path, error, scores, labels in itertools.chain.from_iterable(map(_rows, blocks)):
        cells = [*(f"{score:.{DIGITS}g}" for score in scores), *map(int, labels)]
        table.writerow([path, error, *[""] * len(cells)] if error else [path, "", *cells])


def _write_json(file: TextIO, first: Predictions, blocks: Iterator[Predictions]) -> None:
    """Write one line per image, so the predictions need not all be in memory at once."""
    head = json.dumps({"names": first.names, "threshold": first.threshold})
    file.write(f'{head[:-1]}, "images": [')
    separator = "\n"
    for path, error, scores, labels in itertools.chain.from_iterable(map(_rows, blocks)):
        rounded = [float(f"{score:.{DIGITS}g}") for score in scores]
        by_name = [None if error else dict(zip(first.names, values, strict=True)) for values in (rounded, labels)]
        row = {"path": str(path), "error": error, "probabilities": by_name[0], "decisions": by_name[1]}
        file.write(separator + json.dumps(row))
        separator = ",\n"
    file.write("\n]}\n")


def _rows(block: Predictions) -> Iterator[tuple[Path, str | None, list[float], list[bool]]]:
    for path, scores, labels in zip(block.paths, block.scores.tolist(), block.labels.tolist(), strict=True):
        yield path, block.errors.get(path), scores, labels


WRITERS = {".csv": _write_csv, ".json": _write_json}
