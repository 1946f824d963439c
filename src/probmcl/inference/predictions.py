"""Predictions for images, and the files that hold them."""

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
    """A probability and a decision for each class of each image.

    >>> predictions = Predictions(("cat", "dog"), (Path("a.jpg"),), np.array([[0.9, 0.5]], dtype=np.float32), 0.5, {})
    >>> predictions.labels.tolist()
    [[True, False]]
    """

    names: tuple[str, ...]
    paths: tuple[Path, ...]  # in the order in which the images were found
    scores: Float[ndarray, "N C"]  # NaN for an image that could not be read
    threshold: float  # a class is decided for if its probability is greater
    errors: Mapping[Path, str]  # why an image could not be read

    def __len__(self) -> int:
        return len(self.paths)

    @classmethod
    def concatenate(cls, names: Sequence[str], threshold: float, blocks: Iterable["Predictions"]) -> "Predictions":
        """Join blocks into one."""
        nothing = cls(tuple(names), (), np.empty((0, len(names)), dtype=np.float32), threshold, {})
        parts = [nothing, *blocks]
        paths = tuple(path for part in parts for path in part.paths)
        errors = {path: reason for part in parts for path, reason in part.errors.items()}
        return cls(tuple(names), paths, np.concatenate([part.scores for part in parts]), threshold, errors)

    @property
    def labels(self) -> Bool[ndarray, "N C"]:
        """Decisions: whether the probability is greater than the threshold."""
        return self.scores > self.threshold

    def to_csv(self, path: Path | str) -> None:
        """Write a table: path, error, for each class its probability, then `NAME:decision` as 0 or 1."""
        _write(Path(path), _write_csv, iter([self]))

    def to_json(self, path: Path | str) -> None:
        """Write an object: names, threshold, and for each image path, error, probabilities and decisions by name."""
        _write(Path(path), _write_json, iter([self]))


def write_predictions(path: Path, blocks: Iterable[Predictions]) -> None:
    """Write predictions as they come, as CSV or JSON by the file's suffix.

    Until they are complete they are in `partial_path(path)`, which remains if something goes wrong.
    """
    refuse_output(path)
    _write(path, WRITERS[path.suffix.lower()], iter(blocks))


def partial_path(path: Path) -> Path:
    """Return the file that holds predictions until they are complete.

    >>> partial_path(Path("predictions.csv")).name
    'predictions.csv.part'
    """
    return path.with_name(f"{path.name}.part")


def refuse_output(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"{path}: its name has to end in {' or '.join(WRITERS)}, which decides the format")
    _refuse_existing(path)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise FileExistsError(f"{path} exists already; choose another name, or delete it")
    if partial_path(path).exists():
        cause = "another command writes it now, or an earlier one was stopped"
        raise FileExistsError(f"{partial_path(path)} exists already: {cause}; choose another name, or delete it")


def _write(
    path: Path, write: Callable[[TextIO, Predictions, Iterator[Predictions]], None], blocks: Iterator[Predictions]
) -> None:
    _refuse_existing(path)
    first = next(blocks)  # an error at the start leaves no file
    columns = {PATH, ERROR, *(f"{name}{DECISION}" for name in first.names)}
    ambiguous = [name for name in first.names if name in columns]
    if ambiguous and write is _write_csv:
        raise ValueError(f"{path}: class {ambiguous[0]!r} has the name of another column; write .json instead")
    path.parent.mkdir(parents=True, exist_ok=True)
    # A file name that is not valid text is written as its bytes.
    with partial_path(path).open("x", encoding="utf-8", errors="surrogateescape", newline="") as file:
        write(file, first, itertools.chain([first], blocks))
    if path.exists():
        raise FileExistsError(f"{path} was created meanwhile; the predictions are in {partial_path(path)}")
    partial_path(path).replace(path)


def _write_csv(file: TextIO, first: Predictions, blocks: Iterator[Predictions]) -> None:
    table = csv.writer(file)
    table.writerow([PATH, ERROR, *first.names, *(f"{name}{DECISION}" for name in first.names)])
    for path, error, scores, labels in itertools.chain.from_iterable(map(_rows, blocks)):
        cells = [*(f"{score:.{DIGITS}g}" for score in scores), *map(int, labels)]
        table.writerow([path, error, *[""] * len(cells)] if error else [path, "", *cells])


def _write_json(file: TextIO, first: Predictions, blocks: Iterator[Predictions]) -> None:
    """Write one line per image, so that any number of them can be written as they come."""
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
