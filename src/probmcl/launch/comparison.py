"""Starting and resuming a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from probmcl.audit.prepare import PreparedData, read_again, refuse_unscorable
from probmcl.console import Console
from probmcl.data.image_files import read_signatures
from probmcl.encoders import describe_encoder
from probmcl.errors import OptionError, ProbmclError, SettingsError, keyword
from probmcl.experiments.comparison_folder import create_comparison, read_comparison, update_comparison
from probmcl.experiments.protocol import TRIALS, ComparisonSpec, StoredComparison, parse_methods
from probmcl.experiments.results import Comparison, read_results
from probmcl.experiments.runner import ComparisonRunner
from probmcl.launch.run import (
    UNNAMED,
    data_name,
    data_source,
    derived_settings,
    existing_folder,
    named_files,
    named_methods,
    output_folder,
    print_warnings,
    read_data,
    resume_hint,
    resumed_settings,
    with_intensity,
)
from probmcl.report.comparison import print_comparison, write_comparison
from probmcl.report.page import write_comparison_report
from probmcl.run.train import RunControl
from probmcl.runtime.distributed import barrier, is_main_process
from probmcl.runtime.folders import locked
from probmcl.settings.build import given_settings, layered_settings, parse_duration, refuse_unnamed
from probmcl.settings.options import CompareOptions
from probmcl.settings.schema import MethodSpec, Settings
from probmcl.store import files, run_folder

DEFAULT_EPOCHS = 6


def start_comparison(options: CompareOptions, console: Console, started: float) -> Comparison:
    """Start a comparison in a new folder; `started` is the time from which its budget counts."""
    added = added_results(options)  # the paths of finished results to include
    source = data_source(options)
    spec = comparison_spec(options)
    run_folder.refuse_used(options.out)
    prepared = read_data(source, options.checks, spec.settings, console)
    refuse_unscorable(prepared.records)
    spec = replace(spec, settings=with_intensity(spec.settings, prepared, options.checks))
    assert prepared.source is not None
    name = data_name(source)
    stored = StoredComparison(prepared.source, name, spec, prepared.warnings, tuple(map(str, added)))
    with output_folder(options.out, f"{name}-comparison") as folder:
        if is_main_process():
            create_comparison(folder, stored, prepared)
        runner = ComparisonRunner(prepared, spec, folder, console, name, started=started)
        return _run_comparison(runner, added, report=options.report)


def resume_comparison(resume: Path | str, options: CompareOptions, console: Console, started: float) -> Comparison:
    """Resume an interrupted comparison with the conditions and data that are stored with it.

    The folder of the comparison has its specification and the source of its data. The user names again what is read
    from other files: methods that are defined in a file, and the finished results that the option `add` includes. They
    may also add more results.
    """
    added = added_results(options)  # the paths of all results to include
    folder = existing_folder(resume)
    stored = read_comparison(folder)
    settings = resumed_settings(stored.spec.settings, options)
    _refuse_other_methods(stored.spec.methods, options.methods, folder)
    _refuse_unnamed_results(stored.add, added)

    records = read_again(stored.source, folder / files.SPLIT, console, options.data, options.images)
    accepted = options.accept_data_change
    with_added = replace(stored, add=tuple(map(str, added)))
    # Writes the comparison, perhaps with a warning about changed images, and returns what was written.
    updated = update_comparison(folder, with_added, records.paths, console, accept_data_change=accepted)
    signatures = read_signatures(folder, records.paths)
    prepared = PreparedData(records, stored.source, warnings=updated.warnings, signatures=signatures)

    spec = replace(updated.spec, settings=settings)
    control = RunControl(accept_data_change=accepted)
    runner = ComparisonRunner(prepared, spec, folder, console, updated.name, control=control, started=started)
    return _run_comparison(runner, added, report=options.report)


def _refuse_unnamed_results(included: Sequence[str], named: Sequence[Path]) -> None:
    """Raise an error if a comparison includes results that the user has not named again with the option `add`.

    The folder of a comparison may come from a stranger, so no other file is read just because the folder names it.
    """
    unnamed = [path for path in included if Path(path) not in named]
    if unnamed:
        remedy = keyword("add", unnamed)  # the option as the user writes it, with these paths
        raise ProbmclError(f"the comparison includes {unnamed[0]}, but {UNNAMED}; add {remedy}")


def _run_comparison(runner: ComparisonRunner, added: Sequence[Path], *, report: bool) -> Comparison:
    """Run a comparison, include added results, write the tables and, if requested, the report, and print the tables."""
    warnings = runner.data.warnings
    print_warnings(warnings, runner.console)
    lock = locked(runner.folder) if is_main_process() else nullcontext()
    named = named_files(runner.spec.settings) | named_methods(runner.spec.methods)  # options to name again in a resume
    if added:
        named["add"] = added
    with resume_hint("compare", runner.folder, runner.console, named), lock:
        comparison = runner.run(added)
        if is_main_process():
            write_comparison(comparison, runner.folder, warnings)
            if report:
                write_comparison_report(comparison, runner.folder)
        barrier()
    print_comparison(comparison, runner.folder, warnings, runner.console)
    return comparison


# The specification.


def comparison_spec(options: CompareOptions) -> ComparisonSpec:
    """Return the specification of a comparison that the options of `compare` resolve to."""
    _refuse_invalid_numbers(options)
    settings = _shared_settings(options)
    describe_encoder(settings.encoder.name)
    names = method_names("all" if options.methods is None else options.methods)
    numbers = {name: options.given[name] for name in ("seeds", "trials", "batch_size") if name in options.given}
    spec = ComparisonSpec(settings, parse_methods(names), all_methods="all" in names, **numbers)
    if options.budget is not None:
        return replace(spec, budget=parse_duration(options.budget))
    epochs = DEFAULT_EPOCHS if options.epochs is None else options.epochs
    return replace(spec, epochs=epochs)


def _refuse_invalid_numbers(options: CompareOptions) -> None:
    """Raise an error if a number is out of range, or if two options set the length of the training."""
    for name in ("seeds", "trials", "epochs", "batch_size"):
        number = options.given.get(name, 1)
        if number < 1:
            raise OptionError(name, number, "must be at least 1")
    if options.trials is not None and options.trials > len(TRIALS):
        raise OptionError("trials", options.trials, f"must be at most {len(TRIALS)}")
    if options.budget is not None and options.epochs is not None:
        raise SettingsError("`budget` and `epochs` cannot be combined: a budget determines the number of epochs")


def _shared_settings(options: CompareOptions) -> Settings:
    """Return the settings of every run, whose probes on the frozen encoder are those of the methods."""
    given = given_settings(options)
    settings = layered_settings(
        {"default": {"method": "probe"}, "auto": derived_settings(given), "user": given},
    )
    probe = replace(settings.probe, frozen_views=settings.probe.views)
    return replace(settings, method="comparison", probe=probe, neighbors=False)  # the runs are only scored


def method_names(methods: Sequence[str] | str) -> list[str]:
    """Return the names in a list or in a comma-separated text.

    >>> method_names("bce, asl"), method_names(["mine.py:loss"])
    (['bce', 'asl'], ['mine.py:loss'])
    """
    if not isinstance(methods, str):
        return list(methods)
    parts = [part.strip() for part in methods.split(",")]
    return [part for part in parts if part]


def _refuse_other_methods(compared: Sequence[MethodSpec], methods: Sequence[str] | str | None, folder: Path) -> None:
    """Raise an error if the user names other methods than a comparison has, or omits one that is defined in a file.

    Args:
        compared: the methods of the comparison.
        methods: the methods that the user names, if any.
        folder: the folder of the comparison, for the message.
    """
    if methods:
        requested = parse_methods(method_names(methods))
        if requested != tuple(compared):
            names = ",".join(method.name for method in compared)
            raise OptionError("methods", methods, f"must match the methods of {folder} ({names}); or leave it out")
    # The folder may come from a stranger, so a method in a file is loaded only if the user names it again.
    remedy = "the same `methods` again, with {method}"  # `refuse_unnamed` inserts the method into its message
    for compared_method in compared:
        refuse_unnamed(compared_method.method, remedy)


def added_results(options: CompareOptions) -> list[Path]:
    """Return the paths of the results to include; results that cannot be read are an error."""
    paths: Sequence[Path | str] = ()
    if isinstance(options.add, Path | str):
        paths = [options.add]
    elif options.add is not None:
        paths = options.add
    added = list(dict.fromkeys(Path(path).resolve() for path in paths))
    for path in added:
        read_results(path)  # raises an error before anything is computed or written
    return added
