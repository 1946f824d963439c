"""Checkpoints: the results of the phases of a run, stored so that a resumed run does not repeat them.

Every checkpoint has a checksum. A checkpoint that is damaged raises `RunError`, and its phase is computed again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from jaxtyping import Float
from torch import Tensor

from probmcl.data.records import Split
from probmcl.errors import RunError
from probmcl.neighbors.training_images import TrainingImages
from probmcl.run.results import Candidate, CandidateId
from probmcl.runtime.digests import content_digest
from probmcl.runtime.distributed import broadcast, is_main_process
from probmcl.runtime.files import convert_file, json_line
from probmcl.runtime.tensor_files import load_tensors, save_tensors
from probmcl.settings import method_settings, refuse_unnamed
from probmcl.store import run_folder
from probmcl.store.run_folder import RunFolder, delete_cache

T = TypeVar("T")

TRAINED, TRAINING, TESTED = ".trained.safetensors", ".training.safetensors", ".test.safetensors"
"""Suffixes of the checkpoints that only an unfinished run needs: a trained method, the checkpoint of a method in
training, and the scores of a tested candidate, which a finished run has in its results."""


@dataclass(frozen=True)
class Format(Generic[T]):
    """How the result of a phase is stored.

    Attributes:
        name: returns the file of a phase, relative to the run folder, given the key of the phase.
        save: writes a result, given the run folder and the file.
        load: reads a result; `RunError` if the file is damaged.
        synchronize: replaces results that may differ between processes with the result of rank 0.
    """

    name: Callable[[str], str]
    save: Callable[[RunFolder, str, T], None]
    load: Callable[[RunFolder, str], T]
    synchronize: Callable[[T], T] = lambda result: result


def _checkpoint_name(suffix: str) -> Callable[[str], str]:
    return lambda key: f"{run_folder.CHECKPOINTS}/{key}{suffix}"


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

    return Format(_checkpoint_name(".json"), save, load, synchronize)


def _checksum(content: object) -> str:
    return content_digest([json_line(content).encode()]).hex()


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

    return Format(_checkpoint_name(".safetensors"), save, load)


def load_candidate(folder: RunFolder, identity: CandidateId) -> Candidate:
    """Load a candidate from a run folder."""
    storage = candidate_format(identity)
    return storage.load(folder, storage.name(identity.key))


@dataclass(frozen=True, eq=False)
class ScoredTest:
    """The result of scoring a classifier on the test split.

    Attributes:
        scores: raw scores of the test images.
        evaluation: the metrics of these scores.
        retrieval: retrieval metrics of the features, for a probe.
    """

    scores: Float[Tensor, "N C"]
    evaluation: Mapping[str, Any]
    retrieval: Mapping[str, float | None] | None = None


@dataclass(frozen=True)
class _StoredTest:
    """The metadata in the checkpoint of a test."""

    evaluation: dict[str, Any]
    retrieval: dict[str, float | None] | None


def _save_test(folder: RunFolder, name: str, test: ScoredTest) -> None:
    metadata = {"evaluation": test.evaluation, "retrieval": test.retrieval}
    save_tensors(folder.path / name, {"scores": test.scores}, metadata, root=folder.path)


def _load_test(folder: RunFolder, name: str) -> ScoredTest:
    path = folder.path / name
    tensors, metadata = load_tensors(path, root=folder.path)
    stored = convert_file(metadata, _StoredTest, path)
    if "scores" not in tensors:
        raise RunError(f"{path}: has no scores; the file is damaged or was edited")
    return ScoredTest(tensors["scores"], stored.evaluation, stored.retrieval)


TEST_FORMAT = Format(_checkpoint_name(TESTED), _save_test, _load_test)
"""Stores the result of a test as safetensors."""


def _save_neighbors(folder: RunFolder, name: str, images: TrainingImages) -> None:
    images.save(folder.path / name)


def _load_neighbors(folder: RunFolder, name: str) -> TrainingImages:
    return TrainingImages.load(folder.path / name)


NEIGHBORS_FORMAT = Format(lambda key: run_folder.NEIGHBORS, _save_neighbors, _load_neighbors)
"""Stores the features of the training images, in the file that the finished run keeps."""


def finished_phases(folder: RunFolder) -> set[str]:
    """Return the files of all phases that may be complete, as listed by rank 0, so that all processes agree."""
    names: list[str] = []
    if is_main_process():
        names = [f"{run_folder.CHECKPOINTS}/{path.name}" for path in folder.checkpoints.glob("*")]
        names += [name for name in (run_folder.NEIGHBORS,) if folder.has(name)]
    return set(broadcast(names))


def tidy_up(folder: RunFolder) -> None:
    """Delete the checkpoints and caches that only an unfinished run needs."""
    if not is_main_process():
        return
    for path in folder.checkpoints.iterdir():
        if path.is_dir():
            delete_cache(path)
        elif path.name.endswith((TRAINED, TRAINING, TESTED)):
            path.unlink()
