"""Tables of `probmcl cost`, and the same numbers as records for CSV and JSON."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from probmcl.cost.paper import PaperNetwork
from probmcl.cost.rows import CostRow
from probmcl.cost.speed import Speed
from probmcl.errors import counted
from probmcl.tables import MISSING, Column, Table


def millions(count: int | None) -> str:
    """Return a number of parameters in millions.

    >>> millions(42_518_592), millions(None)
    ('42.52', '–')
    """
    return MISSING if count is None else f"{count / 1e6:.2f}"


def giga(count: float | None) -> str:
    """Return GMAC with two decimals, or with three below 1.

    >>> giga(31.2), giga(0.3841)
    ('31.20', '0.384')
    """
    if count is None:
        return MISSING
    return f"{count:.2f}" if count >= 1 else f"{count:.3f}"


NETWORK = [*map(Column, ("params M training", "params M predicting", "GMAC torch", "GMAC ptflops"))]
COUNTED = [*NETWORK[:2], Column.of_names("head"), *NETWORK[2:], Column("views"), Column("GMAC training")]
MEASURED = [*map(Column, ("training ms/image", "training views/s", "predicting ms/image", "peak MB"))]


def cost_tables(rows: Sequence[CostRow]) -> list[Table]:
    """Return one table per encoder, size and number of classes, each followed by a table of measurements, if any."""
    tables = []
    for _, group in itertools.groupby(rows, lambda row: (row.encoder, row.image_size, row.classes)):
        together = list(group)
        tables.append(_counted_table(together))
        measured = [(row.method, row.speed) for row in together if row.speed]
        if measured:
            tables.append(_measured_table(measured))
    return tables


def _counted_table(rows: Sequence[CostRow]) -> Table:
    """Return the parameters and operations of rows with the same encoder, size and number of classes."""
    first = rows[0]
    size = f", {first.image_size} px" if first.image_size else ""
    title = f"{first.encoder}{size}, {counted(first.classes, 'class', 'classes')}"
    cells = [[row.method, *_counted(row)] for row in rows]
    return Table(title, [Column.of_names("method"), *COUNTED], cells, notes=_problems(rows))


def _measured_table(speeds: Sequence[tuple[str, Speed]]) -> Table:
    """Return the measurements of some methods."""
    _, first = speeds[0]
    title = f"measured on {first.device}, batch size {first.batch_size}"
    cells = [[method, *_measured(speed)] for method, speed in speeds]
    return Table(title, [Column.of_names("method"), *MEASURED], cells)


def _network(row: CostRow) -> list[str]:
    return [
        millions(row.training_parameters),
        millions(row.prediction_parameters),
        giga(row.gmac),
        giga(row.gmac_ptflops),
    ]


def _counted(row: CostRow) -> list[str]:
    if row.problem:
        return [MISSING] * len(COUNTED)
    training, prediction, *gmac = _network(row)
    head = "own" if row.own_head else "probe"
    return [training, prediction, head, *gmac, f"{row.views}", giga(row.training_gmac)]


def _measured(speed: Speed) -> list[str]:
    return [
        f"{1000 * speed.step_seconds:,.1f}",
        f"{speed.views_per_second:,.1f}",
        f"{1000 * speed.prediction_seconds:,.1f}",
        f"{speed.peak_memory / 1e6:,.0f}",
    ]


def _problems(rows: Sequence[CostRow]) -> list[str]:
    methods: dict[str, list[str]] = {}
    for row in rows:
        problem = row.problem or row.unmeasured
        if problem:
            text = problem.removeprefix(f"{row.method} ")
            methods.setdefault(text, []).append(row.method)
    return [f"{', '.join(names)}: {problem}" for problem, names in methods.items()]


def paper_table(networks: Sequence[PaperNetwork]) -> Table:
    """Return a table in which each row from Table 3 of the paper is followed by rows for our networks."""
    columns = [*map(Column.of_names, ("method", "encoder")), Column("classes"), *NETWORK]
    cells: list[list[str]] = []
    for printed, group in itertools.groupby(networks, lambda network: network.printed):
        cells.append([f"{printed.name} (paper)", "", "", f"{printed.parameters:.2f}", "", "", f"{printed.gmac:.2f}"])
        for network in group:
            row = network.row
            cells.append([row.method, row.encoder, f"{row.classes}", *_network(row)])
    notes = [f"{network.printed.name}: {network.printed.note}" for network in networks]
    unique_notes = list(dict.fromkeys(notes))
    problems = _problems([network.row for network in networks])
    return Table("Table 3 of the paper and our networks at 448 px", columns, cells, notes=unique_notes + problems)


def record(row: CostRow) -> dict[str, Any]:
    """Return a row as a flat dictionary; measured values are None if nothing was measured."""
    numbers = dataclasses.asdict(row)
    nothing_measured = dict.fromkeys(field.name for field in dataclasses.fields(Speed))
    speed = numbers.pop("speed") or nothing_measured
    return numbers | speed


def paper_record(network: PaperNetwork) -> dict[str, Any]:
    """Return the record of a network, including the numbers that the paper prints for it."""
    printed = network.printed
    numbers = {
        "printed_method": printed.name,
        "printed_parameters_millions": printed.parameters,
        "printed_gmac": printed.gmac,
    }
    return numbers | record(network.row) | {"note": printed.note}
