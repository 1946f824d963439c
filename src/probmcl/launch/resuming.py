"""Rules for resuming: what a run keeps, what can be set again, and which files the user has to name again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from probmcl.console import Console
from probmcl.errors import OptionError, ProbmclError, WorkerError, call, keyword
from probmcl.methods import METHODS, find_method
from probmcl.readers.options import DataChecks, ReadOptions
from probmcl.runtime.machine import default_workers, find_device
from probmcl.settings.build import NAMED_WEIGHTS, cache_folder, find_weights
from probmcl.settings.declaration import declared_options
from probmcl.settings.options import CompareOptions, TrainOptions
from probmcl.settings.schema import MethodSpec, Settings
from probmcl.store import run_folder

UNNAMED = "files that only a run folder names are not read"


def refuse_with_resume(options: TrainOptions | CompareOptions) -> None:
    """Raise an error if options are given that cannot be combined with `resume`, or if one is given that needs it."""
    if options.resume is None:
        if options.accept_data_change:
            raise OptionError("accept_data_change", True, "needs `resume`, the interrupted run to continue")
        return
    given = [name for name in options.given if name not in ("read", "checks")]
    given += [*changed_fields(options.read), *changed_fields(options.checks)]
    rule_of = {declared.name: declared.option.with_resume for declared in declared_options(type(options))}
    refused = [name for name in given if rule_of.get(name, "refused") == "refused"]
    accepted = [name for name, rule in rule_of.items() if rule == "accepted"]
    if refused:
        raise ProbmclError(
            f"`resume` cannot be combined with {_in_backticks(refused)}: a resumed run keeps its data and settings; "
            f"only {_in_backticks(accepted)} can be set"
        )


def changed_fields(options: ReadOptions | DataChecks) -> list[str]:
    """Return the names of the fields that differ from their default.

    >>> changed_fields(DataChecks(folds=3, fold=1))
    ['folds', 'fold']
    """
    return [field.name for field in dataclasses.fields(options) if getattr(options, field.name) != field.default]


def _in_backticks(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def existing_folder(resume: Path | str) -> Path:
    """Return the folder to resume as a path."""
    folder = Path(resume)
    if not folder.is_dir():
        raise OptionError("resume", folder, "is not a folder")
    return folder


def resumed_settings(settings: Settings, options: TrainOptions | CompareOptions) -> Settings:
    """Return the stored settings of a run or comparison with the `device`, `workers` and `cache` of this call."""
    _refuse_unnamed_files(settings, options)
    device = find_device(options.device or settings.device)
    # A stranger's run can neither start many processes nor name a folder to write to. Results do not depend on them.
    workers = min(settings.workers, default_workers()) if options.workers is None else options.workers
    cache = None if options.cache is None else cache_folder(options.cache)
    return replace(settings, device=device, workers=workers, cache=cache)


def _refuse_unnamed_files(settings: Settings, options: TrainOptions | CompareOptions) -> None:
    """Raise an error if a run names a file that the user has not named in this call; only data may be read again."""
    weights = settings.encoder.weights
    named = None if options.weights is None else find_weights(options.weights)
    if weights not in (None, *NAMED_WEIGHTS) and weights != named:
        raise ProbmclError(
            f"the run starts from the weights {weights}, but {UNNAMED}; add {keyword('weights', weights)}"
        )
    named_in_settings = options.given.get("settings", {})
    for job in settings.jobs:
        for name in find_method(job.method).files:
            file = getattr(job.settings, name)
            if file is not None and named_in_settings.get(name) != file:
                example = keyword("settings", f"{name}={file}")
                raise ProbmclError(f"the run uses {name} from {file}, but {UNNAMED}; add {example}")


def named_files(settings: Settings) -> dict[str, Any]:
    """Return the options of a run that name code and files other than data; resuming it requires them again."""
    named: dict[str, Any] = {}
    if settings.encoder.weights not in (None, *NAMED_WEIGHTS):
        named["weights"] = settings.encoder.weights
    losses = [job.method for job in settings.jobs if job.method not in METHODS]
    if losses:
        named["loss"] = losses[0]
    files = {}
    for job in settings.jobs:
        for name in find_method(job.method).files:
            file = getattr(job.settings, name)
            if file is not None:
                files[name] = file
    if files:
        named["settings"] = files
    return named


def named_methods(methods: Sequence[MethodSpec]) -> dict[str, Any]:
    """Return the option of a comparison with all its methods if one of them is not part of this package."""
    if all(spec.method in METHODS for spec in methods):
        return {}
    return {"methods": [spec.name if spec.method in METHODS else spec.method for spec in methods]}


@contextmanager
def resume_hint(function: str, folder: Path, console: Console, named: Mapping[str, Any]) -> Iterator[None]:
    """If a run is interrupted, or one of its workers is killed, print the call that resumes it with its named files."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, WorkerError):
        if run_folder.is_run(folder):
            console.print(f"to resume: {call(function, {'resume': folder, **named})}")
        raise
