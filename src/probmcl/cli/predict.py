"""`probmcl predict`: predict the classes of images."""

import csv
import io
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from probmcl.cli.terminal import command_console
from probmcl.errors import LISTED, counted, one_line, printable

if TYPE_CHECKING:
    from probmcl.inference import Predictions


def command(
    run: Annotated[Path, Parameter(help="run folder of the model")],
    images: Annotated[
        list[str], Parameter(help="image files, folders, patterns such as 'photos/**/*.jpg', or .txt files with paths")
    ],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="new .csv or .json file (default: print one line per image)")] = None,
    format: Annotated[  # noqa: A002
        Literal["full", "short"], Parameter(help="short: a CSV table with the columns path and labels only")
    ] = "full",
    threshold: Annotated[
        float | None, Parameter(help="predict a class above this probability (default: the run's thresholds)")
    ] = None,
    raw: Annotated[bool, Parameter(help="give the scores before calibration", negative="")] = False,
    abstain: Annotated[
        float | None,
        Parameter(help="leave decisions open so that at most this share of yes or no is wrong, such as 0.05"),
    ] = None,
    device: Annotated[str, Parameter(help="auto, cpu, cuda or mps")] = "auto",
    workers: Annotated[
        int | None, Parameter(help="processes for decoding images (default: one per core, at most 8)")
    ] = None,
    batch_size: Annotated[int | None, Parameter(help="images per batch (default: the fastest size)")] = None,
    raw_cells: Annotated[
        bool,
        Parameter(
            help="CSV: write paths and names unchanged, even if a spreadsheet would treat them as formulas", negative=""
        ),
    ] = False,
) -> None:
    """Predict the classes of images, with a probability and a decision for each class.

    A CSV file has the columns path and error and, for each class, a column NAME with its probability and a column
    NAME:decision with 1 (yes), 0 (no) or ? (not sure, with --abstain). The column uncertainty is between 0 (certain)
    and 1. A JSON file has the same, with true, false and null. If an image cannot be read, its error is the reason.
    Memory use does not depend on the number of images.

    With --format short, the predicted labels are joined by | (or by ; if a class name contains |). Images
    that cannot be read are left out and named at the end.

    A spreadsheet takes text that starts with =, +, - or @ for a formula. In a CSV file, such a path or name has a
    leading ', which probmcl removes when it reads the file as a table. With --raw-cells, it is written unchanged.

    Example: probmcl predict runs/2026-11-15-photos new/ --out new.csv

    Example: probmcl predict runs/2026-11-15-photos new/ --out new.csv --abstain 0.05
    """
    from probmcl.data.stream import find
    from probmcl.inference import load
    from probmcl.inference.prediction_files import partial_path, refuse_output, write_predictions

    if out is not None:
        refuse_output(out, format)
    if format == "short" and abstain is not None:
        raise ValueError(
            f"--abstain {abstain:g} cannot be combined with --format short, which lists only assigned labels"
        )
    console, counts = command_console(stderr=True), _Counts()
    model = load(run, device=device)
    if model.calibration is None and not raw:
        console.print(f"note: {run} is not calibrated, so these are raw scores; first run: probmcl calibrate {run}")
    blocks = model.stream(images, threshold=threshold, raw=raw, abstain=abstain, batch_size=batch_size, workers=workers)
    if out is None:
        output, tallied = command_console(), counts.count(blocks)
        full = itertools.chain.from_iterable(map(lines, tallied))
        # In a file or a pipe, a CSV table has tabs and line feeds in its cells.
        is_csv = format == "short" and not sys.stdout.isatty() and not output.rich.quiet
        for line in short_lines(tallied, raw_cells=raw_cells) if format == "short" else full:
            (print if is_csv else output.print_line)(line)
    else:
        try:
            with console.working("listing the images"):
                count = sum(1 for _ in find(images))
            with console.progress("predicting", count) as bar:
                tallied = counts.count(blocks, lambda count: bar.advance(count, steps=count))
                write_predictions(out, tallied, format, raw_cells=raw_cells)
        except BaseException:
            if partial_path(out).exists():
                done = counted(counts.images, "image; its prediction is", "images; their predictions are")
                console.print(f"stopped after {done} in {partial_path(out)}")
            raise
        written = counts.images - counts.errors if format == "short" else counts.images
        console.print(f"predictions for {counted(written, 'image')}: {out}")
    if counts.errors:
        reasons = "see ERROR in the output" if out is None else f"see the error column in {out}"
        message = counts.message(f"not in the output: {counts.named()}" if format == "short" else reasons)
        if counts.errors == counts.images:
            raise ValueError(message)
        console.print(message)


def lines(block: "Predictions") -> Iterator[str]:
    """Yield one line per image: the predicted classes by descending probability; if none, the most probable class."""
    from probmcl.inference.prediction import line

    return (line(image, most=len(block.names)) for image in block)


def short_lines(blocks: Iterator["Predictions"], *, raw_cells: bool = False) -> Iterator[str]:
    """Yield the rows of the short CSV table; control characters except tabs and line feeds are escaped."""
    from probmcl.inference.prediction_files import short_rows

    for row in short_rows(blocks, raw_cells=raw_cells):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(map(printable, row))
        yield text.getvalue().removesuffix("\n")


@dataclass
class _Counts:
    """The number of images and of unreadable images so far, and the paths of the first unreadable images."""

    images: int = 0
    errors: int = 0
    first: list[Path] = field(default_factory=list)

    def count(
        self, blocks: Iterator["Predictions"], advance: Callable[[int], object] = lambda count: None
    ) -> Iterator["Predictions"]:
        for block in blocks:
            unreadable = [path for path, why in zip(block.paths, block.reasons, strict=True) if why is not None]
            self.images, self.errors = self.images + len(block), self.errors + len(unreadable)
            self.first = [*self.first, *unreadable][:LISTED]
            advance(len(block))
            yield block

    def message(self, reasons: str) -> str:
        return f"{self.errors:,} of {counted(self.images, 'image')} could not be read; {reasons}"

    def named(self) -> str:
        rest = self.errors - len(self.first)
        return ", ".join(map(one_line, self.first)) + (f" and {rest:,} more" if rest else "")
