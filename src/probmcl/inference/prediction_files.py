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

Row = tuple[Path, str | None, float, list[float], list[bool | None]]
"""Path, error, uncertainty, probabilities and decisions of an image; an open decision is None."""

_Writer = Callable[[TextIO, PredictionBlock, Iterator[PredictionBlock], bool], None]
"""Writes blocks to a file; the arguments are the file, the first block, all blocks including it, and `raw_cells`."""


def write_predictions(
    path: Path, blocks: Iterable[PredictionBlock], layout: Format = "full", *, raw_cells: bool = False
) -> None:
    """Write blocks of predictions as they are computed, as CSV or JSON depending on the suffix.

    They are written to `partial_path(path)`, which is renamed at the end. After an error, the partial file remains.
    With `raw_cells`, the cells of a CSV file may be formulas.
    """
    refuse_output(path, layout)
    write = _write_short if layout == "short" else WRITERS[path.suffix.lower()]
    _write(path, write, iter(blocks), raw_cells)


def write_predictions_csv(
    path: Path, predictions: PredictionBlock, layout: Format = "full", *, raw_cells: bool = False
) -> None:
    """Write a CSV file, whatever its suffix."""
    _refuse_unknown(layout)
    write = _write_short if layout == "short" else _write_csv
    _write(path, write, iter([predictions]), raw_cells)


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
    """Raise an error if a layout is not one of `Format`."""
    if layout not in get_args(Format):
        raise OptionError("format", layout, f"must be {' or '.join(get_args(Format))}")


def refuse_ambiguous(names: Sequence[str], table: Path | str) -> None:
    """Raise an error if a class has the name of another column."""
    decision_columns = [f"{name}{DECISION}" for name in names]
    columns = {PATH, ERROR, UNCERTAINTY, *decision_columns}
    ambiguous = [name for name in names if name in columns]
    if ambiguous:
        raise ValueError(
            f"{table}: class {ambiguous[0]!r} has the same name as another column; write a .json file instead"
        )


def _refuse_existing(path: Path) -> None:
    """Raise an error if a file exists, or the partial file that is written first."""
    if path.is_dir():
        raise FileExistsError(f"{path} is a folder; choose the name of a new file")
    if path.exists():
        raise FileExistsError(f"{path} already exists; choose another name or delete it")
    if partial_path(path).exists():
        cause = "another command is writing it, or an earlier one was interrupted"
        raise FileExistsError(f"{partial_path(path)} already exists: {cause}; choose another name or delete it")


def _write(
    path: Path,
    write: _Writer,
    blocks: Iterator[PredictionBlock],
    raw_cells: bool = False,
) -> None:
    """Write blocks of predictions to a partial file, and rename it when it is complete.

    `write` is the function that writes one format. With `raw_cells`, it writes text to CSV cells unchanged; otherwise
    text that a spreadsheet would run as a formula is made harmless. The first block is computed before the file is
    opened, so that an error in it, or class names that do not fit the format, leave no file.
    """
    _refuse_existing(path)
    first = next(blocks)
    _refuse_names(first.names, write, path)
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


def _refuse_names(names: Sequence[str], write: _Writer, path: Path) -> None:
    """Raise an error if class names do not fit the format that a function writes. JSON accepts all names."""
    if write is _write_csv:
        refuse_ambiguous(names, path)  # each class has columns of its own
    if write is _write_short:
        label_separator(names)  # an error if no separator can join the names in a cell


def _write_csv(file: TextIO, first: PredictionBlock, blocks: Iterator[PredictionBlock], raw_cells: bool) -> None:
    """Write one row per image; the row of an unreadable image has only its path and the error."""
    table = csv.writer(file)
    cell = str if raw_cells else plain_cell
    decision_columns = [f"{name}{DECISION}" for name in first.names]
    columns = [cell(column) for column in (*first.names, *decision_columns)]
    table.writerow([PATH, ERROR, UNCERTAINTY, *columns])
    empty = [""] * (1 + len(columns))  # for the uncertainty and each class
    for path, error, uncertain, probabilities, decisions in _rows(blocks):
        if error is not None:
            table.writerow([cell(str(path)), cell(error), *empty])
            continue
        numbers = [f"{number:.{DIGITS}g}" for number in (uncertain, *probabilities)]
        decided = [NOT_SURE if decision is None else int(decision) for decision in decisions]
        table.writerow([cell(str(path)), "", *numbers, *decided])


def _write_short(file: TextIO, first: PredictionBlock, blocks: Iterator[PredictionBlock], raw_cells: bool) -> None:
    """Write the assigned labels of each readable image as CSV; `first` is not used."""
    csv.writer(file).writerows(short_rows(blocks, raw_cells=raw_cells))


def _write_json(file: TextIO, first: PredictionBlock, blocks: Iterator[PredictionBlock], _: bool) -> None:
    """Write one line per image, so the predictions need not all be in memory at once."""
    head = json.dumps({"names": first.names, **_limits(first)}, allow_nan=False)
    open_head = head.removesuffix("}")  # closed after the images
    file.write(f'{open_head}, "images": [')
    separator = "\n"
    for path, error, uncertain, probabilities, decisions in _rows(blocks):
        row: dict[str, object] = {
            "path": str(path),
            "error": error,
            "uncertainty": None,
            "probabilities": None,
            "decisions": None,
        }
        if error is None:
            rounded = [float(f"{probability:.{DIGITS}g}") for probability in probabilities]
            row["uncertainty"] = float(f"{uncertain:.{DIGITS}g}")
            row["probabilities"] = dict(zip(first.names, rounded, strict=True))
            row["decisions"] = dict(zip(first.names, decisions, strict=True))
        file.write(separator + json.dumps(row, allow_nan=False))
        separator = ",\n"
    file.write("\n]}\n")


def _limits(predictions: PredictionBlock) -> dict[str, dict[str, float | None]]:
    """Return the threshold of each class; with abstention, the limits of its no and yes decisions (null: never)."""

    def by_name(limits: ndarray | float) -> dict[str, float | None]:
        """Return one limit, or one per class, by the names of the classes; JSON has no infinity."""
        values = np.broadcast_to(limits, len(predictions.names)).tolist()
        finite = [value if math.isfinite(value) else None for value in values]
        return dict(zip(predictions.names, finite, strict=True))

    if predictions.no_up_to is None:
        return {"thresholds": by_name(predictions.threshold)}
    return {"no_up_to": by_name(predictions.no_up_to), "yes_above": by_name(predictions.threshold)}


def _rows(blocks: Iterable[PredictionBlock]) -> Iterator[Row]:
    """Yield the row of each image in the blocks."""
    for block in blocks:
        uncertainty = block.uncertainty.tolist()
        probabilities = block.scores.tolist()
        decisions = block.labels.tolist()  # None where masked
        yield from zip(block.paths, block.reasons, uncertainty, probabilities, decisions, strict=True)


WRITERS = {".csv": _write_csv, ".json": _write_json}
