"""The state of a run in progress: the results of completed phases, stored as checkpoints, and its candidates.

Every checkpoint has a checksum. A checkpoint that is damaged raises `RunError`, and its phase is computed again.

Every phase goes through `RunState.once`, which skips phases that an interrupted run has already completed.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import torch
from jaxtyping import Float
from torch import Tensor

from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.errors import RunError, RunWarning
from probmcl.evaluation.evaluate import headline
from probmcl.neighbors.training_images import TrainingImages
from probmcl.run.results import Candidate, CandidateId, CandidatePool
from probmcl.run.run_files import RunRecord, write_split_scores
from probmcl.runtime.conversion import TypeForm, convert
from probmcl.runtime.distributed import broadcast, is_main_process
from probmcl.runtime.files import DAMAGED
from probmcl.runtime.tensor_files import save_tensors
from probmcl.settings import Settings, method_settings, refuse_unnamed
from probmcl.store import files
from probmcl.store.evaluation import ModelEvaluation, Retrieval, SplitMetrics
from probmcl.store.files import MODEL, File
from probmcl.store.run_folder import RunFolder, delete_cache
from probmcl.store.run_metadata import RunStatus, StoredCandidate, StoredTest

T = TypeVar("T")

UNFINISHED = (files.TRAINED, files.TRAINING, files.TESTED, files.MODEL_TESTED)
"""The checkpoints that only an unfinished run needs. A finished run has the scores of its tests in its results."""


@dataclass(frozen=True)
class Format(Generic[T]):
    """How the result of a phase is stored. A result is never None.

    Attributes:
        row: the file of the phase; a `*` in its name stands for the key of the phase.
        save: writes a result, given the run folder and the key.
        load: reads a result; `RunError` if the file is damaged.
        synchronize: replaces results that may differ between processes with the result of rank 0.
    """

    row: File
    save: Callable[[RunFolder, str, T], None]
    load: Callable[[RunFolder, str], T]
    synchronize: Callable[[T], T] = lambda result: result

    def name(self, key: str) -> str:
        """Return the file of a phase, relative to the run folder."""
        return self.row.named(key).name


def json_format(kind: TypeForm[T]) -> Format[T]:
    """Return the format that stores the result of a phase, which is a dataclass of this kind, as JSON.

    A phase is a step of a run and has a key, such as "plan". Its file is checkpoints/<key>.json in the run folder.
    """
    any_phase = files.PHASE.holding(kind)  # describes checkpoints/*.json, where * stands for the key of a phase

    def synchronize(result: T) -> T:
        """Return the result of rank 0 on every process."""
        return convert(broadcast(msgspec.to_builtins(result)), kind)

    def save(folder: RunFolder, key: str, result: T) -> None:
        """Write the result to the file of the phase with this key."""
        file = any_phase.named(key)
        folder.write(file, result)

    def load(folder: RunFolder, key: str) -> T:
        """Read the result from the file of the phase with this key."""
        file = any_phase.named(key)
        return folder.read(file)

    return Format(any_phase, save, load, synchronize)


def candidate_format(identity: CandidateId) -> Format[Candidate]:
    """Return the format that stores a candidate, with its parameters and validation scores, as safetensors.

    The key of the phase must be the key of the candidate.
    """

    def load(folder: RunFolder, key: str) -> Candidate:
        return load_candidate(folder, identity)

    return Format(files.CANDIDATE, _save_candidate, load)


def _save_candidate(folder: RunFolder, key: str, candidate: Candidate) -> None:
    tensors = {f"state.{name}": value for name, value in candidate.state.items()}
    tensors["scores"] = candidate.scores["val"]
    stored = StoredCandidate(
        method=candidate.method,
        settings=msgspec.to_builtins(candidate.settings),
        validation=candidate.validation,
        seconds=candidate.seconds,
        fit_seconds=candidate.fit_seconds,
        weight_decay=candidate.weight_decay,
    )
    folder.write_tensors(files.CANDIDATE.named(key), tensors, stored)


def load_candidate(folder: RunFolder, identity: CandidateId) -> Candidate:
    """Load a candidate from a run folder, with its scores and metrics on validation but not those on test.

    Raise `RunError` if its file is damaged, and `SettingsError` if it names a method from outside this package that is
    not imported yet.
    """
    file = files.CANDIDATE.named(identity.key)
    tensors, stored = folder.read_tensors(file)
    refuse_unnamed(stored.method, '`loss="{method}"`')  # the folder may come from a stranger
    validation_scores = _stored_scores(tensors, folder.path / file)
    return Candidate(
        identity,
        method=stored.method,
        settings=method_settings(stored.method, changes=stored.settings),
        state={name.removeprefix("state."): value for name, value in tensors.items() if name != "scores"},
        scores={"val": validation_scores},
        validation=stored.validation,
        seconds=stored.seconds,
        fit_seconds=stored.fit_seconds,
        weight_decay=stored.weight_decay,
    )


def _stored_scores(tensors: Mapping[str, Tensor], path: Path) -> Tensor:
    """Return the scores among the tensors of a file; `RunError` if the file has none."""
    if "scores" not in tensors:
        raise RunError(f"{path}: has no scores; {DAMAGED}")
    return tensors["scores"]


@dataclass(frozen=True, eq=False)
class ScoredTest:
    """The result of scoring a classifier on the test split.

    Attributes:
        scores: raw scores of the test images.
        evaluation: the metrics of these scores.
        retrieval: retrieval metrics of the features, for a probe.
    """

    scores: Float[Tensor, "N C"]
    evaluation: SplitMetrics
    retrieval: Retrieval | None = None


def _save_test(folder: RunFolder, key: str, test: ScoredTest) -> None:
    stored = StoredTest(evaluation=test.evaluation, retrieval=test.retrieval)
    folder.write_tensors(files.TESTED.named(key), {"scores": test.scores}, stored)


def _load_test(folder: RunFolder, key: str) -> ScoredTest:
    file = files.TESTED.named(key)
    tensors, stored = folder.read_tensors(file)
    scores = _stored_scores(tensors, folder.path / file)
    return ScoredTest(scores, stored.evaluation, stored.retrieval)


TEST_FORMAT = Format(files.TESTED, _save_test, _load_test)
"""Stores the result of a test as safetensors."""


@dataclass(frozen=True, eq=False)
class ModelTest:
    """The result of scoring the model that users load on the test split.

    Attributes:
        scores: raw scores of the test images.
        evaluation: the metrics of the calibrated model, the content of evaluation.json.
    """

    scores: Float[Tensor, "N C"]
    evaluation: ModelEvaluation


def _save_model_test(folder: RunFolder, key: str, test: ModelTest) -> None:
    folder.write_tensors(files.MODEL_TESTED, {"scores": test.scores}, test.evaluation)


def _load_model_test(folder: RunFolder, key: str) -> ModelTest:
    tensors, evaluation = folder.read_tensors(files.MODEL_TESTED)
    scores = _stored_scores(tensors, folder.path / files.MODEL_TESTED)
    return ModelTest(scores, evaluation)


MODEL_TEST_FORMAT = Format(files.MODEL_TESTED, _save_model_test, _load_model_test)
"""Stores the test of the model that users load as safetensors. A run has one such model, so the key is not used."""


def _save_neighbors(folder: RunFolder, key: str, images: TrainingImages) -> None:
    images.save(folder.path / files.NEIGHBORS)


def _load_neighbors(folder: RunFolder, key: str) -> TrainingImages:
    return TrainingImages.load(folder.path / files.NEIGHBORS)


NEIGHBORS_FORMAT = Format(files.NEIGHBORS, _save_neighbors, _load_neighbors)
"""Stores the features of the training images, in the one file that the finished run keeps. The key is not used."""


def finished_phases(folder: RunFolder) -> set[str]:
    """Return the files of all phases that may be complete, as listed by rank 0, so that all processes agree."""
    names: list[str] = []
    if is_main_process():
        names = [f"{files.CHECKPOINTS}/{path.name}" for path in folder.checkpoints.glob("*")]
        if folder.has(files.NEIGHBORS):  # the only phase whose result is not a checkpoint
            names.append(files.NEIGHBORS.name)
    return set(broadcast(names))


def tidy_up(folder: RunFolder) -> None:
    """Delete the checkpoints and caches that only an unfinished run needs."""
    if not is_main_process():
        return
    for path in folder.checkpoints.iterdir():
        if path.is_dir():
            delete_cache(path)
            continue
        name = f"{files.CHECKPOINTS}/{path.name}"
        if any(row.describes(name) for row in UNFINISHED):
            path.unlink()


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
        stored = self._stored(key, storage)
        if stored is not None:
            return stored
        result = storage.synchronize(compute())
        if is_main_process():
            storage.save(self.folder, key, result)
        return result

    def _stored(self, key: str, storage: Format[T]) -> T | None:
        """Return the stored result of a phase, or None if the phase is not complete.

        A phase whose file is damaged counts as not complete from then on, so the damage is printed once.
        """
        name = storage.name(key)
        if name not in self._finished:
            return None
        try:
            return storage.load(self.folder, key)
        except RunError as error:
            self._finished.discard(name)
            self.console.print(f"note: {error}; it is computed again")
            return None

    def candidate(self, identity: CandidateId, compute: Callable[[], Candidate]) -> Candidate:
        """Return a candidate, computed once, and save the best candidate so far as the model of the run."""
        if identity in self.candidates:
            return self.candidates[identity]
        candidate = self.once(identity.key, compute, candidate_format(identity))
        self.candidates.add(candidate)
        self._publish_best()
        is_best = self.candidates.best() is candidate
        self._print_candidate(candidate, "; saved" if is_best else "")
        return candidate

    def restore(self, identities: Iterable[CandidateId]) -> None:
        """Load all candidates of an interrupted run so that the best of them remains the saved model.

        Args:
            identities: the possible candidates of the run, in the order in which it computes them.
        """
        for identity in identities:
            candidate = self._stored(identity.key, candidate_format(identity))
            if candidate is not None:
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
        """Print the validation scores of a candidate, its gain over the frozen probe, and its note."""
        gain = self.candidates.gain(candidate)
        gain_text = "" if gain is None else str(gain)
        scores = headline(candidate.validation, gain=gain_text)
        self.console.print(f"{candidate.name}: val {scores}{status}")
        print_notes(self.console, [candidate])


def print_notes(console: Console, candidates: Iterable[Candidate]) -> None:
    """Print the mAP note of each candidate that has one."""
    for candidate in candidates:
        if candidate.note:
            console.print(f"  note on {candidate.name}: {candidate.note}")


def seed_phase(seed: int, random_stream: str) -> None:
    """Seed torch for one phase so that its random numbers do not depend on earlier phases."""
    phase_seed = zlib.crc32(f"{seed} {random_stream}".encode())
    torch.manual_seed(phase_seed)
