"""`probmcl compare` and `probmcl.compare`: several methods on one encoder, one budget and one evaluation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from probmcl import intake
from probmcl.cli import options as flags
from probmcl.errors import SettingsError
from probmcl.experiments.rows import Comparison

if TYPE_CHECKING:
    from probmcl.console import Console
    from probmcl.data.records import Records
    from probmcl.experiments.runner import ComparisonSpec

REMEMBERED = "asked.json"
"""The file that says what is compared."""


def compare(
    data: flags.Data = None,
    /,
    *,
    images: flags.Images = None,
    format: flags.Format = None,  # noqa: A002  # the name of the flag
    path_column: flags.PathColumn = None,
    labels_column: flags.LabelsColumn = None,
    split_column: flags.SplitColumn = None,
    group: flags.GroupColumn = None,
    weight_column: flags.WeightColumn = None,
    rows: flags.Rows = None,
    blank: flags.Blank = None,
    minus_one: flags.MinusOne = None,
    none_label: flags.NoneLabel = None,
    ignore: flags.Ignore = None,
    hierarchy: flags.HierarchyFile = None,
    range: flags.Range = None,  # noqa: A002  # the name of the flag
    split_file: flags.SplitFile = None,
    folds: flags.Folds = None,
    fold: flags.Fold = None,
    skip_bad: flags.SkipBad = None,
    allow_leaks: flags.AllowLeaks = None,
    methods: Annotated[
        str | None,
        Parameter(
            help="all (default), or a list: bce,probmcl:paper,my_losses.py:my_loss; see methods", group=flags.WHAT
        ),
    ] = None,
    encoder: flags.EncoderName = None,
    weights: flags.Weights = None,
    image_size: flags.ImageSize = None,
    tune: flags.TuneFlag = None,
    epochs: Annotated[
        int | None, Parameter(help="rounds over the images, of two views each; 6 by default", group=flags.HOW)
    ] = None,
    budget: Annotated[
        str | None, Parameter(help="time for all of it, as in 2h; it decides the images seen", group=flags.HOW)
    ] = None,
    seeds: Annotated[int | None, Parameter(help="runs of each method, 3 by default", group=flags.HOW)] = None,
    trials: Annotated[
        int | None, Parameter(help="learning rates and weight decays for each method; 1 is untuned", group=flags.HOW)
    ] = None,
    probe_epochs: flags.ProbeEpochs = None,
    batch_size: flags.BatchSize = None,
    augment: flags.Augment = None,
    device: flags.Device = None,
    workers: flags.Workers = None,
    cache: flags.Cache = None,
    out: flags.Out = None,
    add: Annotated[
        Sequence[Path] | None,
        Parameter(help="results.jsonl of another comparison of the same protocol", negative="", group=flags.WHERE),
    ] = None,
    resume: Annotated[
        Path | str | None,
        Parameter(
            help="a comparison to go on with; takes nothing else but --device, --workers, --add", group=flags.WHERE
        ),
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
    given, began = dict(locals()), time.perf_counter()
    from probmcl.runtime.distributed import process_group

    with process_group(device):
        if resume is not None:
            intake.refuse_beside_resume(given, "device", "workers", "add", "methods")
            return _resume(Path(resume), methods, intake.said(device=device, workers=workers), _paths(add), began)
        if data is None:
            raise ValueError("say what to compare on: a table or a folder, as in probmcl compare photos/labels.csv")
        keys = intake.said(
            encoder=intake.said(name=encoder, weights=intake.weights_from(weights), image_size=image_size),
            probe=intake.said(epochs=probe_epochs),
            tune=tune,
            augment=augment,
            device=device,
            workers=workers,
            cache=intake.cache_folder(cache),
        )
        asked = _asked(
            methods or "all",
            keys,
            intake.said(seeds=seeds, trials=trials, epochs=epochs, batch_size=batch_size),
            budget,
        )
        return _start(Path(data), given, asked, out, _paths(add), began)


def _listed(methods: str) -> list[str]:
    return [part.strip() for part in methods.split(",") if part.strip()]


def _paths(given: Sequence[Path | str] | Path | str | None) -> list[Path]:
    """Whatever names files, as absolute paths."""
    listed = [given] if isinstance(given, Path | str) else given or ()
    return [Path(path).resolve() for path in listed]


def _asked(methods: str, keys: dict[str, Any], numbers: dict[str, int], budget: str | None) -> ComparisonSpec:
    """What was asked for; whatever can be refused is refused here, before any image is read."""
    from dataclasses import replace

    from probmcl import encoders
    from probmcl.experiments.protocol import TRIALS, parse_methods
    from probmcl.experiments.runner import ComparisonSpec
    from probmcl.settings import make_settings, parse_duration

    for name, number in numbers.items():
        if number < 1:
            raise SettingsError(f"--{name.replace('_', '-')} {number}: give 1 or more")
    if numbers.get("trials", 1) > len(TRIALS):
        raise SettingsError(f"--trials {numbers['trials']}: give at most {len(TRIALS)}")
    if budget is not None and "epochs" in numbers:
        raise SettingsError("a budget and a number of epochs are both given; the budget decides the epochs, give one")
    settings = replace(make_settings(intake.with_recipe(None, keys) | {"method": "probe"}), method="comparison")
    settings = replace(settings, probe=replace(settings.probe, frozen_views=settings.probe.views))
    encoders.describe_encoder(settings.encoder.name)
    listed = _listed(methods)
    numbers = numbers if budget is not None else {"epochs": 6} | numbers
    return ComparisonSpec(
        settings,
        parse_methods(listed),
        everyone="all" in listed,
        budget=None if budget is None else parse_duration(budget),
        **numbers,
    )


def _start(
    data: Path, given: Mapping[str, Any], asked: ComparisonSpec, out: Path | str | None, add: list[Path], began: float
) -> Comparison:
    from dataclasses import replace

    from probmcl import run_folder
    from probmcl.data.audit import prepare_data, refuse_unscorable
    from probmcl.data.split import write_folds
    from probmcl.files import write_json
    from probmcl.runtime.distributed import is_main_process

    if out is not None:
        run_folder.refuse_used(Path(out))
    console = intake.display_of_the_first()
    admitted = prepare_data(
        data,
        given["images"],
        intake.read_options(given),
        intake.data_checks(given),
        workers=asked.settings.workers,
        console=console,
    )
    records = admitted.records
    refuse_unscorable(records)
    asked = replace(asked, settings=replace(asked.settings, intensity=admitted.intensity))
    alarms = [
        *(warning.message for warning in admitted.warnings),
        *intake.seen_before(records, asked.settings.encoder.weights),
    ]
    remembered = {
        "data": admitted.source.to_json(),
        "name": intake.data_name(data),
        "asked": asked,
        "alarms": alarms,
        "add": add,
    }
    with (
        intake.folder_for(out, f"{remembered['name']}-comparison") as folder,
        intake.told_how_to_go_on("compare", folder, REMEMBERED, console),
    ):
        if is_main_process():
            folder.mkdir(parents=True, exist_ok=True)
            run_folder.write_split(folder / "split.csv", records)
            if admitted.fold_of is not None:
                write_folds(folder / "folds.csv", records, admitted.fold_of)
            write_json(folder / REMEMBERED, remembered)
        return _carried_out(records, asked, folder, console, remembered, began)


def _resume(folder: Path, methods: str | None, where: dict[str, Any], add: list[Path], began: float) -> Comparison:
    from dataclasses import replace

    from probmcl.data.audit import read_again
    from probmcl.data.options import DataSource
    from probmcl.experiments.protocol import MethodSpec, parse_methods
    from probmcl.experiments.runner import ComparisonSpec
    from probmcl.files import read_json, write_json
    from probmcl.runtime.device import find_device
    from probmcl.runtime.distributed import barrier, is_main_process
    from probmcl.settings import refuse_unnamed, settings_of_run

    if not (folder / REMEMBERED).is_file():
        raise ValueError(f"{folder} is no comparison that can be resumed: it has no {REMEMBERED}")
    remembered = read_json(folder / REMEMBERED)
    given = dict(remembered["asked"])
    settings = replace(settings_of_run(given.pop("settings")), **where)
    settings = replace(settings, device=find_device(settings.device))
    taking_part = tuple(MethodSpec(**entrant) for entrant in given.pop("entrants"))
    if methods is not None and parse_methods(_listed(methods)) != taking_part:
        names = ",".join(entrant.name for entrant in taking_part)
        raise ValueError(f"--methods {methods}: {folder} compares {names}; beside --resume say the same, or nothing")
    for entrant in taking_part:
        refuse_unnamed(entrant.method, "the same --methods again, with")
    console, records = (
        intake.display_of_the_first(),
        read_again(DataSource.parse(remembered["data"]), folder / "split.csv"),
    )
    remembered["add"] = list(dict.fromkeys([*remembered["add"], *map(str, add)]))
    barrier()
    if is_main_process():
        write_json(folder / REMEMBERED, remembered)
    with intake.told_how_to_go_on("compare", folder, REMEMBERED, console):
        return _carried_out(records, ComparisonSpec(settings, taking_part, **given), folder, console, remembered, began)


def _carried_out(
    records: Records, asked: ComparisonSpec, folder: Path, console: Console, remembered: Mapping[str, Any], began: float
) -> Comparison:
    from probmcl.experiments.runner import ComparisonRunner
    from probmcl.report.comparison_tables import comparison_tables
    from probmcl.report.verdict import verdict
    from probmcl.tables import to_rich

    alarms = remembered["alarms"]
    for alarm in alarms:
        console.print(f"  ALARM: {alarm}")
    work = ComparisonRunner(
        records, asked, folder, console, remembered["name"], source=remembered["data"], alarms=alarms, began=began
    )
    comparison = work.run([Path(path) for path in remembered["add"]])
    for table in comparison_tables(comparison).values():
        console.rich.print(to_rich(table), "")
    for line in (verdict(comparison), *(f"ALARM: {alarm}" for alarm in alarms)):
        console.print(line)
    console.print(f"tables, plot, references and every prediction are in {folder}")
    return comparison
