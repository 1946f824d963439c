"""Evaluation with confidence intervals: over all images, over groups of images, and per value of a column."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

import msgspec
import numpy as np
from jaxtyping import Float, Int32
from numpy import ndarray

from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.errors import DataError, OptionError, keyword
from probmcl.evaluation.bootstrap import Areas, bootstrapped_areas, fraction_interval, resamples_in_blocks
from probmcl.evaluation.evaluate import EvaluatedModel, class_means, evaluate
from probmcl.evaluation.metrics import area_under_roc, average_precision, rates_at
from probmcl.evaluation.reliability import (
    OpenDecisions,
    bootstrapped_calibration_error,
    evaluate_abstention,
    risk_coverage,
    summarize_reliability,
)
from probmcl.evaluation.scores import ScoredRows
from probmcl.store.evaluation import (
    Abstention,
    Aggregate,
    Evaluation,
    IntervalScores,
    ReliabilityChange,
    ReliabilitySummary,
    RiskCoverage,
    ValueScores,
)

BLANK = "(blank)"
"""The name of the value of empty cells."""

MAX_VALUES = 200
"""Columns with more distinct values are rejected."""


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation; `Model.evaluate` describes them."""

    split: str = "test"
    by: str | None = None
    aggregate: Aggregate | None = None
    draws: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < 0:
            raise OptionError("draws", self.draws, "must be at least 0; 0 disables the intervals")
        if self.aggregate not in (None, *get_args(Aggregate)):
            raise OptionError("aggregate", self.aggregate, f"must be one of {', '.join(get_args(Aggregate))}")

    def values(self, records: Records) -> tuple[str, ...] | None:
        """Return the value of the `by` column for each scored row. Options that do not fit the data raise an error."""
        if self.aggregate is not None and records.group is None:
            raise OptionError("aggregate", self.aggregate, "requires groups; set the group column with `group`")
        if self.by is None:
            return None
        values = _column(records, self.by)
        if self.aggregate is None or records.group is None:
            return values
        return value_of_groups(records.group, values, self.by)


def _column(records: Records, by: str) -> tuple[str, ...]:
    """Return the value of each image in the column `by`, which must exist and have at most `MAX_VALUES` values."""
    if by not in records.columns:
        raise OptionError("by", by, "is not a column of the data")
    values = records.columns[by]
    distinct = len(sorted_values(values))
    if distinct > MAX_VALUES:
        problem = f"has {distinct:,} distinct values in {len(values):,} images"
        raise OptionError("by", by, f"{problem}; choose a column with at most {MAX_VALUES}")
    return values


def value_of_groups(group: tuple[str, ...], values: tuple[str, ...], column: str) -> tuple[str, ...]:
    """Return each group's value in a column, sorted by group name. All images of a group must have the same value.

    >>> value_of_groups(("b", "a", "b"), ("north", "south", "north"), "site")
    ('south', 'north')
    """
    by_group: dict[str, str] = {}
    for name, value in zip(group, values, strict=True):
        first = by_group.setdefault(name, value)
        if first != value:
            problem = f"group {name!r} has images with {first!r} and {value!r} in column {column!r}"
            cause = f"{keyword('by', column)} and `aggregate` require one value per group"
            raise DataError(f"{problem}; {cause}; leave out one of these options")
    return tuple(by_group[name] for name in sorted(by_group))


