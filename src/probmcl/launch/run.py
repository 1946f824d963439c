"""Starting and resuming a run, and what starting a comparison has in common with it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from probmcl.audit.prepare import PreparedData, prepare_data, read_again
from probmcl.console import Console
from probmcl.data.images import PREPROCESSING_FILE
from probmcl.data.records import Records
from probmcl.encoders import describe_encoder
from probmcl.errors import OptionError, ProbmclError, RunError, RunWarning, WorkerError, call, counted, keyword
from probmcl.methods import METHODS, find_method
from probmcl.readers.options import METADATA_FILE, DataChecks, DataSource, ReadOptions
from probmcl.run.results import Run
from probmcl.run.train import RunControl, train_run
from probmcl.runtime.distributed import broadcast, is_main_process
from probmcl.runtime.machine import default_workers, find_device
from probmcl.settings.build import (
    CONFIG_FILE,
    NAMED_WEIGHTS,
    cache_folder,
    find_weights,
    given_settings,
    layered_settings,
    read_settings,
    refuse_loss_with_method,
)
from probmcl.settings.declaration import declared_options
from probmcl.settings.options import CompareOptions, TrainOptions
from probmcl.settings.recipe_files import find_recipe, read_recipe
from probmcl.settings.schema import MethodSpec, Settings, ValueOrigin
from probmcl.store import files, run_folder
from probmcl.store.run_folder import RunFolder

UNNAMED = "files that only a run folder names are not read"


def refuse_with_resume(options: TrainOptions | CompareOptions) -> None:
    """Raise an error if options are given that cannot be combined with `resume`, or if one is given that needs it."""
    if options.resume is None:
        if options.accept_data_change:
            raise OptionError("accept_data_change", True, "needs `resume`, the interrupted run to continue")
        return
    given = [name for name in options.given if name not in ("read", "checks")]
    given += changed_fields(options.read)
    given += changed_fields(options.checks)
    rule_of = {declared.name: declared.option.with_resume for declared in declared_options(type(options))}
    # A field of `read` or `checks` has no rule of its own, and is refused as these two options are.
    refused = [name for name in given if rule_of.get(name, "refused") == "refused"]
    if refused:
        accepted = [name for name, rule in rule_of.items() if rule == "accepted"]
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
    workers = options.workers
    if workers is None:
        workers = min(settings.workers, default_workers())
    cache = None
    if options.cache is not None:
        cache = cache_folder(options.cache)
    return replace(settings, device=device, workers=workers, cache=cache)


def _refuse_unnamed_files(settings: Settings, options: TrainOptions | CompareOptions) -> None:
    """Raise an error if a run names a file that the user has not named in this call; only data may be read again."""
    weights = settings.encoder.weights
    named_weights = None if options.weights is None else find_weights(options.weights)
    if weights not in (None, *NAMED_WEIGHTS) and weights != named_weights:
        raise ProbmclError(
            f"the run starts from the weights {weights}, but {UNNAMED}; add {keyword('weights', weights)}"
        )
    named_in_settings = options.given.get("settings", {})
    for name, file in _method_files(settings):
        if named_in_settings.get(name) != file:
            example = keyword("settings", f"{name}={file}")
            raise ProbmclError(f"the run uses {name} from {file}, but {UNNAMED}; add {example}")


def _method_files(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield the files that the methods of a run read, each with the name of its setting."""
    for job in settings.jobs:
        for name in find_method(job.method).files:
            file = getattr(job.settings, name)
            if file is not None:
                yield name, file


def named_files(settings: Settings) -> dict[str, Any]:
    """Return the options of a run that name code and files other than data; resuming it requires them again."""
    named: dict[str, Any] = {}
    if settings.encoder.weights not in (None, *NAMED_WEIGHTS):
        named["weights"] = settings.encoder.weights
    losses = [job.method for job in settings.jobs if job.method not in METHODS]
    if losses:
        named["loss"] = losses[0]
    method_files = dict(_method_files(settings))
    if method_files:
        named["settings"] = method_files
    return named


def named_methods(methods: Sequence[MethodSpec]) -> dict[str, Any]:
    """Return the option of a comparison with all its methods if one of them is not part of this package."""
    if all(spec.method in METHODS for spec in methods):
        return {}
    # A method from outside is named by its path, since its short name does not name its file.
    names = [spec.name if spec.method in METHODS else spec.method for spec in methods]
    return {"methods": names}


