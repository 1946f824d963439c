"""The record of a run in progress: run.json with its status, duration and warnings, and the log of its training."""

import time

from msgspec.structs import replace

from probmcl.console import Console
from probmcl.errors import RunWarning
from probmcl.run.gains import CandidateEntries
from probmcl.runtime.distributed import is_main_process
from probmcl.store.files import METADATA, METRICS
from probmcl.store.run_folder import RunFolder
from probmcl.store.run_metadata import RunStatus
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
        self.metadata = folder.read(METADATA)
        earlier_attempts = self.metadata.seconds
        self.started = time.perf_counter() - earlier_attempts
        self.log = MetricsLog(folder.path / METRICS, on_warning=self._print_warning)
        self.log.warnings += self.metadata.warnings

    def seconds(self) -> float:
        """Return the duration of the run over all attempts."""
        return time.perf_counter() - self.started

    def write(self, status: RunStatus, entries: CandidateEntries | None) -> None:
        """Write run.json with this status and the candidates so far, and the table of metrics."""
        self.metadata = replace(
            self.metadata, status=status, seconds=round(self.seconds(), 1), warnings=tuple(self.log.warnings)
        )
        if entries is not None:
            self.metadata = replace(
                self.metadata, candidates=entries.candidates, kept=entries.kept, model=entries.model
            )
        if is_main_process():
            self.folder.write(METADATA, self.metadata)
            self.log.close()

    def add_test_scores(self, scores: dict[str, float | None]) -> None:
        """Add the test mAP of every tested candidate, by its name."""
        self.metadata = replace(self.metadata, test_mAP=scores)

    def replace_warning(self, warning: RunWarning) -> None:
        """Store a warning in place of those of the same kind from an interrupted attempt; an empty one removes them."""
        others = [stored for stored in self.log.warnings if stored.kind != warning.kind]
        self.log.warnings[:] = others
        if warning.message:
            self.log.warnings.append(warning)

    def _print_warning(self, warning: RunWarning) -> None:
        self.console.print(f"warning: {warning.message}")
