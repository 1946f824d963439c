"""The state of a run on disk: the results of completed phases, and run.json.

Every phase goes through `RunState.once`, which skips phases that an interrupted run has already completed.
"""

import hashlib
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import torch
from torch import Tensor

from probmcl.console import Console
from probmcl.data.records import Records, Split
from probmcl.errors import RunError, RunWarning
from probmcl.evaluation.headline import headline
from probmcl.run.budget import Plan
from probmcl.run.gains import Gain, ValidationGains
from probmcl.run.results import FROZEN_PROBE, Candidate, CandidateId
from probmcl.run.run_files import write_predictions
from probmcl.runtime.distributed import broadcast, is_main_process
from probmcl.runtime.files import convert_file, json_line
from probmcl.runtime.tensor_files import load_tensors, save_tensors
from probmcl.settings import Settings, method_settings, refuse_unnamed
from probmcl.store import run_folder
from probmcl.store.run_folder import RunFolder, delete_cache
from probmcl.training import MetricsLog

T = TypeVar("T")

TRAINED, TRAINING = ".trained.safetensors", ".training.safetensors"
"""Suffixes of files that only an unfinished run needs: a trained method, and the checkpoint of a method in training."""


@dataclass(frozen=True)
class Format(Generic[T]):
    """How the result of a phase is stored; `synchronize` replaces results that may differ with the result of rank 0."""

    suffix: str
    save: Callable[[RunFolder, str, T], None]
    load: Callable[[RunFolder, str], T]
    synchronize: Callable[[T], T] = lambda result: result


def json_format(kind: type[T]) -> Format[T]:
    """Return the format that stores a dataclass as JSON."""

    def decode(content: Any) -> T:
        return msgspec.convert(content, kind)

    def synchronize(result: T) -> T:
        return decode(broadcast(msgspec.to_builtins(result)))

    def save(folder: RunFolder, name: str, result: T) -> None:
        content = msgspec.to_builtins(result, enc_hook=str)
        folder.write(name, {"checksum": _checksum(content), **content})

    def load(folder: RunFolder, name: str) -> T:
        content = folder.read_results(folder.path / name)
        checksum = content.pop("checksum", None)
        if checksum != _checksum(content):
            raise RunError(f"{folder.path / name}: is damaged: its content does not match its checksum")
        return convert_file(content, kind, folder.path / name)

    return Format(".json", save, load, synchronize)


def _checksum(content: object) -> str:
    return hashlib.sha256(json_line(content).encode()).hexdigest()


@dataclass(frozen=True)
class StoredCandidate:
    """The metadata in the checkpoint of a candidate; see `Candidate`."""

    method: str
    settings: dict[str, Any]
    validation: dict[str, Any]
    seconds: float
    fit_seconds: float
    weight_decay: float | None

    def __post_init__(self) -> None:
        if not isinstance(self.validation.get("mAP", ""), float | None):
            raise ValueError("validation has no mAP")


def candidate_format(identity: CandidateId) -> Format[Candidate]:
    """Return the format that stores a candidate, with its parameters and validation scores, as safetensors."""

    def save(folder: RunFolder, name: str, candidate: Candidate) -> None:
        tensors = {f"state.{key}": value for key, value in candidate.state.items()}
        fields = ("method", "settings", "validation", "seconds", "fit_seconds", "weight_decay")
        metadata = {field: getattr(candidate, field) for field in fields}
        save_tensors(folder.path / name, tensors | {"scores": candidate.scores["val"]}, metadata, root=folder.path)

    def load(folder: RunFolder, name: str) -> Candidate:
        path = folder.path / name
        tensors, metadata = load_tensors(path, root=folder.path)
        stored = convert_file(metadata, StoredCandidate, path)
        refuse_unnamed(stored.method, '`loss="{method}"`')  # the folder may come from a stranger
        if "scores" not in tensors:
            raise RunError(f"{path}: has no scores; the file is damaged or was edited")
        scores: dict[Split, Tensor] = {"val": tensors.pop("scores")}
        state = {key.removeprefix("state."): value for key, value in tensors.items()}
        settings = method_settings(stored.method, changes=stored.settings)
        return Candidate(identity, state=state, scores=scores, **(vars(stored) | {"settings": settings}))

    return Format(".safetensors", save, load)


def load_candidate(folder: RunFolder, identity: CandidateId) -> Candidate:
    """Load a candidate from a run folder."""
    storage = candidate_format(identity)
    return storage.load(folder, checkpoint_name(identity.key, storage))


def checkpoint_name(key: str, storage: Format[Any]) -> str:
    """Return the name of the file with the result of a phase, relative to the run folder."""
    return f"{run_folder.CHECKPOINTS}/{key}{storage.suffix}"


