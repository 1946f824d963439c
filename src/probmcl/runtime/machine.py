"""The machine and its operating system: devices, default number of workers, memory allocation and signals."""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from probmcl.errors import OptionError

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
"""Parameters of glibc's mallopt: the amount of free memory to keep, and the size and number of blocks from mmap."""

GLIBC_STATE = {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26, MMAP_MAX: 2**16}
"""The state that glibc adapts to by itself once a program has freed a block of 32 MB."""

MAX_WORKERS = 8

CPU_PIXELS, GPU_PIXELS = 400_000, 12_000_000
"""Pixels per batch in inference. On a CPU, the activations of a layer should fit into the cache."""

SENT_TO_GROUPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that a terminal or a job scheduler sends to all processes of a group."""

RESEND_AFTER = 0.2
"""Seconds after which a lost signal is sent again."""


class _Keepers:
    """The number of callers that want freed memory to be kept. It is global, like the allocator."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0


KEEPERS = _Keepers()


def find_device(name: str) -> str:
    """Return the name of an available device; `auto` means a CUDA device if there is one, otherwise the CPU.

    >>> find_device("cpu")
    'cpu'
    >>> find_device("meta")
    Traceback (most recent call last):
    probmcl.errors.OptionError: `device="meta"` is not available on this machine; choose from auto, cpu
    """
    import torch

    available = ["cpu"]
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        available.append("cuda")
        available += [f"cuda:{number}" for number in range(gpus)]
    if torch.backends.mps.is_available():
        available.append("mps")
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
    cores = len(os.sched_getaffinity(0))
    return min(cores, MAX_WORKERS)


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory instead of returning it to the OS; return whether that succeeded.

    By default, glibc returns large blocks immediately, and the OS zeroes every page before handing it out again. This
    took half the CPU time of a forward pass and a quarter of the CPU time of a training step. Keeping the memory raises
    peak usage by a fifth. The setting affects the whole process, so the library keeps memory only during
    inference (`kept_memory`). It is not changed if the user has configured the allocator by environment variables.
    """
    with KEEPERS.lock:
        # No amount of free memory is returned, and no block is taken from mmap, whose blocks are always returned.
        is_kept = _mallopt({TRIM_THRESHOLD: 2**31 - 1, MMAP_MAX: 0})
        if is_kept:
            KEEPERS.count += 1
        return is_kept


def _mallopt(parameters: Mapping[int, int]) -> bool:
    """Set parameters of glibc's allocator, and return whether this succeeded. What the user has set is kept."""
    if sys.platform != "linux":
        return False
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # other C libraries, such as musl, do not have it
        return False
    return all(mallopt(parameter, value) for parameter, value in parameters.items())


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory within the context, and return it to the OS at the end of the last such context.

    glibc's settings cannot be read, so they cannot be restored exactly. They are set to the state that glibc adapts to
    in any program that frees large blocks.
    """
    is_kept = keep_freed_memory()
    try:
        yield
    finally:
        if is_kept:
            with KEEPERS.lock:
                KEEPERS.count -= 1
                if KEEPERS.count == 0:
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

    started = threading.Event()
    finished = threading.Event()

    def hold_pool() -> None:
        """Start the thread pool of this thread with an operation, and keep it until the context ends."""
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


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold back signals during a fork: a worker could not ignore them yet, and Python would drop their exceptions."""
    before = _change_mask("SIG_BLOCK", SENT_TO_GROUPS)
    try:
        yield
    finally:
        _change_mask("SIG_SETMASK", before)


def leave_signals_to_parent() -> None:
    """Ignore the signals that the parent also receives, in a worker process."""
    for number in SENT_TO_GROUPS:
        signal.signal(number, signal.SIG_IGN)
    _change_mask("SIG_UNBLOCK", SENT_TO_GROUPS)


def leave_signals_to_main_thread() -> None:
    """Block all signals in the current thread, so that a signal wakes the main thread."""
    _change_mask("SIG_BLOCK", signal.valid_signals())


def _change_mask(how: str, numbers: Iterable[int]) -> Iterable[int]:
    """Change the blocked signals of the current thread and return the earlier ones. Windows cannot block signals.

    `how` is the name of a constant of the module `signal`, such as `SIG_BLOCK`.
    """
    if not hasattr(signal, "pthread_sigmask"):
        return ()
    before: set[int] = signal.pthread_sigmask(getattr(signal, how), numbers)
    return before


def exit_on_signals() -> None:
    """Exit on SIGTERM and SIGHUP like on Ctrl-C, so that a run records its status. `nohup` ignores SIGHUP."""
    sys.unraisablehook = _resend_signal
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    hang_up = getattr(signal, "SIGHUP", None)  # Windows does not have it
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]  # of stdout and stderr

    def exit_silently(number: int, frame: object) -> NoReturn:
        discard_output(terminals)  # printing to a closed terminal would raise another error
        sys.exit(128 + number)

    signal.signal(hang_up, exit_silently)


def discard_output(descriptors: Iterable[int]) -> None:
    """Discard everything that is written to these descriptors from now on."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(null, descriptor)


def _resend_signal(lost: sys.UnraisableHookArgs) -> None:
    """Resend a signal whose exception was lost: Python drops exceptions that a handler raises during a fork."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        number: int = signal.SIGINT
    elif isinstance(lost.exc_value, SystemExit) and isinstance(lost.exc_value.code, int):
        number = lost.exc_value.code - 128  # the handlers of `exit_on_signals` exit with 128 + number
    else:
        sys.__unraisablehook__(lost)
        return
    threading.Timer(RESEND_AFTER, _send_to_main_thread, [number]).start()


def _send_to_main_thread(number: int) -> None:
    """Send a signal to the main thread, whose handlers exit."""
    main_thread = threading.main_thread().ident
    if main_thread is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main_thread, number)  # a signal to the thread of the timer would not wake the main thread
    else:
        _thread.interrupt_main(signal.Signals(number))
