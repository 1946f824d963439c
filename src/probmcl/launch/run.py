"""Starting and resuming a run, and what starting a comparison has in common with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from probmcl.audit.prepare import PreparedData, prepare_data, read_again
from probmcl.console import Console
from probmcl.data.images import PREPROCESSING_FILE
from probmcl.data.records import Records
from probmcl.encoders import describe_encoder
from probmcl.errors import ProbmclError, RunError, RunWarning, counted
from probmcl.launch.resuming import existing_folder, named_files, resume_hint, resumed_settings
from probmcl.methods import find_method
from probmcl.readers.options import METADATA_FILE, DataChecks, DataSource
from probmcl.run.results import Run
from probmcl.run.train import RunControl, train_run
from probmcl.runtime.distributed import broadcast, is_main_process
from probmcl.runtime.machine import default_workers
from probmcl.settings.build import (
    CONFIG_FILE,
    NAMED_WEIGHTS,
    given_settings,
    layered_settings,
    read_settings,
    refuse_loss_with_method,
)
from probmcl.settings.options import CompareOptions, TrainOptions
from probmcl.settings.recipe_files import find_recipe, read_recipe
from probmcl.settings.schema import Settings, ValueOrigin
from probmcl.store import files, run_folder
from probmcl.store.run_folder import RunFolder


def start_run(options: TrainOptions, console: Console) -> Run:
    """Start a run in a new folder."""
    source = data_source(options)
    # Options are checked first, because reading every image of a large dataset takes minutes.
    settings = run_settings(options)
    describe_encoder(settings.encoder.name)
    run_folder.refuse_used(options.out)
    prepared = read_data(source, options.checks, settings, console)
    print_warnings((warning for warning in prepared.warnings if warning.kind == "seen_before"), console)
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
    from probmcl.report.write_report import write_report  # slow to import, and not needed without a report

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
    earlier = RunFolder(Path(str(given.get("encoder", {}).get("weights"))))
    if earlier.has(files.CONFIG):
        earlier.read(files.LABELS)  # raises an error before anything is computed
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
    splits = RunFolder(Path(weights)).read_split()
    trained = {os.path.realpath(path) for path, split in splits.items() if split == "train"}
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
    folder = Path(broadcast(str(run_folder.new_folder(Path("runs"), name)) if is_main_process() else ""))
    try:
        yield folder
    finally:
        if is_main_process() and not any(folder.iterdir()):
            folder.rmdir()
