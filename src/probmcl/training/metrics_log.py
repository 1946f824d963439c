"""The metrics of a run, step by step: metrics.jsonl, metrics.csv, and the collapse monitor."""

import csv
import io
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from probmcl.errors import RunWarning
from probmcl.files import write_text
from probmcl.methods.contrast import collapse_warning
from probmcl.training.fit import StepEvent

WARN_AFTER = 0.5
"""Share of a stage that must have passed before a collapse is reported: a healthy run needs some time to spread out."""


class MetricsLog:
    """Writes a row every few steps: their mean loss, its terms and the collapse statistics.

    Rows are appended during training, so that an interrupted run keeps them. The collapse monitor adds at most one
    warning per stage to `warnings` and calls `on_warning` with it.
    """

    def __init__(
        self, path: Path, *, every: int = 10, on_warning: Callable[[RunWarning], None] = lambda warning: None
    ) -> None:
        self.path, self.every, self.on_warning = path, every, on_warning
        self.warnings: list[RunWarning] = []

    def stage(self, name: str) -> "StageLog":
        """Return the callback of one stage."""
        return StageLog(self, name)

    def write(self, row: Mapping[str, object]) -> None:
        """Add one row."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def forget(self, stage: str, step: int) -> None:
        """Drop what a stage wrote from a step on, before a kill that came after its last checkpoint."""
        kept = [row for row in self.rows() if row["stage"] != stage or int(str(row["step"])) < step]
        text = "".join(json.dumps(row) + "\n" for row in kept)
        if self.path.exists() and text != self.path.read_text(encoding="utf-8"):
            write_text(self.path, text)

    def rows(self) -> list[dict[str, object]]:
        """All rows; the last one may have been cut off by a kill, and is left out then."""
        found: list[dict[str, object]] = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return found

    def close(self) -> None:
        """Write the same rows as a table, metrics.csv, with the union of their columns."""
        rows = self.rows()
        columns = list(dict.fromkeys(key for row in rows for key in row))
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, columns)
        table.writeheader()
        table.writerows(rows)
        write_text(self.path.with_suffix(".csv"), text.getvalue())


class StageLog:
    """Sums up the steps of one stage for a metrics log."""

    def __init__(self, log: MetricsLog, name: str) -> None:
        self.log, self.name = log, name
        self.warned = False
        self.begun = False
        self._start()

    def _start(self) -> None:
        self.steps, self.images, self.since = 0, 0, time.perf_counter()
        self.values: dict[str, list[Tensor]] = {}

    def __call__(self, event: StepEvent) -> None:
        """Take in one step, and write a row when enough have come together."""
        if not self.begun:
            self.begun = True
            self.log.forget(self.name, event.step)
        for key, value in {"loss": event.loss, **event.terms}.items():
            self.values.setdefault(key, []).append(value)
        self.steps += 1
        self.images += event.images
        if self.steps == self.log.every or event.step == event.steps:
            self._write(event)
            self._start()

    def _write(self, event: StepEvent) -> None:
        # A sign that does not exist in a step, as the negatives of a batch that has none, is NaN and left out.
        means = {key: float(torch.stack(values).nanmean()) for key, values in self.values.items()}
        speed = self.images / max(time.perf_counter() - self.since, 1e-9)
        row: dict[str, object] = {"stage": self.name, "epoch": event.epoch, "step": event.step}
        row |= {key: value if math.isfinite(value) else None for key, value in means.items()}
        self.log.write(row | {"images_per_second": round(speed, 1)})
        if not self.warned and event.step > WARN_AFTER * event.steps:
            message = collapse_warning(means)
            self.warned = message is not None
            warning = message and RunWarning("collapse", message)
            if warning and warning not in self.log.warnings:
                self.log.warnings.append(warning)
                self.log.on_warning(warning)
