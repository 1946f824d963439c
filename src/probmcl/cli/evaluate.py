"""`probmcl evaluate`: how good a trained model is on labelled images."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 5
"""How many of the best and of the worst classes are shown, and of those not in common."""


def evaluate(
    run: Annotated[Path, Parameter(help="the run folder of a trained model")],
    data: Annotated[Path | None, Parameter(help="a table or a folder; by default what it was trained with")] = None,
    /,
    *,
    split: Annotated[Literal["train", "val", "test"], Parameter(help="which images")] = "test",
    json: Annotated[Path | None, Parameter(help="a new file for all numbers, as fractions")] = None,
    images: Annotated[Path | None, Parameter(help="where a table's images are; by default beside it")] = None,
    format: Annotated[str | None, Parameter(help="table, coco, voc or adp")] = None,  # noqa: A002  # the flag
    path_column: Annotated[str | None, Parameter(help="a table's column of paths")] = None,
    labels_column: Annotated[str | None, Parameter(help="a table's column of label lists")] = None,
    split_column: Annotated[str | None, Parameter(help="a table's column of splits")] = None,
    group: Annotated[str | None, Parameter(help="a table's column of groups")] = None,
    device: Annotated[str, Parameter(help="auto, cpu, cuda or mps")] = "auto",
    workers: Annotated[
        int | None, Parameter(help="processes that decode; by default one a core, at most eight")
    ] = None,
    batch_size: Annotated[int | None, Parameter(help="images at once; by default what is fastest")] = None,
) -> None:
    """Score a trained model on one split of labelled images.

    An image that the run has had keeps the split it had there. One that is new has the split that the data gives it, or
    counts as the split asked for where the data has neither val nor test. Classes are matched by name.

    Example: probmcl evaluate runs/2026-11-15-photos other/labels.csv --json other.json
    """
    from rich.console import Console

    from probmcl.files import write_json
    from probmcl.model import load
    from probmcl.training.progress import Display

    if json is not None and json.exists():
        raise FileExistsError(f"{json} exists already; choose another name, or delete it")
    display = Display(Console(stderr=True, emoji=False))
    model = load(run, device=device)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: display.say(f"note: {message}")
        result = model.evaluate(
            data,
            split,
            images=images,
            format=format,
            path_column=path_column,
            labels_column=labels_column,
            split_column=split_column,
            group_column=group,
            workers=workers,
            batch_size=batch_size,
            display=display,
        )
    shown = Display()
    shown.console.print(table(result))
    for line in lines(result):
        shown.say(line)
    if json is not None:
        write_json(json, result)
        display.say(f"all numbers: {json}")


def table(result: Mapping[str, Any]) -> Table:
    """The scores of a split, in percent."""
    from rich.table import Table

    images, classes = f"{result['images']:,} images", f"{result['classes_scored']} of {result['classes']} classes"
    title = f"{result['split']}: mAP {percent(result['mAP'])} % ({images}, {classes} with a positive)"
    shown = Table(title=title, title_justify="left", title_style="bold")
    shown.add_column("decided where")
    for column in ("CP", "CR", "CF1", "OP", "OR", "OF1"):
        shown.add_column(column, justify="right")
    decisions = {f"probability > {at}": numbers for at, numbers in result["at"].items()}
    for name, numbers in {**decisions, "… > 0.5, three best": result["top3"]}.items():
        shown.add_row(name, *map(percent, numbers.values()))
    return shown


def lines(result: Mapping[str, Any]) -> list[str]:
    """What belongs to the mAP, the worst and the best classes, and those that only the model or only the data has."""
    scored = {name: ap for name, ap in result["ap"].items() if ap is not None}
    ranked = [f"{name} {percent(scored[name])}" for name in sorted(scored, key=lambda name: scored[name])]
    said = [f"note: {result['note']}"] if "note" in result else []
    if len(ranked) > 2 * SHOWN:
        said += [f"worst: {', '.join(ranked[:SHOWN])}", f"best: {', '.join(ranked[: -SHOWN - 1 : -1])}"]
    elif ranked:
        said += [f"average precision, worst first: {', '.join(ranked)}"]
    for side in ("model", "data"):
        names = result[f"classes_only_in_{side}"]
        if names:
            said.append(f"not scored, {len(names)} classes only in the {side}: {_few(names)}")
    return said


def percent(fraction: float | None) -> str:
    """A fraction for people; a dash where there is none.

    >>> percent(0.5), percent(None)
    ('50.0', '–')
    """
    return "–" if fraction is None else f"{100 * fraction:.1f}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
