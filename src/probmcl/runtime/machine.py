"""Devices, the default number of worker processes, and memory allocation."""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from probmcl.errors import OptionError

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Parameters of glibc's mallopt: the amount of free memory to keep, and the size and number of blocks from mmap."""

GLIBC_STATE = {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26, MMAP_MAX: 2**16}
"""The state that glibc adapts to by itself once a program has freed a block of 32 MB."""

MAX_WORKERS = 8

CPU_PIXELS, GPU_PIXELS = 400_000, 12_000_000
"""Pixels per batch in inference. On a CPU, the activations of a layer should fit into the cache."""


def find_device(name: str) -> str:
    """Return the name of an available device; `auto` means a CUDA device if there is one, otherwise the CPU.

    >>> find_device("cpu")
    'cpu'
    >>> find_device("meta")
    Traceback (most recent call last):
    probmcl.errors.OptionError: `device="meta"` is not available on this machine; choose from auto, cpu
    """
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cuda = ["cuda", *(f"cuda:{number}" for number in range(gpus))] if gpus else []
    available = ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]
    if name == "auto":
        return "cuda" if "cuda" in available else "cpu"
    if name not in available:
        devices = ", ".join(available)
        raise OptionError("device", name, f"is not available on this machine; choose from auto, {devices}")
    return name


def default_workers() -> int:
    """Return the default number of workers: one per core that this process may use, up to eight; 0 except on Linux.

    On macOS and Windows a worker runs the user's script again, endlessly if it lacks `if __name__ == "__main__"`.
    """
    if sys.platform != "linux" or not hasattr(os, "sched_getaffinity"):
        return 0
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS)


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory instead of returning it to the OS; return whether that succeeded.

    By default, glibc returns large blocks immediately, and the OS zeroes every page before handing it out again. This
    took half the CPU time of a forward pass and a quarter of the CPU time of a training step. Keeping the memory raises
    peak usage by a fifth. The setting affects the whole process, so the library keeps memory only during
    inference (`kept_memory`). It is not changed if the user has configured the allocator by environment variables.
    """
    with KEEPERS.lock:
        kept = _mallopt({TRIM_THRESHOLD: 2**31 - 1, MMAP_MAX: 0})
        KEEPERS.count += kept
        return kept


class _Keepers:
    """The number of callers that want freed memory to be kept. It is global, like the allocator."""

    def __init__(self) -> None:
        self.lock, self.count = threading.Lock(), 0


KEEPERS = _Keepers()


def _mallopt(parameters: Mapping[int, int]) -> bool:
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries, such as musl, do not have it
    return mallopt is not None and all(mallopt(*parameter) for parameter in parameters.items())


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory within the context, and return it to the OS at the end of the last such context.

    glibc's settings cannot be read, so they cannot be restored exactly. They are set to the state that glibc adapts to
    in any program that frees large blocks.
    """
    kept = keep_freed_memory()
    try:
        yield
    finally:
        with KEEPERS.lock:
            KEEPERS.count -= kept
            if kept and KEEPERS.count == 0:
                _mallopt(GLIBC_STATE)
                ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def short_spinning() -> Iterator[None]:
    """Let idle OpenMP threads sleep sooner within the context, without changing the number of threads or any result.

    Between operations, idle threads spin. If other processes need the cores, such as workers that decode images, this
    made a forward pass four times slower. GNU OpenMP reads its settings when torch is imported, but it also spins 300
    times shorter while a process has more OpenMP threads than cores. An idle second thread pool causes this.
    """
    import torch

    started, finished = threading.Event(), threading.Event()

    def hold_pool() -> None:
        try:
            torch.zeros(2**17).add_(1)  # large enough to be computed by all threads
        finally:
            started.set()
        finished.wait()

    thread = threading.Thread(target=hold_pool, daemon=True)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        finished.set()
        thread.join()
