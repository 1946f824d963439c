"""What this machine offers: devices, worker processes that decode images, and memory that stays in the process."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from probmcl.errors import OptionError

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of mallopt in glibc's malloc.h: how much free memory to keep, and how many blocks to allocate by mmap."""

Part = TypeVar("Part")
Result = TypeVar("Result")

MOST_WORKERS = 8

CPU_PIXELS, GPU_PIXELS = 400_000, 12_000_000
"""Pixels of a batch in inference: few on a CPU, so that its cache holds the activations between layers."""


def find_device(name: str) -> str:
    """Return the device of a name; `auto` is a CUDA device if there is one, otherwise the CPU.

    >>> find_device("cpu")
    'cpu'
    >>> find_device("meta")
    Traceback (most recent call last):
    probmcl.errors.OptionError: `device=meta` is not available: torch has cpu on this machine; give one, or auto
    """
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cuda = ["cuda", *(f"cuda:{number}" for number in range(gpus))] if gpus else []
    available = ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]
    if name == "auto":
        return "cuda" if "cuda" in available else "cpu"
    if name not in available:
        devices = ", ".join(available)
        raise OptionError("device", name, f"is not available: torch has {devices} on this machine; give one, or auto")
    return name


def default_workers() -> int:
    """Return one worker for each core that this process may use, up to eight; 0 if Python cannot fork safely.

    On macOS and Windows a worker runs the user's script again, which never ends without `if __name__ == "__main__"`.
    """
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS) if sys.platform == "linux" else 0


def start_method() -> str:
    """Return the start method of workers: the user's choice, otherwise fork on Linux and Python's default elsewhere.

    A choice equal to Python's default is ignored: it is also recorded when a library only creates a lock.
    """
    default = multiprocessing.get_all_start_methods()[0]
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen not in (None, default):
        return chosen
    return "fork" if sys.platform == "linux" else default


def ignore_interrupts(_: int = 0) -> None:
    """Ignore Ctrl-C in a worker: a terminal sends it to all processes, and only the parent should handle it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # If the parent stops while it receives a batch, the thread that sends it would print a traceback.
    sys.excepthook = lambda kind, error, trace: (
        None if isinstance(error, ConnectionError | EOFError) else sys.__excepthook__(kind, error, trace)
    )


def map_in_order(work: Callable[[Part], Result], parts: Sequence[Part], workers: int) -> Generator[Result, None, None]:
    """Yield `work(part)` for each part in order, computed by `workers` processes, or in this one if 0.

    Wrap it in `contextlib.closing`, so that stopping early, as on an interrupt, does not wait for the remaining parts.

    >>> list(map_in_order(len, ["a", "bc"], workers=0))
    [1, 2]
    """
    if workers == 0:
        yield from map(work, parts)
        return
    from concurrent.futures import ProcessPoolExecutor  # not at the start of every command

    context = multiprocessing.get_context(start_method())
    with ProcessPoolExecutor(workers, mp_context=context, initializer=ignore_interrupts) as pool:
        try:
            yield from pool.map(work, parts)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory instead of returning it to the OS; return whether that succeeded.

    By default glibc returns every large block to the OS at once, which hands it out again page by page, zeroed: on a
    CPU that took half of the processor time of a forward pass, and a quarter of a training step's. The price is a fifth
    more memory at the peak. It affects the whole process, so only the command line calls it, not the library.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries do not have it
    return mallopt is not None and bool(mallopt(TRIM_THRESHOLD, 2**31 - 1)) and bool(mallopt(MMAP_MAX, 0))
