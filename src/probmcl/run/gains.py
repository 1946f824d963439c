"""The candidates of a run so far: the best on validation, and their gains over the frozen probe with intervals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from jaxtyping import Float64, Int32
from numpy import ndarray

from probmcl.data.records import Records
from probmcl.evaluation.bootstrap import affordable_draws, bootstrapped_map, centered, reliable_interval, resamples
from probmcl.run.results import FROZEN_PROBE, Candidate, CandidateId
from probmcl.store.run_metadata import CandidateEntry, KeptModel
from probmcl.tables import bracketed, points


@dataclass(frozen=True)
class Gain:
    """A difference in mAP with its 95 % interval, which is None if there are too few images or groups."""

    mean: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        return points(self.mean) + bracketed(self.interval, points)

    @property
    def is_noise(self) -> bool:
        """True if the interval includes 0."""
        return self.interval is None or self.interval[0] <= 0 <= self.interval[1]


class CandidateEntries(NamedTuple):
    """The candidates in run.json, the name of the kept one, and its model."""

    candidates: tuple[CandidateEntry, ...]
    kept: str
    model: KeptModel


@dataclass(frozen=True)
class ValidationGains:
    """Gains in validation mAP. All candidates are scored on the same resamples, so their differences are paired."""

    records: Records
    samples: dict[CandidateId, Float64[ndarray, " B"]] = field(default_factory=dict)

    def gain(self, candidate: Candidate, baseline: Candidate) -> Gain | None:
        """Return the gain of a candidate over a baseline; None if a validation mAP is undefined."""
        if candidate.validation.mAP is None or baseline.validation.mAP is None:
            return None
        mean = candidate.validation_map - baseline.validation_map
        if len(set(self._groups or range(len(self.records.rows("val"))))) < 2:
            return Gain(mean, None)
        return Gain(mean, reliable_interval(self._sample(candidate) - self._sample(baseline)))

    def _sample(self, candidate: Candidate) -> Float64[ndarray, " B"]:
        if candidate.id not in self.samples:
            labels, known = self.records.states.labels_and_known(self.records.rows("val"))
            sample = bootstrapped_map(candidate.scores["val"], labels, known, self._weights)
            self.samples[candidate.id] = centered(sample, candidate.validation_map)
        return self.samples[candidate.id]

    @property
    def _groups(self) -> Sequence[str] | None:
        group = self.records.group
        return None if group is None else [group[row] for row in self.records.rows("val")]

    @property
    def _weights(self) -> Int32[ndarray, "B N"]:
        images = len(self.records.rows("val"))
        return resamples(images, self._groups, draws=affordable_draws(images, len(self.records.label_space)))


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
        best = self.best()
        return CandidateEntries(
            tuple(_candidate_entry(candidate, self.gain(candidate)) for candidate in self.values()),
            best.name,
            KeptModel(best.method, msgspec.to_builtins(best.settings)),
        )


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
