"""Processes that decode images: how many, how they are started, and who answers Ctrl-C."""

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
    """One for each core that this process may use, up to eight; none where Python cannot fork safely.

    On macOS and Windows a worker starts the user's script again, which without `if __name__ == "__main__"` never ends.
    """
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS) if sys.platform == "linux" else 0


def start_method() -> str:
    """How workers are started: forked on Linux, elsewhere as Python does it, or as the user has chosen.

    A choice that is Python's own default counts as none: it is also noted down where a library merely makes a lock.
    """
    usual = multiprocessing.get_all_start_methods()[0]
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen not in (None, usual):
        return chosen
    return "fork" if sys.platform == "linux" else usual


def ignore_interrupts(_: int = 0) -> None:
    """In a worker, as its first act: a terminal sends Ctrl-C to all processes, and only the parent answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def map_in_order(work: Callable[[Part], Result], parts: Sequence[Part], workers: int) -> Generator[Result, None, None]:
    """What `work` makes of each part, in order; `workers` processes share them, 0 does all in this one.

    Wrap it in `contextlib.closing`: whoever stops early, as an interrupt does, then waits for no part still to come.

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
