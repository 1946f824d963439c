"""From records to a run folder: the frozen probe first, then what may beat it, and the best on validation is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxtyping import Int
from numpy import ndarray

from probmcl import run_folder
from probmcl.console import Console
from probmcl.data.audit import refuse_empty_splits
from probmcl.data.records import Records
from probmcl.files import read_json
from probmcl.run.backbone import build_encoder, refuse_what_cannot_run
from probmcl.run.budget import Planner
from probmcl.run.phases import Phases, Tested, folder_of, restored, test_kept_only, tidy_up
from probmcl.run.results import Run
from probmcl.runtime.device import find_device
from probmcl.runtime.distributed import broadcast, is_main_process
from probmcl.settings import Settings


def train(
    records: Records,
    settings: Settings,
    folder: Path,
    console: Console | None = None,
    *,
    source: Mapping[str, Any] | None = None,
    alarms: Sequence[str] = (),
    fold_of: Int[ndarray, "N"] | None = None,
    tested: Tested = test_kept_only,
    plan: Planner | None = None,
) -> Run:
    """Fit a probe on the untouched encoder, train every contender, probe it again, keep the best on validation.

    Everything that is needed to use, judge, repeat or resume the run is written into `folder`, which must be new or
    empty. `source` says how the records were read, `alarms` what is known to be wrong with them, `fold_of` the fold of
    each image where their split comes of folds. The test split is
    scored at the end, decides nothing, and shows what was kept, the frozen probe and whoever else is to be `tested`,
    whose files are in candidates/. `plan` says who is trained how long, by default what the settings say.
    """
    refuse_empty_splits(records)
    settings, console = replace(settings, device=find_device(settings.device)), console or Console()
    encoder = build_encoder(settings, console)  # before anything is written: it may not be there
    refuse_what_cannot_run(settings, encoder, records.label_space)
    try:
        _in_the_first(lambda: run_folder.begin(folder, records, settings, source, alarms, fold_of))
        phases = Phases(records, settings, encoder, folder, console, tested, plan)
    except (KeyboardInterrupt, SystemExit):  # from here on the run itself notes how it ends
        if is_main_process():
            run_folder.note_interrupt(folder)
        raise
    return phases.finished()


def _in_the_first(work: Callable[[], None]) -> None:
    """Let the first process do something while the others wait; what goes wrong goes wrong in all of them."""
    problem = None
    if is_main_process():
        try:
            work()
        except OSError as error:
            problem = str(error)
    problem = broadcast(problem)
    if problem is not None:
        raise OSError(problem)


def resume(
    records: Records,
    settings: Settings,
    folder: Path,
    console: Console | None = None,
    *,
    tested: Tested = test_kept_only,
    plan: Planner | None = None,
) -> Run:
    """Go on with a run that was interrupted or killed, from where it was; records and settings must be its own."""
    run_folder.refuse_other_records(folder, records)
    settings, console = replace(settings, device=find_device(settings.device)), console or Console()
    if read_json(folder / "run.json")["status"] == "finished":
        tidy_up(folder / "checkpoints")
        console.print(f"{folder} is finished; nothing is left to do")
        return finished_run(folder)
    return Phases(records, settings, build_encoder(settings, console), folder, console, tested, plan).finished()


def finished_run(folder: Path) -> Run:
    """A run that is finished, from its folder; what was tested has its metrics."""
    about = read_json(folder / "run.json")
    found = {entry["name"]: restored(folder / "checkpoints", entry["name"]) for entry in about["candidates"]}
    for name, candidate in found.items():
        place = folder if name == about["kept"] else folder_of(folder, name)
        if (place / "evaluation.json").exists():
            found[name] = replace(candidate, test=read_json(place / "evaluation.json"))
    return Run(folder, found, found[about["kept"]], about["alarms"], about["seconds"])
