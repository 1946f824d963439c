"""The content of run.json, labels.json, the tables of images, and the metadata of checkpoints."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_args

import msgspec
from msgspec import Meta

from probmcl.errors import RunWarning, check_range, counted
from probmcl.store.evaluation import Retrieval, SplitMetrics
from probmcl.version import __version__

MAX_CLASSES = 100_000
"""Largest number of classes of a run. Loading a model with more would take minutes or exhaust the memory."""

UNPRINTABLE = re.compile(r"[\x00\ud800-\udfff]")
"""Characters that files and figures cannot contain: NUL and lone surrogates."""

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

ImagePath = Annotated[str, Meta(min_length=1)]

S = TypeVar("S")

Head = Literal["frozen", "own head", "re-probed"]
"""The head of a candidate: a probe on the frozen encoder, the method's own head, or a probe on its encoder."""

RunStatus = Literal["running", "interrupted", "failed", "finished"]

MAX_LAYERS = 100
"""Largest number of layers that a setting can list; building a model with millions would take hours."""

NO_FILE_NAME = re.compile(r"[/\\\x00\ud800-\udfff]")
"""Characters that the name of a file cannot contain: separators, NUL and lone surrogates."""

PACKAGES = ("torch", "timm", "torchvision", "numpy", "pillow")
"""Libraries that affect scores."""


class StoredPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the labels of a run were read, for the report.

    Attributes:
        unknown: what is done with labels that are not known.
        blank: the meaning of a blank cell, as given in the options.
        minus_one: the meaning of -1, as given in the options.
        chance_of_uncertain: for each class with uncertain labels, the probability that they are positive.
        labels: the number of labels in each state.
    """

    unknown: str
    blank: tuple[str, ...] | None
    minus_one: tuple[str, ...] | None
    chance_of_uncertain: dict[str, float]
    labels: dict[str, int]


class ClassLabels(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The classes of a run, in the order of the scores, with their training positives and parents."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    hierarchy: dict[str, str] | None
    policy: StoredPolicy

    def __post_init__(self) -> None:
        unprintable = [name for name in self.names if UNPRINTABLE.search(name)]
        if unprintable:
            raise ValueError(f"the class name {unprintable[0]!r} has characters that cannot be written")
        if len(self.names) > MAX_CLASSES:
            raise ValueError(f"{counted(len(self.names), 'class', 'classes')}; the limit is {MAX_CLASSES:,}")
        has_repeated_name = len(set(self.names)) < len(self.names)
        if not self.names or has_repeated_name or len(self.counts) != len(self.names):
            names, counts = counted(len(self.names), "name"), counted(len(self.counts), "count")
            raise ValueError(f"{names} and {counts}; expected one of each per class")
        refuse_cycles(self.names, self.hierarchy or {})


def refuse_cycles(names: Sequence[str], hierarchy: Mapping[str, str]) -> None:
    """Raise `ValueError` if a class is its own ancestor, or has such an ancestor.

    >>> refuse_cycles(["a", "b"], {"a": "b", "b": "a"})
    Traceback (most recent call last):
    ValueError: class 'a' is its own ancestor; correct the hierarchy
    """
    classes = set(names)
    roots_reached: set[str] = set()  # classes whose ancestors are known to end at a root
    for name in names:
        path: dict[str, None] = {}  # in order, with fast lookup
        ancestor: str | None = name
        while ancestor in classes and ancestor not in roots_reached:
            if ancestor in path:
                raise ValueError(f"class {name!r} is its own ancestor; correct the hierarchy")
            path[ancestor] = None
            ancestor = hierarchy.get(ancestor)
        roots_reached.update(path)


class SplitRow(NamedTuple):
    """The split of an image."""

    path: ImagePath
    split: Split


class FoldRow(NamedTuple):
    """The fold of an image, counted from 1."""

    path: ImagePath
    fold: int


class ImageRow(NamedTuple):
    """The size, modification time and digest of an image file when the run started."""

    path: ImagePath
    size: int
    mtime_ns: int
    digest: str


class ProtocolFingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A hash of each part of a protocol, and of `all` parts. Only results with equal hashes are comparable."""

    data: str
    split: str
    encoder: str
    augmentation: str
    budget: str
    all: str

    def differing(self, other: "ProtocolFingerprint") -> list[str]:
        """Return the parts in which another protocol differs."""
        parts = [name for name in self.__struct_fields__ if name != "all"]
        return [part for part in parts if getattr(self, part) != getattr(other, part)]


class StoredCandidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A candidate; see `probmcl.run.results.Candidate`. The settings are those of its method, as plain values."""

    method: str
    settings: dict[str, Any]
    validation: SplitMetrics
    seconds: float
    fit_seconds: float
    weight_decay: float | None


class StoredTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The metrics of a candidate on the test split, with retrieval metrics for a probe."""

    evaluation: SplitMetrics
    retrieval: Retrieval | None


class CandidateEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A candidate of a run; `gain` is its lead over the frozen probe in validation mAP."""

    method: str
    head: Head
    trial: int
    name: str
    validation_mAP: float | None  # noqa: N815
    gain: float | None = None
    gain_interval: tuple[float, float] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        check_range(at_least=1, trial=self.trial)
        if NO_FILE_NAME.search(self.method):
            raise ValueError(f"method {self.method!r} is not valid")


class KeptModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The method of the model that a run has saved, and its settings."""

    method: str
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        for key, value in self.settings.items():
            if isinstance(value, list) and len(value) > MAX_LAYERS:
                raise ValueError(f"{key} has {len(value):,} values; the limit is {MAX_LAYERS}")


class RunMetadata(
    msgspec.Struct, Generic[S], frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """The content of run.json.

    Attributes:
        command: the program and its arguments.
        seed: the seed of the settings.
        versions: versions of Python, probmcl and the libraries that affect scores.
        commit: the commit of the source tree; None for an installed package.
        started: the time when the run started.
        data: the data, as a class of a later package; None for records in memory.
        records: hash of the images and labels.
        duplicates: the numbers of exact and near duplicates, if they were counted.
        status: whether the run is finished.
        seconds: duration over all attempts.
        warnings: problems that did not stop the run.
        candidates: all candidates so far.
        kept: the name of the candidate that the model is from.
        model: the method of the model and its settings.
        test_mAP: the mAP on the test split of every tested candidate, by its name.
    """

    command: tuple[str, ...]
    seed: int
    versions: dict[str, str]
    commit: str | None
    started: str
    data: S | None
    records: str
    duplicates: dict[str, int] | None
    status: RunStatus
    seconds: float
    warnings: tuple[RunWarning, ...]
    candidates: tuple[CandidateEntry, ...]
    kept: str | None
    model: KeptModel | None
    test_mAP: dict[str, float | None] | None = None  # noqa: N815

    def __post_init__(self) -> None:
        check_range(at_least=0, seconds=self.seconds)
        names = [entry.name for entry in self.candidates]
        if len(set(names)) < len(names):
            raise ValueError("the names of the candidates must be unique")
        is_unknown = self.kept is not None and self.kept not in names
        has_model = self.kept is not None and self.model is not None
        if is_unknown or (self.status == "finished" and not has_model):
            raise ValueError(f"kept={self.kept!r} is not the name of a candidate")


class Environment(NamedTuple):
    """The information needed to repeat a run, apart from its seed and settings."""

    command: tuple[str, ...]
    versions: dict[str, str]
    commit: str | None
    started: str


def environment() -> Environment:
    """Return the command, the versions, the commit of the source tree and the time."""
    command = (Path(sys.argv[0]).name, *sys.argv[1:])
    versions = {"python": platform.python_version(), "probmcl": __version__}
    for name in PACKAGES:
        versions[name] = importlib.metadata.version(name)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Environment(command, versions, _commit(), started)


def _commit() -> str | None:
    """Return the commit of the source tree, or None for an installed package or without git."""
    source = Path(__file__).parents[3]
    if not (source / ".git").exists():
        return None
    git = ["git", "-C", str(source), "rev-parse", "HEAD"]
    try:
        result = subprocess.run(git, capture_output=True, encoding="utf-8", check=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
