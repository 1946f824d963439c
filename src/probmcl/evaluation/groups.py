"""Evaluation with confidence intervals: over all images, over groups of images, and per value of a column."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int32
from numpy import ndarray

from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.errors import DataError, OptionError, keyword
from probmcl.evaluation.bootstrap import Areas, bootstrapped_areas, fraction_interval, resamples_in_blocks
from probmcl.evaluation.decisions import rates_at
from probmcl.evaluation.evaluate import THRESHOLDS, class_means, evaluate
from probmcl.evaluation.metrics import area_under_roc, average_precision
from probmcl.evaluation.reliability import bootstrapped_calibration_error, summarize_reliability
from probmcl.evaluation.selective import evaluate_abstention, risk_coverage

Aggregate = Literal["mean", "max"]

BLANK = "(blank)"  # name used for empty cells
MAX_VALUES = 200  # columns with more distinct values are rejected


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Scores, labels and masks of known labels for N images or groups of images.

    Attributes:
        group: group of each row, for example a patient or a slide. Images in one group are not independent.
        images: number of images in each row; None means one each.
        raw: the scores before calibration, if `scores` are calibrated.
    """

    scores: Float[ndarray, "N C"]
    labels: Float[ndarray, "N C"]
    known: Bool[ndarray, "N C"]
    group: tuple[str, ...] | None = None
    images: Int[ndarray, "N"] | None = None
    raw: Float[ndarray, "N C"] | None = None

    @classmethod
    def of(cls, records: Records, rows: Int[ndarray, "N"], scores: Float[ndarray, "N C"]) -> "ScoredRows":
        """Return the scores of some rows of the records, with their labels and groups."""
        labels, known = records.states.labels_and_known(rows)
        return cls(scores, labels, known, None if records.group is None else tuple(records.group[row] for row in rows))

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, rows: Int[ndarray, "K"]) -> "ScoredRows":
        """Return a selection of the rows."""
        group = None if self.group is None else tuple(self.group[row] for row in rows)
        images = None if self.images is None else self.images[rows]
        raw = None if self.raw is None else self.raw[rows]
        return ScoredRows(self.scores[rows], self.labels[rows], self.known[rows], group, images, raw)

    def aggregate(self, how: Aggregate) -> "ScoredRows":
        """Return one row per group of images, sorted by group name.

        The score of a group is the mean or maximum over its images. A label is present if any image has it, absent if
        it is known for some image and no image has it, and otherwise unknown.

        >>> labels, known = np.array([[0.0], [1.0], [0.0]]), np.array([[True], [True], [False]])
        >>> tiles = ScoredRows(np.array([[0.2], [0.6], [0.9]]), labels, known, ("a", "a", "b"))
        >>> slides = tiles.aggregate("mean")
        >>> slides.scores.tolist(), slides.labels.tolist(), slides.known.tolist()
        ([[0.4], [0.9]], [[1.0], [0.0]], [[True], [False]])
        """
        if self.group is None:
            raise ValueError("rows without groups cannot be aggregated")
        names, member = np.unique(np.array(self.group), return_inverse=True)
        order, sizes = np.argsort(member, kind="stable"), np.bincount(member)
        starts = np.cumsum(sizes) - sizes

        def combine(scores: Float[ndarray, "N C"]) -> Float64[ndarray, "G C"]:
            ordered = scores[order].astype(np.float64)
            mean = np.add.reduceat(ordered, starts) / sizes[:, None]
            return np.maximum.reduceat(ordered, starts) if how == "max" else mean

        raw = None if self.raw is None else combine(self.raw)
        labels = np.maximum.reduceat(np.where(self.known, self.labels, 0)[order], starts)
        known = np.logical_or.reduceat(self.known[order], starts)
        return ScoredRows(combine(self.scores), labels, known, tuple(names.tolist()), sizes, raw)


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation; `Model.evaluate` describes them."""

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
        if self.by not in records.columns:
            raise OptionError("by", self.by, "is not a column of the data")
        values = records.columns[self.by]
        if (distinct := len(sorted_values(values))) > MAX_VALUES:
            problem = f"has {distinct:,} distinct values in {len(values):,} images"
            raise OptionError("by", self.by, f"{problem}; choose a column with at most {MAX_VALUES}")
        if self.aggregate is None or records.group is None:
            return values
        return value_of_groups(records.group, values, self.by)


def value_of_groups(group: tuple[str, ...], values: tuple[str, ...], column: str) -> tuple[str, ...]:
    """Return each group's value in a column, sorted by group name. All images of a group must have the same value.

    >>> value_of_groups(("b", "a", "b"), ("north", "south", "north"), "site")
    ('south', 'north')
    """
    by_group: dict[str, str] = {}
    for name, value in zip(group, values, strict=True):
        if by_group.setdefault(name, value) != value:
            problem = f"group {name!r} has images with {by_group[name]!r} and {value!r} in column {column!r}"
            remedy = (
                f"{keyword('by', column)} and `aggregate` require one value per group; leave out one of these options"
            )
            raise DataError(f"{problem}; {remedy}")
    return tuple(by_group[name] for name in sorted(by_group))


def evaluate_rows(
    images: ScoredRows,
    options: EvaluationOptions,
    values: Sequence[str] | None,
    console: Console,
    *,
    names: Sequence[str],
    split: str,
    note: str,
    levels: Sequence[int],
    thresholds: Float64[ndarray, " C"] | None = None,
    limits: tuple[Float64[ndarray, " C"], Float64[ndarray, " C"]] | None = None,
) -> dict[str, Any]:
    """Return the dictionary of `evaluate`, extended with confidence intervals and the metrics for each value.

    It also has the reliability of the probabilities before and after calibration, and the risk–coverage curve. If
    `limits` has the highest probability for a no and for a not sure, the abstention is evaluated. `values` is the
    result of `options.values` for these images. The other arguments are passed on to `evaluate`.
    """
    rows = images if options.aggregate is None else images.aggregate(options.aggregate)
    entries = (rows.scores, rows.labels, rows.known)
    result = evaluate(*entries, names=names, split=split, note=note, levels=levels, raw=rows.raw, thresholds=thresholds)
    decided = rows.scores > (THRESHOLDS[0] if thresholds is None else thresholds)
    result["risk_coverage"] = risk_coverage(rows.scores, decided, rows.labels, rows.known)
    parts = 1 + len(sorted_values(values or ()))
    progress_console = console if options.draws else Console.quiet()
    with progress_console.progress("resampling", (parts + 1) * len(names)) as bar:
        advance = partial(bar.advance, 0)  # no images are processed
        result["calibration"] = _reliability(rows, names, options)
        if limits is not None:
            result["abstention"] = _abstention(rows, names, options, *limits)
        advance(len(names))
        overall = with_interval(rows, draws=options.draws, seed=options.seed, advance=advance)
        by = by_value(rows, values or (), draws=options.draws, seed=options.seed, advance=advance)
    intervals = ("mAP_interval", "macro_auroc_interval", "groups")
    result |= {"images": overall["images"], **{key: overall[key] for key in intervals}, "draws": options.draws}
    result |= {"resampled": "images" if rows.group is None else "groups", "aggregate": options.aggregate}
    return result if values is None else result | {"by": {"column": options.by, "values": by}}


def with_interval(
    rows: ScoredRows, *, draws: int, seed: int, advance: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Return mAP and macro AUROC with 95 % bootstrap intervals, the chance level, and counts of images and classes.

    If there are groups, whole groups are resampled instead of images; see `resamples`. The intervals are None without
    draws, and with few images (see `reliable_interval`). `advance` is called with the number of finished classes.

    >>> labels = np.array([[1.0], [0.0]] * 4)
    >>> rows = ScoredRows(np.array([[0.9], [0.1]] * 4), labels, labels > -1)
    >>> result = with_interval(rows, draws=100, seed=0)
    >>> result["images"], result["mAP"], result["mAP_interval"]
    (8, 1.0, [1.0, 1.0])
    """
    entries = (rows.scores, rows.labels, rows.known)
    means = class_means(average_precision(*entries), area_under_roc(*entries), rates_at(*entries))
    samples = _resample(rows, draws, seed, advance)
    return {
        "images": len(rows) if rows.images is None else int(rows.images.sum()),
        "groups": None if rows.group is None else len(set(rows.group)),
        **means,
        "mAP_interval": samples and fraction_interval(samples.mean_precision, means["mAP"]),
        "macro_auroc_interval": samples and fraction_interval(samples.mean_auroc, means["macro_auroc"]),
    }


