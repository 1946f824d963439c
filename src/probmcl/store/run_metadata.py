"""The content of run.json: how a run was started, its state, its candidates and its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from probmcl.errors import RunWarning, check_range

Head = Literal["frozen", "own head", "re-probed"]
"""The head of a candidate: a probe on the frozen encoder, the method's own head, or a probe on its encoder."""

MAX_LAYERS = 100
"""Largest number of layers that a setting can list; building a model with millions would take hours."""


@dataclass(frozen=True)
class CandidateEntry:
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
        if set(self.method) & set("/\\\0"):
            raise ValueError(f"method {self.method!r} is not valid")


@dataclass(frozen=True)
class KeptModel:
    """The method of the model that a run has saved, and its settings."""

    method: str
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        for key, value in self.settings.items():
            if isinstance(value, list) and len(value) > MAX_LAYERS:
                raise ValueError(f"{key} has {len(value):,} values; the limit is {MAX_LAYERS}")


@dataclass(frozen=True)
class RunMetadata:
    """The content of run.json. `records` is a hash of the images and labels; `kept` is the name of a candidate."""

    command: tuple[str, ...]
    seed: int
    versions: dict[str, str]
    commit: str | None
    started: str
    data: dict[str, Any] | None
    records: str
    status: Literal["running", "interrupted", "failed", "finished"]
    seconds: float
    warnings: tuple[RunWarning, ...]
    candidates: tuple[CandidateEntry, ...]
    kept: str | None
    model: KeptModel | None
    duplicates: dict[str, int] | None = None
    test_mAP: dict[str, float | None] | None = None  # noqa: N815

    def __post_init__(self) -> None:
        check_range(at_least=0, seconds=self.seconds)
        names = [entry.name for entry in self.candidates]
        if len(set(names)) < len(names):
            raise ValueError("the names of the candidates must be unique")
        if self.kept not in (None, *names) or (self.status == "finished" and (self.kept is None or self.model is None)):
            raise ValueError(f"kept={self.kept!r} is not the name of a candidate")
