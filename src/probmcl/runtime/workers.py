"""Worker processes that decode images: their number, start method and handling of Ctrl-C."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")

MOST_WORKERS = 8


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


def map_in_order(work: Callable[[Part], Result], parts: Sequence[Part], workers: int) -> Generator[Result, None, None]:
    """Yield `work(part)` for each part in order, computed by `workers` processes, or in this one if 0.

    Wrap it in `contextlib.closing`, so that stopping early, as on an interrupt, does not wait for the remaining parts.

    >>> list(map_in_order(len, ["a", "bc"], workers=0))
    [1, 2]
    """
    if workers == 0:
        yield from map(work, parts)
        return
    context = multiprocessing.get_context(start_method())
    with ProcessPoolExecutor(workers, mp_context=context, initializer=ignore_interrupts) as pool:
        try:
            yield from pool.map(work, parts)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