def by_value(
    rows: ScoredRows, values: Sequence[str], *, draws: int, seed: int, advance: Callable[[int], None] | None = None
) -> dict[str, dict[str, Any]]:
    """Return `with_interval` for the rows with each value. Empty values are named `(blank)` and come last.

    >>> labels = np.array([[1.0], [0.0], [1.0]])
    >>> rows = ScoredRows(np.array([[0.9], [0.1], [0.5]]), labels, labels > -1)
    >>> {value: part["images"] for value, part in by_value(rows, ["b", "a", ""], draws=0, seed=0).items()}
    {'a': 1, 'b': 1, '(blank)': 1}
    """
    names = np.array([value.strip() or BLANK for value in values])
    return {
        value: with_interval(rows.take(np.flatnonzero(names == value)), draws=draws, seed=seed, advance=advance)
        for value in sorted_values(values)
    }


def sorted_values(values: Sequence[str]) -> list[str]:
    """Return the distinct values of a column: numbers in ascending order, then text, then the blank value.

    >>> sorted_values(["10", "9", "", "9"])
    ['9', '10', '(blank)']
    """
    distinct = {value.strip() for value in values}
    return sorted(distinct - {""}, key=_number_then_text) + [BLANK] * ("" in distinct)


def _number_then_text(value: str) -> tuple[float, str]:
    try:
        return float(np.fmin(float(value), np.inf)), value  # NaN counts as text
    except ValueError:
        return np.inf, value


