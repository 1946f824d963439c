"""`probmcl predict`: the classes in images."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from probmcl.cli import command_console

if TYPE_CHECKING:
    from probmcl.inference import Predictions


def predict(
    run: Annotated[Path, Parameter(help="the run folder of a trained model")],
    images: Annotated[
        list[str], Parameter(help="image files, folders, patterns such as 'photos/**/*.jpg', .txt lists of paths")
    ],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="a new file, .csv or .json (default: print a listing)")] = None,
    threshold: Annotated[float, Parameter(help="a class is decided for if its probability is greater")] = 0.5,
    below_parents: Annotated[
        bool, Parameter(help="no class scores above its parent, if the run's classes have parents", negative="")
    ] = False,
    device: Annotated[str, Parameter(help="auto, cpu, cuda or mps")] = "auto",
    workers: Annotated[
        int | None, Parameter(help="processes that decode images (default: one per core, at most eight)")
    ] = None,
    batch_size: Annotated[int | None, Parameter(help="images at once (default: the fastest number)")] = None,
) -> None:
    """Predict the classes in images: a probability and a decision for each class.

    The table has the columns path and error, then for each class its NAME with the probability, then for each class
    NAME:decision with 0 or 1. JSON has for each image path, error, probabilities and decisions by name. An image that
    cannot be read has its reason under error; the others are predicted. Memory does not grow with the number of images.

    Example: probmcl predict runs/2026-11-15-photos new/ --out new.csv
    """
    from rich.console import Console as RichConsole

    from probmcl.data.stream import find
    from probmcl.inference import load
    from probmcl.inference.predictions import partial_path, refuse_output, write_predictions

    if out is not None:
        refuse_output(out)
    console, counts = command_console(stderr=True), Counter[str]()
    blocks = load(run, device=device).stream(
        images, threshold=threshold, below_parents=below_parents, batch_size=batch_size, workers=workers
    )
    if out is None:
        listing = RichConsole(emoji=False, highlight=False, markup=False)
        for line in itertools.chain.from_iterable(map(lines, _counted(blocks, counts, lambda _: None))):
            listing.print(line, soft_wrap=True)
    else:
        try:
            with console.progress("predicting", sum(1 for _ in find(images))) as bar:
                write_predictions(out, _counted(blocks, counts, lambda count: bar.advance(count, steps=count)))
        except BaseException:
            if partial_path(out).exists():
                console.print(f"stopped after {counts['images']:,} images; they are in {partial_path(out)}")
            raise
        console.print(f"{counts['images']:,} images: {out}")
    reasons = f"the reasons are in {'the listing' if out is None else out}"
    unreadable = f"{counts['errors']:,} of {counts['images']:,} images could not be read; {reasons}"
    if counts["errors"] == counts["images"]:
        raise ValueError(unreadable)
    if counts["errors"]:
        console.print(unreadable)


def lines(block: "Predictions") -> Iterator[str]:
    """Yield a line per image: the classes decided for, the most probable first; if there are none, the nearest one."""
    for path, scores in zip(block.paths, block.scores.tolist(), strict=True):
        ranked = sorted(zip(scores, block.names, strict=True), key=lambda pair: -pair[0])
        decided = ", ".join(f"{name} {score:.2f}" for score, name in ranked if score > block.threshold)
        nearest = f"nothing above {block.threshold:g}; nearest {ranked[0][1]} {ranked[0][0]:.2f}"
        text = f"ERROR: {block.errors[path]}" if path in block.errors else decided or nearest
        # A file name may not be valid text.
        yield f"{os.fsencode(path).decode(errors='backslashreplace')}: {text}"


def _counted(
    blocks: Iterator["Predictions"], counts: Counter[str], advance: Callable[[int], object]
) -> Iterator["Predictions"]:
    for block in blocks:
        counts.update(images=len(block), errors=sum(path in block.errors for path in block.paths))
        advance(len(block))
        yield block
