"""What happened in a run, step by step: metrics.jsonl, metrics.csv and the alarm."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from probmcl import collapse
from probmcl.training.fit import Event, check_finite

ALARM_AFTER = 0.5
"""Share of a stage that must have passed before the alarm may speak: a healthy run needs some time to spread out."""


class Journal:
    """Writes a row every few steps: means over them of the loss, its terms and the signs of collapse.

    The file is written as the run goes, so that an interrupted run keeps what it had. `alarms` are the sentences that
    the collapse monitor had to say, one a stage at most.
    """

    def __init__(self, folder: Path, *, every: int = 10) -> None:
        self.path, self.every = folder / "metrics.jsonl", every
        self.path.touch()
        self.alarms: list[str] = []

    def stage(self, name: str) -> StageJournal:
        """The watcher of one stage."""
        return StageJournal(self, name)

    def write(self, row: Mapping[str, object]) -> None:
        """Add one row."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Write the same rows as a table, metrics.csv, with the union of their columns."""
        rows = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        with self.path.with_suffix(".csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, columns)
            table.writeheader()
            table.writerows(rows)


class StageJournal:
    """Sums up the steps of one stage for a journal."""

    def __init__(self, journal: Journal, name: str) -> None:
        self.journal, self.name = journal, name
        self.alarm: str | None = None
        self._start()

    def _start(self) -> None:
        self.steps, self.images, self.since = 0, 0, time.perf_counter()
        self.sums: dict[str, Tensor] = {}

    def __call__(self, event: Event) -> None:
        """Take in one step, and write a row when enough have come together."""
        for key, value in {"loss": event.loss, **event.terms}.items():
            self.sums[key] = self.sums.get(key, 0) + value
        self.steps += 1
        self.images += event.images
        if self.steps < self.journal.every and event.step < event.steps:
            return
        means = {key: float(value) / self.steps for key, value in self.sums.items()}
        check_finite(means["loss"], event.step)
        speed = self.images / max(time.perf_counter() - self.since, 1e-9)
        row = {
            "stage": self.name,
            "epoch": event.epoch,
            "step": event.step,
            **means,
            "images_per_second": round(speed, 1),
        }
        self.journal.write(row)
        if self.alarm is None and event.step > ALARM_AFTER * event.steps:
            self.alarm = collapse.alarm(means)
            self.journal.alarms += [self.alarm] if self.alarm else []
        self._start()
