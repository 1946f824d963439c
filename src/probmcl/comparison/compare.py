"""`probmcl compare` and `probmcl.compare`: several methods on one encoder, one budget and one evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from probmcl.comparison.rows import Comparison
from probmcl.flags import (
    HOW,
    WHAT,
    WHERE,
    Augment,
    BatchSize,
    Data,
    Device,
    EncoderName,
    Format,
    GroupColumn,
    Images,
    ImageSize,
    LabelsColumn,
    Out,
    PathColumn,
    ProbeEpochs,
    SkipBad,
    SplitColumn,
    TuneFlag,
    Weights,
    Workers,
)
from probmcl.intake import (
    absolute,
    data_name,
    display_of_the_first,
    folder_for,
    read_again,
    read_all,
    said,
    told_how_to_go_on,
    weights_from,
    with_recipe,
)

if TYPE_CHECKING:
    from probmcl.comparison.work import Asked
    from probmcl.data.records import Records
    from probmcl.training.progress import Display

REMEMBERED = "comparison.json"
"""The file that says what is compared."""


def compare(
    data: Data = None,
    /,
    *,
    images: Images = None,
    format: Format = None,  # noqa: A002  # the name of the flag
    path_column: PathColumn = None,
    labels_column: LabelsColumn = None,
    split_column: SplitColumn = None,
    group: GroupColumn = None,
    skip_bad: SkipBad = None,
    methods: Annotated[
        str | None,
        Parameter(help="all (default), or a list: bce,probmcl:paper,my_losses.py:my_loss; see methods", group=WHAT),
    ] = None,
    encoder: EncoderName = None,
    weights: Weights = None,
    image_size: ImageSize = None,
    tune: TuneFlag = None,
    epochs: Annotated[int | None, Parameter(help="rounds over the images, of two views each; 6", group=HOW)] = None,
    budget: Annotated[
        str | None, Parameter(help="time for all of it, as in 2h; it decides the images seen", group=HOW)
    ] = None,
    seeds: Annotated[int | None, Parameter(help="runs of each method, 3 by default", group=HOW)] = None,
    trials: Annotated[
        int | None, Parameter(help="learning rates and weight decays for each method; 1 is untuned", group=HOW)
    ] = None,
    probe_epochs: ProbeEpochs = None,
    batch_size: BatchSize = None,
    augment: Augment = None,
    device: Device = None,
    workers: Workers = None,
    out: Out = None,
    add: Annotated[
        Sequence[Path] | None, Parameter(help="results.jsonl of another comparison of the same protocol", group=WHERE)
    ] = None,
    resume: Annotated[
        Path | str | None,
        Parameter(help="a comparison to go on with; takes nothing else but --device, --workers, --add", group=WHERE),
    ] = None,
) -> Comparison:
    """Compare methods fairly: one encoder, the same images seen by each, one evaluation, and a verdict.

    Every method has a row by its own head, where it has one, and a row by a linear probe on what it trained; the probe
    on the untouched encoder is always there. Test images decide nothing. Tables, a plot and the verdict are written
    into the folder; a comparison that was killed goes on with --resume, and what is finished is never done again.

    Example: probmcl compare photos/ --methods bce,asl,probmcl --budget 2h

    Example: probmcl compare photos/ --methods all --epochs 6 --seeds 3 --trials 3

    Example: probmcl compare --resume runs/2026-11-15-photos-comparison --add elsewhere/results.jsonl
    """
    given = dict(locals())
    from probmcl.distributed import started

    with started(device):
        if resume is not None:
            _refuse_beside_resume(given)
            return _resume(Path(resume), methods, said(device=device, workers=workers), add or ())
        if data is None:
            raise ValueError("say what to compare on: a table or a folder, as in probmcl compare photos/labels.csv")
        reading = said(
            images=absolute(images),
            format=format,
            path_column=path_column,
            labels_column=labels_column,
            split_column=split_column,
            group_column=group,
        )
        flags = said(
            encoder=said(name=encoder, weights=weights_from(weights), image_size=image_size),
            probe=said(epochs=probe_epochs),
            tune=tune,
            augment=augment,
            device=device,
            workers=workers,
        )
        asked = _asked(
            methods or "all", flags, said(seeds=seeds, trials=trials, epochs=epochs, batch_size=batch_size), budget
        )
        return _start(Path(data), reading, skip_bad, asked, out, add or ())


def _asked(methods: str, flags: dict[str, Any], numbers: dict[str, int], budget: str | None) -> Asked:
    """What was asked for; whatever can be refused is refused here, before any image is read."""
    from dataclasses import replace

    from probmcl import encoders
    from probmcl.comparison.protocol import TRIALS, entrants
    from probmcl.comparison.work import Asked
    from probmcl.settings import SettingsError, make_settings, seconds

    for name, number in numbers.items():
        if number < 1:
            raise SettingsError(f"--{name.replace('_', '-')} {number}: give 1 or more")
    if numbers.get("trials", 1) > len(TRIALS):
        raise SettingsError(f"--trials {numbers['trials']}: give at most {len(TRIALS)}")
    if budget is not None and "epochs" in numbers:
        raise SettingsError("a budget and a number of epochs are both given; the budget decides the epochs, give one")
    settings = replace(make_settings(with_recipe(None, flags) | {"method": "probe"}), method="comparison")
    encoders.about(settings.encoder.name)
    listed = [part.strip() for part in methods.split(",") if part.strip()]
    numbers = numbers if budget is not None else {"epochs": 6} | numbers
    return Asked(
        settings,
        entrants(listed),
        everyone="all" in listed,
        budget=None if budget is None else seconds(budget),
        **numbers,
    )


def _start(
    data: Path,
    reading: dict[str, Any],
    skip_bad: float | None,
    asked: Asked,
    out: Path | str | None,
    add: Sequence[Path],
) -> Comparison:
    from probmcl import runs
    from probmcl.distributed import first
    from probmcl.files import write_json

    if out is not None:
        runs.refuse_used(Path(out))
    display = display_of_the_first()
    records, source = read_all(data, reading | {"seed": 0}, skip_bad, asked.settings.workers, display)
    name = data_name(data)
    with folder_for(out, f"{name}-comparison") as folder, told_how_to_go_on("compare", folder, REMEMBERED, display):
        if first():
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / REMEMBERED, {"data": source, "name": name, "asked": asked})
        return _carried_out(records, asked, folder, display, name, source, add)


def _resume(folder: Path, methods: str | None, where: dict[str, Any], add: Sequence[Path]) -> Comparison:
    from dataclasses import replace

    from probmcl.comparison.protocol import Entrant, entrants
    from probmcl.comparison.work import Asked
    from probmcl.files import read_json
    from probmcl.settings import refuse_unnamed, settings_of_run

    if not (folder / REMEMBERED).is_file():
        raise ValueError(f"{folder} is no comparison that can be resumed: it has no {REMEMBERED}")
    remembered = read_json(folder / REMEMBERED)
    given = dict(remembered["asked"])
    settings = replace(settings_of_run(given.pop("settings")), **where)
    taking_part = tuple(Entrant(**entrant) for entrant in given.pop("entrants"))
    if methods is not None and entrants(methods.split(",")) != taking_part:
        names = ",".join(entrant.name for entrant in taking_part)
        raise ValueError(f"--methods {methods}: {folder} compares {names}; beside --resume say the same, or nothing")
    for entrant in taking_part:
        refuse_unnamed(entrant.method, "the same --methods again, with")
    asked, display = Asked(settings, taking_part, **given), display_of_the_first()
    records = read_again(remembered["data"])
    with told_how_to_go_on("compare", folder, REMEMBERED, display):
        return _carried_out(records, asked, folder, display, remembered["name"], remembered["data"], add)


def _carried_out(
    records: Records,
    asked: Asked,
    folder: Path,
    display: Display,
    name: str,
    source: Mapping[str, Any],
    add: Sequence[Path],
) -> Comparison:
    from probmcl.comparison.tables import terminal
    from probmcl.comparison.verdict import verdict
    from probmcl.comparison.work import Work

    comparison = Work(records, asked, folder, display, name).run(source=source, add=add)
    for table in terminal(comparison):
        display.console.print(table)
    display.say(verdict(comparison))
    display.say(f"tables, plot, references and every prediction are in {folder}")
    return comparison


def _refuse_beside_resume(given: Mapping[str, Any]) -> None:
    allowed = {"resume", "device", "workers", "add", "methods"}
    found = [f"--{key.replace('_', '-')}" for key, x in given.items() if x is not None and key not in allowed]
    if found:
        raise ValueError(
            f"--resume goes on with what was asked for; beside it there is no place for {', '.join(found)}, only for "
            "--device, --workers and --add"
        )
