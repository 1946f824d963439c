"""`probmcl cost`: parameters, operations, time and memory of methods, without training them."""

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from probmcl.cli.options import COMMA_LIST, command_console, spell_options
from probmcl.console import Console
from probmcl.errors import suggestion
from probmcl.tables import Table, to_csv, to_markdown, to_rich

FORMATS = (".csv", ".json", ".md")
COUNTED = Group.create_ordered("Networks")
MEASURED = Group.create_ordered("Measurement")
OUTPUT = Group.create_ordered("Output")

Item = TypeVar("Item")


Names = Annotated[tuple[str, ...], COMMA_LIST]
Numbers = Annotated[tuple[int, ...], COMMA_LIST, Parameter(validator=Number(gte=1))]


def command(
    *methods: Annotated[
        str, Parameter(help="methods, before any option, such as csra probmcl:paper (default: all)", group=COUNTED)
    ],
    preset: Annotated[
        str | None, Parameter(help="preset for methods that are given without one", group=COUNTED)
    ] = None,
    encoders: Annotated[
        Names, Parameter(help="timm models, such as resnet101 tresnet_l (default: as in train)", group=COUNTED)
    ] = (),
    image_sizes: Annotated[
        Numbers, Parameter(help="input sizes in pixels, such as 224 448 (default: set by the encoder)", group=COUNTED)
    ] = (),
    classes: Annotated[
        Numbers, Parameter(help="numbers of classes, such as 9 80 (default: 80, as in MS-COCO)", group=COUNTED)
    ] = (),
    paper: Annotated[
        bool, Parameter(help="reproduce Table 3 of the paper instead", negative="", group=COUNTED)
    ] = False,
    measure: Annotated[
        bool, Parameter(help="also measure time and memory on random images", negative="", group=MEASURED)
    ] = False,
    batch_size: Annotated[int | None, Parameter(help="images per step (default: 8)", group=MEASURED)] = None,
    device: Annotated[str | None, Parameter(help="auto, cpu, cuda or mps", group=MEASURED)] = None,
    out: Annotated[Path | None, Parameter(help="new file for the results: .csv, .json or .md", group=OUTPUT)] = None,
) -> None:
    """Show the number of parameters and multiply-adds (GMAC) of methods, and optionally their time and memory.

    Parameters and operations are counted from tensor shapes, without training or downloads. With --measure, a training
    step and a prediction are timed on random images. Ctrl-C stops and shows the rows finished so far.

    Example: probmcl cost csra probmcl:paper --encoders resnet101 --classes 9 80

    Example: probmcl cost bce probmcl --measure --batch-size 16 --out costs.csv

    Example: probmcl cost --paper
    """
    others: dict[str, object] = {
        "METHODS": methods,
        "--preset": preset,
        "--encoders": encoders,
        "--image-sizes": image_sizes,
        "--classes": classes,
        "--measure": measure,
        "--batch-size": batch_size,
        "--device": device,
    }
    given = [name for name, value in others.items() if value]
    if paper and given:
        raise ValueError(f"--paper cannot be combined with {', '.join(given)}")
    if not measure and (batch_size is not None or device is not None):
        raise ValueError("--batch-size and --device require --measure")
    _refuse_output(out)
    console = command_console()
    if paper:
        _show_paper(console, out)
        return
    from probmcl.cost.rows import cost_rows, parse_cost_methods
    from probmcl.cost.speed import MeasureOptions
    from probmcl.encoders import describe_encoder
    from probmcl.methods import METHODS
    from probmcl.report.cost_tables import cost_tables, record
    from probmcl.runtime.machine import find_device
    from probmcl.settings import CPU_ENCODER, GPU_ENCODER

    names = [part for word in methods for part in word.split(",") if part]
    specs = parse_cost_methods(names or ["all"], preset)
    if not encoders:
        default_encoder = CPU_ENCODER if find_device("auto") == "cpu" else GPU_ENCODER
        encoders = (default_encoder,)
    for name in encoders:
        if name in METHODS:
            raise ValueError(f"--encoders {name}: {name} is a method; put methods before the options")
        describe_encoder(name)  # raises an error for an unknown name
    options = None
    if measure:
        images_per_step = 8 if batch_size is None else batch_size
        options = MeasureOptions(find_device(device or "auto"), images_per_step)
    sizes = image_sizes or (None,)  # None: that of the encoder
    numbers_of_classes = classes or (80,)
    total = len(specs) * len(encoders) * len(sizes) * len(numbers_of_classes)
    rows = _collect(console, cost_rows(specs, encoders, sizes, numbers_of_classes, options), total)
    was_interrupted = len(rows) < total
    if not was_interrupted and all(row.problem for row in rows):
        raise ValueError(rows[0].problem)
    rows = [replace(row, problem=row.problem and spell_options(row.problem)) for row in rows]
    _show(console, cost_tables(rows), [record(row) for row in rows], total, out)


def _show_paper(console: Console, out: Path | None) -> None:
    """Show the networks of the paper's Table 3."""
    from probmcl.cost.paper import PAPER_ROWS, paper_networks
    from probmcl.report.cost_tables import paper_record, paper_table

    networks = _collect(console, paper_networks(), PAPER_ROWS)
    _show(console, [paper_table(networks)], [paper_record(network) for network in networks], PAPER_ROWS, out)


def _collect(console: Console, rows: Iterable[Item], total: int) -> list[Item]:
    """Collect rows until all are done or the user interrupts."""
    collected = []
    with console.progress("counting", total) as bar, contextlib.suppress(KeyboardInterrupt):
        for row in rows:
            collected.append(row)
            bar.advance()
    return collected


def _show(
    console: Console, tables: Sequence[Table], records: Sequence[dict[str, Any]], total: int, out: Path | None
) -> None:
    """Print the tables and write the file.

    If there are fewer records than `total`, the user has interrupted the command. Then `KeyboardInterrupt` is raised at
    the end.
    """
    from probmcl.runtime.files import write_text

    if not records:
        raise KeyboardInterrupt("no rows were finished")
    for table in tables:
        console.rich.print(to_rich(table), "")
    console.print(
        "GMAC training: forward pass of one image with all its views; the backward pass adds about twice as much"
    )
    if out is not None:
        write_text(out, _file_content(out.suffix.lower(), tables, records))
        console.print(f"written to {out}")
    if len(records) < total:
        verb = "is" if len(records) == 1 else "are"
        raise KeyboardInterrupt(f"{len(records)} of {total} rows {verb} shown")


def _file_content(suffix: str, tables: Sequence[Table], records: Sequence[dict[str, Any]]) -> str:
    """Return the text of a file with a suffix in `FORMATS`: the tables as Markdown, or the records in other formats."""
    if suffix == ".csv":
        return to_csv(records)
    if suffix == ".json":
        return json.dumps(records, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return "\n".join(map(to_markdown, tables))


def _refuse_output(out: Path | None) -> None:
    """Raise an error if the output file has an unknown type or exists."""
    if out is None:
        return
    if out.suffix.lower() not in FORMATS:
        raise ValueError(f"--out {out}: unknown file type {out.suffix!r}; {suggestion(out.suffix, FORMATS)}")
    if out.exists():
        raise ValueError(f"--out {out}: the file already exists; choose another name")
