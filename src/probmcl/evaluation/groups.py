"""Scores with confidence intervals: over all rows, over groups of images, and for each value of a column."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Float64, Int
from numpy import ndarray

from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.errors import DataError, OptionError
from probmcl.evaluation.bootstrap import Areas, bootstrapped_areas, centered, interval, resamples_in_blocks
from probmcl.evaluation.evaluate import evaluate, nan_to_none
from probmcl.evaluation.metrics import area_under_roc, average_precision

Aggregate = Literal["mean", "max"]

BLANK = "(blank)"  # the name of the value of an empty cell
MAX_VALUES = 200  # a column with more does not divide the data into parts that are worth a score


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Scores, labels and known labels of N images or groups of images.

    Attributes:
        group: the group of each row (a patient, a slide); images of one group are not independent evidence.
        images: the number of images of each row; None for one each.
    """

    scores: Float[ndarray, "N C"]
    labels: Float[ndarray, "N C"]
    known: Bool[ndarray, "N C"]
    group: tuple[str, ...] | None = None
    images: Int[ndarray, "N"] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, rows: Int[ndarray, "K"]) -> "ScoredRows":
        """Return a selection of the rows."""
        group = None if self.group is None else tuple(self.group[row] for row in rows)
        images = None if self.images is None else self.images[rows]
        return ScoredRows(self.scores[rows], self.labels[rows], self.known[rows], group, images)

    def aggregate(self, how: Aggregate) -> "ScoredRows":
        """Return one row per group of images, in the order of their names.

        A score is the mean or the maximum over the images of the group. A label is present if it is present in any
        image; absent if it is known in any image, and absent in all in which it is known; otherwise unknown.

        >>> labels, known = np.array([[0.0], [1.0], [0.0]]), np.array([[True], [True], [False]])
        >>> tiles = ScoredRows(np.array([[0.2], [0.6], [0.9]]), labels, known, ("a", "a", "b"))
        >>> slides = tiles.aggregate("mean")
        >>> slides.scores.tolist(), slides.labels.tolist(), slides.known.tolist()
        ([[0.4], [0.9]], [[1.0], [0.0]], [[True], [False]])
        """
        if self.group is None:
            raise ValueError("scores are aggregated over groups, but the rows have none")
        names, member = np.unique(np.array(self.group), return_inverse=True)
        order, sizes = np.argsort(member, kind="stable"), np.bincount(member)
        starts = np.cumsum(sizes) - sizes
        scores = self.scores[order].astype(np.float64)
        mean, maximum = np.add.reduceat(scores, starts) / sizes[:, None], np.maximum.reduceat(scores, starts)
        labels = np.maximum.reduceat(np.where(self.known, self.labels, 0)[order], starts)
        known = np.logical_or.reduceat(self.known[order], starts)
        return ScoredRows(maximum if how == "max" else mean, labels, known, tuple(names.tolist()), sizes)


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation beyond the scores of the whole; `Model.evaluate` describes them."""

    by: str | None = None
    aggregate: Aggregate | None = None
    draws: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < 0:
            raise OptionError("draws", self.draws, "must be a whole number from 0 up; 0 for no intervals")
        if self.aggregate not in (None, *get_args(Aggregate)):
            raise OptionError("aggregate", self.aggregate, f"must be one of {', '.join(get_args(Aggregate))}")

    def values(self, records: Records) -> tuple[str, ...] | None:
        """Return the value of `by` for each row that is scored; options that do not fit the data are an error."""
        if self.aggregate is not None and records.group is None:
            raise OptionError("aggregate", self.aggregate, "joins the images of a group; `group` names their column")
        if self.by is None:
            return None
        if self.by not in records.columns:
            raise OptionError("by", self.by, "is not a column of a table in these data")
        values = records.columns[self.by]
        if (different := len(sorted_values(values))) > MAX_VALUES:
            problem = f"has {different:,} different values in {len(values):,} images"
            raise OptionError("by", self.by, f"{problem}; choose a column with at most {MAX_VALUES}")
        if self.aggregate is None or records.group is None:
            return values
        return value_of_groups(records.group, values, self.by)


def value_of_groups(group: tuple[str, ...], values: tuple[str, ...], column: str) -> tuple[str, ...]:
    """Return the value that all images of a group have in a column, in the order of the groups' names.

    >>> value_of_groups(("b", "a", "b"), ("north", "south", "north"), "site")
    ('south', 'north')
    """
    by_group: dict[str, str] = {}
    for name, value in zip(group, values, strict=True):
        if by_group.setdefault(name, value) != value:
            problem = f"group {name!r} has images with {by_group[name]!r} and {value!r} in column {column!r}"
            remedy = f"so that it has no value of its own for `by={column}`; leave out `aggregate` or `by`"
            raise DataError(f"{problem}, {remedy}")
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
) -> dict[str, Any]:
    """Evaluate scored images: the dictionary of `evaluate`, with intervals and the scores of each value.

    `values` is what `options.values` returns for these images. `evaluate` describes the arguments that are passed on.
    """
    rows = images if options.aggregate is None else images.aggregate(options.aggregate)
    result = evaluate(rows.scores, rows.labels, rows.known, names=names, split=split, note=note, levels=levels)
    parts = 1 + len(sorted_values(values or ()))
    progress_console = console if options.draws else Console.quiet()
    with progress_console.progress("resampling", parts * len(names)) as bar:
        advance = partial(bar.advance, 0)  # no images are processed
        whole = with_interval(rows, draws=options.draws, seed=options.seed, advance=advance)
        by = by_value(rows, values or (), draws=options.draws, seed=options.seed, advance=advance)
    intervals = ("mAP_interval", "macro_auroc_interval", "groups", "classes_with_auroc")
    result |= {"images": whole["images"], **{key: whole[key] for key in intervals}, "draws": options.draws}
    result |= {"resampled": "images" if rows.group is None else "groups", "aggregate": options.aggregate}
    return result if values is None else result | {"by": {"column": options.by, "values": by}}


def with_interval(
    rows: ScoredRows, *, draws: int, seed: int, advance: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """Return mAP and macro AUROC with their 95 % bootstrap intervals, and the number of images and classes.

    Groups are resampled whole if there are any, otherwise images; see `resamples`. An interval is None without draws
    and for a single group or image. `advance` is called with the number of classes that are done.

    >>> labels = np.array([[1.0], [0.0]])
    >>> rows = ScoredRows(np.array([[0.9], [0.1]]), labels, labels > -1)
    >>> result = with_interval(rows, draws=100, seed=0)
    >>> result["images"], result["mAP"], result["mAP_interval"]
    (2, 1.0, [1.0, 1.0])
    """
    ap = average_precision(rows.scores, rows.labels, rows.known)
    auroc = area_under_roc(rows.scores, rows.labels, rows.known)
    mean_ap, mean_auroc = ap.nanmean().item(), auroc.nanmean().item()
    samples = _resample(rows, draws, seed, advance)
    return {
        "images": len(rows) if rows.images is None else int(rows.images.sum()),
        "groups": None if rows.group is None else len(set(rows.group)),
        "classes_scored": int((~ap.isnan()).sum()),
        "classes_with_auroc": int((~auroc.isnan()).sum()),
        "mAP": nan_to_none(mean_ap),
        "mAP_interval": samples and _interval(samples.mean_precision, mean_ap),
        "macro_auroc": nan_to_none(mean_auroc),
        "macro_auroc_interval": samples and _interval(samples.mean_auroc, mean_auroc),
    }


def by_value(
    rows: ScoredRows, values: Sequence[str], *, draws: int, seed: int, advance: Callable[[int], None] | None = None
) -> dict[str, dict[str, Any]]:
    """Return `with_interval` of the rows of each value; rows without a value are `(blank)` and come last.

    >>> labels = np.array([[1.0], [0.0], [1.0]])
    >>> rows = ScoredRows(np.array([[0.9], [0.1], [0.5]]), labels, labels > -1)
    >>> {value: part["images"] for value, part in by_value(rows, ["b", "a", ""], draws=0, seed=0).items()}
    {'a': 1, 'b': 1, '(blank)': 1}
    """
    named = np.array([value.strip() or BLANK for value in values])
    return {
        value: with_interval(rows.take(np.flatnonzero(named == value)), draws=draws, seed=seed, advance=advance)
        for value in sorted_values(values)
    }


def sorted_values(values: Sequence[str]) -> list[str]:
    """Return the different values of a column: numbers by size, then words, then the blank value.

    >>> sorted_values(["10", "9", "", "9"])
    ['9', '10', '(blank)']
    """
    different = {value.strip() for value in values}
    return sorted(different - {""}, key=_number_then_text) + [BLANK] * ("" in different)


def _number_then_text(value: str) -> tuple[float, str]:
    try:
        return float(np.fmin(float(value), np.inf)), value  # NaN is a word
    except ValueError:
        return np.inf, value


def _resample(rows: ScoredRows, draws: int, seed: int, advance: Callable[[int], None] | None) -> Areas | None:
    if not draws or len(set(rows.group or range(len(rows)))) < 2:
        if advance is not None:
            advance(rows.scores.shape[1])
        return None
    blocks, left = [], draws
    for weights in resamples_in_blocks(len(rows), rows.group, draws=draws, seed=seed):
        left -= len(weights)
        reported = advance if left == 0 else None  # progress is reported with the last block
        blocks.append(bootstrapped_areas(rows.scores, rows.labels, rows.known, weights, advance=reported))
    return Areas(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def _interval(samples: Float64[ndarray, " B"], estimate: float) -> list[float] | None:
    if np.isnan(estimate):
        return None
    return [min(max(end, 0.0), 1.0) for end in interval(centered(samples, estimate))]  # centering may leave 0 … 1
