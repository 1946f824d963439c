"""One run of many: what is finished is never computed again, and what was begun goes on."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.files import read_json
from probmcl.run import train as pipeline
from probmcl.run.budget import Planner
from probmcl.run.phases import Tested, test_kept_only
from probmcl.run.results import Run
from probmcl.runtime.distributed import barrier, is_main_process
from probmcl.settings import Settings, settings_of_run


def run_or_resume(
    records: Records,
    settings: Settings,
    folder: Path,
    console: Console,
    *,
    source: Mapping[str, Any] | None = None,
    alarms: Sequence[str] = (),
    tested: Tested = test_kept_only,
    plan: Planner | None = None,
) -> Run:
    """The run of these settings in a folder of its own: taken as it is, gone on with, or started.

    The folder belongs to whoever runs many; one in which a kill left no more than a beginning is begun anew. A run that
    was made by other settings or on other data is refused; the device and the number of workers may change.
    """
    if not (folder / "run.json").is_file():
        if is_main_process():
            shutil.rmtree(folder, ignore_errors=True)
        barrier()
        return pipeline.train(
            records, settings, folder, console, source=source, alarms=alarms, tested=tested, plan=plan
        )
    before = settings_of_run(read_json(folder / "config.json"))
    if replace(before, device=settings.device, workers=settings.workers) != settings:
        raise ValueError(f"{folder} is a run with other settings; put the comparison into another folder")
    return pipeline.resume(records, settings, folder, console, tested=tested, plan=plan)
