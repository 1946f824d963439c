"""`probmcl evaluate`: how good a trained model is on labeled images."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Group, Parameter

from probmcl.cli import options as flags
from probmcl.data.options import ReadOptions

if TYPE_CHECKING:
    from probmcl.evaluation.groups import Aggregate

JUDGED = Group.create_ordered("What is judged")


def evaluate(
    run: Annotated[Path, Parameter(help="the run folder of a trained model")],
    data: Annotated[Path | None, Parameter(help="a table or a folder; by default what it was trained with")] = None,
    /,
    *,
    split: Annotated[Literal["train", "val", "test"], Parameter(help="which images", group=JUDGED)] = "test",
    rename: Annotated[
        Path | None,
        Parameter(help="a CSV (columns data,model) or JSON: what the data's classes are here", group=JUDGED),
    ] = None,
    by: Annotated[
        str | None, Parameter(help="a column (site, scanner, sex); each value is also scored by itself", group=JUDGED)
    ] = None,
    aggregate: Annotated[
        str | None,
        Parameter(
            help="group=mean or group=max: score whole groups (patients, slides); a class is absent where at least one "
            "image of the group is known and none is present",
            group=JUDGED,
        ),
    ] = None,
    below_parents: Annotated[
        bool, Parameter(help="no class scores above its parent", negative="", group=JUDGED)
    ] = False,
    draws: Annotated[int, Parameter(help="resamples for the intervals; 0 for none", group=JUDGED)] = 1000,
    seed: Annotated[int, Parameter(help="of the resamples", group=JUDGED)] = 0,
    json: Annotated[Path | None, Parameter(help="a new file for all numbers, as fractions", group=JUDGED)] = None,
    images: flags.Images = None,
    read: flags.Read = ReadOptions(),
    skip_bad: flags.SkipBad = None,
    device: Annotated[str, Parameter(help="auto, cpu, cuda or mps", group=flags.WHERE)] = "auto",
    workers: flags.Workers = None,
    batch_size: Annotated[
        int | None, Parameter(help="images at once; by default what is fastest", group=flags.WHERE)
    ] = None,
) -> None:
    """Score a trained model on one split of labeled images.

    An image that the run has had keeps the split it had there. One that is new has the split that the data gives it, or
    counts as the split asked for where the data has neither val nor test. Classes are matched by name. A label that is
    not known takes no part. Of a group that is scored whole, a class is present where any image has it, absent where at
    least one image of the group is known and none is present, else unknown.

    Example: probmcl evaluate runs/2026-11-15-photos other/labels.csv --json other.json

    Another hospital's words, site by site: probmcl evaluate runs/chest other.csv --rename words.csv --by site

    Patients instead of images: probmcl evaluate runs/chest other.csv --group patient --aggregate group=max
    """
    from rich.console import Console as RichConsole

    from probmcl.console import Console
    from probmcl.files import write_json
    from probmcl.inference import load

    if json is not None and json.exists():
        raise FileExistsError(f"{json} exists already; choose another name, or delete it")
    how = aggregation(aggregate, read.group)
    console = Console(RichConsole(stderr=True, emoji=False))
    model = load(run, device=device)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: console.print(f"note: {message}")
        result = model.evaluate(
            data,
            split,
            images=images,
            read=read,
            rename=rename,
            by=by,
            aggregate=how,
            below_parents=below_parents,
            skip_bad=skip_bad,
            draws=draws,
            seed=seed,
            workers=workers,
            batch_size=batch_size,
            console=console,
        )
    show(result)
    if json is not None:
        write_json(json, result)
        console.print(f"all numbers: {json}")


def aggregation(said: str | None, group: str | None) -> Aggregate | None:
    """What --aggregate says: `mean` or `max`, alone or behind what it is over.

    >>> aggregation("group=max", None), aggregation("mean", None), aggregation("patient=mean", "patient")
    ('max', 'mean', 'mean')
    """
    if said is None:
        return None
    over, _, how = said.rpartition("=")
    if over not in ("", "group", group):
        other = "" if group is None else f", but --group is {group}"
        raise ValueError(f"--aggregate {said}{other}; say --group {over} --aggregate group={how}")
    if how not in ("mean", "max"):
        raise ValueError(f"--aggregate {said}: say group=mean or group=max")
    return cast("Aggregate", how)


def show(result: Mapping[str, Any]) -> None:
    """Print what was found."""
    from probmcl.console import Console
    from probmcl.report import evaluation_tables as tables
    from probmcl.tables import to_rich

    shown = Console()
    shown.rich.print(to_rich(tables.overall(result)))
    for line in tables.lines(result):
        shown.print(line)
    shown.rich.print(to_rich(tables.by_class(result)))
    if "by" in result:
        shown.rich.print(to_rich(tables.by_value(result)))
