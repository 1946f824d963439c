"""Messages and progress bars.

A terminal or a notebook shows a bar during each stage. A file gets one line when the stage is done and, while it takes
long, a line every 30 seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, SupportsFloat, runtime_checkable

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from probmcl.errors import one_line, printable
from probmcl.runtime.machine import leave_signals_to_main_thread
from probmcl.tables import rough_duration

REFRESH_SECONDS = 0.5
"""Time between updates of the displayed loss. Updates are rare because reading the loss synchronizes the device."""

DELAY_SECONDS = 3.0
"""Time until the progress of a Python call is shown."""

SILENT_SECONDS = 30.0
"""Longest time without a line if the output is not a terminal, so that a log shows that a command still works."""


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
        self.progress, self.task = progress, task
        self.hidden_terms = hidden_terms
        self.delay, self.clock = delay, clock
        self.images = 0
        self.start = clock()
        self.refreshed = 0.0  # time of the last update of the displayed loss

    @property
    def seconds(self) -> float:
        """The duration of the stage so far."""
        return self.clock() - self.start

    def __call__(self, step: _Step) -> None:
        """Advance by one training step, as a `probmcl.training.Callback`."""
        if self.clock() - self.refreshed > REFRESH_SECONDS:
            self.refreshed = self.clock()
            visible_terms = {name: value for name, value in step.terms.items() if name not in self.hidden_terms}
            shown = {"loss": step.loss} | visible_terms
            self.progress.update(self.task, terms=" ".join(f"{name} {float(x):.3g}" for name, x in shown.items()))
        self.advance(step.images)

    def advance(self, images: int = 0, steps: int = 1) -> None:
        """Advance by `steps` steps, in which `images` images were processed."""
        self.images += images
        images_per_second = self.images / max(self.seconds, 1e-9)
        self.show()
        speed = f"{images_per_second:,.0f} images/s" if self.images else ""
        self.progress.update(self.task, advance=steps, speed=speed)

    def status(self) -> str:
        """Return a line with the progress and the estimated remaining time."""
        [task] = self.progress.tasks
        done, total = int(task.completed), int(task.total or 0)
        line = f"{task.description}: {100 * done / max(total, 1):.0f} %, {done:,} of {total:,}"
        if 0 < done < total:
            seconds_left = self.seconds / done * (total - done)
            line += f", {rough_duration(seconds_left)} left"
        return line

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
        self.rich = output or RichConsole()
        self.rewrite = rewrite
        self.delay, self.clock = delay, clock
        self.holds_last = holds_last
        self.held: list[str] = []  # messages for `print_held`
        self.printed = clock()  # time of the last output
        self.stages: list[Callable[[], str]] = []  # functions that return the status, the innermost stage last

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
        text = printable(self.rewrite(text))
        if self.rich.is_terminal:
            text = "\n".join(_wrap(line, self.rich.width) for line in text.split("\n"))
        self._write(text)

    def print_line(self, text: str) -> None:
        """Print a line of data or a command, which is neither rewritten nor wrapped."""
        self._write(one_line(text))

    def _write(self, text: str) -> None:
        """Write a text exactly as it is: rich neither wraps nor highlights it."""
        self.printed = self.clock()
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
        name = one_line(name)
        measured = "{task.fields[speed]} {task.fields[terms]}"
        title = TextColumn("{task.description}", markup=False)
        columns = (title, BarColumn(24), "{task.percentage:>3.0f} %", TimeRemainingColumn(), measured)
        progress = Progress(*columns, console=self.rich, transient=True, disable=not self._shows_bars())
        task = progress.add_task(name, total=total, speed="", terms="")
        bar = ProgressBar(progress, task, hidden_terms, delay=self.delay, clock=self.clock)
        bar.show()
        try:
            with self._never_silent(bar.status):
                yield bar
        finally:
            if progress.live.is_started:
                progress.stop()
        if not self._shows_bars() and bar.seconds >= self.delay:
            line = f"  {name}: {bar.seconds:.1f} s"
            if bar.images:
                line += f", {bar.images / bar.seconds:,.0f} images/s"
            self.print(line)

    @contextmanager
    def working(self, name: str = "still working") -> Iterator[None]:
        """Print the time so far during a stage without steps, unless a stage inside it has a line of its own."""
        start = self.clock()
        with self._never_silent(lambda: f"{name}: {rough_duration(self.clock() - start)} so far"):
            yield

    @contextmanager
    def _never_silent(self, status: Callable[[], str]) -> Iterator[None]:
        """Print the status of the innermost stage whenever nothing has been printed for a while, except on a terminal.

        A thread does this, because a single step may take long.
        """
        if self._shows_bars() or self.rich.quiet:
            yield
            return
        ended = threading.Event()
        self.stages.append(status)
        is_outermost = len(self.stages) == 1
        if is_outermost:
            threading.Thread(target=self._print_status, args=[ended], daemon=True).start()
        try:
            yield
        finally:
            self.stages.remove(status)
            ended.set()

    def _print_status(self, ended: threading.Event) -> None:
        """Print the status of the innermost stage after each silence, until the outermost stage has ended."""
        leave_signals_to_main_thread()
        silent = 0.0  # seconds since the last output
        while not ended.wait(SILENT_SECONDS - silent):
            silent = self.clock() - self.printed
            if silent >= SILENT_SECONDS:
                silent = 0.0
                with contextlib.suppress(OSError, ValueError, IndexError):  # closed output, or the stage has just ended
                    innermost = self.stages[-1]
                    self.print(f"  {innermost()}")

    def _shows_bars(self) -> bool:
        """Return whether the output can show a bar. In a notebook, rich draws bars with ipywidgets."""
        if self.rich.is_terminal:
            return True
        return self.rich.is_jupyter and importlib.util.find_spec("ipywidgets") is not None


def _wrap(line: str, width: int) -> str:
    """Wrap a line between words; continuation lines are indented by two more spaces than the line."""
    indentation = len(line) - len(line.lstrip())
    indent = " " * (indentation + 2)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
