"""`probmcl evaluate`: score a trained model on labeled images."""

import warnings
from pathlib import Path
from typing import Annotated, Literal, cast

from cyclopts import Group, Parameter

from probmcl.cli import command_console, options
from probmcl.data.options import ReadOptions

SCORED = Group.create_ordered("What is scored")


def evaluate(
    run: Annotated[Path, Parameter(help="the run folder of a trained model")],
    data: Annotated[Path | None, Parameter(help="a table or a folder (default: the data of the run)")] = None,
    /,
    *,
    split: Annotated[Literal["train", "val", "test"], Parameter(help="which images", group=SCORED)] = "test",
    rename: Annotated[
        Path | None, Parameter(help="names in the model of the data's classes: CSV (data,model) or JSON", group=SCORED)
    ] = None,
    by: Annotated[
        str | None, Parameter(help="a column (site, scanner, sex); each value is also scored by itself", group=SCORED)
    ] = None,
    aggregate: Annotated[
        str | None,
        Parameter(
            help="group=mean or group=max: score whole groups (patients, slides); a class is absent if at least one "
            "image of the group is known and none is present",
            group=SCORED,
        ),
    ] = None,
    below_parents: Annotated[
        bool, Parameter(help="no class scores above its parent", negative="", group=SCORED)
    ] = False,
    draws: Annotated[int, Parameter(help="resamples for the intervals; 0 for none", group=SCORED)] = 1000,
    seed: Annotated[int, Parameter(help="random seed of the resamples", group=SCORED)] = 0,
    json: Annotated[Path | None, Parameter(help="a new file for all numbers, as fractions", group=SCORED)] = None,
    images: options.Images = None,
    read: options.Read = ReadOptions(),
    skip_bad: options.SkipBad = None,
    device: Annotated[str, Parameter(help="auto, cpu, cuda or mps", group=options.COMPUTE)] = "auto",
    workers: options.Workers = None,
    batch_size: Annotated[
        int | None, Parameter(help="images at once (default: the fastest number)", group=options.COMPUTE)
    ] = None,
) -> None:
    """Score a trained model on one split of labeled images.

    An image of the run keeps its split there. A new image has the split that the data give it; if the data have
    neither val nor test, it counts as the requested split. Classes are matched by name. Unknown labels take no part.
    For a group that is scored as a whole, a class is present if any image has it, absent if at least one image of the
    group is known and none is present, otherwise unknown.

    Example: probmcl evaluate runs/2026-11-15-photos other/labels.csv --json other.json

    Another hospital's words, site by site: probmcl evaluate runs/chest other.csv --rename words.csv --by site

    Patients instead of images: probmcl evaluate runs/chest other.csv --group patient --aggregate group=max
    """
    from probmcl.files import write_json
    from probmcl.inference import load
    from probmcl.report import evaluation_tables as tables
    from probmcl.tables import to_rich

    if json is not None and json.exists():
        raise FileExistsError(f"{json} exists already; choose another name, or delete it")
    progress, output, how = command_console(stderr=True), command_console(), parse_aggregate(aggregate, read.group)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: progress.print(f"note: {message}")
        result = load(run, device=device).evaluate(
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
            console=progress,
        )
    output.rich.print(to_rich(tables.overall(result)))
    for line in tables.lines(result):
        output.print(line)
    for table in (tables.by_class, *([tables.by_value] if "by" in result else [])):
        output.rich.print(to_rich(table(result)))
    if json is not None:
        write_json(json, result)
        progress.print(f"all numbers: {json}")


def parse_aggregate(text: str | None, group: str | None) -> Literal["mean", "max"] | None:
    """Parse `mean` or `max`, alone or after the groups: `group=max`, `patient=max`.

    >>> parse_aggregate("group=max", None), parse_aggregate("mean", None), parse_aggregate("patient=mean", "patient")
    ('max', 'mean', 'mean')
    """
    if text is None:
        return None
    over, _, how = text.rpartition("=")
    if over not in ("", "group", group):
        other = "" if group is None else f", but --group is {group}"
        raise ValueError(f"--aggregate {text}{other}; give --group {over} --aggregate group={how}")
    if how not in ("mean", "max"):
        raise ValueError(f"--aggregate {text}: give group=mean or group=max")
    return cast(Literal["mean", "max"], how)
