"""From the results of all runs to the rows of a table: means over seeds, intervals over images, corrected p-values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from probmcl.evaluation.bootstrap import bootstrapped_map, centered, holm, interval, p_value, resamples
from probmcl.experiments.results import Result
from probmcl.experiments.rows import Row

DRAWS = 2000
"""Resamples of the test images; with so many, p can fall below 0.05 even when corrected for 50 methods."""

Samples = Float64[ndarray, " B"]
Title = tuple[str, str]


@dataclass(frozen=True)
class _Standing:
    """One classifier, by seed; `samples` are its mAP on each resample, for the seeds whose predictions are there."""

    results: Mapping[int, Result]
    samples: Mapping[int, Samples]

    @property
    def validation(self) -> float:
        return fmean(result.validation for result in self.results.values())

    def test(self, seeds: Collection[int]) -> float:
        return fmean(self.results[seed].test["mAP"] or 0.0 for seed in seeds)

    def mean_samples(self, seeds: Collection[int]) -> Samples | None:
        """The mean over these seeds on each resample; None if one of them has no predictions."""
        if any(seed not in self.samples for seed in seeds):
            return None
        mean: Samples = np.mean([self.samples[seed] for seed in seeds], axis=0)
        return mean


@dataclass(frozen=True)
class _Difference:
    """One classifier less another, of the same seeds and on the same images."""

    mean: float
    samples: Samples | None

    @property
    def interval(self) -> tuple[float, float] | None:
        return _interval(self.samples)

    @property
    def p(self) -> float | None:
        return None if self.samples is None or np.isnan(self.samples).all() else p_value(self.samples)


def rows_of(
    results: Sequence[Result], groups: Sequence[str] | None, done: Callable[[int], object] = lambda steps: None
) -> tuple[Row, ...]:
    """One row for each classifier; `groups` are those of the test images, `done` hears of every bootstrapped result."""
    standings = _standings(results, groups, done)
    frozen = next(s for (_, head), s in standings.items() if head == "frozen")
    stand_for = _better_heads(standings)  # the title that represents each method
    best = max(stand_for.values(), key=lambda title: standings[title].validation, default=None)
    gains = {title: _less(s, frozen) for title, s in standings.items() if s is not frozen}
    behind = {
        title: _less(standings[best], s)
        for title, s in standings.items()
        if best is not None and title != best and s is not frozen
    }
    gain_p, behind_p = (_corrected(differences, stand_for.values()) for differences in (gains, behind))
    return tuple(
        _row(
            s, title in stand_for.values(), gains.get(title), gain_p.get(title), behind.get(title), behind_p.get(title)
        )
        for title, s in standings.items()
    )


def _standings(
    results: Sequence[Result], groups: Sequence[str] | None, done: Callable[[int], object]
) -> dict[Title, _Standing]:
    by_title: dict[Title, list[Result]] = {}
    for result in results:
        by_title.setdefault(result.title, []).append(result)
    weights = None
    found: dict[Title, _Standing] = {}
    for title, of_seeds in by_title.items():
        samples: dict[int, Samples] = {}
        for result in of_seeds:
            predicted = result.scores()
            if predicted is not None:
                weights = resamples(len(predicted.scores), groups, draws=DRAWS) if weights is None else weights
                found_again = bootstrapped_map(predicted.scores, predicted.labels, predicted.known, weights)
                samples[result.seed] = centered(found_again, result.test["mAP"] or 0.0)
            done(1)
        found[title] = _Standing({result.seed: result for result in of_seeds}, samples)
    return found


def _better_heads(standings: Mapping[Title, _Standing]) -> dict[str, Title]:
    """For each method the row that is better on validation; of equals the first, its own head."""
    better: dict[str, Title] = {}
    for title, standing in standings.items():
        name, head = title
        if head != "frozen" and (name not in better or standing.validation > standings[better[name]].validation):
            better[name] = title
    return better


def _less(a: _Standing, b: _Standing) -> _Difference | None:
    """Over the seeds that both have, since seeds differ as methods do; None where they share none."""
    shared = sorted(a.results.keys() & b.results.keys())
    if not shared:
        return None
    of_a, of_b = a.mean_samples(shared), b.mean_samples(shared)
    return _Difference(a.test(shared) - b.test(shared), None if of_a is None or of_b is None else of_a - of_b)


def _interval(samples: Samples | None) -> tuple[float, float] | None:
    """None without samples, and where no resample could be scored."""
    return None if samples is None or np.isnan(samples).all() else interval(samples)


def _corrected(differences: Mapping[Title, _Difference | None], titles: Collection[Title]) -> dict[Title, float]:
    """p-values of the rows that stand for their methods, corrected for their number by Holm."""
    asked = {title: d.p for title, d in differences.items() if title in titles and d is not None}
    known = {title: p for title, p in asked.items() if p is not None}
    return dict(zip(known, holm(list(known.values())), strict=True))


def _row(
    standing: _Standing,
    best_head: bool,
    gain: _Difference | None,
    gain_p: float | None,
    behind: _Difference | None,
    behind_p: float | None,
) -> Row:
    seeds, results = list(standing.results), list(standing.results.values())
    last = results[-1]
    decided = {
        key: _mean([r.test["at"]["0.5"][key] for r in results]) for key in ("CP", "CR", "CF1", "OP", "OR", "OF1")
    }
    return Row(
        name=last.name,
        head=last.head,
        method=last.method,
        seeds=len(results),
        best_head=best_head,
        validation=standing.validation,
        mAP=standing.test(seeds),
        interval=_interval(standing.mean_samples(seeds)),
        over_seeds=stdev(r.test["mAP"] or 0.0 for r in results) if len(results) > 1 else None,
        gain=None if gain is None else gain.mean,
        gain_interval=None if gain is None else gain.interval,
        gain_p=gain_p,
        behind=None if behind is None else behind.mean,
        behind_interval=None if behind is None else behind.interval,
        behind_p=behind_p,
        **decided,
        macro_F1=_mean([r.macro_F1 for r in results]),
        jaccard_at_10=_mean([r.by_embedding["jaccard_at_10"] for r in results]),
        retrieval_mAP=_mean([r.by_embedding["mAP"] for r in results]),
        probability_jaccard_at_10=_mean([r.by_probabilities["jaccard_at_10"] for r in results]),
        probability_mAP=_mean([r.by_probabilities["mAP"] for r in results]),
        learning_rate=last.learning_rate,
        weight_decay=last.weight_decay,
        images_seen=last.images_seen,
        seconds=fmean(r.seconds for r in results),
        parameters=last.parameters,
        gmac=last.gmac,
        training_speed=last.training_speed,
        prediction_speed=last.prediction_speed,
        peak_memory=last.peak_memory,
        fidelity=last.fidelity,
        reference=last.reference,
        fingerprint=last.fingerprint["all"],
        note=last.note,
        emits_set=last.emits_set,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None
