"""The record of a run in progress: run.json with its status, duration and warnings, and the log of its training."""

import time
from collections.abc import Mapping
from typing import Any

from probmcl.console import Console
from probmcl.errors import RunWarning
from probmcl.runtime.distributed import is_main_process
from probmcl.store import run_folder
from probmcl.store.run_folder import RunFolder
from probmcl.training import MetricsLog


class RunRecord:
    """The record of a run in progress. Rank 0 writes it to run.json.

    Attributes:
        log: the training log, which also holds the warnings of the run.
        metadata: the content of run.json.
    """

    def __init__(self, folder: RunFolder, console: Console) -> None:
        self.folder = folder
        self.console = console
        self.metadata: dict[str, Any] = folder.read(run_folder.METADATA)
        earlier_attempts: float = self.metadata["seconds"]
        self.started = time.perf_counter() - earlier_attempts
        self.log = MetricsLog(folder.path / run_folder.METRICS, on_warning=self._print_warning)
        self.log.warnings += [RunWarning(**warning) for warning in self.metadata["warnings"]]

    def seconds(self) -> float:
        """Return the duration of the run over all attempts."""
        return time.perf_counter() - self.started

    def write(self, status: str, candidates: Mapping[str, Any]) -> None:
        """Write run.json with this status and the keys of the candidates, and the table of metrics."""
        self.metadata["status"] = status
        self.metadata["seconds"] = round(self.seconds(), 1)
        self.metadata["warnings"] = [vars(warning) for warning in self.log.warnings]
        self.metadata |= candidates
        if is_main_process():
            self.folder.write(run_folder.METADATA, self.metadata)
            self.log.close()

    def replace_warning(self, warning: RunWarning) -> None:
        """Store a warning in place of those of the same kind from an interrupted attempt; an empty one removes them."""
        others = [stored for stored in self.log.warnings if stored.kind != warning.kind]
        self.log.warnings[:] = others
        if warning.message:
            self.log.warnings.append(warning)

    def _print_warning(self, warning: RunWarning) -> None:
        self.console.print(f"warning: {warning.message}")
