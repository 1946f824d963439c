import os
import subprocess
import sys

import pytest
import torch

from helpers.commands import HANGS
from probmcl.errors import OptionError
from probmcl.runtime.machine import default_workers, find_device


class FakeMachine:
    """A fake machine with a number of CUDA devices, or with an Apple GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, gpus: int = 0, apple: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)


def test_auto_is_a_cuda_device_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeMachine(monkeypatch)
    assert find_device("auto") == "cpu"
    FakeMachine(monkeypatch, apple=True)
    assert find_device("auto") == "cpu"
    FakeMachine(monkeypatch, gpus=1)
    assert find_device("auto") == "cuda"


def test_available_devices_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeMachine(monkeypatch, gpus=2, apple=True)
    for name in ("cpu", "cuda", "cuda:0", "cuda:1", "mps"):
        assert find_device(name) == name


@pytest.mark.parametrize("name", ["cuda:2", "cuda:7", "cuda:-1", "cuda:01", "cuda:", "mps", "meta", "gpu", "cpu:0", ""])
def test_error_for_an_unavailable_device_lists_the_available_ones(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    FakeMachine(monkeypatch, gpus=2)
    with pytest.raises(OptionError, match=f'`device="{name}"` .* cpu, cuda, cuda:0, cuda:1$'):
        find_device(name)


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_only_the_cpu_is_available_without_a_gpu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    FakeMachine(monkeypatch)
    with pytest.raises(ValueError, match=r"auto, cpu$"):
        find_device(name)


@pytest.mark.parametrize(("cores", "workers"), [({0}, 1), ({3, 5}, 2), (set(range(64)), 8)])
def test_default_is_one_worker_per_core_up_to_eight(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], workers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    assert default_workers() == workers


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_default_is_no_workers_on_other_platforms(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.delattr(os, "sched_getaffinity")  # these platforms do not have it
    assert default_workers() == 0


CODE = """
import resource, sys
from probmcl.runtime.machine import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
import torch
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for number in range(40):
    if number == 30:  # the heap has reached its final size
        before = faults()
    torch.ones(16_000_000)
print(faults() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_freed_memory_is_reused() -> None:
    """Each of the last ten tensors of 64 MB causes 16,000 page faults by default, and none if memory is kept."""

    def page_faults(mode: str) -> int:
        run = subprocess.run([sys.executable, "-c", CODE, mode], capture_output=True, text=True, check=True)
        return int(run.stdout)

    assert page_faults("keep") < page_faults("return") / 10


def test_keep_freed_memory_does_nothing_on_other_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    from probmcl.runtime.machine import keep_freed_memory

    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False


IN_CONTEXT = """
import os, resource, time
os.environ["OMP_NUM_THREADS"] = "2"
import torch
from probmcl.runtime.machine import kept_memory, short_spinning
def threads():
    return len(os.listdir("/proc/self/task"))
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])
torch.zeros(2**17).add_(1)
before = threads(), resident()
with kept_memory(), short_spinning():
    print(threads() - before[0])
    torch.ones(50_000_000)
    print(resident() - before[1] > 40_000)
while threads() > before[0]:  # the threads of a pool end shortly after it
    time.sleep(0.01)
print(resident() - before[1] > 40_000, torch.get_num_threads())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc and GNU OpenMP")
def test_inference_settings_end_with_their_context() -> None:
    """Within the context, the process has a second pool of two threads and keeps 200 MB of freed memory."""
    run = subprocess.run([sys.executable, "-c", IN_CONTEXT], capture_output=True, text=True, check=True, timeout=HANGS)
    assert run.stdout.split() == ["2", "True", "False", "2"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
def test_memory_is_kept_until_the_last_context_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from probmcl.runtime import machine

    calls: list[dict[int, int]] = []
    monkeypatch.setattr(machine, "KEEPERS", machine._Keepers())
    monkeypatch.setattr(machine, "_mallopt", lambda parameters: calls.append(dict(parameters)) or True)  # type: ignore[func-returns-value]
    with machine.kept_memory():
        with machine.kept_memory():
            pass
        assert machine.GLIBC_STATE not in calls
    assert calls[-1] == machine.GLIBC_STATE


def test_the_allocator_is_left_alone_if_the_user_configures_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from probmcl.runtime.machine import keep_freed_memory

    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert keep_freed_memory() is False
