"""`probmcl predict`: predict the classes of images."""

import contextlib
import csv
import io
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from probmcl.cli.options import Given, Layout, ModelCommand, command_console, own_command_of
from probmcl.console import Console
from probmcl.errors import LISTED, counted, one_line, printable
from probmcl.settings.declaration import Option
from probmcl.settings.model_options import StreamOptions

if TYPE_CHECKING:
    from probmcl.inference import Predictions


@dataclass(frozen=True)
class PredictCommand(ModelCommand):
    """What only the command has."""

    _: KW_ONLY
    out: Annotated[Path | None, Option("new .csv or .json file (default: print one line per image)")] = None
    format: Annotated[Literal["full", "short"], Option("short: a CSV table with the columns path and labels only")] = (
        "full"
    )
    raw_cells: Annotated[
        bool,
        Option("CSV: write paths and names unchanged, even if a spreadsheet would treat them as formulas"),
    ] = False


LAYOUT = Layout(types={"images": list[str]}, follows={"device": "abstain", "raw_cells": "batch_size"}, has_groups=False)


@own_command_of(PredictCommand, StreamOptions, LAYOUT)
def command(own: PredictCommand, given: Given) -> None:
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
    from probmcl.data.loader import find
    from probmcl.inference import load
    from probmcl.inference.prediction_files import refuse_output, write_predictions

    if own.out is not None:
        refuse_output(own.out, own.format)
    if own.format == "short" and "abstain" in given:
        abstain = f"--abstain {given['abstain']:g}"
        raise ValueError(f"{abstain} cannot be combined with --format short, which lists only assigned labels")
    console = command_console(stderr=True)
    model = load(own.run, device=own.device)
    if model.calibration is None and not given.get("raw"):
        problem = f"{own.run} is not calibrated, so these are raw scores"
        console.print(f"note: {problem}; first run: probmcl calibrate {own.run}")
    blocks = model.stream(**given)
    counts = _Counts()
    if own.out is None:
        _print_predictions(counts.count(blocks), own)
    else:
        with console.working("listing the images"):
            total = sum(1 for _ in find(given["images"]))
        with _partial_file_noted(own.out, counts, console), console.progress("predicting", total) as bar:
            counted_blocks = counts.count(blocks, lambda images: bar.advance(images, steps=images))
            write_predictions(own.out, counted_blocks, own.format, raw_cells=own.raw_cells)
        written = counts.images
        if own.format == "short":  # it leaves out unreadable images
            written -= counts.errors
        console.print(f"predictions for {counted(written, 'image')}: {own.out}")
    if counts.errors:
        message = counts.message(_where_reasons_are(own, counts))
        if counts.errors == counts.images:
            raise ValueError(message)
        console.print(message)


def _print_predictions(blocks: Iterator["Predictions"], own: PredictCommand) -> None:
    """Print the predictions as they are made, one line per image or as a CSV table."""
    output = command_console()
    if own.format == "full":
        for line in itertools.chain.from_iterable(map(prediction_lines, blocks)):
            output.print_line(line)
        return
    # `print_line` escapes tabs and line feeds. In a file or a pipe, the cells of the CSV table keep them.
    escapes_lines = sys.stdout.isatty() or output.rich.quiet
    write = output.print_line if escapes_lines else print
    for line in short_lines(blocks, raw_cells=own.raw_cells):
        write(line)


@contextlib.contextmanager
def _partial_file_noted(out: Path, counts: "_Counts", console: Console) -> Iterator[None]:
    """If writing stops early, print how many predictions the partial file has."""
    from probmcl.inference.prediction_files import partial_path

    try:
        yield
    except BaseException:
        if partial_path(out).exists():
            done = counted(counts.images, "image; its prediction is", "images; their predictions are")
            console.print(f"stopped after {done} in {partial_path(out)}")
        raise


def _where_reasons_are(own: PredictCommand, counts: "_Counts") -> str:
    """Return where to find the unreadable images and the reasons; the short format does not have the reasons."""
    if own.format == "short":
        return f"not in the output: {counts.named()}"
    if own.out is None:
        return "see ERROR in the output"
    return f"see the error column in {own.out}"


def prediction_lines(block: "Predictions") -> Iterator[str]:
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
        """Yield the blocks unchanged, and count their images; `advance` is called with the number in each block."""
        for block in blocks:
            unreadable = [path for path, reason in zip(block.paths, block.reasons, strict=True) if reason is not None]
            self.images += len(block)
            self.errors += len(unreadable)
            self.first = [*self.first, *unreadable][:LISTED]
            advance(len(block))
            yield block

    def message(self, reasons: str) -> str:
        """Return a sentence with the number of unreadable images; `reasons` says where to find the reasons."""
        return f"{self.errors:,} of {counted(self.images, 'image')} could not be read; {reasons}"

    def named(self) -> str:
        """Return the paths of the first unreadable images, and the number of the others."""
        paths = ", ".join(map(one_line, self.first))
        rest = self.errors - len(self.first)
        return f"{paths} and {rest:,} more" if rest else paths
