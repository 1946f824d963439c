import io

import pytest
from rich.console import Console as RichConsole

from probmcl.console import DELAY_SECONDS, Console


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def recorded(*, terminal: bool, seconds: float, delay: float, quiet: bool = False) -> str:
    """Return what is printed during a stage of ten images in two steps that takes some seconds."""
    file, clock = io.StringIO(), Clock()
    rich = RichConsole(file=file, force_terminal=terminal, width=100, quiet=quiet)
    with Console(rich, delay=delay, clock=clock).progress("scoring", 10) as bar:
        for _ in range(2):
            clock.now += seconds / 2
            bar.advance(5, steps=5)
            bar.progress.refresh()
    return file.getvalue()


@pytest.mark.parametrize(("seconds", "delay", "shown"), [(2.0, 3.0, False), (4.0, 3.0, True), (0.0, 0.0, True)])
def test_terminal_shows_a_bar_after_the_delay(seconds: float, delay: float, shown: bool) -> None:
    text = recorded(terminal=True, seconds=seconds, delay=delay)
    assert ("scoring" in text and "100 %" in text) == shown
    assert bool(text) == shown


def test_file_gets_one_line_after_the_delay() -> None:
    assert recorded(terminal=False, seconds=4.0, delay=3.0).strip() == "scoring: 4.0 s, 2 images/s"
    assert recorded(terminal=False, seconds=2.0, delay=3.0) == ""
    assert recorded(terminal=False, seconds=2.0, delay=0.0).strip() == "scoring: 2.0 s, 5 images/s"


def test_quiet_console_prints_nothing() -> None:
    assert recorded(terminal=True, seconds=9.0, delay=3.0, quiet=True) == ""
    assert recorded(terminal=False, seconds=9.0, delay=3.0, quiet=True) == ""


def test_error_in_a_stage_ends_its_bar() -> None:
    file, clock = io.StringIO(), Clock()
    console = Console(RichConsole(file=file, force_terminal=True), clock=clock)
    with pytest.raises(OSError, match="gone"), console.progress("scoring", 10) as bar:
        raise OSError("gone")
    assert not bar.progress.live.is_started


def test_default_of_python_calls_is_delayed_and_prints_on_stderr() -> None:
    console = Console.delayed()
    assert console.rich.stderr
    assert console.delay == DELAY_SECONDS > 0


def test_a_command_prints_held_messages_after_all_others() -> None:
    file = io.StringIO()
    for holds_last in (True, False):
        console = Console(RichConsole(file=file), holds_last=holds_last)
        console.print_last("warning")
        console.print("next")
        console.print_held()
    assert file.getvalue().split() == ["next", "warning", "warning", "next"]
