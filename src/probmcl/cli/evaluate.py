"""`probmcl evaluate`: evaluate a trained model on labeled images."""

import warnings
from pathlib import Path
from typing import Annotated, Literal, cast

from cyclopts import Group, Parameter

from probmcl.cli import options
from probmcl.cli.terminal import command_console
from probmcl.readers.options import ReadOptions

SCORED = Group.create_ordered("Evaluation")


def command(
    run: Annotated[Path, Parameter(help="run folder of the model")],
    data: Annotated[Path | None, Parameter(help="table or folder with data (default: the data of the run)")] = None,
    /,
    *,
    split: Annotated[Literal["train", "val", "test"], Parameter(help="split to evaluate on", group=SCORED)] = "test",
    rename: Annotated[
        Path | None, Parameter(help="CSV (columns data,model) or JSON file that maps class names", group=SCORED)
    ] = None,
    by: Annotated[
        str | None, Parameter(help="also evaluate each value of this column, such as site or scanner", group=SCORED)
    ] = None,
    aggregate: Annotated[
        str | None,
        Parameter(help="group=mean or group=max: evaluate groups by the mean or highest image score", group=SCORED),
    ] = None,
    raw: Annotated[bool, Parameter(help="evaluate the scores before calibration", negative="", group=SCORED)] = False,
    abstain: Annotated[
        float | None,
        Parameter(help="also evaluate yes, no and not sure with this largest error rate, such as 0.05", group=SCORED),
    ] = None,
    draws: Annotated[int, Parameter(help="bootstrap resamples for intervals; 0 for no intervals", group=SCORED)] = 1000,
    seed: Annotated[int, Parameter(help="random seed for the bootstrap", group=SCORED)] = 0,
    json: Annotated[Path | None, Parameter(help="new file for all results, as fractions", group=SCORED)] = None,
    images: options.Images = None,
    read: options.Read = ReadOptions(),
    skip_bad: options.SkipBad = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    batch_size: options.BatchSize = None,
) -> None:
    """Evaluate a trained model on one split of labeled images.

    Images of the run keep their split. Other images have the split in their data; if the data have neither val nor
    test images, all of them are evaluated. Classes are matched by name. Unknown labels are ignored. A class is present
    in a group if it is present in any image, absent if it is absent in some image and present in none, and unknown
    otherwise.

    Example: probmcl evaluate runs/photos new/labels.csv --json new.json

    Example: probmcl evaluate runs/chest new.csv --rename names.csv --by site

    Example: probmcl evaluate runs/chest new.csv --group patient --aggregate max

    Example: probmcl evaluate runs/chest --abstain 0.05
    """
    from probmcl.inference import load
    from probmcl.report import evaluation_tables as tables
    from probmcl.runtime.files import write_json
    from probmcl.tables import to_rich

    if json is not None and json.exists():
        raise FileExistsError(f"--json {json}: the file already exists; choose another name or delete it")
    progress, output, how = command_console(stderr=True), command_console(), parse_aggregate(aggregate, read.group)
    with progress.working(), warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: progress.print(f"note: {message}")
        result = load(run, device=device).evaluate(
            data,
            split,
            images=images,
            read=read,
            rename=rename,
            by=by,
            aggregate=how,
            raw=raw,
            abstain=abstain,
            skip_bad=skip_bad,
            draws=draws,
            seed=seed,
            workers=workers,
            batch_size=batch_size,
            console=progress,
        )
    output.print(tables.summary(result))
    output.rich.print(to_rich(tables.decision_rules(result)))
    for line in tables.lines(result):
        output.print(line)
    for table in (tables.by_class, tables.probabilities_by_class, *([tables.by_value] if "by" in result else [])):
        output.rich.print(to_rich(table(result)))
    if json is not None:
        write_json(json, result)
        progress.print(f"all results: {json}")


def parse_aggregate(text: str | None, group: str | None) -> Literal["mean", "max"] | None:
    """Parse `mean` or `max`, optionally preceded by the group column: `max`, `group=max`, `patient=max`.

    >>> parse_aggregate("group=max", None), parse_aggregate("mean", None), parse_aggregate("patient=mean", "patient")
    ('max', 'mean', 'mean')
    """
    if text is None:
        return None
    column, _, how = text.rpartition("=")
    if column not in ("", "group", group):
        other = "is not given" if group is None else f"is {group}"
        raise ValueError(f"--aggregate {text}: --group {other}; use --group {column} --aggregate group={how}")
    if how not in ("mean", "max"):
        raise ValueError(f"--aggregate {text}: must be group=mean or group=max")
    return cast(Literal["mean", "max"], how)
