"""What a person sees while it runs: bars on a terminal, a line for each finished stage anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from probmcl import collapse
from probmcl.training.fit import Event

REFRESH = 0.5
"""Seconds between two looks at the loss: each makes the device wait."""


class Bar:
    """One stage: how far it is, how fast, and for training the loss and its terms."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress, self.task = progress, task
        self.images, self.start, self.looked = 0, time.perf_counter(), 0.0

    def __call__(self, event: Event) -> None:
        """Watch one training step."""
        if time.perf_counter() - self.looked > REFRESH:
            self.looked = time.perf_counter()
            terms = {"loss": event.loss, **{k: v for k, v in event.terms.items() if k not in collapse.SIGNS}}
            self.progress.update(self.task, terms=" ".join(f"{name} {float(x):.3g}" for name, x in terms.items()))
        self.advance(event.images)

    def advance(self, images: int = 0, steps: int = 1) -> None:
        """One more step is done, or several, and so many images with it."""
        self.images += images
        speed = self.images / max(time.perf_counter() - self.start, 1e-9)
        self.progress.update(self.task, advance=steps, speed=f"{speed:,.0f} images/s" if self.images else "")


class Display:
    """Says what is going on to a console."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()

    def say(self, text: str) -> None:
        """One line of plain text."""
        self.console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Bar]:
        """A bar for a stage of `total` steps while it runs; when it is done, one line with its time and speed."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]} {task.fields[terms]}"),
        )
        progress = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        with progress:
            bar = Bar(progress, progress.add_task(name, total=total, speed="", terms=""))
            yield bar
        seconds = time.perf_counter() - bar.start
        speed = f", {bar.images / seconds:,.0f} images/s" if bar.images else ""
        self.say(f"  {name}: {seconds:.1f} s{speed}")
