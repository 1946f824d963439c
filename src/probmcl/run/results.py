"""What a run comes to: its candidates and the one that was kept. Importing this loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmcl.data.records import Split

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from probmcl.inference import Model


@dataclass(frozen=True, eq=False)
class Candidate:
    """A classifier that a run may keep: what it is, its weights, its scores, and how good they are.

    `scores` and `test` have the test split only after that was scored; `retrieval` says how well a probe's features
    then find images with like labels.
    """

    name: str
    method: str
    settings: Any
    state: Mapping[str, Tensor]
    scores: Mapping[Split, Float[Tensor, "N C"]]
    validation: Mapping[str, Any]
    seconds: float
    test: Mapping[str, Any] | None = None
    retrieval: Mapping[str, float | None] | None = None

    @property
    def validation_map(self) -> float:
        """What decides."""
        return self.validation["mAP"] or 0.0

    @property
    def note(self) -> str:
        """What has to be said beside its mAP, see `probmcl.methods.base.Classifier`; empty for most."""
        said: str = self.validation.get("note", "")
        return said


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A finished run: its folder, every candidate, the one that was kept, and what the collapse monitor had to say."""

    folder: Path
    candidates: Mapping[str, Candidate]
    kept: Candidate
    alarms: list[str]
    seconds: float

    def __repr__(self) -> str:
        note = self.kept.note and f"; {self.kept.note}"
        reached = f"validation mAP {self.kept.validation_map:.3f}{note}"
        return f"Run({str(self.folder)!r}, kept {self.kept.name!r}, {reached})"

    @property
    def model(self) -> Model:
        """What predicts; see `probmcl.load`."""
        from probmcl.inference import load

        return load(self.folder)
