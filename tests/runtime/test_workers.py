import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.commands import HANGS
from probmcl.errors import WorkerError
from probmcl.runtime.workers import map_in_order, start_method


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Fake the platform, the start methods (the default first) and the chosen start method of Python."""

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
        ("linux", ["forkserver", "fork", "spawn"], "forkserver", "fork"),  # not a choice: creating a lock sets it
        ("linux", ["forkserver", "fork", "spawn"], "spawn", "spawn"),
        ("darwin", ["spawn", "fork", "forkserver"], None, "spawn"),
        ("darwin", ["spawn", "fork", "forkserver"], "fork", "fork"),
        ("win32", ["spawn"], None, "spawn"),
    ],
)
def test_workers_are_forked_on_linux_unless_the_user_chose_otherwise(
    python: Callable[..., None], platform: str, methods: list[str], chosen: str | None, expected: str
) -> None:
    python(platform, methods, chosen)
    assert start_method() == expected


def test_start_method_does_not_set_it() -> None:
    code = (
        "import multiprocessing\n"
        "from probmcl.runtime.workers import start_method\n"
        "assert start_method() == 'fork'\n"
        "assert multiprocessing.get_start_method(allow_none=True) is None\n"
        "multiprocessing.set_start_method('spawn')\n"
        "assert start_method() == 'spawn'\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_results_are_in_order(workers: int) -> None:
    assert list(map_in_order(abs, list(range(-30, 0)), workers)) == list(range(30, 0, -1))


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_workers_are_raised(workers: int) -> None:
    results = map_in_order(int, ["1", "x", "3"], workers)
    assert next(results) == 1
    with pytest.raises(ValueError, match="'x'"):
        list(results)


def large(number: int) -> tuple[torch.Tensor, np.ndarray]:
    return torch.full((3, 50_001), float(number)), np.arange(7, dtype=np.float64) + number


@pytest.mark.parametrize("limited", [False, True])
def test_large_results_arrive_unchanged(limited: bool) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limited:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with closing(map_in_order(large, range(9), 2)) as results:
            for number, (tensor, array) in enumerate(results):
                assert torch.equal(tensor, large(number)[0])
                np.testing.assert_array_equal(array, large(number)[1])
                tensor += 1  # its memory is writable
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_large_part_and_a_large_result_do_not_wait_for_each_other() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        parts = [bytes([number]) * 2_000_000 for number in range(9)]
        assert list(map_in_order(bytes, parts, 2)) == parts
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def die(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_killed_worker_is_reported_with_its_files() -> None:
    with pytest.raises(WorkerError, match=r"(?s)SIGKILL, probably because memory ran out.*`workers=0`.*:\n  5.jpg$"):
        list(map_in_order(die, range(9), 2, files=lambda number: [f"{number}.jpg"]))


def test_a_killed_worker_is_reported_even_if_its_socket_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, the parent also has the socket of a worker that dies before it has opened it."""
    pipe, kept = connection.Pipe, []

    def pipe_that_stays_open(duplex: bool = True) -> tuple[Any, Any]:
        ours, theirs = pipe(duplex)
        kept.append(socket.socket(fileno=os.dup(theirs.fileno())))
        return ours, theirs

    monkeypatch.setattr(connection, "Pipe", pipe_that_stays_open)
    with pytest.raises(WorkerError, match="SIGKILL"):
        list(map_in_order(die, range(9), 2))
    for end in kept:
        end.close()


def test_a_signal_while_a_worker_starts_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    process = multiprocessing.get_context("fork").Process
    start = process.start

    def interrupted(self: multiprocessing.Process) -> None:
        start(self)
        signal.raise_signal(signal.SIGINT)  # is held back until the worker is known

    monkeypatch.setattr(process, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(map_in_order(abs, [1], 1))
    assert multiprocessing.active_children() == []


def test_a_killed_worker_does_not_block_a_thread_while_another_starts_workers() -> None:
    for _ in range(5):
        ready, deaths = threading.Barrier(2), list[str]()

        def work(part: int, ready: threading.Barrier = ready, deaths: list[str] = deaths) -> None:
            ready.wait()
            with pytest.raises(WorkerError) as death:
                list(map_in_order(kill_own_process, [part], 2))
            deaths.append(str(death.value))

        threads = [threading.Thread(target=work, args=(part,), daemon=True) for part in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANGS)
        assert len(deaths) == 2


def kill_own_process(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_no_worker_is_left_if_the_caller_stops_early() -> None:
    results = map_in_order(abs, range(100), 2)
    next(results)
    assert len(multiprocessing.active_children()) == 2
    results.close()
    assert multiprocessing.active_children() == []


class OddError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def odd(number: int) -> int:
    raise OddError(number, number)


def test_an_exception_that_cannot_be_pickled_is_raised_with_its_message() -> None:
    with pytest.raises(RuntimeError, match="OddError: 1 and 1"):
        list(map_in_order(odd, [1], 1))


KILLED_PARENT = """
import os, signal, sys, time
from probmcl.runtime.workers import worker_pool

def wait(folder):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(3600)

if __name__ == "__main__":
    with worker_pool(wait, 2, start=sys.argv[1]) as map_parts:
        next(map_parts([sys.argv[2]] * 2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_end_with_a_killed_parent(start: str, tmp_path: Path) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "workers"
    script.write_text(KILLED_PARENT)
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, script, start, folder])
    end = time.monotonic() + HANGS
    while len(list(folder.iterdir())) < 2:
        assert parent.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    for marker in folder.iterdir():
        while is_running(marker.name):
            assert time.monotonic() < end, "a worker never ends"
            time.sleep(0.05)


def is_running(pid: str) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"
