"""How sure scores are, over everything and for each value of a column: a site, a scanner, a sex."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from probmcl.evaluation.bootstrap import bootstrapped_areas, centered, interval, resamples_in_blocks
from probmcl.evaluation.judged import ScoredRows
from probmcl.evaluation.metrics import average_precision
from probmcl.evaluation.roc import area_under_roc

BLANK = "(blank)"
"""What an empty cell is called."""

MOST_VALUES = 200
"""More values than this are no parts of the data but another number of each image."""


def with_interval(
    judged: ScoredRows, *, draws: int, seed: int, done: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """What was scored, mAP and macro AUROC, and the intervals that hold 95 % of their resamples.

    Groups are resampled whole where there are any, else images; see `resamples`. An interval is None where nothing was
    drawn (`draws` 0) or where there is one group or image alone, which says nothing of others.

    >>> labels = np.array([[1.0], [0.0]])
    >>> both = Judged.of_images(np.array([[0.9], [0.1]]), labels, labels > -1)
    >>> found = with_interval(both, draws=100, seed=0)
    >>> found["images"], found["mAP"], found["mAP_interval"]
    (2, 1.0, [1.0, 1.0])
    """
    ap = average_precision(judged.scores, judged.labels, judged.known)
    auroc = area_under_roc(judged.scores, judged.labels, judged.known)
    found = {"mAP": ap.nanmean().item(), "macro_auroc": auroc.nanmean().item()}
    intervals = _intervals(judged, found, draws, seed, done)
    return {
        "images": int(judged.images.sum()),
        "groups": judged.groups,
        "classes_scored": int((~ap.isnan()).sum()),
        "classes_with_auroc": int((~auroc.isnan()).sum()),
        "mAP": _number(found["mAP"]),
        "mAP_interval": intervals["mAP"],
        "macro_auroc": _number(found["macro_auroc"]),
        "macro_auroc_interval": intervals["macro_auroc"],
    }


def by_value(
    judged: ScoredRows,
    values: Sequence[str],
    *,
    draws: int,
    seed: int,
    done: Callable[[int], None] | None = None,
) -> dict[str, dict[str, Any]]:
    """The same for the rows of each value, the values in order; rows without one are `(blank)`, and come last.

    >>> labels = np.array([[1.0], [0.0], [1.0]])
    >>> three = Judged.of_images(np.array([[0.9], [0.1], [0.5]]), labels, labels > -1)
    >>> {value: part["images"] for value, part in by_value(three, ["b", "a", ""], draws=0, seed=0).items()}
    {'a': 1, 'b': 1, '(blank)': 1}
    """
    named = np.array([value.strip() or BLANK for value in values])
    return {
        value: with_interval(judged.take(np.flatnonzero(named == value)), draws=draws, seed=seed, done=done)
        for value in in_order(values)
    }


def in_order(values: Sequence[str]) -> list[str]:
    """The different values of a column, the blank one last.

    >>> in_order(["10", "9", "", "9"])
    ['9', '10', '(blank)']
    """
    found = sorted({value.strip() for value in values} - {""}, key=_as_read)
    return found + [BLANK] * any(not value.strip() for value in values)


def _as_read(value: str) -> tuple[float, str]:
    """Numbers by their size, before words."""
    try:
        number = float(value)
    except ValueError:
        number = np.inf
    return (np.inf if number != number else number), value


def _intervals(
    judged: ScoredRows, estimates: dict[str, float], draws: int, seed: int, done: Callable[[int], None] | None
) -> dict[str, list[float] | None]:
    if not draws or judged.units < 2:
        if done is not None:
            done(judged.scores.shape[1])
        return dict.fromkeys(estimates)
    samples = _samples(judged, draws, seed, done)
    return {name: _interval(samples[name], estimate) for name, estimate in estimates.items()}


def _samples(
    judged: ScoredRows, draws: int, seed: int, done: Callable[[int], None] | None
) -> dict[str, Float64[np.ndarray, " B"]]:
    """What each resample has; who listens hears of the classes once, with the last block of resamples."""
    found, left = [], draws
    for weights in resamples_in_blocks(len(judged), judged.group, draws=draws, seed=seed):
        left -= len(weights)
        heard = done if left == 0 else None
        found.append(bootstrapped_areas(judged.scores, judged.labels, judged.known, weights, done=heard))
    precision, auroc = (np.concatenate(part) for part in zip(*found, strict=True))
    return {"mAP": precision, "macro_auroc": auroc}


def _interval(samples: Float64[np.ndarray, " B"], estimate: float) -> list[float] | None:
    """Its ends, which lie within 0 and 1 also where moving the resamples would take them out."""
    if estimate != estimate:
        return None
    return [min(max(end, 0.0), 1.0) for end in interval(centered(samples, estimate))]


def _number(x: float) -> float | None:
    return None if x != x else x  # JSON has no NaN
