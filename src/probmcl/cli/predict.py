"""`probmcl predict`: what a trained model sees in images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from probmcl.console import Console, ProgressBar
    from probmcl.inference import Predictions


def predict(
    run: Annotated[Path, Parameter(help="the run folder of a trained model")],
    images: Annotated[
        list[str], Parameter(help="image files, folders, patterns such as 'photos/**/*.jpg', .txt lists of paths")
    ],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="a new file, .csv or .json; without it a listing is shown")] = None,
    threshold: Annotated[float, Parameter(help="a class is decided for where its probability is greater")] = 0.5,
    below_parents: Annotated[
        bool, Parameter(help="no class scores above its parent, where the run's classes have parents", negative="")
    ] = False,
    device: Annotated[str, Parameter(help="auto, cpu, cuda or mps")] = "auto",
    workers: Annotated[
        int | None, Parameter(help="processes that decode; by default one a core, at most eight")
    ] = None,
    batch_size: Annotated[int | None, Parameter(help="images at once; by default what is fastest")] = None,
) -> None:
    """Say which classes are in images: a probability and a decision for each class.

    The table has the columns path and error, then for each class its NAME with the probability, then for each class
    NAME:decision with 0 or 1. JSON has for each image path, error, probabilities and decisions by name. An image that
    cannot be read has its reason under error, and the rest goes on. Any number of images takes the same memory.

    Example: probmcl predict runs/2026-11-15-photos new/ --out new.csv
    """
    from rich.console import Console as RichConsole

    from probmcl.console import Console
    from probmcl.inference import load
    from probmcl.inference.predictions import refuse_output

    if out is not None:
        refuse_output(out)
    console = Console(RichConsole(stderr=True, emoji=False))
    blocks = load(run, device=device).stream(
        images, threshold=threshold, below_parents=below_parents, batch_size=batch_size, workers=workers
    )
    if out is None:
        _show(blocks, console)
    else:
        _save(blocks, images, out, console)


def lines(block: Predictions) -> Iterator[str]:
    """A line for each image: the classes decided for, the most probable first; where there is none, the nearest one."""
    for path, scores in zip(block.paths, block.scores.tolist(), strict=True):
        ranked = sorted(zip(scores, block.names, strict=True), key=lambda pair: -pair[0])
        decided = [f"{name} {score:.2f}" for score, name in ranked if score > block.threshold]
        if path in block.errors:
            said = f"ERROR: {block.errors[path]}"
        elif decided:
            said = ", ".join(decided)
        else:
            said = f"nothing above {block.threshold:g}; nearest {ranked[0][1]} {ranked[0][0]:.2f}"
        # A file's name may be no text at all.
        yield f"{os.fsencode(path).decode(errors='backslashreplace')}: {said}"


class _Counted:
    """Passes blocks on, and counts their images and those that could not be read."""

    def __init__(self, blocks: Iterator[Predictions]) -> None:
        self.blocks, self.images, self.broken = blocks, 0, 0

    def __iter__(self) -> Iterator[Predictions]:
        for block in self.blocks:
            self.images += len(block)
            self.broken += sum(path in block.errors for path in block.paths)
            yield block

    def report(self, console: Console, where: str) -> None:
        """Say how many could not be read, if any; where all of them could not, the command has failed."""
        said = f"{self.broken:,} of {self.images:,} images could not be read; {where}"
        if self.broken == self.images:
            raise ValueError(said)
        if self.broken:
            console.print(said)


def _show(blocks: Iterator[Predictions], console: Console) -> None:
    from rich.console import Console as RichConsole

    listing, counted = RichConsole(emoji=False, highlight=False, markup=False), _Counted(blocks)
    for block in counted:
        for line in lines(block):
            listing.print(line, soft_wrap=True)
    counted.report(console, "the reasons are in the listing")


def _save(blocks: Iterator[Predictions], images: list[str], out: Path, console: Console) -> None:
    from probmcl.data.stream import find
    from probmcl.inference.predictions import partial_path, write_predictions

    counted = _Counted(blocks)
    try:
        with console.progress("predicting", sum(1 for _ in find(images))) as bar:
            write_predictions(out, _shown(counted, bar))
    except BaseException:
        if partial_path(out).exists():
            console.print(f"stopped after {counted.images:,} images; what was reached is in {partial_path(out)}")
        raise
    console.print(f"{counted.images:,} images: {out}")
    counted.report(console, f"the reasons are in {out}")


def _shown(blocks: Iterable[Predictions], bar: ProgressBar) -> Iterator[Predictions]:
    for block in blocks:
        for _ in block.paths:
            bar.advance(images=1)
        yield block
