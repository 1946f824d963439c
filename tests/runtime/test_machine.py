import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from probmcl.errors import OptionError
from probmcl.runtime.machine import default_workers, find_device, ignore_interrupts, map_in_order, start_method


class Machine:
    """Stands in for a machine with so many GPUs, or Apple's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, gpus: int = 0, apple: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)


def test_auto_is_a_gpu_of_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch)
    assert find_device("auto") == "cpu"
    Machine(monkeypatch, apple=True)
    assert find_device("auto") == "cpu"
    Machine(monkeypatch, gpus=1)
    assert find_device("auto") == "cuda"


def test_what_is_here_is_found_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, gpus=2, apple=True)
    for name in ("cpu", "cuda", "cuda:0", "cuda:1", "mps"):
        assert find_device(name) == name


@pytest.mark.parametrize("name", ["cuda:2", "cuda:7", "cuda:-1", "cuda:01", "cuda:", "mps", "meta", "gpu", "cpu:0", ""])
def test_what_is_not_here_is_answered_with_what_is(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    Machine(monkeypatch, gpus=2)
    said = f"`device={name}` is not available: torch has cpu, cuda, cuda:0, cuda:1 on this machine; give one, or auto"
    with pytest.raises(OptionError, match=said):
        find_device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_without_a_gpu_there_is_only_the_cpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    Machine(monkeypatch)
    with pytest.raises(ValueError, match="has cpu on this machine; give one, or auto"):
        find_device(name)


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
        "from probmcl.runtime.machine import start_method\n"
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


CODE = """
import resource, sys
from probmcl.runtime.machine import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
import torch
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for number in range(40):
    if number == 30:  # by now the heap has found its size
        before = faults()
    torch.ones(16_000_000)
print(faults() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
def test_memory_that_was_freed_is_used_again() -> None:
    """Tensors of 64 MB, one after the other: 16,000 pages for each of the last ten, or none."""

    def pages(word: str) -> int:
        run = subprocess.run([sys.executable, "-c", CODE, word], capture_output=True, text=True, check=True)
        return int(run.stdout)

    assert pages("keep") < pages("give back") / 10


def test_elsewhere_nothing_is_told_and_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    from probmcl.runtime.machine import keep_freed_memory

    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False