class RunState:
    """A run in progress. The results of its phases are in checkpoints/, its candidates and warnings in run.json."""

    def __init__(self, folder: RunFolder, records: Records, settings: Settings, console: Console) -> None:
        self.folder, self.records, self.settings, self.console = folder, records, settings, console
        self.metadata: dict[str, Any] = folder.read(run_folder.METADATA)
        self.started: float = time.perf_counter() - self.metadata["seconds"]  # includes earlier, interrupted attempts
        self.log = MetricsLog(folder.path / run_folder.METRICS, on_warning=self._print_warning)
        self.log.warnings += [RunWarning(**warning) for warning in self.metadata["warnings"]]
        self.candidates: dict[CandidateId, Candidate] = {}
        self.gains = ValidationGains(records)
        # Listed once by rank 0 so that all processes skip the same phases.
        files = [path.name for path in folder.checkpoints.glob("*")] if is_main_process() else []
        self.completed: set[str] = set(broadcast(files))

    def once(self, key: str, compute: Callable[[], T], storage: Format[T]) -> T:
        """Return the result of a phase: load it if the phase is complete, otherwise compute and store it.

        A phase whose file is damaged is computed again.
        """
        name = checkpoint_name(key, storage)
        if Path(name).name in self.completed:
            try:
                return storage.load(self.folder, name)
            except RunError as error:
                self.console.print(f"note: {error}; it is computed again")
        result = storage.synchronize(compute())
        if is_main_process():
            storage.save(self.folder, name, result)
        return result

    def candidate(self, identity: CandidateId, compute: Callable[[], Candidate]) -> Candidate:
        """Return a candidate, computed once, and save the best candidate so far as the model of the run."""
        if identity not in self.candidates:
            candidate = self.once(identity.key, compute, candidate_format(identity))
            self.candidates[identity] = candidate
            self.publish_best()
            self._print_candidate(candidate, "; saved" if self.best() is candidate else "")
        return self.candidates[identity]

    def restore(self, identities: Iterable[CandidateId]) -> None:
        """Load all candidates of an interrupted run so that the best of them remains the saved model."""
        for identity in identities:
            name = f"{identity.key}.safetensors"
            if name in self.completed:
                try:
                    self.candidates[identity] = load_candidate(self.folder, identity)
                except RunError as error:
                    self.completed.remove(name)
                    self.console.print(f"note: {error}; it is computed again")
                    continue
                self._print_candidate(self.candidates[identity], "; already done")
        if self.candidates:
            self.publish_best()

    def gain(self, candidate: Candidate) -> Gain | None:
        """Return the gain of a candidate over the frozen probe on validation; None for the probe itself."""
        frozen = self.candidates.get(FROZEN_PROBE)
        return None if frozen is None or candidate.id == FROZEN_PROBE else self.gains.gain(candidate, frozen)

    def _print_candidate(self, candidate: Candidate, status: str) -> None:
        scores = headline(candidate.validation, gain=str(self.gain(candidate) or ""))
        self.console.print(f"{candidate.name}: val {scores}{status}")
        self.print_notes(candidate)

    def best(self) -> Candidate:
        """Return the candidate with the highest validation mAP; on a tie, the earlier, simpler one."""
        return max(self.candidates.values(), key=lambda candidate: candidate.validation_map)

    def publish_best(self) -> None:
        """Save the best candidate so far as the model of the run."""
        best = self.best()
        if is_main_process():
            save_tensors(self.folder.path / run_folder.MODEL, best.state, root=self.folder.path)
            write_predictions(self.folder, self.folder.path, self.records, "val", best.scores["val"])
        self.record("running")

    def record(self, status: str) -> None:
        """Write run.json and the table of metrics."""
        warnings = [vars(warning) for warning in self.log.warnings]
        self.metadata |= {"status": status, "seconds": round(self.seconds(), 1), "warnings": warnings}
        if self.candidates:
            kept, model = self.best().name, {"method": self.best().method, "settings": self.best().settings}
            entries = [_candidate_entry(candidate, self.gain(candidate)) for candidate in self.candidates.values()]
            self.metadata |= {"candidates": entries, "kept": kept, "model": model}
        if is_main_process():
            self.folder.write(run_folder.METADATA, self.metadata)
            self.log.close()

    def seconds(self) -> float:
        """Return the duration of the run over all attempts."""
        return time.perf_counter() - self.started

    def warn(self, warning: RunWarning) -> None:
        """Store a warning with the run and print it, once."""
        if warning not in self.log.warnings:
            self.log.warn(warning)
            self.record("running")

    def _print_warning(self, warning: RunWarning) -> None:
        self.console.print(f"warning: {warning.message}")

    def print_notes(self, *candidates: Candidate) -> None:
        """Print the mAP note of each candidate that has one."""
        for candidate in candidates:
            if candidate.note:
                self.console.print(f"  note on {candidate.name}: {candidate.note}")

    def seed_phase(self, random_stream: str) -> None:
        """Seed torch for one phase so that its random numbers do not depend on earlier phases."""
        torch.manual_seed(zlib.crc32(f"{self.settings.seed} {random_stream}".encode()))

    def tidy_up(self) -> None:
        """Delete the files that only an unfinished run needs."""
        for path in self.folder.checkpoints.iterdir() if is_main_process() else ():
            if path.is_dir():
                delete_cache(path)
            elif path.name.endswith((TRAINED, TRAINING)):
                path.unlink()


def read_plan(folder: RunFolder) -> Plan:
    """Read the plan of a run."""
    storage = json_format(Plan)
    return storage.load(folder, checkpoint_name("plan", storage))


def _candidate_entry(candidate: Candidate, gain: Gain | None) -> dict[str, Any]:
    entry = candidate.id._asdict() | {"name": candidate.name, "validation_mAP": candidate.validation["mAP"]}
    compared = {} if gain is None else {"gain": gain.mean, "gain_interval": gain.interval}
    return entry | compared | ({"note": candidate.note} if candidate.note else {})
