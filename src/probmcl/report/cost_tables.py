"""What methods cost, as tables: for the terminal, a page, a spreadsheet and a program."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from probmcl.cost.paper import Beside
from probmcl.cost.rows import Row

NONE = "–"


class Shown(NamedTuple):
    """A table in words: the first of its columns names a row, the others are numbers; notes are sentences below it."""

    title: str
    headers: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def millions(count: int | None) -> str:
    """Parameters as people say them.

    >>> millions(42_518_592), millions(None)
    ('42.52', '–')
    """
    return NONE if count is None else f"{count / 1e6:.2f}"


def giga(count: float | None) -> str:
    """GMAC with two decimals, and three of a small network.

    >>> giga(31.2), giga(0.3841)
    ('31.20', '0.384')
    """
    return NONE if count is None else f"{count:.2f}" if count >= 1 else f"{count:.3f}"


Column = tuple[str, Callable[[Row], str]]

PARAMETERS: tuple[Column, ...] = (
    ("params M training", lambda row: millions(row.training_parameters)),
    ("params M predicting", lambda row: millions(row.prediction_parameters)),
)
GMAC: tuple[Column, ...] = (
    ("GMAC torch", lambda row: giga(row.gmac)),
    ("GMAC ptflops", lambda row: giga(row.gmac_ptflops)),
)
COUNTED: tuple[Column, ...] = (
    *PARAMETERS,
    ("head", lambda row: "own" if row.own_head else "probe"),
    *GMAC,
    ("views", lambda row: f"{row.views}"),
    ("GMAC training", lambda row: giga(row.training_gmac)),
)
MEASURED: tuple[Column, ...] = (
    ("training ms/image", lambda row: _milliseconds(row.speed.step_seconds if row.speed else None)),
    ("training views/s", lambda row: NONE if row.speed is None else f"{row.speed.views_per_second:,.1f}"),
    ("predicting ms/image", lambda row: _milliseconds(row.speed.prediction_seconds if row.speed else None)),
    ("peak MB", lambda row: NONE if row.speed is None else f"{row.speed.peak_memory / 1e6:,.0f}"),
)


def _milliseconds(seconds: float | None) -> str:
    return NONE if seconds is None else f"{1000 * seconds:,.1f}"


def tables(rows: Sequence[Row]) -> list[Shown]:
    """A table for each encoder, size and number of classes, and another where something was measured."""
    found = []
    for _, group in itertools.groupby(rows, lambda row: (row.encoder, row.image_size, row.classes)):
        together = tuple(group)
        found.append(_table(_what(together[0]), COUNTED, together, _problems(together)))
        speeds = [row.speed for row in together if row.speed]
        if speeds:
            where = f"measured on {speeds[0].device}, {speeds[0].batch_size} images at once"
            found.append(_table(where, MEASURED, tuple(row for row in together if row.speed), ()))
    return found


def _table(title: str, columns: tuple[Column, ...], rows: tuple[Row, ...], notes: tuple[str, ...]) -> Shown:
    cells = tuple((row.method, *(cell(row) if not row.problem else NONE for _, cell in columns)) for row in rows)
    return Shown(title, ("method", *(header for header, _ in columns)), cells, notes)


def _what(row: Row) -> str:
    size = f", {row.image_size} px" if row.image_size else ""
    return f"{row.encoder}{size}, {row.classes} class{'es' if row.classes > 1 else ''}"


def _problems(rows: Sequence[Row]) -> tuple[str, ...]:
    """Why there are rows without numbers, or without measured ones; the same reason once."""
    about: dict[str, list[str]] = {}
    for row in rows:
        if problem := row.problem or row.unmeasured:
            about.setdefault(problem.removeprefix(f"{row.method} "), []).append(row.method)
    return tuple(f"{', '.join(names)}: {problem}" for problem, names in about.items())


def beside_the_paper(found: Sequence[Beside]) -> Shown:
    """Table 3 and ours: a line with what is printed for each method, then our networks."""
    headers = ("method", "encoder", "classes", *(header for header, _ in PARAMETERS), *(header for header, _ in GMAC))
    cells: list[tuple[str, ...]] = []
    for printed, group in itertools.groupby(found, lambda one: one.printed):
        said = f"{printed.name}, printed", "", "", f"{printed.parameters:.2f}", "", "", f"{printed.gmac:.2f}"
        cells += [said, *(_ours(one.row) for one in group)]
    notes = dict.fromkeys(f"{one.printed.name}: {one.printed.note}" for one in found)
    problems = _problems([one.row for one in found])
    return Shown("Table 3 of the paper, and ours at 448 px", headers, tuple(cells), (*notes, *problems))


def _ours(row: Row) -> tuple[str, ...]:
    return (row.method, row.encoder, f"{row.classes}", *(cell(row) for _, cell in (*PARAMETERS, *GMAC)))


def terminal(shown: Shown) -> Table:
    """A table that fits 80 columns; numbers stand in one line, names in as many as they need."""
    table = Table(
        title=shown.title,
        title_style="bold",
        title_justify="left",
        caption=Text("\n".join(shown.notes)) if shown.notes else None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for number, header in enumerate(shown.headers):
        words = [cell[number] for cell in shown.cells]
        numeric = all(re.fullmatch(rf"[\d.,]*|{NONE}", word) for word in words)
        width = max(map(len, [*header.split(), *words])) if numeric else None
        table.add_column(header, justify="right" if numeric else "left", overflow="fold", width=width)
    for cells in shown.cells:
        table.add_row(*cells)
    return table


def to_markdown(shown: Sequence[Shown]) -> str:
    """Each table under its heading, then its notes."""
    return "\n".join(_markdown(table) for table in shown)


def _markdown(shown: Shown) -> str:
    lines = [shown.headers, ("---", *("---:" for _ in shown.headers[1:])), *shown.cells]
    below = [part for note in shown.notes for part in (f"- {' '.join(note.split())}",)]
    return "\n".join([f"### {shown.title}", "", *map(_line, lines), "", *below, *([""] if below else [])])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def record(row: Row) -> dict[str, Any]:
    """A row under stable keys, plain numbers; what was measured stands beside the rest, empty where nothing was."""
    plain = dataclasses.asdict(row)
    speed = plain.pop("speed") or dict.fromkeys(
        ("device", "batch_size", "step_seconds", "views_per_second", "prediction_seconds", "peak_memory")
    )
    return plain | speed


def paper_record(one: Beside) -> dict[str, Any]:
    """A row beside the paper, with what is printed there."""
    printed = {
        "printed_method": one.printed.name,
        "printed_parameters_millions": one.printed.parameters,
        "printed_gmac": one.printed.gmac,
    }
    return printed | record(one.row) | {"note": one.printed.note}


def to_json(records: Sequence[dict[str, Any]]) -> str:
    """A list of records."""
    return json.dumps(records, indent=2, ensure_ascii=False) + "\n"


def to_csv(records: Sequence[dict[str, Any]]) -> str:
    """A line for each record, under their keys."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
