"""The training log of a run (metrics.jsonl and metrics.csv), and the collapse monitor."""

import csv
import io
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from probmcl.errors import RunError, RunWarning, plain
from probmcl.methods.contrast import collapse_warning
from probmcl.runtime.conversion import convert
from probmcl.runtime.files import DAMAGED, append_text, read_text, write_text
from probmcl.training.fit import StepEvent

WARN_AFTER = 0.5
"""Fraction of a stage after which a collapse is reported. Healthy runs also have similar features at the start."""


class _Row(msgspec.Struct):
    """The keys that every row of the log has; the others are the terms of the loss and statistics."""

    stage: str
    epoch: int
    step: int


class MetricsLog:
    """Log of the mean loss, its terms and the collapse statistics, with one row every few steps.

    Rows are appended during training, so they survive an interrupt. If a stage collapses, one warning is added to
    `warnings` and passed to `on_warning`.
    """

    def __init__(
        self, path: Path, *, every: int = 10, on_warning: Callable[[RunWarning], None] = lambda warning: None
    ) -> None:
        self.path = path
        self.every = every
        self.on_warning = on_warning
        self.warnings: list[RunWarning] = []

    def stage(self, name: str) -> "StageLog":
        """Return the callback for a training stage."""
        return StageLog(self, name)

    def write(self, row: Mapping[str, object]) -> None:
        """Append a row."""
        append_text(self.path, json.dumps(row) + "\n")

    def forget(self, stage: str, step: int) -> None:
        """Remove a stage's rows from `step` onward, which a killed run wrote after its last checkpoint."""
        kept = []
        for row in self.rows():
            row_step = int(str(row["step"]))
            if row["stage"] != stage or row_step < step:
                kept.append(row)
        self._rewrite(kept)

    def replace(self, stage: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Replace the rows of a stage; they become the last rows."""
        other_stages = [row for row in self.rows() if row["stage"] != stage]
        self._rewrite([*other_stages, *rows])

    def _rewrite(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Replace the content of the log, if it changes."""
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if text != self._text():
            write_text(self.path, text)

    def _text(self) -> str:
        """Return the content of the log; empty if there is no file."""
        return read_text(self.path) if self.path.exists() else ""

    def warn(self, warning: RunWarning) -> None:
        """Add a warning, once."""
        if warning not in self.warnings:
            self.warnings.append(warning)
            self.on_warning(warning)

    def rows(self) -> list[dict[str, object]]:
        """Return all complete rows. The last line of a killed run may be truncated."""
        lines = self._text().splitlines(keepends=True)
        complete = [line for line in lines if line.endswith("\n")]
        return [self._parse(line, number) for number, line in enumerate(complete, start=1)]

    def _parse(self, line: str, number: int) -> dict[str, object]:
        """Return the row in a line of the log; `number` is the line number for an error."""
        try:
            row = convert(json.loads(line), dict[str, object])
            convert(row, _Row)  # only checks the keys that every row has
        except (ValueError, RecursionError) as error:
            raise RunError(f"{self.path}, line {number}: {plain(error)}; {DAMAGED}") from error
        return row

    def close(self) -> None:
        """Write all rows to metrics.csv, whose columns are the union of their keys."""
        rows = self.rows()
        columns = list(dict.fromkeys(key for row in rows for key in row))  # in the order in which they first occur
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, columns)
        table.writeheader()
        table.writerows(rows)
        write_text(self.path.with_suffix(".csv"), text.getvalue())


class StageLog:
    """Callback that averages the steps of one stage into rows of a metrics log. Skipped batches are left out.

    Its state is part of a checkpoint, so a resumed stage has the rows and warnings of an uninterrupted one.
    """

    def __init__(self, log: MetricsLog, name: str) -> None:
        self.log = log
        self.name = name
        self.warning: str | None = None
        self.started = False
        self._reset()

    def _reset(self) -> None:
        """Start the next row of the log."""
        self.steps = 0
        self.images = 0
        self.since = time.perf_counter()
        self.values: dict[str, list[Tensor]] = {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the steps since the last row, and the earlier rows and warning."""
        rows = [row for row in self.log.rows() if row["stage"] == self.name]
        header = {
            "steps": self.steps,
            "images": self.images,
            "seconds": time.perf_counter() - self.since,
            "rows": rows,
            "warning": self.warning,
        }
        tensors = {key: torch.stack(values) for key, values in self.values.items()}
        return tensors, header

    def restore(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Continue from the state in a checkpoint, with its rows instead of those in the log.

        `tensors` are the losses of the steps since the last row. The header has the number of these steps, their images
        and seconds, all earlier rows, and the warning of the stage.
        """
        self.values = {key: list(values) for key, values in tensors.items()}
        self.steps = header["steps"]
        self.images = header["images"]
        self.since = time.perf_counter() - header["seconds"]  # when the first of these steps would have started
        self.started = True
        self.log.replace(self.name, header["rows"])
        self._warn(header["warning"])

    def __call__(self, event: StepEvent) -> None:
        """Record a step, and write a row after every `log.every` steps and after the last step.

        A row has the means of the losses since the row before. Skipped batches have no finite loss and are left out.
        """
        if not self.started:
            self.started = True
            self.log.forget(self.name, event.step)  # rows of an interrupted training that is done again
        if event.skipped is None:
            for key, value in {"loss": event.loss, **event.terms}.items():
                self.values.setdefault(key, []).append(value)
        self.steps += 1
        self.images += event.images
        if self.steps == self.log.every or event.step == event.steps:
            self._write(event)
            self._reset()

    def _write(self, event: StepEvent) -> None:
        """Write a row with the means since the last row, and warn if they show a collapse."""
        # A statistic that is undefined in a step, such as the similarity of negatives if there are none, is NaN.
        means = {key: float(torch.stack(values).nanmean()) for key, values in self.values.items()}
        seconds = max(time.perf_counter() - self.since, 1e-9)  # never 0, even if the clock is coarse
        row: dict[str, object] = {"stage": self.name, "epoch": event.epoch, "step": event.step}
        for key, mean in means.items():
            row[key] = mean if math.isfinite(mean) else None  # JSON has no NaN
        row["images_per_second"] = round(self.images / seconds, 1)
        self.log.write(row)
        if self.warning is None and event.step > WARN_AFTER * event.steps:
            self._warn(collapse_warning(means))

    def _warn(self, message: str | None) -> None:
        """Remember the warning of this stage and report it; None means that there is no warning."""
        self.warning = message
        if message is not None:
            self.log.warn(RunWarning("collapse", message))
