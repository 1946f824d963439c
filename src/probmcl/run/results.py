"""The result of a run: its candidates, their gains over the frozen probe, and the one that was kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from jaxtyping import Float64, Int32
from numpy import ndarray

from probmcl.data.records import Records, Split
from probmcl.errors import RunWarning
from probmcl.evaluation.bootstrap import affordable_draws, bootstrapped_map, centered, reliable_interval, resamples
from probmcl.evaluation.evaluate import headline
from probmcl.settings import job_key, job_name
from probmcl.store.evaluation import Retrieval, SplitMetrics
from probmcl.store.files import FROZEN
from probmcl.store.run_metadata import CandidateEntry, Head, KeptModel
from probmcl.tables import bracketed, points

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
        if self.head == "frozen":
            return "frozen probe"
        return f"{job_name(self.method, self.trial)}, {self.head}"

    @property
    def key(self) -> str:
        """The base name of its files in the run folder."""
        if self.head == "frozen":
            return FROZEN.name
        head = self.head.replace(" ", "_").replace("-", "_")
        return f"{job_key(self.method, self.trial)}.{head}"

    @property
    def random_stream(self) -> str:
        """The key of its random stream. Changing it would change scores."""
        if self.head == "frozen":
            return "frozen probe"
        trial = "" if self.trial == 1 else f", trial {self.trial}"
        return f"{self.method}{trial}, {self.head}"


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
        note = f"; {self.kept.note}" if self.kept.note else ""
        return f"Run({str(self.folder)!r}, kept {self.kept!r}{note})"

    @property
    def model(self) -> Model:
        """The kept model, loaded for prediction; see `probmcl.load`."""
        from probmcl.inference import load

        return load(self.folder)


@dataclass(frozen=True)
class Gain:
    """A difference in mAP with its 95 % interval, which is None if there are too few images or groups."""

    mean: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        return points(self.mean) + bracketed(self.interval, points)

    @property
    def is_noise(self) -> bool:
        """True if the interval includes 0, or if there is none."""
        if self.interval is None:
            return True
        low, high = self.interval
        return low <= 0 <= high


class CandidateEntries(NamedTuple):
    """The candidates in run.json, the name of the kept one, and its model."""

    candidates: tuple[CandidateEntry, ...]
    kept: str
    model: KeptModel


@dataclass(frozen=True)
class ValidationGains:
    """Gains in validation mAP. All candidates are scored on the same resamples, so their differences are paired.

    Attributes:
        records: the images with their labels.
        samples: the mAP of each candidate on every resample of the validation images, computed once.
    """

    records: Records
    samples: dict[CandidateId, Float64[ndarray, " B"]] = field(default_factory=dict)

    def gain(self, candidate: Candidate, baseline: Candidate) -> Gain | None:
        """Return the gain of a candidate over a baseline; None if a validation mAP is undefined."""
        if candidate.validation.mAP is None or baseline.validation.mAP is None:
            return None
        mean = candidate.validation_map - baseline.validation_map
        units = self._groups or range(len(self.records.rows("val")))  # what is resampled: groups or images
        if len(set(units)) < 2:
            return Gain(mean, None)
        differences = self._sample(candidate) - self._sample(baseline)
        return Gain(mean, reliable_interval(differences))

    def _sample(self, candidate: Candidate) -> Float64[ndarray, " B"]:
        """Return the validation mAP of a candidate on every resample."""
        if candidate.id not in self.samples:
            labels, known = self.records.states.labels_and_known(self.records.rows("val"))
            sample = bootstrapped_map(candidate.scores["val"], labels, known, self._weights)
            self.samples[candidate.id] = centered(sample, candidate.validation_map)
        return self.samples[candidate.id]

    @property
    def _groups(self) -> Sequence[str] | None:
        """The group of each validation image; None if the records have no groups."""
        group = self.records.group
        return None if group is None else [group[row] for row in self.records.rows("val")]

    @property
    def _weights(self) -> Int32[ndarray, "B N"]:
        """How often each validation image occurs in each resample. They are the same in every call."""
        images = len(self.records.rows("val"))
        draws = affordable_draws(images, len(self.records.label_space))
        return resamples(images, self._groups, draws=draws)


class CandidatePool(Mapping[CandidateId, Candidate]):
    """The candidates of a run so far, in the order in which they were added."""

    def __init__(self, records: Records) -> None:
        self._candidates: dict[CandidateId, Candidate] = {}
        self._gains = ValidationGains(records)

    def __getitem__(self, identity: CandidateId) -> Candidate:
        return self._candidates[identity]

    def __iter__(self) -> Iterator[CandidateId]:
        return iter(self._candidates)

    def __len__(self) -> int:
        return len(self._candidates)

    def add(self, candidate: Candidate) -> None:
        """Add a candidate, or replace it, for example by the same candidate with its test scores."""
        self._candidates[candidate.id] = candidate

    def best(self) -> Candidate:
        """Return the candidate with the highest validation mAP; on a tie, the earlier, simpler one."""
        return max(self._candidates.values(), key=lambda candidate: candidate.validation_map)

    def gain(self, candidate: Candidate) -> Gain | None:
        """Return the gain of a candidate over the frozen probe on validation; None for the probe itself."""
        frozen = self._candidates.get(FROZEN_PROBE)
        if frozen is None or candidate.id == FROZEN_PROBE:
            return None
        return self._gains.gain(candidate, frozen)

    def entries(self) -> CandidateEntries | None:
        """Return what run.json says about the candidates; None if there is no candidate yet."""
        if not self._candidates:
            return None
        entries = tuple(_candidate_entry(candidate, self.gain(candidate)) for candidate in self.values())
        best = self.best()
        model = KeptModel(best.method, msgspec.to_builtins(best.settings))
        return CandidateEntries(entries, best.name, model)


def _candidate_entry(candidate: Candidate, gain: Gain | None) -> CandidateEntry:
    """Return the entry of a candidate in run.json."""
    return CandidateEntry(
        method=candidate.id.method,
        head=candidate.id.head,
        trial=candidate.id.trial,
        name=candidate.name,
        validation_mAP=candidate.validation["mAP"],
        gain=None if gain is None else gain.mean,
        gain_interval=None if gain is None else gain.interval,
        note=candidate.note,
    )
