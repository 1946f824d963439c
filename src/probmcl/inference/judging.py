"""How a model's scores on some data are judged: over everything, over groups, and for each value of a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from probmcl.console import Console
from probmcl.data import Records
from probmcl.errors import DataError
from probmcl.evaluation.evaluate import evaluate
from probmcl.evaluation.judged import AGGREGATES, Aggregate, ScoredRows, aggregated, value_of_groups
from probmcl.evaluation.parts import MOST_VALUES, by_value, in_order, with_interval

SURE = ("mAP_interval", "macro_auroc_interval", "groups", "classes_with_auroc")
"""What the intervals of the whole add to what `evaluate` says."""


@dataclass(frozen=True)
class EvaluationOptions:
    """What is asked beside the scores.

    Attributes:
        by: a column of the data; each of its values is also judged by itself.
        aggregate: judge groups instead of images, each by the mean or the maximum of its images' scores.
        draws: resamples for the intervals; 0 for none.
        seed: of the resamples.
    """

    by: str | None = None
    aggregate: Aggregate | None = None
    draws: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < 0:
            raise ValueError(f"draws is {self.draws}: give a whole number, 0 for no intervals")
        if self.aggregate is not None and self.aggregate not in AGGREGATES:
            raise ValueError(f"aggregate is {self.aggregate!r}: choose one of {', '.join(AGGREGATES)}")

    def values(self, records: Records) -> tuple[str, ...] | None:
        """The value of each row that is judged; whatever stands against it is an error, before anything is scored."""
        if self.aggregate is not None and records.group is None:
            raise DataError("--aggregate joins the images of a group; --group COLUMN says which belong together")
        if self.by is None:
            return None
        if self.by not in records.columns:
            raise DataError(f"--by {self.by}: these data have no such column; it has to be one of a table")
        values = records.columns[self.by]
        found = len(in_order(values))
        if found > MOST_VALUES:
            few = f"choose a column with at most {MOST_VALUES}"
            raise DataError(f"--by {self.by}: {found:,} different values in {len(values):,} images; {few}")
        if self.aggregate is None or records.group is None:
            return values
        return value_of_groups(records.group, values, self.by)


class Said(NamedTuple):
    """What is known of the scores beforehand, as `evaluate` takes it."""

    names: tuple[str, ...]
    split: str
    note: str
    levels: list[int] | None


def evaluate_rows(
    judged: ScoredRows, judging: EvaluationOptions, values: Sequence[str] | None, said: Said, console: Console
) -> dict[str, Any]:
    """What evaluation.json holds, with intervals; `values` are of the rows that are judged, groups or images."""
    rows = judged if judging.aggregate is None else aggregated(judged, judging.aggregate)
    arrays = (torch.from_numpy(array) for array in (rows.scores, rows.labels, rows.known))
    result = evaluate(*arrays, names=said.names, split=said.split, note=said.note, levels=said.levels)
    whole, parts = _resampled(rows, judging, values, console)
    return (
        result
        | {"images": whole["images"], **{key: whole[key] for key in SURE}, "draws": judging.draws}
        | {"resampled": "images" if rows.group is None else "groups", "aggregate": judging.aggregate}
        | ({} if values is None else {"by": {"column": judging.by, "values": parts}})
    )


def _resampled(
    rows: ScoredRows, judging: EvaluationOptions, values: Sequence[str] | None, console: Console
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What intervals add for the whole, and for each value."""
    parts = 1 if values is None else 1 + len(in_order(values))
    heard = console if judging.draws else Console.quiet()
    with heard.progress("resampling", parts * rows.scores.shape[1]) as bar:

        def done(classes: int) -> None:
            bar.advance(steps=classes)

        whole = with_interval(rows, draws=judging.draws, seed=judging.seed, done=done)
        if values is None:
            return whole, {}
        return whole, by_value(rows, values, draws=judging.draws, seed=judging.seed, done=done)