def evaluate_rows(
    images: ScoredRows,
    model: EvaluatedModel,
    options: EvaluationOptions,
    values: Sequence[str] | None,
    console: Console,
) -> Evaluation:
    """Return the metrics of `evaluate` with confidence intervals, and scores for each value of a column.

    The result also has the reliability of the probabilities before and after calibration, and the risk–coverage curve.
    If the model has limits, the abstention is evaluated. `values` is the result of `options.values` for these images.
    """
    rows = images if options.aggregate is None else images.aggregate(options.aggregate)
    metrics = evaluate(rows.entries, model, options.split, raw=rows.raw_entries)
    curve = _risk_coverage(rows, model)

    row_values = values or ()
    classes = len(model.names)
    # Every class is resampled for the reliability and the abstention, for all rows, and for the rows with each value.
    steps = (2 + len(sorted_values(row_values))) * classes
    progress_console = console if options.draws else Console.quiet()
    with progress_console.progress("resampling", steps) as bar:
        advance = partial(bar.advance, 0)  # no images are processed
        calibration = _reliability(rows, model, options)
        abstention = _abstention(rows, model, options)
        advance(classes)
        overall = with_interval(rows, draws=options.draws, seed=options.seed, advance=advance)
        scores = evaluate_by_value(rows, row_values, draws=options.draws, seed=options.seed, advance=advance)

    by = None
    if values is not None and options.by is not None:
        by = ValueScores(column=options.by, values=scores)
    metric_fields = msgspec.structs.asdict(metrics)
    metric_fields["images"] = overall.images  # not the number of groups
    return Evaluation(
        **metric_fields,
        risk_coverage=curve,
        calibration=calibration,
        abstention=abstention,
        mAP_interval=overall.mAP_interval,
        macro_auroc_interval=overall.macro_auroc_interval,
        groups=overall.groups,
        draws=options.draws,
        resampled="images" if rows.group is None else "groups",
        aggregate=options.aggregate,
        by=by,
    )


def with_interval(
    rows: ScoredRows, *, draws: int, seed: int, advance: Callable[[int], None] | None = None
) -> IntervalScores:
    """Return mAP and macro AUROC with 95 % bootstrap intervals, the chance level, and counts of images and classes.

    If there are groups, whole groups are resampled instead of images; see `resamples`. The intervals are None without
    draws, and with few images (see `reliable_interval`). `advance` is called with the number of finished classes.

    >>> labels = np.array([[1.0], [0.0]] * 4)
    >>> rows = ScoredRows(np.array([[0.9], [0.1]] * 4), labels, labels > -1)
    >>> scores = with_interval(rows, draws=100, seed=0)
    >>> scores.images, scores.mAP, scores.mAP_interval
    (8, 1.0, [1.0, 1.0])
    """
    entries = (rows.scores, rows.labels, rows.known)
    ap = average_precision(*entries)
    auroc = area_under_roc(*entries)
    means = class_means(ap, auroc, rates_at(*entries))

    map_interval = None
    auroc_interval = None
    samples = _resample(rows, draws, seed, advance)
    if samples is not None:
        map_interval = fraction_interval(samples.mean_precision, means.mAP)
        auroc_interval = fraction_interval(samples.mean_auroc, means.macro_auroc)

    images = len(rows) if rows.images is None else int(rows.images.sum())
    groups = None if rows.group is None else len(set(rows.group))
    return IntervalScores(
        images=images,
        groups=groups,
        classes_scored=means.classes_scored,
        mAP=means.mAP,
        chance=means.chance,
        macro_auroc=means.macro_auroc,
        mAP_interval=map_interval,
        macro_auroc_interval=auroc_interval,
    )


def evaluate_by_value(
    rows: ScoredRows, values: Sequence[str], *, draws: int, seed: int, advance: Callable[[int], None] | None = None
) -> dict[str, IntervalScores]:
    """Return `with_interval` for the rows with each value. Empty values are named `(blank)` and come last.

    >>> labels = np.array([[1.0], [0.0], [1.0]])
    >>> rows = ScoredRows(np.array([[0.9], [0.1], [0.5]]), labels, labels > -1)
    >>> {value: part.images for value, part in evaluate_by_value(rows, ["b", "a", ""], draws=0, seed=0).items()}
    {'a': 1, 'b': 1, '(blank)': 1}
    """
    names = np.array([value.strip() or BLANK for value in values])
    scores = {}
    for value in sorted_values(values):
        members = rows.take(np.flatnonzero(names == value))
        scores[value] = with_interval(members, draws=draws, seed=seed, advance=advance)
    return scores


