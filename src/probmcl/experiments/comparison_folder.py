"""The folder of a comparison: what it needs to be resumed, besides the runs that it contains."""

from dataclasses import replace
from pathlib import Path

from probmcl.audit.prepare import PreparedData
from probmcl.console import Console
from probmcl.data.image_files import accepted_changes, write_signatures
from probmcl.data.records import Paths
from probmcl.errors import RunError
from probmcl.experiments.protocol import COMPARISON_FILE, StoredComparison
from probmcl.run.run_files import write_split
from probmcl.run.train import on_main_process
from probmcl.runtime.files import refuse_special_files
from probmcl.runtime.folders import locked
from probmcl.store.run_folder import RunFolder


def create_comparison(folder: Path, stored: StoredComparison, prepared: PreparedData) -> None:
    """Create the folder of a new comparison."""
    assert prepared.signatures is not None
    folder.mkdir(parents=True, exist_ok=True)
    write_split(RunFolder(folder), prepared.records, prepared.fold_of)
    write_signatures(folder, prepared.records.paths, prepared.signatures)
    RunFolder(folder).write(COMPARISON_FILE, stored)


def read_comparison(folder: Path) -> StoredComparison:
    """Read how a comparison was started."""
    refuse_special_files(folder)
    comparison = RunFolder(folder)
    if not comparison.has(COMPARISON_FILE):
        raise RunError(f"{folder} is not a comparison: {COMPARISON_FILE} does not exist")
    return comparison.read(COMPARISON_FILE)


def update_comparison(
    folder: Path, stored: StoredComparison, paths: Paths, console: Console, *, accept_data_change: bool
) -> StoredComparison:
    """Store a comparison again before it is resumed, with a warning if images have changed and this is accepted."""

    def update() -> None:
        """Refuse or note changed images, and store the comparison; only the main process does so."""
        with locked(folder):
            changes = accepted_changes(folder, paths, console, accept=accept_data_change)
            warnings = stored.warnings
            if changes is not None and changes.changed:  # otherwise, files were only touched or copied
                warnings = (*warnings, changes.warning())
            RunFolder(folder).write(COMPARISON_FILE, replace(stored, warnings=warnings))
            if changes is not None:
                write_signatures(folder, paths, changes.signatures)

    on_main_process(update)
    return read_comparison(folder)
