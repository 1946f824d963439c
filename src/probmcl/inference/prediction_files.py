"""CSV and JSON files of predictions, written block by block."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TextIO, get_args

import numpy as np
from numpy import ndarray

from probmcl.errors import DataError, OptionError, keyword
from probmcl.inference.prediction import PredictionBlock
from probmcl.readers.table.lists import SEPARATORS
from probmcl.runtime.files import durable_rename
from probmcl.runtime.folders import explained_no_space
from probmcl.tables import plain_cell

PATH, ERROR, UNCERTAINTY, LABELS, DECISION = "path", "error", "uncertainty", "labels", ":decision"
NOT_SURE = "?"
DIGITS = 6

Format = Literal["full", "short"]
"""`full` has the probability and decision of every class; `short` has the assigned labels of each readable image."""


def write_predictions(
    path: Path, blocks: Iterable[PredictionBlock], layout: Format = "full", *, raw_cells: bool = False
) -> None:
    """Write blocks of predictions as they are computed, as CSV or JSON depending on the suffix.

    They are written to `partial_path(path)`, which is renamed at the end. After an error, the partial file remains.
    With `raw_cells`, the cells of a CSV file may be formulas.
    """
    refuse_output(path, layout)
    _write(path, WRITERS[path.suffix.lower()] if layout == "full" else _write_short, iter(blocks), raw_cells)


def write_predictions_csv(
    path: Path, predictions: PredictionBlock, layout: Format = "full", *, raw_cells: bool = False
) -> None:
    """Write a CSV file, whatever its suffix."""
    _refuse_unknown(layout)
    _write(path, _write_csv if layout == "full" else _write_short, iter([predictions]), raw_cells)


def write_predictions_json(path: Path, predictions: PredictionBlock) -> None:
    """Write a JSON file, whatever its suffix."""
    _write(path, _write_json, iter([predictions]))


def short_rows(blocks: Iterable[PredictionBlock], *, raw_cells: bool = False) -> Iterator[list[str]]:
    """Yield the header and, for each readable image, its path and its labels, joined by a separator."""
    cell = str if raw_cells else plain_cell
    yield [PATH, LABELS]
    for block in blocks:
        separator = label_separator(block.names)
        for image in block:
            if image.labels is not None:
                yield [cell(str(image.path)), cell(separator.join(image.labels))]


def label_separator(names: Sequence[str]) -> str:
    """Return the first separator that does not occur in any class name.

    >>> label_separator(["cat", "dog"]), label_separator(["cat|kitten", "dog"])
    ('|', ';')
    """
    for separator in SEPARATORS:
        if not any(separator in name for name in names):
            return separator
    separators = ", ".join(map(repr, SEPARATORS))
    raise DataError(f"class names contain every separator ({separators}); use {keyword('format', 'full')}")


def partial_path(path: Path) -> Path:
    """Return the file that predictions are written to until they are complete.

    >>> partial_path(Path("predictions.csv")).name
    'predictions.csv.part'
    """
    return path.with_name(f"{path.name}.part")


def refuse_output(path: Path, layout: Format = "full") -> None:
    """Raise an error if predictions cannot be written to a file; call it before computing them."""
    _refuse_unknown(layout)
    if layout == "short" and path.suffix.lower() != ".csv":
        raise OptionError("format", layout, f"is a CSV table, so {path} must end in .csv")
    if path.suffix.lower() not in WRITERS:
        raise ValueError(f"{path}: the name must end in {' or '.join(WRITERS)}, which determines the format")
    _refuse_existing(path)


def _refuse_unknown(layout: str) -> None:
    if layout not in get_args(Format):
        raise OptionError("format", layout, f"must be {' or '.join(get_args(Format))}")


def refuse_ambiguous(names: Sequence[str], table: Path | str) -> None:
    """Raise an error if a class has the name of another column."""
    columns = {PATH, ERROR, UNCERTAINTY, *(f"{name}{DECISION}" for name in names)}
    ambiguous = [name for name in names if name in columns]
    if ambiguous:
        raise ValueError(
            f"{table}: class {ambiguous[0]!r} has the same name as another column; write a .json file instead"
        )


def _refuse_existing(path: Path) -> None:
    if path.is_dir():
        raise FileExistsError(f"{path} is a folder; choose the name of a new file")
    if path.exists():
        raise FileExistsError(f"{path} already exists; choose another name or delete it")
    if partial_path(path).exists():
        cause = "another command is writing it, or an earlier one was interrupted"
        raise FileExistsError(f"{partial_path(path)} already exists: {cause}; choose another name or delete it")


def _write(
    path: Path,
    write: Callable[[TextIO, PredictionBlock, Iterator[PredictionBlock], bool], None],
    blocks: Iterator[PredictionBlock],
    raw_cells: bool = False,
) -> None:
    _refuse_existing(path)
    first = next(blocks)  # an error in the first block leaves no file
    if write is _write_csv:
        refuse_ambiguous(first.names, path)
    if write is _write_short:
        label_separator(first.names)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    # Undecodable bytes in a file name are written unchanged.
    with (
        explained_no_space(partial, io.DEFAULT_BUFFER_SIZE),
        partial.open("x", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        write(file, first, itertools.chain([first], blocks), raw_cells)
    if path.exists():
        raise FileExistsError(f"{path} was created by another process; the predictions are in {partial}")
    durable_rename(partial, path)


def _write_csv(file: TextIO, first: PredictionBlock, blocks: Iterator[PredictionBlock], raw_cells: bool) -> None:
    table, cell = csv.writer(file), str if raw_cells else plain_cell
    names = [*first.names, *(f"{name}{DECISION}" for name in first.names)]
    table.writerow([PATH, ERROR, UNCERTAINTY, *map(cell, names)])
    for path, error, uncertain, scores, decisions in itertools.chain.from_iterable(map(_rows, blocks)):
        if error is None:
            texts = (NOT_SURE if decision is None else int(decision) for decision in decisions)
            table.writerow([cell(str(path)), "", *(f"{x:.{DIGITS}g}" for x in (uncertain, *scores)), *texts])
        else:
            table.writerow([cell(str(path)), cell(error), *[""] * (1 + 2 * len(first.names))])


def _write_short(file: TextIO, first: PredictionBlock, blocks: Iterator[PredictionBlock], raw_cells: bool) -> None:
    csv.writer(file).writerows(short_rows(blocks, raw_cells=raw_cells))


def _write_json(file: TextIO, first: PredictionBlock, blocks: Iterator[PredictionBlock], _: bool) -> None:
    """Write one line per image, so the predictions need not all be in memory at once."""
    head = json.dumps({"names": first.names, **_limits(first)}, allow_nan=False)
    file.write(f'{head[:-1]}, "images": [')
    separator = "\n"
    for path, error, uncertain, scores, decisions in itertools.chain.from_iterable(map(_rows, blocks)):
        rounded = [float(f"{score:.{DIGITS}g}") for score in scores]
        row: dict[str, object] = {
            "path": str(path),
            "error": error,
            "uncertainty": None,
            "probabilities": None,
            "decisions": None,
        }
        if error is None:
            row["uncertainty"] = float(f"{uncertain:.{DIGITS}g}")
            row["probabilities"] = dict(zip(first.names, rounded, strict=True))
            row["decisions"] = dict(zip(first.names, decisions, strict=True))
        file.write(separator + json.dumps(row, allow_nan=False))
        separator = ",\n"
    file.write("\n]}\n")


def _limits(predictions: PredictionBlock) -> dict[str, dict[str, float | None]]:
    """Return the threshold of each class; with abstention, the limits of its no and yes decisions (null: never)."""

    def by_name(limits: ndarray | float) -> dict[str, float | None]:
        values = np.broadcast_to(limits, len(predictions.names)).tolist()
        return {name: x if math.isfinite(x) else None for name, x in zip(predictions.names, values, strict=True)}

    if predictions.no_up_to is None:
        return {"thresholds": by_name(predictions.threshold)}
    return {"no_up_to": by_name(predictions.no_up_to), "yes_above": by_name(predictions.threshold)}


Row = tuple[Path, str | None, float, list[float], list[bool | None]]
"""Path, error, uncertainty, probabilities and decisions of an image; an open decision is None."""


def _rows(block: PredictionBlock) -> Iterator[Row]:
    columns = (block.uncertainty.tolist(), block.scores.tolist(), block.labels.tolist())
    yield from zip(block.paths, block.reasons, *columns, strict=True)


WRITERS = {".csv": _write_csv, ".json": _write_json}
