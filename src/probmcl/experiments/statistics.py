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
from probmcl.store.evaluation import Retrieval

DRAWS = 2000  # resamples of the test images; enough for p < 0.05 after correction for 50 methods
AT_HALF = ("CP", "CR", "CF1", "OP", "OR", "OF1")  # scores at a threshold of 0.5 that are columns of a row
Samples = Float64[ndarray, " B"]
Advance = Callable[[], object]


class _Seeds(NamedTuple):
    """The results of a classifier by seed; `samples` is the mAP on each resample, if predictions are stored."""

    results: dict[int, Result]
    samples: dict[int, Samples]

    @property
    def validation(self) -> float:
        """The mean mAP on validation."""
        return fmean(result.validation for result in self.results.values())

    def test(self, seeds: Collection[int]) -> float:
        """Return the mean mAP of some seeds on test."""
        return fmean(self.results[seed].test_map for seed in seeds)

    def mean_samples(self, seeds: Collection[int]) -> Samples | None:
        """Return the mean over seeds on each resample; None if predictions are missing or no resample has an mAP."""
        if any(seed not in self.samples for seed in seeds):
            return None
        mean: Samples = np.mean([self.samples[seed] for seed in seeds], axis=0)
        return None if np.isnan(mean).all() else mean


class _Difference(NamedTuple):
    """The difference in mAP between two classifiers, with the same seeds and on the same images.

    All fields are None without a common seed; the last two are also None without stored predictions.
    """

    mean: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None


def summarize(
    results: Sequence[Result], groups: Sequence[str] | None, advance: Advance = lambda: None
) -> tuple[Row, ...]:
    """Return one row for each classifier, given the results of all runs, including those of the frozen probe.

    A row has two differences in test mAP: the gain over the frozen probe, and the lead of the best method over the
    classifier. Each method is represented by one of its heads, the better one on validation. Only these heads have
    p-values, which are corrected for the number of methods.

    `groups` lists the group of each test image; None resamples single images. `advance` is called after each result.
    """
    classifiers = _by_title(results, groups, advance)
    frozen = next(result.title for result in results if result.head == "frozen")
    others = {title: seeds for title, seeds in classifiers.items() if title != frozen}
    representing = _better_heads(others)  # the titles of one head of each method
    best = max(representing, key=lambda title: others[title].validation, default=None)
    gains = {title: _difference(seeds, classifiers[frozen]) for title, seeds in others.items()}
    leads: dict[str, _Difference] = {}  # of the best method over each of the others
    if best is not None:
        leads = {title: _difference(others[best], seeds) for title, seeds in others.items() if title != best}
    corrected_gains = _corrected(gains, representing)
    corrected_leads = _corrected(leads, representing)
    rows = []
    for title, seeds in classifiers.items():
        gain = corrected_gains.get(title, _Difference())
        behind = corrected_leads.get(title, _Difference())
        represents_method = title in representing
        rows.append(_row(seeds, represents_method, gain, behind))
    return tuple(rows)


def _by_title(results: Sequence[Result], groups: Sequence[str] | None, advance: Advance) -> dict[str, _Seeds]:
    """Return the results of each classifier by its title, with the bootstrap of those with stored predictions.

    The differences between classifiers are paired, because all of them have the same resamples of the test images.
    """
    weights = None  # of the test images in each resample, the same for all classifiers
    classifiers = {result.title: _Seeds({}, {}) for result in results}
    for result in results:
        seeds = classifiers[result.title]
        seeds.results[result.seed] = result
        path = result.folder / result.predictions
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
        name = next(iter(seeds.results.values())).name  # the method, the same in every seed
        if name not in better or seeds.validation > classifiers[better[name]].validation:
            better[name] = title
    return list(better.values())


def _difference(one: _Seeds, other: _Seeds) -> _Difference:
    """Compare two classifiers over their common seeds only, because scores also differ between seeds."""
    shared = sorted(one.results.keys() & other.results.keys())
    if not shared:
        return _Difference()
    mean = one.test(shared) - other.test(shared)
    samples = one.mean_samples(shared)
    other_samples = other.mean_samples(shared)
    if samples is None or other_samples is None:
        return _Difference(mean)
    paired = samples - other_samples
    if np.isnan(paired).all():
        return _Difference(mean)
    return _Difference(mean, interval(paired), p_value(paired))


def _corrected(differences: Mapping[str, _Difference], titles: Collection[str]) -> dict[str, _Difference]:
    """Apply Holm's correction to the p-values of the rows in `titles`, and drop the p-values of other rows."""
    p_values = {}
    for title, difference in differences.items():
        if title in titles and difference.p is not None:
            p_values[title] = difference.p
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return {title: difference._replace(p=corrected.get(title)) for title, difference in differences.items()}


def _row(seeds: _Seeds, best_head: bool, gain: _Difference, behind: _Difference) -> Row:
    """Return the row of a classifier: the means of its results over its seeds, and two differences in mAP.

    `gain` is its lead over the frozen probe, and `behind` the lead of the best method over it. `best_head` tells
    whether it is the head that represents its method.
    """
    results = list(seeds.results.values())
    last = results[-1]
    properties: dict[str, Any] = {field.name: getattr(last, field.name) for field in fields(ComparedClassifier)}

    all_seeds = list(seeds.results)
    mean_ap = seeds.test(all_seeds)
    samples = seeds.mean_samples(all_seeds)
    map_interval = None if samples is None else interval(samples)
    over_seeds = None
    if len(results) > 1:
        over_seeds = stdev(result.test_map for result in results)

    at_half = [result.test.at.half for result in results]
    means_at_half: dict[str, Any] = {name: _mean(getattr(scores, name) for scores in at_half) for name in AT_HALF}
    macro_auroc = _mean(result.test.macro_auroc for result in results)
    macro_f1 = _mean(result.macro_F1 for result in results)
    by_embedding = _mean_retrieval([result.by_embedding for result in results])
    by_probabilities = _mean_retrieval([result.by_probabilities for result in results])
    seconds = fmean(result.seconds for result in results)
    return Row(
        **properties,
        seeds=len(results),
        best_head=best_head,
        validation=seeds.validation,
        mAP=mean_ap,
        macro_auroc=macro_auroc,
        interval=map_interval,
        over_seeds=over_seeds,
        gain=gain.mean,
        gain_interval=gain.interval,
        gain_p=gain.p,
        behind=behind.mean,
        behind_interval=behind.interval,
        behind_p=behind.p,
        **means_at_half,
        macro_F1=macro_f1,
        jaccard_at_10=by_embedding.jaccard_at_10,
        retrieval_mAP=by_embedding.mAP,
        probability_jaccard_at_10=by_probabilities.jaccard_at_10,
        probability_mAP=by_probabilities.mAP,
        seconds=seconds,
        fingerprint=last.fingerprint.all,
    )


def _mean_retrieval(metrics: Sequence[Retrieval]) -> Retrieval:
    """Return the mean of each retrieval metric."""
    jaccard_at_10 = _mean(retrieval.jaccard_at_10 for retrieval in metrics)
    mean_ap = _mean(retrieval.mAP for retrieval in metrics)
    return Retrieval(jaccard_at_10=jaccard_at_10, mAP=mean_ap)


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
