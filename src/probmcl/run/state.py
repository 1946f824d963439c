"""The state of a run in progress: the results of completed phases, its candidates and its record.

Every phase goes through `RunState.once`, which skips phases that an interrupted run has already completed.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.errors import RunError, RunWarning
from probmcl.evaluation.headline import headline
from probmcl.run.checkpoints import Format, candidate_format, finished_phases
from probmcl.run.gains import CandidatePool
from probmcl.run.record import RunRecord
from probmcl.run.results import Candidate, CandidateId
from probmcl.run.run_files import write_split_scores
from probmcl.runtime.distributed import is_main_process
from probmcl.runtime.tensor_files import save_tensors
from probmcl.settings import Settings
from probmcl.store.files import MODEL
from probmcl.store.run_folder import RunFolder
from probmcl.store.run_metadata import RunStatus

T = TypeVar("T")


class RunState:
    """A run in progress.

    Attributes:
        candidates: the candidates so far.
        run_record: the status, duration and warnings of the run, as stored in run.json.
    """

    def __init__(self, folder: RunFolder, records: Records, settings: Settings, console: Console) -> None:
        self.folder = folder
        self.records = records
        self.settings = settings
        self.console = console
        self.candidates = CandidatePool(records)
        self.run_record = RunRecord(folder, console)
        self._finished = finished_phases(folder)

    def once(self, key: str, compute: Callable[[], T], storage: Format[T]) -> T:
        """Return the result of a phase: load it if the phase is complete, otherwise compute and store it.

        A phase whose file is damaged is computed again.
        """
        name = storage.name(key)
        if name in self._finished:
            try:
                return storage.load(self.folder, key)
            except RunError as error:
                self._compute_again(name, error)
        result = storage.synchronize(compute())
        if is_main_process():
            storage.save(self.folder, key, result)
        return result

    def _compute_again(self, name: str, error: RunError) -> None:
        self._finished.discard(name)
        self.console.print(f"note: {error}; it is computed again")

    def candidate(self, identity: CandidateId, compute: Callable[[], Candidate]) -> Candidate:
        """Return a candidate, computed once, and save the best candidate so far as the model of the run."""
        if identity not in self.candidates:
            candidate = self.once(identity.key, compute, candidate_format(identity))
            self.candidates.add(candidate)
            self._publish_best()
            self._print_candidate(candidate, "; saved" if self.candidates.best() is candidate else "")
        return self.candidates[identity]

    def restore(self, identities: Iterable[CandidateId]) -> None:
        """Load all candidates of an interrupted run so that the best of them remains the saved model."""
        for identity in identities:
            storage = candidate_format(identity)
            name = storage.name(identity.key)
            if name not in self._finished:
                continue
            try:
                candidate = storage.load(self.folder, identity.key)
            except RunError as error:
                self._compute_again(name, error)
            else:
                self.candidates.add(candidate)
                self._print_candidate(candidate, "; already done")
        if self.candidates:
            self._publish_best()

    def _publish_best(self) -> None:
        """Save the best candidate so far as the model of the run."""
        best = self.candidates.best()
        if is_main_process():
            save_tensors(self.folder.path / MODEL, best.state, root=self.folder.path)
            write_split_scores(self.folder, self.folder.path, self.records, "val", best.scores["val"])
        self.record("running")

    def record(self, status: RunStatus) -> None:
        """Write run.json and the table of metrics."""
        self.run_record.write(status, self.candidates.entries())

    def warn(self, warning: RunWarning) -> None:
        """Store a warning with the run and print it, once."""
        if warning not in self.run_record.log.warnings:
            self.run_record.log.warn(warning)
            self.record("running")

    def _print_candidate(self, candidate: Candidate, status: str) -> None:
        gain = self.candidates.gain(candidate)
        scores = headline(candidate.validation, gain=str(gain or ""))
        self.console.print(f"{candidate.name}: val {scores}{status}")
        print_notes(self.console, [candidate])


def print_notes(console: Console, candidates: Iterable[Candidate]) -> None:
    """Print the mAP note of each candidate that has one."""
    for candidate in candidates:
        if candidate.note:
            console.print(f"  note on {candidate.name}: {candidate.note}")


def seed_phase(seed: int, random_stream: str) -> None:
    """Seed torch for one phase so that its random numbers do not depend on earlier phases."""
    torch.manual_seed(zlib.crc32(f"{seed} {random_stream}".encode()))
