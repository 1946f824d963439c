"""The public functions `train`, `compare` and `check`.

The command line calls the same functions. Importing this module does not import torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from probmcl.console import Console
from probmcl.readers.options import DataSource
from probmcl.settings.declaration import keywords_of
from probmcl.settings.options import CheckOptions, CompareOptions, TrainOptions

if TYPE_CHECKING:
    from probmcl.audit.result import DataAudit
    from probmcl.experiments.results import Comparison
    from probmcl.run.results import Run


@keywords_of(TrainOptions)
def train(options: TrainOptions) -> Run:
    """Train a model on labeled images and keep it only if it beats a linear probe.

    All images and labels are checked first. Then a linear probe is fitted on the frozen encoder and saved, and the
    methods are trained. The candidate that scores best on validation is kept; test scores do not affect this choice.
    Finally, its probabilities are calibrated, and a threshold is chosen for each class.
    """
    from probmcl.launch.run import refuse_with_resume, report_run, resume_run, start_run

    refuse_with_resume(options)
    with _processes(options) as console:
        run = start_run(options, console) if options.resume is None else resume_run(options.resume, options, console)
        if options.report:
            report_run(run.folder, options.device or "auto", console)
        for warning in run.warnings:
            if warning.kind == "chance":
                console.print_last(f"warning: {warning.message}")
        return run


@keywords_of(CompareOptions)
def compare(options: CompareOptions) -> Comparison:
    """Compare methods using the same encoder, evaluation and number of training images seen.

    For each method, the tables have a row for its own head, if it has one, and a row for a linear probe on its encoder.
    Another row is for the probe on the frozen encoder. The tables, a plot and a verdict are written to the folder.
    """
    from probmcl.launch.comparison import resume_comparison, start_comparison
    from probmcl.launch.run import refuse_with_resume

    started = time.perf_counter()
    refuse_with_resume(options)
    with _processes(options) as console:
        if options.resume is None:
            return start_comparison(options, console, started)
        return resume_comparison(options.resume, options, console, started)


@keywords_of(CheckOptions)
def check(options: CheckOptions) -> DataAudit:
    """Read all images and labels, and report statistics and problems. No files are changed.

    Returns:
        The result, with a `verdict` (fine, warnings or blocked), all `findings`, statistics, and lists of the missing,
        unreadable and duplicate images. `train` refuses blocked data.
    """
    from probmcl.audit import prepare as audit
    from probmcl.runtime.machine import default_workers

    source = DataSource.of(options.data, options.images, options.read)
    workers = default_workers() if options.workers is None else options.workers
    console = options.console or Console()
    result = audit.audit_data(source, options.checks, seed=options.seed, workers=workers, console=console)
    return replace(result, data=str(options.data))


@contextmanager
def _processes(options: TrainOptions | CompareOptions) -> Iterator[Console]:
    """Join torchrun's process group, if there is one, and yield a console that prints only on rank 0."""
    from probmcl.runtime.distributed import is_main_process, process_group

    with process_group(options.device):
        yield options.console or (Console() if is_main_process() else Console.quiet())
