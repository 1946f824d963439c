"""The tables of `probmcl cost`, and the same numbers as records for CSV and JSON."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from probmcl.cost.paper import PaperNetwork
from probmcl.cost.rows import CostRow
from probmcl.cost.speed import Speed
from probmcl.tables import MISSING, Column, Table


def millions(count: int | None) -> str:
    """Return a number of parameters in millions.

    >>> millions(42_518_592), millions(None)
    ('42.52', '–')
    """
    return MISSING if count is None else f"{count / 1e6:.2f}"


def giga(count: float | None) -> str:
    """Return GMAC with two decimals, and with three for a small network.

    >>> giga(31.2), giga(0.3841)
    ('31.20', '0.384')
    """
    return MISSING if count is None else f"{count:.2f}" if count >= 1 else f"{count:.3f}"


class Quantity(NamedTuple):
    """A column and its cell for each row."""

    column: Column
    cell: Callable[[CostRow], str]


def _measured(header: str, cell: Callable[[Speed], str]) -> Quantity:
    return Quantity(Column(header), lambda row: MISSING if row.speed is None else cell(row.speed))


NETWORK = (
    Quantity(Column("params M training"), lambda row: millions(row.training_parameters)),
    Quantity(Column("params M predicting"), lambda row: millions(row.prediction_parameters)),
    Quantity(Column("GMAC torch"), lambda row: giga(row.gmac)),
    Quantity(Column("GMAC ptflops"), lambda row: giga(row.gmac_ptflops)),
)
COUNTED = (
    *NETWORK[:2],
    Quantity(Column.of_names("head"), lambda row: "own" if row.own_head else "probe"),
    *NETWORK[2:],
    Quantity(Column("views"), lambda row: f"{row.views}"),
    Quantity(Column("GMAC training"), lambda row: giga(row.training_gmac)),
)
MEASURED = (
    _measured("training ms/image", lambda speed: f"{1000 * speed.step_seconds:,.1f}"),
    _measured("training views/s", lambda speed: f"{speed.views_per_second:,.1f}"),
    _measured("predicting ms/image", lambda speed: f"{1000 * speed.prediction_seconds:,.1f}"),
    _measured("peak MB", lambda speed: f"{speed.peak_memory / 1e6:,.0f}"),
)


def cost_tables(rows: Sequence[CostRow]) -> list[Table]:
    """Return a table for each encoder, size and number of classes, and another for the measurements, if any."""
    tables = []
    for _, group in itertools.groupby(rows, lambda row: (row.encoder, row.image_size, row.classes)):
        together = tuple(group)
        tables.append(_table(_title(together[0]), COUNTED, together, _problems(together)))
        speeds = [row.speed for row in together if row.speed]
        if speeds:
            title = f"measured on {speeds[0].device}, {speeds[0].batch_size} images at once"
            tables.append(_table(title, MEASURED, [row for row in together if row.speed], ()))
    return tables


def _table(title: str, quantities: Sequence[Quantity], rows: Sequence[CostRow], notes: Sequence[str]) -> Table:
    columns = [Column.of_names("method"), *(quantity.column for quantity in quantities)]
    cells = [[row.method, *(MISSING if row.problem else q.cell(row) for q in quantities)] for row in rows]
    return Table(title, columns, cells, notes=notes)


def _title(row: CostRow) -> str:
    size = f", {row.image_size} px" if row.image_size else ""
    return f"{row.encoder}{size}, {row.classes} class{'es' if row.classes > 1 else ''}"


def _problems(rows: Sequence[CostRow]) -> list[str]:
    """Return the reasons for missing numbers or measurements, each with its methods."""
    methods: dict[str, list[str]] = {}
    for row in rows:
        if problem := row.problem or row.unmeasured:
            methods.setdefault(problem.removeprefix(f"{row.method} "), []).append(row.method)
    return [f"{', '.join(names)}: {problem}" for problem, names in methods.items()]


def paper_table(networks: Sequence[PaperNetwork]) -> Table:
    """Return Table 3 of the paper and ours: the printed numbers of each method, then our networks."""
    columns = [*map(Column.of_names, ("method", "encoder")), Column("classes"), *(q.column for q in NETWORK)]
    cells: list[list[str]] = []
    for printed, group in itertools.groupby(networks, lambda network: network.printed):
        cells.append([f"{printed.name}, printed", "", "", f"{printed.parameters:.2f}", "", "", f"{printed.gmac:.2f}"])
        rows = (network.row for network in group)
        cells += [[row.method, row.encoder, f"{row.classes}", *(q.cell(row) for q in NETWORK)] for row in rows]
    notes = dict.fromkeys(f"{network.printed.name}: {network.printed.note}" for network in networks)
    problems = _problems([network.row for network in networks])
    return Table("Table 3 of the paper, and ours at 448 px", columns, cells, notes=[*notes, *problems])


def record(row: CostRow) -> dict[str, Any]:
    """Return a row as plain numbers under stable keys; those of a measurement are None without one."""
    numbers = dataclasses.asdict(row)
    speed = numbers.pop("speed") or dict.fromkeys(field.name for field in dataclasses.fields(Speed))
    return numbers | speed


def paper_record(network: PaperNetwork) -> dict[str, Any]:
    """Return the record of a network next to the numbers printed in the paper."""
    printed = {
        "printed_method": network.printed.name,
        "printed_parameters_millions": network.printed.parameters,
        "printed_gmac": network.printed.gmac,
    }
    return printed | record(network.row) | {"note": network.printed.note}
