"""What a model says of images, and the files that hold it."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

PATH, ERROR, DECISION = "path", "error", ":decision"
DIGITS = 6


@dataclass(frozen=True, eq=False)
class Predictions:
    """A probability and a decision for each class of each image.

    Attributes:
        names: the classes.
        paths: the images, in the order in which they were found.
        scores: probabilities; NaN for an image that could not be read.
        threshold: a class is decided for where its probability is greater.
        errors: why an image could not be read.

    >>> said = Predictions(("cat", "dog"), (Path("a.jpg"),), np.array([[0.9, 0.5]], dtype=np.float32), 0.5, {})
    >>> said.labels.tolist()
    [[True, False]]
    """

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    scores: Float[ndarray, "N C"]
    threshold: float
    errors: Mapping[Path, str]

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def labels(self) -> Bool[ndarray, "N C"]:
        """Decisions: whether the probability is greater than the threshold."""
        return self.scores > self.threshold

    def to_csv(self, path: Path | str) -> None:
        """Write a table: path, error, for each class its probability, then `NAME:decision` as 0 or 1."""
        _write(Path(path), _csv, iter([self]))

    def to_json(self, path: Path | str) -> None:
        """Write an object: names, threshold, and for each image path, error, probabilities and decisions by name."""
        _write(Path(path), _json, iter([self]))


def write(path: Path, blocks: Iterable[Predictions]) -> None:
    """Write predictions as they come, as CSV or JSON by the file's suffix, whole under its name or not at all.

    Until they are whole, they stand in `part(path)`, which stays there if something goes wrong on the way.
    """
    refuse(path)
    _write(path, WRITERS[path.suffix.lower()], iter(blocks))


def part(path: Path) -> Path:
    """Where predictions stand until they are whole.

    >>> part(Path("said.csv")).name
    'said.csv.part'
    """
    return path.with_name(f"{path.name}.part")


def refuse(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is computed for it."""
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"{path}: its name has to end in {' or '.join(WRITERS)}, which says what is written")
    _refuse_what_exists(path)


def joined(names: Sequence[str], threshold: float, blocks: Iterable[Predictions]) -> Predictions:
    """All blocks in one."""
    paths: list[Path] = []
    errors: dict[Path, str] = {}
    scores = [np.empty((0, len(names)), dtype=np.float32)]
    for block in blocks:
        paths += block.paths
        errors |= block.errors
        scores.append(block.scores)
    return Predictions(tuple(names), tuple(paths), np.concatenate(scores), threshold, errors)


def _refuse_what_exists(path: Path) -> None:
    if path.exists():
        raise FileExistsError(f"{path} exists already; choose another name, or delete it")
    if part(path).exists():
        begun = "another command writes it now, or an earlier one was stopped"
        raise FileExistsError(f"{part(path)} exists already: {begun}; choose another name, or delete it")


def _write(
    path: Path, lines: Callable[[TextIO, Predictions, Iterator[Predictions]], None], blocks: Iterator[Predictions]
) -> None:
    _refuse_what_exists(path)
    first = next(blocks)  # whatever is wrong from the start shows here, before there is a file
    if lines is _csv:
        _refuse_ambiguous_columns(path, first.names)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A file's name may be no text at all; then its bytes are written as they are.
    with part(path).open("x", encoding="utf-8", errors="surrogateescape", newline="") as file:
        lines(file, first, itertools.chain([first], blocks))
    if path.exists():
        raise FileExistsError(f"{path} has come into being meanwhile; what was written is in {part(path)}")
    part(path).replace(path)


def _refuse_ambiguous_columns(path: Path, names: Sequence[str]) -> None:
    taken = {PATH, ERROR, *(f"{name}{DECISION}" for name in names)}
    both = [name for name in names if name in taken]
    if both:
        raise ValueError(f"{path}: class {both[0]!r} has the name of another column; write .json instead")


def _csv(file: TextIO, first: Predictions, blocks: Iterator[Predictions]) -> None:
    table = csv.writer(file)
    table.writerow([PATH, ERROR, *first.names, *(f"{name}{DECISION}" for name in first.names)])
    for block in blocks:
        for path, scores, labels in zip(block.paths, block.scores.tolist(), block.labels.tolist(), strict=True):
            if path in block.errors:
                table.writerow([path, block.errors[path], *[""] * (2 * len(scores))])
            else:
                table.writerow([path, "", *(f"{score:.{DIGITS}g}" for score in scores), *map(int, labels)])


def _json(file: TextIO, first: Predictions, blocks: Iterator[Predictions]) -> None:
    """One line an image, so that any number of them can be written as they come."""
    head = json.dumps({"names": first.names, "threshold": first.threshold})
    file.write(f'{head[:-1]}, "images": [')
    separator = "\n"
    for row in itertools.chain.from_iterable(map(_objects, blocks)):
        file.write(separator + json.dumps(row))
        separator = ",\n"
    file.write("\n]}\n")


def _objects(block: Predictions) -> Iterator[dict[str, Any]]:
    for path, scores, labels in zip(block.paths, block.scores.tolist(), block.labels.tolist(), strict=True):
        if path in block.errors:
            said: dict[str, Any] = {"error": block.errors[path], "probabilities": None, "decisions": None}
        else:
            rounded = [float(f"{score:.{DIGITS}g}") for score in scores]
            probabilities, decisions = (dict(zip(block.names, x, strict=True)) for x in (rounded, labels))
            said = {"error": None, "probabilities": probabilities, "decisions": decisions}
        yield {"path": str(path), **said}


WRITERS = {".csv": _csv, ".json": _json}
