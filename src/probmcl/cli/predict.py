"""`probmcl predict`: predict the classes of images."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from probmcl.cli import command_console
from probmcl.errors import counted

if TYPE_CHECKING:
    from probmcl.inference import Predictions


def predict(
    run: Annotated[Path, Parameter(help="run folder of the model")],
    images: Annotated[
        list[str], Parameter(help="image files, folders, patterns such as 'photos/**/*.jpg', or .txt files with paths")
    ],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="new .csv or .json file (default: print one line per image)")] = None,
    threshold: Annotated[float, Parameter(help="a class is predicted if its probability is above this value")] = 0.5,
    below_parents: Annotated[
        bool, Parameter(help="limit the score of a class to its parent's score", negative="")
    ] = False,
    device: Annotated[str, Parameter(help="auto, cpu, cuda or mps")] = "auto",
    workers: Annotated[
        int | None, Parameter(help="processes for decoding images (default: one per core, at most 8)")
    ] = None,
    batch_size: Annotated[int | None, Parameter(help="images per batch (default: the fastest size)")] = None,
) -> None:
    """Predict the classes of images, with a probability and a decision for each class.

    A CSV file has the columns path and error and, for each class, a column NAME with its probability and a column
    NAME:decision with 0 or 1. A JSON file has the path, error, probabilities and decisions of each image. If an image
    cannot be read, its error is the reason. Memory use does not depend on the number of images.

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
                done = counted(counts["images"], "image; its prediction is", "images; their predictions are")
                console.print(f"stopped after {done} in {partial_path(out)}")
            raise
        console.print(f"predictions for {counted(counts['images'], 'image')}: {out}")
    reasons = "see ERROR in the output" if out is None else f"see the error column in {out}"
    unreadable = f"{counts['errors']:,} of {counted(counts['images'], 'image')} could not be read; {reasons}"
    if counts["errors"] == counts["images"]:
        raise ValueError(unreadable)
    if counts["errors"]:
        console.print(unreadable)


def lines(block: "Predictions") -> Iterator[str]:
    """Yield one line per image: the predicted classes by descending probability; if none, the most probable class."""
    for path, scores in zip(block.paths, block.scores.tolist(), strict=True):
        ranked = sorted(zip(scores, block.names, strict=True), key=lambda pair: -pair[0])
        predicted = ", ".join(f"{name} {score:.2f}" for score, name in ranked if score > block.threshold)
        best = f"nothing above {block.threshold:g}; most probable: {ranked[0][1]} {ranked[0][0]:.2f}"
        text = f"ERROR: {block.errors[path]}" if path in block.errors else predicted or best
        # A file name may not be valid Unicode.
        yield f"{os.fsencode(path).decode(errors='backslashreplace')}: {text}"


def _counted(
    blocks: Iterator["Predictions"], counts: Counter[str], advance: Callable[[int], object]
) -> Iterator["Predictions"]:
    for block in blocks:
        counts.update(images=len(block), errors=sum(path in block.errors for path in block.paths))
        advance(len(block))
        yield block
