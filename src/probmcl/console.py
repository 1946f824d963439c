"""Messages and progress bars.

A terminal or a notebook shows a bar during each stage; a file gets one line when the stage is done.
"""

from __future__ import annotations

import importlib.util
import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, SupportsFloat, runtime_checkable

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TimeRemainingColumn

REFRESH_SECONDS = 0.5
"""Time between updates of the displayed loss. Updates are rare because reading the loss synchronizes the device."""

DELAY_SECONDS = 3.0
"""Time until the progress of a Python call is shown."""


@runtime_checkable
class _Step(Protocol):
    """The fields of a training step that a progress bar shows."""

    @property
    def images(self) -> int: ...
    @property
    def loss(self) -> SupportsFloat: ...
    @property
    def terms(self) -> Mapping[str, SupportsFloat]: ...


class ProgressBar:
    """The progress and speed of one stage and, during training, the loss and its terms."""

    def __init__(
        self,
        progress: Progress,
        task: TaskID,
        hidden_terms: Collection[str] = (),
        *,
        delay: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.progress, self.task, self.hidden_terms = progress, task, hidden_terms
        self.delay, self.clock = delay, clock
        self.images, self.start, self.refreshed = 0, clock(), 0.0

    @property
    def seconds(self) -> float:
        """The duration of the stage so far."""
        return self.clock() - self.start

    def __call__(self, step: _Step) -> None:
        """Advance by one training step, as a `probmcl.training.Callback`."""
        if self.clock() - self.refreshed > REFRESH_SECONDS:
            self.refreshed = self.clock()
            terms = {"loss": step.loss} | {k: v for k, v in step.terms.items() if k not in self.hidden_terms}
            self.progress.update(self.task, terms=" ".join(f"{name} {float(x):.3g}" for name, x in terms.items()))
        self.advance(step.images)

    def advance(self, images: int = 0, steps: int = 1) -> None:
        """Advance by `steps` steps, in which `images` images were processed."""
        self.images += images
        speed = self.images / max(self.seconds, 1e-9)
        self.show()
        self.progress.update(self.task, advance=steps, speed=f"{speed:,.0f} images/s" if self.images else "")

    def show(self) -> None:
        """Show the bar if the stage has lasted for the delay."""
        if not self.progress.live.is_started and self.seconds >= self.delay:
            self.progress.start()


class Console:
    """Prints messages, tables and progress bars.

    Args:
        output: the terminal or file to print to (default: stdout).
        rewrite: function applied to every message; the command line uses it to respell options.
        delay: seconds until the progress of a stage is shown; a shorter stage shows nothing.
        holds_last: keep the messages of `print_last` until `print_held` is called.
        clock: function that returns the time in seconds.
    """

    def __init__(
        self,
        output: RichConsole | None = None,
        *,
        rewrite: Callable[[str], str] = lambda text: text,
        delay: float = 0.0,
        holds_last: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.rich, self.rewrite, self.delay, self.clock = output or RichConsole(), rewrite, delay, clock
        self.holds_last = holds_last
        self.held: list[str] = []

    @classmethod
    def delayed(cls) -> Console:
        """Return the default console of Python calls: progress on stderr, only of stages that take a few seconds."""
        return cls(RichConsole(stderr=True), delay=DELAY_SECONDS)

    @classmethod
    def quiet(cls) -> Console:
        """Return a console that prints nothing."""
        return cls(RichConsole(quiet=True))

    def print(self, text: str) -> None:
        """Print a message as plain text; on a terminal, its lines are wrapped between words."""
        text = self.rewrite(text)
        if self.rich.is_terminal:
            text = "\n".join(_wrap(line, self.rich.width) for line in text.split("\n"))
        self.rich.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def print_last(self, text: str) -> None:
        """Print a message that should be the last line, even if a command prints more after the library call."""
        self.held.append(text)
        if not self.holds_last:
            self.print_held()

    def print_held(self) -> None:
        """Print the messages that were held back."""
        while self.held:
            self.print(self.held.pop(0))

    @contextmanager
    def progress(self, name: str, total: int, *, hidden_terms: Collection[str] = ()) -> Iterator[ProgressBar]:
        """Show a bar for a stage of `total` steps; if the output is a file, print the time and speed at the end."""
        measured = "{task.fields[speed]} {task.fields[terms]}"
        columns = ("{task.description}", BarColumn(24), "{task.percentage:>3.0f} %", TimeRemainingColumn(), measured)
        progress = Progress(*columns, console=self.rich, transient=True, disable=not self._shows_bars())
        task = progress.add_task(name, total=total, speed="", terms="")
        bar = ProgressBar(progress, task, hidden_terms, delay=self.delay, clock=self.clock)
        bar.show()
        try:
            yield bar
        finally:
            if progress.live.is_started:
                progress.stop()
        if not self._shows_bars() and bar.seconds >= self.delay:
            speed = f", {bar.images / bar.seconds:,.0f} images/s" if bar.images else ""
            self.print(f"  {name}: {bar.seconds:.1f} s{speed}")

    def _shows_bars(self) -> bool:
        # In a notebook, rich draws bars with ipywidgets.
        return self.rich.is_terminal or (self.rich.is_jupyter and importlib.util.find_spec("ipywidgets") is not None)


def _wrap(line: str, width: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
