import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from probmcl.runtime.workers import default_workers, ignore_interrupts, map_in_order, start_method


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stands in for another Python: its platform, its start methods, usual one first, and the one that was chosen."""

    def pretend(platform: str, methods: list[str], chosen: str | None) -> None:
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: methods)
        monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: chosen)

    return pretend


@pytest.mark.parametrize(
    ("platform", "methods", "chosen", "expected"),
    [
        ("linux", ["fork", "spawn", "forkserver"], None, "fork"),
        ("linux", ["fork", "spawn", "forkserver"], "spawn", "spawn"),
        ("linux", ["fork", "spawn", "forkserver"], "forkserver", "forkserver"),
        ("linux", ["forkserver", "fork", "spawn"], None, "fork"),  # Python 3.14
        ("linux", ["forkserver", "fork", "spawn"], "forkserver", "fork"),  # chosen by nobody: somebody made a lock
        ("linux", ["forkserver", "fork", "spawn"], "spawn", "spawn"),
        ("darwin", ["spawn", "fork", "forkserver"], None, "spawn"),
        ("darwin", ["spawn", "fork", "forkserver"], "fork", "fork"),
        ("win32", ["spawn"], None, "spawn"),
    ],
)
def test_workers_are_forked_on_linux_unless_the_user_has_chosen_otherwise(
    python: Callable[..., None], platform: str, methods: list[str], chosen: str | None, expected: str
) -> None:
    python(platform, methods, chosen)
    assert start_method() == expected


@pytest.mark.parametrize(("cores", "workers"), [({0}, 1), ({3, 5}, 2), (set(range(64)), 8)])
def test_there_is_a_worker_for_each_core_of_this_process_up_to_eight(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], workers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    assert default_workers() == workers


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_where_python_does_not_fork_there_are_no_workers(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.delattr(os, "sched_getaffinity")  # nor is it there
    assert default_workers() == 0


def test_asking_chooses_nothing_for_the_user() -> None:
    code = (
        "import multiprocessing\n"
        "from probmcl.runtime.workers import start_method\n"
        "assert start_method() == 'fork'\n"
        "assert multiprocessing.get_start_method(allow_none=True) is None\n"
        "multiprocessing.set_start_method('spawn')\n"
        "assert start_method() == 'spawn'\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_worker_does_not_answer_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        ignore_interrupts()
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("workers", [0, 2])
def test_parts_come_back_in_order(workers: int) -> None:
    assert list(map_in_order(abs, list(range(-30, 0)), workers)) == list(range(30, 0, -1))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_part_raises_is_raised_here(workers: int) -> None:
    results = map_in_order(int, ["1", "x", "3"], workers)
    assert next(results) == 1
    with pytest.raises(ValueError, match="'x'"):
        list(results)
