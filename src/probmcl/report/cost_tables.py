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
    return MISSING if count is None else f"{count:.2f}" if count >= 1 else f"{count:.3f}"


NETWORK = [*map(Column, ("params M training", "params M predicting", "GMAC torch", "GMAC ptflops"))]
COUNTED = [*NETWORK[:2], Column.of_names("head"), *NETWORK[2:], Column("views"), Column("GMAC training")]
MEASURED = [*map(Column, ("training ms/image", "training views/s", "predicting ms/image", "peak MB"))]


def cost_tables(rows: Sequence[CostRow]) -> list[Table]:
    """Return one table per encoder, size and number of classes, each followed by a table of measurements, if any."""
    tables = []
    for (encoder, size, classes), group in itertools.groupby(rows, lambda r: (r.encoder, r.image_size, r.classes)):
        together, name = tuple(group), Column.of_names("method")
        title = f"{encoder}{f', {size} px' if size else ''}, {counted(classes, 'class', 'classes')}"
        cells = [[row.method, *_counted(row)] for row in together]
        tables.append(Table(title, [name, *COUNTED], cells, notes=_problems(together)))
        speeds = [(row.method, row.speed) for row in together if row.speed]
        if speeds:
            title = f"measured on {speeds[0][1].device}, batch size {speeds[0][1].batch_size}"
            tables.append(Table(title, [name, *MEASURED], [[method, *_measured(speed)] for method, speed in speeds]))
    return tables


def _network(row: CostRow) -> list[str]:
    parameters = millions(row.training_parameters), millions(row.prediction_parameters)
    return [*parameters, giga(row.gmac), giga(row.gmac_ptflops)]


def _counted(row: CostRow) -> list[str]:
    if row.problem:
        return [MISSING] * len(COUNTED)
    training, prediction, *gmac = _network(row)
    head = "own" if row.own_head else "probe"
    return [training, prediction, head, *gmac, f"{row.views}", giga(row.training_gmac)]


def _measured(speed: Speed) -> list[str]:
    numbers = 1000 * speed.step_seconds, speed.views_per_second, 1000 * speed.prediction_seconds
    return [*(f"{number:,.1f}" for number in numbers), f"{speed.peak_memory / 1e6:,.0f}"]


def _problems(rows: Sequence[CostRow]) -> list[str]:
    methods: dict[str, list[str]] = {}
    for row in rows:
        if problem := row.problem or row.unmeasured:
            methods.setdefault(problem.removeprefix(f"{row.method} "), []).append(row.method)
    return [f"{', '.join(names)}: {problem}" for problem, names in methods.items()]


def paper_table(networks: Sequence[PaperNetwork]) -> Table:
    """Return a table in which each row from Table 3 of the paper is followed by rows for our networks."""
    columns = [*map(Column.of_names, ("method", "encoder")), Column("classes"), *NETWORK]
    cells: list[list[str]] = []
    for printed, group in itertools.groupby(networks, lambda network: network.printed):
        cells.append([f"{printed.name} (paper)", "", "", f"{printed.parameters:.2f}", "", "", f"{printed.gmac:.2f}"])
        rows = (network.row for network in group)
        cells += [[row.method, row.encoder, f"{row.classes}", *_network(row)] for row in rows]
    notes = dict.fromkeys(f"{network.printed.name}: {network.printed.note}" for network in networks)
    problems = _problems([network.row for network in networks])
    return Table("Table 3 of the paper and our networks at 448 px", columns, cells, notes=[*notes, *problems])


def record(row: CostRow) -> dict[str, Any]:
    """Return a row as a flat dictionary; measured values are None if nothing was measured."""
    numbers = dataclasses.asdict(row)
    speed = numbers.pop("speed") or dict.fromkeys(field.name for field in dataclasses.fields(Speed))
    return numbers | speed


def paper_record(network: PaperNetwork) -> dict[str, Any]:
    """Return the record of a network, including the numbers that the paper prints for it."""
    printed = network.printed
    numbers = {"printed_parameters_millions": printed.parameters, "printed_gmac": printed.gmac}
    return {"printed_method": printed.name} | numbers | record(network.row) | {"note": printed.note}
