"""`probmcl evaluate`: evaluate a trained model on labeled images."""

import warnings
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

from probmcl.cli.options import Given, Layout, ModelCommand, command_console, own_command_of
from probmcl.readers.options import ReadOptions
from probmcl.settings.declaration import Option
from probmcl.settings.model_options import EVALUATION, EvaluateOptions

GROUPS_AS = Option("group=mean or group=max: evaluate groups by the mean or highest image score", EVALUATION)
WORDS = {"images": Path | None, "rename": Path | None, "aggregate": Annotated[str | None, GROUPS_AS]}


@dataclass(frozen=True)
class EvaluateCommand(ModelCommand):
    """What only the command has."""

    _: KW_ONLY
    json: Annotated[Path | None, Option("new file for all results, as fractions", EVALUATION)] = None


@own_command_of(EvaluateCommand, EvaluateOptions, Layout(types=WORDS, follows={"json": "seed"}))
def command(own: EvaluateCommand, given: Given) -> None:
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

    if own.json is not None and own.json.exists():
        raise FileExistsError(f"--json {own.json}: the file already exists; choose another name or delete it")
    progress, output = command_console(stderr=True), command_console()
    read = given.get("read", ReadOptions())
    given["aggregate"] = parse_aggregate(given.get("aggregate"), read.group)
    with progress.working(), warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: progress.print(f"note: {message}")
        evaluation = load(own.run, device=own.device).evaluate(**given, console=progress)
    output.print(tables.summary(evaluation))
    output.rich.print(to_rich(tables.decision_rules(evaluation)))
    for line in tables.lines(evaluation):
        output.print(line)
    output.rich.print(to_rich(tables.by_class(evaluation)))
    output.rich.print(to_rich(tables.probabilities_by_class(evaluation)))
    if evaluation.by is not None:
        output.rich.print(to_rich(tables.by_value(evaluation.by)))
    if own.json is not None:
        write_json(own.json, evaluation)
        progress.print(f"all results: {own.json}")


def parse_aggregate(text: str | None, group: str | None) -> Literal["mean", "max"] | None:
    """Parse `mean` or `max`, optionally preceded by the group column: `max`, `group=max`, `patient=max`.

    >>> parse_aggregate("group=max", None), parse_aggregate("mean", None), parse_aggregate("patient=mean", "patient")
    ('max', 'mean', 'mean')
    """
    if text is None:
        return None
    column, _, how = text.rpartition("=")  # the column is empty if there is no "="
    if column not in ("", "group", group):
        other = "is not given" if group is None else f"is {group}"
        raise ValueError(f"--aggregate {text}: --group {other}; use --group {column} --aggregate group={how}")
    if how not in ("mean", "max"):
        raise ValueError(f"--aggregate {text}: must be group=mean or group=max")
    return cast(Literal["mean", "max"], how)