def _reliability(rows: ScoredRows, names: Sequence[str], options: EvaluationOptions) -> dict[str, Any]:
    """Return the reliability of the raw scores and, if the scores are calibrated, that of the probabilities."""
    result = {}
    for key, scores in (("before", rows.scores if rows.raw is None else rows.raw), ("after", rows.scores)):
        if key == "before" or rows.raw is not None:
            entries = (scores, rows.labels, rows.known)
            errors = [
                bootstrapped_calibration_error(*entries, weights)
                for weights in _weights(rows, options.draws, options.seed)
            ]
            result[key] = summarize_reliability(*entries, names, np.concatenate(errors) if errors else None)
    return result


def _abstention(
    rows: ScoredRows,
    names: Sequence[str],
    options: EvaluationOptions,
    no: Float64[ndarray, " C"],
    yes: Float64[ndarray, " C"],
) -> dict[str, Any]:
    weights = list(_weights(rows, options.draws, options.seed))
    masks = (rows.scores > yes, rows.scores <= no, rows.labels, rows.known)
    return evaluate_abstention(*masks, names, np.concatenate(weights) if weights else None)


def _resample(rows: ScoredRows, draws: int, seed: int, advance: Callable[[int], None] | None) -> Areas | None:
    blocks, remaining = [], draws
    for weights in _weights(rows, draws, seed):
        remaining -= len(weights)
        callback = advance if remaining == 0 else None  # progress is reported with the last block
        blocks.append(bootstrapped_areas(rows.scores, rows.labels, rows.known, weights, advance=callback))
    if not blocks and advance is not None:
        advance(rows.scores.shape[1])
    return Areas(*(np.concatenate(parts) for parts in zip(*blocks, strict=True))) if blocks else None


def _weights(rows: ScoredRows, draws: int, seed: int) -> Iterator[Int32[ndarray, "_ N"]]:
    """Yield the weights of all resamples in blocks; nothing without draws or with a single group."""
    if draws and len(set(rows.group or range(len(rows)))) > 1:
        yield from resamples_in_blocks(len(rows), rows.group, draws=draws, seed=seed)
