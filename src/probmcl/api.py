"""The public functions `train`, `compare` and `check`.

The command line calls the same functions. Importing this module does not import torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from probmcl.console import Console
from probmcl.errors import OptionError, ProbmclError, RunError, RunWarning, WorkerError, call, counted, keyword
from probmcl.readers.options import METADATA_FILE, DataChecks, DataSource, ReadOptions
from probmcl.run_settings import (
    NAMED_WEIGHTS,
    UNNAMED,
    Options,
    comparison_spec,
    drop_none,
    method_names,
    named_files,
    named_methods,
    resumed_settings,
    run_settings,
    with_intensity,
)
from probmcl.store import files, run_folder
from probmcl.store.run_folder import RunFolder

if TYPE_CHECKING:
    from probmcl.audit.result import DataAudit
    from probmcl.data.records import Records
    from probmcl.experiments.results import Comparison
    from probmcl.experiments.runner import ComparisonRunner
    from probmcl.run.results import Run
    from probmcl.settings import MethodSpec

RESUMABLE = ("data", "images", "device", "workers", "cache", "weights")
"""Options that can be combined with `resume`: those of the machine, and files that only the folder would name."""


def train(
    data: Path | str | None = None,
    *,
    images: Path | str | None = None,
    read: ReadOptions = ReadOptions(),
    checks: DataChecks = DataChecks(),
    method: str | None = None,
    loss: str | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    encoder: str | None = None,
    weights: Path | str | None = None,
    image_size: int | None = None,
    tune: Literal["all", "last", "none"] | None = None,
    epochs: int | None = None,
    budget: str | None = None,
    probe_epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    augment: Literal["light", "paper", "none"] | None = None,
    seed: int | None = None,
    calibration: Literal["sigmoid", "isotonic", "none"] | None = None,
    thresholds: str | None = None,
    neighbors: bool = True,
    report: bool = True,
    device: str | None = None,
    workers: int | None = None,
    cache: Path | str | None = None,
    out: Path | str | None = None,
    resume: Path | str | None = None,
    accept_data_change: bool = False,
    console: Console | None = None,
) -> Run:
    """Train a model on labeled images and keep it only if it beats a linear probe.

    All images and labels are checked first. Then a linear probe is fitted on the frozen encoder and saved, and the
    methods are trained. The candidate that scores best on validation is kept; test scores do not affect this choice.
    Finally, its probabilities are calibrated, and a threshold is chosen for each class.

    Args:
        data: table of labels, or folder in a supported layout
        images: folder that image paths are relative to (default: the table's folder)
        read: options for reading the data
        checks: options for checking and splitting the data
        method: auto (default: bce and probmcl) or the name of a method; the command `probmcl methods` lists them
        loss: function to train with instead of a method: FILE.py:FUNCTION
        preset: named settings for the method, such as default or paper
        settings: method settings as KEY=VALUE pairs
        recipe: TOML file or name of a built-in recipe; other options override it
        encoder: name of a timm model; the command `probmcl encoders` lists them
        weights: pretrained (default), none, a safetensors file, or a run folder
        image_size: width and height of the input in pixels (default: set by the encoder)
        tune: part of the encoder to train: all, the last stage, or none (default: last on a CPU, all on a GPU)
        epochs: number of epochs; with auto, each epoch has two views per image
        budget: time budget for the run, such as 30m, instead of a number of epochs
        probe_epochs: number of epochs for each linear probe
        batch_size: images per step across all processes
        lr: peak learning rate
        augment: augmentation for training images: light (default), paper or none
        seed: random seed (default: 0)
        calibration: sigmoid (default), isotonic for classes with at least 1,000 positives, or none
        thresholds: balanced (default), f1, precision:P, recall:R, cost:FN,FP or a number between 0 and 1
        neighbors: keep the features of the training images, to show the images nearest to a new one
        report: write a page about the model, with photographs, at the end
        device: auto, cpu, cuda or mps
        workers: processes for decoding images (default: one per core)
        cache: folder in which decoded images are kept for the next run, or auto
        out: new or empty folder for the run (default: runs/DATE-NAME)
        resume: interrupted run to continue; only `device`, `workers`, `cache` and the files that the run was started
            with (`data`, `images`, `loss`, `weights` and those in `settings`) can be combined with it
        accept_data_change: with `resume`, continue even if image files have changed since the run started
        console: where messages and progress are printed (default: stdout)
    """
    options: Options = {"data": data, "images": images, "method": method, "loss": loss, "preset": preset}
    options |= {"settings": settings, "recipe": recipe, "encoder": encoder, "weights": weights}
    options |= {"image_size": image_size, "tune": tune, "epochs": epochs, "budget": budget}
    options |= {"probe_epochs": probe_epochs, "batch_size": batch_size, "lr": lr, "augment": augment, "seed": seed}
    options |= {"calibration": calibration, "thresholds": thresholds, "neighbors": None if neighbors else False}
    options |= {"device": device, "workers": workers, "cache": cache, "out": out}
    _refuse_without_resume(accept_data_change, resume)
    with _processes(device, console) as console:
        if resume is not None:
            _refuse_with_resume(options, read, checks, allowed=(*RESUMABLE, "loss", "settings"))
            run = _resume_run(Path(resume), options, accept_data_change, console)
        elif data is None:
            raise _missing_data("train")
        else:
            run = _start_run(options, read, checks, console)
        if report:
            _write_report(run.folder, device or "auto", console)
        for warning in run.warnings:
            if warning.kind == "chance":
                console.print_last(f"warning: {warning.message}")
        return run


def _write_report(folder: Path, device: str, console: Console) -> None:
    """Write the report of a finished run on rank 0, and print its verdict; if that fails, the run is still finished."""
    from probmcl.report.write_report import write_report
    from probmcl.runtime.distributed import is_main_process

    if is_main_process():
        try:
            _, decision = write_report([folder], device=device, console=console)
        except (ProbmclError, OSError) as error:
            console.print(f"note: the run is finished, but its report could not be written: {error}")
        else:
            console.print(f"report: {decision}; open {files.REPORT} in the run folder")


def _start_run(options: Options, read: ReadOptions, checks: DataChecks, console: Console) -> Run:
    from probmcl.audit.prepare import prepare_data
    from probmcl.encoders import describe_encoder
    from probmcl.run.train import train_run

    # Options are checked first, because reading every image of a large dataset takes minutes.
    settings, data, images = run_settings(options), options["data"], options["images"]
    describe_encoder(settings.encoder.name)
    run_folder.refuse_used(options["out"])
    source = DataSource.of(data, images, read)
    prepared = prepare_data(source, checks, seed=settings.seed, workers=settings.workers, console=console)
    settings = with_intensity(settings, prepared, checks)
    reused = _reused_images(prepared.records, settings.encoder.weights)
    prepared = replace(prepared, warnings=(*prepared.warnings, *reused))
    _print_warnings(reused, console)
    new_folder = _new_folder(options["out"], _data_name(data))
    with new_folder as folder, _resume_hint("train", folder, console, named_files(settings)):
        return train_run(prepared, settings, folder, console)


def _resume_run(folder: Path, options: Options, accept_data_change: bool, console: Console) -> Run:
    from probmcl.audit.prepare import PreparedData, read_again
    from probmcl.methods import find_method
    from probmcl.run.train import RunControl, train_run
    from probmcl.settings import read_settings

    if options["loss"] is not None:
        find_method(options["loss"])  # the user has named it, so it may be imported
    if not folder.is_dir():
        raise OptionError("resume", folder, "is not a folder")
    run = RunFolder.existing(folder)
    settings = resumed_settings(read_settings(run), options)
    source = run.read(METADATA_FILE).data
    if source is None:
        raise RunError(f"{folder} was trained on in-memory records; use probmcl.run.train.train_run to resume it")
    with _resume_hint("train", folder, console, named_files(settings)):
        records = read_again(source, folder / files.SPLIT, console, options["data"], options["images"])
        control = RunControl(accept_data_change=accept_data_change)
        return train_run(PreparedData.of(records, source), settings, folder, console, control)


def compare(
    data: Path | str | None = None,
    *,
    images: Path | str | None = None,
    read: ReadOptions = ReadOptions(),
    checks: DataChecks = DataChecks(),
    methods: Sequence[str] | str | None = None,
    encoder: str | None = None,
    weights: Path | str | None = None,
    image_size: int | None = None,
    tune: Literal["all", "last", "none"] | None = None,
    epochs: int | None = None,
    budget: str | None = None,
    seeds: int | None = None,
    trials: int | None = None,
    probe_epochs: int | None = None,
    batch_size: int | None = None,
    augment: Literal["light", "paper", "none"] | None = None,
    device: str | None = None,
    workers: int | None = None,
    cache: Path | str | None = None,
    out: Path | str | None = None,
    add: Sequence[Path] | Path | None = None,
    report: bool = True,
    resume: Path | str | None = None,
    accept_data_change: bool = False,
    console: Console | None = None,
) -> Comparison:
    """Compare methods using the same encoder, evaluation and number of training images seen.

    For each method, the tables have a row for its own head, if it has one, and a row for a linear probe on its encoder.
    Another row is for the probe on the frozen encoder. The tables, a plot and a verdict are written to the folder.

    Args:
        data: table of labels, or folder in a supported layout
        images: folder that image paths are relative to (default: the table's folder)
        read: options for reading the data
        checks: options for checking and splitting the data
        methods: all (default), or a list such as bce,probmcl:paper,my_losses.py:my_loss
        encoder: name of a timm model; the command `probmcl encoders` lists them
        weights: pretrained (default), none, a safetensors file, or a run folder
        image_size: width and height of the input in pixels (default: set by the encoder)
        tune: part of the encoder to train: all, the last stage, or none (default: last on a CPU, all on a GPU)
        epochs: number of epochs, with two views per image (default: 6)
        budget: time budget for the comparison, such as 2h, instead of a number of epochs
        seeds: number of runs per method (default: 3)
        trials: number of learning rate and weight decay pairs to try per method (default: 1, untuned)
        probe_epochs: number of epochs for each linear probe
        batch_size: images per step across all processes
        augment: augmentation for training images: light (default), paper or none
        device: auto, cpu, cuda or mps
        workers: processes for decoding images (default: one per core)
        cache: folder in which decoded images are kept for the next run, or auto
        out: new or empty folder for the comparison (default: runs/DATE-NAME-comparison)
        add: other comparisons with the same protocol to include, as folders or results.jsonl files
        report: write a page with the tables, the plot and the verdict at the end
        resume: interrupted comparison; only `device`, `workers`, `cache` and the files that it was started with
            (`data`, `images`, `weights`, `add` and those in `methods`) can be combined with it
        accept_data_change: with `resume`, continue even if image files have changed since the comparison started
        console: where messages and progress are printed (default: stdout)
    """
    from probmcl.experiments.results import read_results

    started = time.perf_counter()
    options: Options = {"data": data, "images": images, "methods": methods, "encoder": encoder, "weights": weights}
    options |= {"image_size": image_size, "tune": tune, "epochs": epochs, "budget": budget, "seeds": seeds}
    options |= {"trials": trials, "probe_epochs": probe_epochs, "batch_size": batch_size, "augment": augment}
    options |= {"device": device, "workers": workers, "cache": cache, "out": out, "add": add}
    paths = [add] if isinstance(add, Path | str) else add or ()
    added = list(dict.fromkeys(Path(path).resolve() for path in paths))
    _refuse_without_resume(accept_data_change, resume)
    with _processes(device, console) as console:
        for path in added:
            read_results(path)  # raises an error before anything is computed or written
        if resume is not None:
            _refuse_with_resume(options, read, checks, allowed=(*RESUMABLE, "add", "methods"))
            return _resume_comparison(
                Path(resume), options, added, console, started, report, accept_data_change=accept_data_change
            )
        if data is None:
            raise _missing_data("compare")
        return _start_comparison(options, read, checks, added, console, started, report)


def _start_comparison(
    options: Options,
    read: ReadOptions,
    checks: DataChecks,
    add: list[Path],
    console: Console,
    started: float,
    report: bool,
) -> Comparison:
    from probmcl.audit.prepare import prepare_data, refuse_unscorable
    from probmcl.experiments.comparison_folder import create_comparison
    from probmcl.experiments.protocol import StoredComparison
    from probmcl.experiments.runner import ComparisonRunner
    from probmcl.runtime.distributed import is_main_process

    spec, data, images = comparison_spec(options), options["data"], options["images"]
    run_folder.refuse_used(options["out"])
    source = DataSource.of(data, images, read)
    prepared = prepare_data(source, checks, workers=spec.settings.workers, console=console)
    name = _data_name(data)
    refuse_unscorable(prepared.records)
    spec = replace(spec, settings=with_intensity(spec.settings, prepared, checks))
    reused = _reused_images(prepared.records, spec.settings.encoder.weights)
    prepared = replace(prepared, warnings=(*prepared.warnings, *reused))
    assert prepared.source is not None
    stored = StoredComparison(prepared.source, name, spec, prepared.warnings, tuple(map(str, add)))
    with _new_folder(options["out"], f"{name}-comparison") as folder:
        if is_main_process():
            create_comparison(folder, stored, prepared)
        runner = ComparisonRunner(prepared, spec, folder, console, name, started=started)
        return _run_comparison(runner, add, report)


def _resume_comparison(
    folder: Path,
    options: Options,
    add: list[Path],
    console: Console,
    started: float,
    report: bool,
    *,
    accept_data_change: bool,
) -> Comparison:
    from probmcl.audit.prepare import PreparedData, read_again
    from probmcl.audit.signatures import read_signatures
    from probmcl.experiments.comparison_folder import read_comparison, update_comparison
    from probmcl.experiments.runner import ComparisonRunner
    from probmcl.run.train import RunControl

    if not folder.is_dir():
        raise OptionError("resume", folder, "is not a folder")
    stored = read_comparison(folder)
    settings = resumed_settings(stored.spec.settings, options)
    _refuse_other_methods(stored.spec.methods, options["methods"], folder)
    if unnamed := [path for path in stored.add if Path(path) not in add]:
        raise ProbmclError(f"the comparison includes {unnamed[0]}, but {UNNAMED}; add {keyword('add', unnamed)}")
    source = stored.source
    records = read_again(source, folder / files.SPLIT, console, options["data"], options["images"])
    stored = replace(stored, add=tuple(map(str, add)))
    stored = update_comparison(folder, stored, records.paths, console, accept_data_change=accept_data_change)
    signatures = read_signatures(folder, records.paths)
    prepared = PreparedData(records, source, warnings=stored.warnings, signatures=signatures)
    control = RunControl(accept_data_change=accept_data_change)
    spec = replace(stored.spec, settings=settings)
    runner = ComparisonRunner(prepared, spec, folder, console, stored.name, control=control, started=started)
    return _run_comparison(runner, add, report)


def _refuse_other_methods(compared: Sequence[MethodSpec], methods: Sequence[str] | str | None, folder: Path) -> None:
    """Raise an error if the user names other methods than a comparison has, or omits one that is defined in a file."""
    from probmcl.experiments.protocol import parse_methods
    from probmcl.settings import refuse_unnamed

    if methods and parse_methods(method_names(methods)) != tuple(compared):
        names = ",".join(method.name for method in compared)
        raise OptionError("methods", methods, f"must match the methods of {folder} ({names}); or leave it out")
    for method in compared:
        refuse_unnamed(method.method, "the same `methods` again, with {method}")


def _run_comparison(runner: ComparisonRunner, add: Sequence[Path], report: bool) -> Comparison:
    from probmcl.report.comparison import print_comparison, write_comparison
    from probmcl.report.write_report import write_comparison_report
    from probmcl.runtime.distributed import barrier, is_main_process
    from probmcl.runtime.lock import locked

    _print_warnings(runner.data.warnings, runner.console)
    lock = locked(runner.folder) if is_main_process() else nullcontext()
    named = named_files(runner.spec.settings) | named_methods(runner.spec.methods) | ({"add": add} if add else {})
    with _resume_hint("compare", runner.folder, runner.console, named), lock:
        comparison = runner.run(add)
        if is_main_process():
            write_comparison(comparison, runner.folder, runner.data.warnings)
            if report:
                write_comparison_report(comparison, runner.folder)
        barrier()
    print_comparison(comparison, runner.folder, runner.data.warnings, runner.console)
    return comparison


def check(
    data: Path | str,
    *,
    images: Path | str | None = None,
    read: ReadOptions = ReadOptions(),
    checks: DataChecks = DataChecks(),
    seed: int = 0,
    workers: int | None = None,
    console: Console | None = None,
) -> DataAudit:
    """Read all images and labels, and report statistics and problems. No files are changed.

    Args:
        data: table of labels, or folder in a supported layout
        images: folder that image paths are relative to (default: the table's folder)
        read: options for reading the data
        checks: options for checking and splitting the data
        seed: random seed for the split, as in `train`
        workers: processes for decoding images (default: one per core)
        console: where messages and progress are printed (default: stdout)

    Returns:
        The result, with a `verdict` (fine, warnings or blocked), all `findings`, statistics, and lists of the missing,
        unreadable and duplicate images. `train` refuses blocked data.
    """
    from probmcl.audit import prepare as audit
    from probmcl.runtime.machine import default_workers

    source, workers = DataSource.of(data, images, read), default_workers() if workers is None else workers
    result = audit.check(source, checks, seed=seed, workers=workers, console=console or Console())
    return replace(result, data=str(data))


# Shared by train and compare.


@contextmanager
def _processes(device: str | None, console: Console | None) -> Iterator[Console]:
    """Join torchrun's process group, if there is one, and yield a console that prints only on rank 0."""
    from probmcl.runtime.distributed import is_main_process, process_group

    with process_group(device):
        yield console or (Console() if is_main_process() else Console.quiet())


def _missing_data(function: str) -> ProbmclError:
    example = f'`probmcl.{function}("photos/labels.csv")`'
    return ProbmclError(f"`data` is missing: specify a table or a folder, as in {example}")


def _refuse_with_resume(options: Options, read: ReadOptions, checks: DataChecks, *, allowed: tuple[str, ...]) -> None:
    """Raise an error if options are given that cannot be combined with `resume`."""
    default = vars(DataChecks())
    changed = read.set_options() | {name: value for name, value in vars(checks).items() if value != default[name]}
    refused = ", ".join(f"`{name}`" for name in [*drop_none(options), *changed] if name not in allowed)
    if refused:
        raise ProbmclError(
            f"`resume` cannot be combined with {refused}: a resumed run keeps its data and settings; "
            f"only {', '.join(f'`{name}`' for name in allowed)} can be set"
        )


def _refuse_without_resume(accept_data_change: bool, resume: Path | str | None) -> None:
    if accept_data_change and resume is None:
        raise OptionError("accept_data_change", True, "needs `resume`, the interrupted run to continue")


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


def _print_warnings(warnings: Sequence[RunWarning], console: Console) -> None:
    for warning in warnings:
        console.print(f"warning: {warning.message}")


@contextmanager
def _new_folder(out: Path | str | None, name: str) -> Iterator[Path]:
    """Yield the folder for a new run. A default folder is removed if it is still empty at the end."""
    from probmcl.runtime.distributed import broadcast, is_main_process

    if out is not None:
        yield Path(out)
        return
    folder = Path(broadcast(str(run_folder.new_folder(Path("runs"), name)) if is_main_process() else ""))
    try:
        yield folder
    finally:
        if is_main_process() and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def _resume_hint(function: str, folder: Path, console: Console, named: Options) -> Iterator[None]:
    """If a run is interrupted, or one of its workers is killed, print the call that resumes it with its named files."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, WorkerError):
        if run_folder.is_run(folder):
            console.print(f"to resume: {call(function, {'resume': folder, **named})}")
        raise


def _data_name(data: Path | str) -> str:
    path = Path(data).resolve()
    return path.name if path.is_dir() else path.parent.name