@contextmanager
def resume_hint(function: str, folder: Path, console: Console, named: Mapping[str, Any]) -> Iterator[None]:
    """If a run is interrupted, or one of its workers is killed, print the call that resumes it with its named files."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, WorkerError):
        if run_folder.is_run(folder):
            console.print(f"to resume: {call(function, {'resume': folder, **named})}")
        raise


def start_run(options: TrainOptions, console: Console) -> Run:
    """Start a run in a new folder."""
    source = data_source(options)
    # Options are checked first, because reading every image of a large dataset takes minutes.
    settings = run_settings(options)
    describe_encoder(settings.encoder.name)
    run_folder.refuse_used(options.out)
    prepared = read_data(source, options.checks, settings, console)
    seen_before = [warning for warning in prepared.warnings if warning.kind == "seen_before"]
    print_warnings(seen_before, console)
    settings = with_intensity(settings, prepared, options.checks)
    new_run = output_folder(options.out, data_name(source))
    with new_run as folder, resume_hint("train", folder, console, named_files(settings)):
        return train_run(prepared, settings, folder, console)


def resume_run(resume: Path | str, options: TrainOptions, console: Console) -> Run:
    """Resume an interrupted run with the settings and data that are stored with it."""
    if options.loss is not None:
        find_method(options.loss)  # the user has named it, so it may be imported
    folder = existing_folder(resume)
    run = RunFolder.existing(folder)
    settings = resumed_settings(read_settings(run), options)
    source = run.read(METADATA_FILE).data
    if source is None:
        raise RunError(f"{folder} was trained on in-memory records; use probmcl.run.train.train_run to resume it")
    with resume_hint("train", folder, console, named_files(settings)):
        records = read_again(source, folder / files.SPLIT, console, options.data, options.images)
        control = RunControl(accept_data_change=options.accept_data_change)
        return train_run(PreparedData.of(records, source), settings, folder, console, control)


def report_run(folder: Path, device: str, console: Console) -> None:
    """Write the report of a finished run on rank 0, and print its verdict; if that fails, the run is still finished."""
    from probmcl.report.page import write_report  # slow to import, and not needed without a report

    if not is_main_process():
        return
    try:
        _, decision = write_report([folder], device=device, console=console)
    except (ProbmclError, OSError) as error:
        console.print(f"note: the run is finished, but its report could not be written: {error}")
    else:
        console.print(f"report: {decision}; open {files.REPORT} in the run folder")


# Settings.


def run_settings(options: TrainOptions) -> Settings:
    """Return the settings that the options of `train` and the recipe resolve to."""
    given = given_settings(options)
    refuse_loss_with_method(options.method, options.loss)
    recipe = read_recipe(find_recipe(options.recipe)) if options.recipe else {}
    return layered_settings({"auto": derived_settings(given), "recipe": recipe, "user": given})


def derived_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that follow from the machine and from the run that the weights come from, if it is one."""
    derived: dict[str, Any] = {"workers": default_workers()}
    weights = given.get("encoder", {}).get("weights")
    if weights is None:
        return derived
    earlier = RunFolder(Path(weights))  # not a folder of a run for `pretrained`, `none` and files
    if not earlier.has(files.CONFIG):
        return derived
    earlier.read(files.LABELS)  # it is needed later; if it is damaged, the error comes before anything is computed
    size = earlier.read(PREPROCESSING_FILE).size
    derived["encoder"] = {"name": earlier.read(CONFIG_FILE).encoder.name, "image_size": size}
    return derived


def with_intensity(settings: Settings, prepared: PreparedData, checks: DataChecks) -> Settings:
    """Return the settings with the intensity range of the images."""
    origin: ValueOrigin = "auto" if checks.range == "auto" else "user"
    return replace(settings, intensity=prepared.intensity, origins={**settings.origins, "intensity": origin})


# Data.


def data_source(options: TrainOptions | CompareOptions) -> DataSource:
    """Return where the data are and how they are read."""
    if options.data is None:
        function = "train" if isinstance(options, TrainOptions) else "compare"
        example = f'`probmcl.{function}("photos/labels.csv")`'
        raise ProbmclError(f"`data` is missing: specify a table or a folder, as in {example}")
    return DataSource.of(options.data, options.images, options.read)


def data_name(source: DataSource) -> str:
    """Return the name of a dataset: that of its folder."""
    return source.data.name if source.data.is_dir() else source.data.parent.name


def read_data(source: DataSource, checks: DataChecks, settings: Settings, console: Console) -> PreparedData:
    """Read, audit and split the data. Held-out images that the weights were trained on add warnings."""
    prepared = prepare_data(source, checks, seed=settings.seed, workers=settings.workers, console=console)
    reused = _reused_images(prepared.records, settings.encoder.weights)
    return replace(prepared, warnings=(*prepared.warnings, *reused))


def _reused_images(records: Records, weights: str | None) -> list[RunWarning]:
    """Return warnings about val and test images that the run providing the weights was trained on."""
    if weights in (None, *NAMED_WEIGHTS) or not RunFolder(Path(weights)).has(files.SPLIT):
        return []
    split_of_path = RunFolder(Path(weights)).read_split()
    # The same file can have two paths, for example through a symlink.
    trained = {os.path.realpath(path) for path, split in split_of_path.items() if split == "train"}
    warnings = []
    for split in ("val", "test"):
        rows = records.rows(split)
        reused = sum(os.path.realpath(records.paths[row]) in trained for row in rows)
        if reused:
            was, them = ("was", "it") if reused == 1 else ("were", "them")
            share = f"{reused:,} of {counted(len(rows), f'{split} image')}"
            problem = f"{share} {was} used for training in {weights}, so scores on {them} are too high"
            remedy = "use the same `seed` or a split column"
            warnings.append(RunWarning("seen_before", f"{problem}; {remedy}"))
    return warnings


def print_warnings(warnings: Iterable[RunWarning], console: Console) -> None:
    """Print warnings that are stored with a run."""
    for warning in warnings:
        console.print(f"warning: {warning.message}")


# The folder.


@contextmanager
def output_folder(out: Path | str | None, name: str) -> Iterator[Path]:
    """Yield the folder for a new run. A default folder is removed if it is still empty at the end."""
    if out is not None:
        yield Path(out)
        return
    new = str(run_folder.new_folder(Path("runs"), name)) if is_main_process() else ""
    folder = Path(broadcast(new))  # that of rank 0, in every process
    try:
        yield folder
    finally:
        if is_main_process() and not any(folder.iterdir()):
            folder.rmdir()
