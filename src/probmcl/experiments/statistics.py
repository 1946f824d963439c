"""Summary statistics of a comparison: means over seeds, bootstrap intervals over images, and corrected p-values."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from probmcl.evaluation.bootstrap import bootstrapped_map, centered, holm, interval, p_value, resamples
from probmcl.evaluation.scores import read_scores
from probmcl.experiments.results import ComparedClassifier, Result, Row

DRAWS = 2000  # resamples of the test images; enough for p < 0.05 after correction for 50 methods
Samples = Float64[ndarray, " B"]
Advance = Callable[[], object]


class _Seeds(NamedTuple):
    """The results of a classifier by seed; `samples` is the mAP on each resample, if predictions are stored."""

    results: dict[int, Result]
    samples: dict[int, Samples]

    @property
    def validation(self) -> float:
        return fmean(result.validation for result in self.results.values())

    def test(self, seeds: Collection[int]) -> float:
        return fmean(self.results[seed].test_map for seed in seeds)

    def mean_samples(self, seeds: Collection[int]) -> Samples | None:
        """Return the mean over seeds on each resample; None if predictions are missing or no resample has an mAP."""
        if any(seed not in self.samples for seed in seeds):
            return None
        mean: Samples = np.mean([self.samples[seed] for seed in seeds], axis=0)
        return None if np.isnan(mean).all() else mean


class _Difference(NamedTuple):
    """The difference in mAP between two classifiers, with the same seeds and on the same images."""

    mean: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None


def summarize(
    results: Sequence[Result], groups: Sequence[str] | None, advance: Advance = lambda: None
) -> tuple[Row, ...]:
    """Return one row for each classifier, given the results of all runs, including those of the frozen probe.

    `groups` lists the group of each test image; None resamples single images. `advance` is called after each result.
    """
    classifiers = _by_title(results, groups, advance)
    frozen = next(result.title for result in results if result.head == "frozen")
    others = [title for title in classifiers if title != frozen]
    representing = _better_heads({title: classifiers[title] for title in others})
    best = max(representing, key=lambda title: classifiers[title].validation, default=None)
    gains = {title: _difference(classifiers[title], classifiers[frozen]) for title in others}
    behind = {title: _difference(classifiers[best], classifiers[title]) for title in others if best and title != best}
    gains, behind = _corrected(gains, representing), _corrected(behind, representing)
    return tuple(
        _row(seeds, title in representing, gains.get(title, _Difference()), behind.get(title, _Difference()))
        for title, seeds in classifiers.items()
    )


def _by_title(results: Sequence[Result], groups: Sequence[str] | None, advance: Advance) -> dict[str, _Seeds]:
    weights, classifiers = None, {result.title: _Seeds({}, {}) for result in results}
    for result in results:
        seeds, path = classifiers[result.title], result.folder / result.predictions
        seeds.results[result.seed] = result
        if path.is_file():
            rows = read_scores(path, root=result.folder).rows
            if weights is None:
                weights = resamples(len(rows), groups, draws=DRAWS)
            samples = bootstrapped_map(rows.scores, rows.labels, rows.known, weights)
            seeds.samples[result.seed] = centered(samples, result.test_map)
        advance()
    return classifiers


def _better_heads(classifiers: Mapping[str, _Seeds]) -> list[str]:
    """Return, for each method, the title of the better head on validation; on a tie, the first, its own head."""
    better: dict[str, str] = {}
    for title, seeds in classifiers.items():
        name = next(iter(seeds.results.values())).name
        if name not in better or seeds.validation > classifiers[better[name]].validation:
            better[name] = title
    return list(better.values())


def _difference(a: _Seeds, b: _Seeds) -> _Difference:
    """Compare two classifiers over their common seeds only, because scores also differ between seeds."""
    shared = sorted(a.results.keys() & b.results.keys())
    if not shared:
        return _Difference()
    mean, samples_a, samples_b = a.test(shared) - b.test(shared), a.mean_samples(shared), b.mean_samples(shared)
    if samples_a is None or samples_b is None or np.isnan(samples_a - samples_b).all():
        return _Difference(mean)
    return _Difference(mean, interval(samples_a - samples_b), p_value(samples_a - samples_b))


def _corrected(differences: Mapping[str, _Difference], titles: Collection[str]) -> dict[str, _Difference]:
    """Apply Holm's correction to the p-values of the rows in `titles`, and drop the p-values of other rows."""
    p = {title: d.p for title, d in differences.items() if title in titles and d.p is not None}
    corrected = dict(zip(p, holm(list(p.values())), strict=True))
    return {title: d._replace(p=corrected.get(title)) for title, d in differences.items()}


def _row(seeds: _Seeds, best_head: bool, gain: _Difference, behind: _Difference) -> Row:
    results, samples = list(seeds.results.values()), seeds.mean_samples(list(seeds.results))
    last = results[-1]
    numbers: dict[str, Any] = {field.name: getattr(last, field.name) for field in fields(ComparedClassifier)}
    at_half = [result.test.at.half for result in results]
    return Row(
        **numbers,
        seeds=len(results),
        best_head=best_head,
        validation=seeds.validation,
        mAP=seeds.test(list(seeds.results)),
        macro_auroc=_mean(r.test.macro_auroc for r in results),
        interval=None if samples is None else interval(samples),
        over_seeds=stdev(r.test_map for r in results) if len(results) > 1 else None,
        gain=gain.mean,
        gain_interval=gain.interval,
        gain_p=gain.p,
        behind=behind.mean,
        behind_interval=behind.interval,
        behind_p=behind.p,
        CP=_mean(scores.CP for scores in at_half),
        CR=_mean(scores.CR for scores in at_half),
        CF1=_mean(scores.CF1 for scores in at_half),
        OP=_mean(scores.OP for scores in at_half),
        OR=_mean(scores.OR for scores in at_half),
        OF1=_mean(scores.OF1 for scores in at_half),
        macro_F1=_mean(r.macro_F1 for r in results),
        jaccard_at_10=_mean(r.by_embedding.jaccard_at_10 for r in results),
        retrieval_mAP=_mean(r.by_embedding.mAP for r in results),
        probability_jaccard_at_10=_mean(r.by_probabilities.jaccard_at_10 for r in results),
        probability_mAP=_mean(r.by_probabilities.mAP for r in results),
        seconds=fmean(r.seconds for r in results),
        fingerprint=last.fingerprint.all,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
