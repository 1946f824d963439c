"""The result of a run: its candidates and the one that was kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probmcl.data.records import Split
from probmcl.errors import RunWarning
from probmcl.evaluation.headline import headline
from probmcl.settings import job_key, job_name
from probmcl.store.evaluation import Retrieval, SplitMetrics
from probmcl.store.files import FROZEN
from probmcl.store.run_metadata import Head

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from probmcl.inference import Model


class CandidateId(NamedTuple):
    """The identity of a candidate: method, trial, and the head that predicts.

    >>> CandidateId("bce", "own head").name, CandidateId("bce", "re-probed", trial=2).key
    ('bce, own head', 'bce.trial2.re_probed')
    """

    method: str
    head: Head
    trial: int = 1

    @property
    def name(self) -> str:
        """The name in messages, tables and run.json."""
        return "frozen probe" if self.head == "frozen" else f"{job_name(self.method, self.trial)}, {self.head}"

    @property
    def key(self) -> str:
        """The base name of its files in the run folder."""
        head = self.head.replace(" ", "_").replace("-", "_")
        return FROZEN.name if self.head == "frozen" else f"{job_key(self.method, self.trial)}.{head}"

    @property
    def random_stream(self) -> str:
        """The key of its random stream. Changing it would change scores."""
        trial = "" if self.trial == 1 else f", trial {self.trial}"
        return "frozen probe" if self.head == "frozen" else f"{self.method}{trial}, {self.head}"


FROZEN_PROBE = CandidateId("", "frozen")
"""The linear probe on the frozen encoder, the first candidate of every run."""


@dataclass(frozen=True, eq=False, repr=False)
class Candidate:
    """A classifier that a run may keep.

    Attributes:
        method: the key in METHODS; `probe` for a probe on a trained encoder.
        state: parameters, including the encoder's.
        scores: predicted probabilities by split; the test split is added at the end of the run.
        validation: metrics on the validation split.
        seconds: duration of training, including the probe.
        fit_seconds: duration of fitting the probe to features.
        weight_decay: weight decay of the probe, chosen on validation.
        test: metrics on the test split; None if the candidate was not tested.
        retrieval: retrieval metrics of the features of a tested probe.
    """

    id: CandidateId
    method: str
    settings: Any
    state: Mapping[str, Tensor]
    scores: Mapping[Split, Float[Tensor, "N C"]]
    validation: SplitMetrics
    seconds: float
    fit_seconds: float = 0.0
    weight_decay: float | None = None
    test: SplitMetrics | None = None
    retrieval: Retrieval | None = None

    def __repr__(self) -> str:
        test = f"; test {headline(self.test)}" if self.test else ""
        return f"Candidate({self.name!r}, validation {headline(self.validation)}{test})"

    @property
    def name(self) -> str:
        """The name in messages and tables."""
        return self.id.name

    @property
    def validation_map(self) -> float:
        """The validation mAP, which determines the best candidate."""
        return self.validation.mAP or 0.0

    @property
    def note(self) -> str:
        """A note on its mAP, usually empty; see `probmcl.methods.base.Classifier`."""
        return self.validation.note or ""


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A finished run.

    Attributes:
        candidates: every classifier of the run, the frozen probe first.
        kept: the candidate that scored best on validation, which is the model of the run; its test scores are those of
            the calibrated model, as in evaluation.json.
        warnings: warnings that are stored with the run.
        seconds: duration, including interrupted attempts.
    """

    folder: Path
    candidates: Mapping[CandidateId, Candidate]
    kept: Candidate
    warnings: list[RunWarning]
    seconds: float

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, kept {self.kept!r}{self.kept.note and f'; {self.kept.note}'})"

    @property
    def model(self) -> Model:
        """The kept model, loaded for prediction; see `probmcl.load`."""
        from probmcl.inference import load

        return load(self.folder)