def sorted_values(values: Sequence[str]) -> list[str]:
    """Return the distinct values of a column: numbers in ascending order, then text, then the blank value.

    >>> sorted_values(["10", "9", "", "9"])
    ['9', '10', '(blank)']
    """
    distinct = {value.strip() for value in values}
    ordered = sorted(distinct - {""}, key=_number_then_text)
    if "" in distinct:
        ordered.append(BLANK)
    return ordered


def _number_then_text(value: str) -> tuple[float, str]:
    """Return a key that sorts numbers in ascending order, and text after them."""
    try:
        number = float(value)
    except ValueError:
        return np.inf, value
    if np.isnan(number):  # the text "nan", which has no place among the numbers
        return np.inf, value
    return number, value


def _risk_coverage(rows: ScoredRows, model: EvaluatedModel) -> RiskCoverage:
    """Return the risk–coverage curve of the decisions at the model's thresholds."""
    decisions = rows.scores > model.decision_thresholds
    return risk_coverage(rows.scores, decisions, rows.labels, rows.known)


def _reliability(rows: ScoredRows, model: EvaluatedModel, options: EvaluationOptions) -> ReliabilityChange:
    """Return the reliability of the raw scores and, if the scores are calibrated, that of the probabilities."""
    if rows.raw is None:
        return ReliabilityChange(before=_reliability_of(rows.scores, rows, model, options))
    return ReliabilityChange(
        before=_reliability_of(rows.raw, rows, model, options),
        after=_reliability_of(rows.scores, rows, model, options),
    )


def _reliability_of(
    scores: Float[ndarray, "N C"], rows: ScoredRows, model: EvaluatedModel, options: EvaluationOptions
) -> ReliabilitySummary:
    """Return the reliability of scores for the labels of the rows, with intervals if there are resamples."""
    entries = (scores, rows.labels, rows.known)
    weights = _weights(rows, options.draws, options.seed)
    blocks = [bootstrapped_calibration_error(*entries, block) for block in weights]
    resampled = np.concatenate(blocks) if blocks else None
    return summarize_reliability(*entries, model.names, resampled)


def _abstention(rows: ScoredRows, model: EvaluatedModel, options: EvaluationOptions) -> Abstention | None:
    """Return the rates of decisions that may be left open; None if the model does not abstain."""
    if model.limits is None:
        return None
    no, yes = model.limits
    decisions = OpenDecisions(yes=rows.scores > yes, no=rows.scores <= no)
    blocks = list(_weights(rows, options.draws, options.seed))
    weights = np.concatenate(blocks) if blocks else None
    return evaluate_abstention(decisions, rows.labels, rows.known, model.names, weights)


def _resample(rows: ScoredRows, draws: int, seed: int, advance: Callable[[int], None] | None) -> Areas | None:
    """Return the mean AP and AUROC of each resample; None without resamples.

    `advance` is called with the number of finished classes.
    """
    blocks = []
    remaining = draws
    for weights in _weights(rows, draws, seed):
        remaining -= len(weights)
        callback = advance if remaining == 0 else None  # a class is finished with its last block
        blocks.append(bootstrapped_areas(rows.scores, rows.labels, rows.known, weights, advance=callback))
    if not blocks:
        if advance is not None:
            advance(rows.scores.shape[1])
        return None
    return Areas(
        mean_precision=np.concatenate([block.mean_precision for block in blocks]),
        mean_auroc=np.concatenate([block.mean_auroc for block in blocks]),
    )


def _weights(rows: ScoredRows, draws: int, seed: int) -> Iterator[Int32[ndarray, "_ N"]]:
    """Yield the weights of all resamples in blocks; nothing without draws or with a single group."""
    units = len(rows) if rows.group is None else len(set(rows.group))
    if draws and units > 1:
        yield from resamples_in_blocks(len(rows), rows.group, draws=draws, seed=seed)
