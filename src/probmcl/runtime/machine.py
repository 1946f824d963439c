"""Devices, worker processes and memory allocation."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from probmcl.errors import OptionError

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt: the amount of free memory to keep, and the number of blocks to allocate by mmap."""

Part = TypeVar("Part")
Result = TypeVar("Result")

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
    return min(len(os.sched_getaffinity(0)), MAX_WORKERS) if sys.platform == "linux" else 0


def start_method() -> str:
    """Return the start method of workers: the user's choice, otherwise fork on Linux and Python's default elsewhere.

    A choice that equals Python's default is ignored, because creating a lock in a library also sets it.
    """
    default = multiprocessing.get_all_start_methods()[0]
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen not in (None, default):
        return chosen
    return "fork" if sys.platform == "linux" else default


def ignore_interrupts(_: int = 0) -> None:
    """Ignore Ctrl-C in a worker: a terminal sends it to all processes, and only the parent should handle it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # If the parent stops while receiving a batch, the sending thread would print a traceback.
    sys.excepthook = lambda cls, error, traceback: (
        None if isinstance(error, ConnectionError | EOFError) else sys.__excepthook__(cls, error, traceback)
    )


def map_in_order(work: Callable[[Part], Result], parts: Sequence[Part], workers: int) -> Generator[Result, None, None]:
    """Yield `work(part)` for each part in order, computed by `workers` processes, or in this process if `workers` is 0.

    Wrap it in `contextlib.closing` so that stopping early, for example on Ctrl-C, does not wait for the other parts.

    >>> list(map_in_order(len, ["a", "bc"], workers=0))
    [1, 2]
    """
    if workers == 0:
        yield from map(work, parts)
        return
    from concurrent.futures import ProcessPoolExecutor  # imported here to keep the start of commands fast

    context = multiprocessing.get_context(start_method())
    with ProcessPoolExecutor(workers, mp_context=context, initializer=ignore_interrupts) as pool:
        try:
            yield from pool.map(work, parts)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory instead of returning it to the OS; return whether that succeeded.

    By default, glibc returns large blocks immediately, and the OS zeroes every page before handing it out again. This
    took half the CPU time of a forward pass and a quarter of the CPU time of a training step. Keeping the memory raises
    peak usage by a fifth. The setting affects the whole process, so only the command line uses it, not the library.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries, such as musl, do not have it
    return mallopt is not None and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(MMAP_MAX, 0))
