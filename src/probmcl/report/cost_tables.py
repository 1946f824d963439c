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

PARAMETERS = [Column("params M training"), Column("params M predicting")]
GMAC = [Column("GMAC torch"), Column("GMAC ptflops")]
NETWORK = [*PARAMETERS, *GMAC]
"""Columns of the size of a network, and of the operations to predict one image."""

COUNTED = [*PARAMETERS, Column.of_names("head"), *GMAC, Column("views"), Column("GMAC training")]
"""Columns of the numbers that are counted from shapes."""

MEASURED = [Column("training ms/image"), Column("training views/s"), Column("predicting ms/image"), Column("peak MB")]
"""Columns of the measurements."""


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
    decimals = 2 if count >= 1 else 3
    return f"{count:.{decimals}f}"


def cost_tables(rows: Sequence[CostRow]) -> list[Table]:
    """Return one table per encoder, size and number of classes, each followed by a table of measurements, if any."""
    tables = []
    for _, group in itertools.groupby(rows, lambda row: (row.encoder, row.image_size, row.classes)):
        alike = list(group)
        tables.append(_counted_table(alike))
        speeds = [(row.method, row.speed) for row in alike if row.speed]
        if speeds:
            tables.append(_measured_table(speeds))
    return tables


def _counted_table(rows: Sequence[CostRow]) -> Table:
    """Return the parameters and operations of rows with the same encoder, size and number of classes."""
    first = rows[0]
    size = f", {first.image_size} px" if first.image_size else ""
    classes = counted(first.classes, "class", "classes")
    title = f"{first.encoder}{size}, {classes}"
    columns = [Column.of_names("method"), *COUNTED]
    cells = [[row.method, *_counted_cells(row)] for row in rows]
    return Table(title, columns, cells, notes=_problems(rows))


def _measured_table(speeds: Sequence[tuple[str, Speed]]) -> Table:
    """Return the measurements of some methods, which are all from the same device and batch size."""
    _, first_speed = speeds[0]
    title = f"measured on {first_speed.device}, batch size {first_speed.batch_size}"
    columns = [Column.of_names("method"), *MEASURED]
    cells = [[method, *_measured_cells(speed)] for method, speed in speeds]
    return Table(title, columns, cells)


def _parameter_cells(row: CostRow) -> list[str]:
    """Return the two cells of the columns `PARAMETERS`: in training and in predicting."""
    return [millions(row.training_parameters), millions(row.prediction_parameters)]


def _gmac_cells(row: CostRow) -> list[str]:
    """Return the two cells of the columns `GMAC`: as torch and as ptflops count."""
    return [giga(row.gmac), giga(row.gmac_ptflops)]


def _counted_cells(row: CostRow) -> list[str]:
    """Return the cells of the columns `COUNTED`; all are missing if the cost cannot be counted."""
    if row.problem:
        return [MISSING] * len(COUNTED)
    head = "own" if row.own_head else "probe"
    views = str(row.views)
    return [*_parameter_cells(row), head, *_gmac_cells(row), views, giga(row.training_gmac)]


def _measured_cells(speed: Speed) -> list[str]:
    """Return the cells of the columns `MEASURED`."""
    training_milliseconds = 1000 * speed.step_seconds
    prediction_milliseconds = 1000 * speed.prediction_seconds
    megabytes = speed.peak_memory / 1e6
    return [
        f"{training_milliseconds:,.1f}",
        f"{speed.views_per_second:,.1f}",
        f"{prediction_milliseconds:,.1f}",
        f"{megabytes:,.0f}",
    ]


def _problems(rows: Sequence[CostRow]) -> list[str]:
    """Return a line for each distinct reason why numbers are missing, with the methods that it applies to."""
    methods_by_problem: dict[str, list[str]] = {}
    for row in rows:
        problem = row.problem or row.unmeasured
        if problem:
            without_name = problem.removeprefix(f"{row.method} ")  # it may begin with the method
            methods_by_problem.setdefault(without_name, []).append(row.method)
    return [f"{', '.join(methods)}: {problem}" for problem, methods in methods_by_problem.items()]


def paper_table(networks: Sequence[PaperNetwork]) -> Table:
    """Return a table in which each row from Table 3 of the paper is followed by rows for our networks.

    The paper prints one number of parameters and one of GMAC. They are in the columns of our numbers that are counted
    in the same way: the parameters in training, and the GMAC of ptflops. The other cells of a printed row are empty.
    """
    title = "Table 3 of the paper and our networks at 448 px"
    columns = [Column.of_names("method"), Column.of_names("encoder"), Column("classes"), *NETWORK]
    cells: list[list[str]] = []
    for printed, group in itertools.groupby(networks, lambda network: network.printed):
        printed_names = [f"{printed.name} (paper)", "", ""]  # method; no encoder, no classes
        printed_parameters = [f"{printed.parameters:.2f}", ""]  # in training; none in predicting
        printed_gmac = ["", f"{printed.gmac:.2f}"]  # none of torch; of ptflops
        cells.append([*printed_names, *printed_parameters, *printed_gmac])
        for network in group:
            row = network.row
            names = [row.method, row.encoder, str(row.classes)]
            cells.append([*names, *_parameter_cells(row), *_gmac_cells(row)])
    notes = [f"{network.printed.name}: {network.printed.note}" for network in networks]
    distinct_notes = list(dict.fromkeys(notes))
    problems = _problems([network.row for network in networks])
    return Table(title, columns, cells, notes=distinct_notes + problems)


def record(row: CostRow) -> dict[str, Any]:
    """Return a row as a flat dictionary; measured values are None if nothing was measured."""
    values = dataclasses.asdict(row)
    nothing_measured = dict.fromkeys(field.name for field in dataclasses.fields(Speed))
    measured = values.pop("speed") or nothing_measured
    return values | measured


def paper_record(network: PaperNetwork) -> dict[str, Any]:
    """Return the record of a network, including the numbers that the paper prints for it."""
    printed = network.printed
    numbers = {
        "printed_method": printed.name,
        "printed_parameters_millions": printed.parameters,
        "printed_gmac": printed.gmac,
    }
    return numbers | record(network.row) | {"note": printed.note}
