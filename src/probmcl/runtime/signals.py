"""Signals that end a command, as far as the system has them: Windows has no SIGHUP and cannot hold signals back."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

SENT_TO_GROUPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that a terminal or a job scheduler sends to all processes of a group."""

RESEND_AFTER = 0.2  # seconds


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
    """Change the blocked signals of the current thread and return the earlier ones. Windows cannot block signals."""
    if not hasattr(signal, "pthread_sigmask"):
        return ()
    before: set[int] = signal.pthread_sigmask(getattr(signal, how), numbers)
    return before


def exit_on_signals() -> None:
    """Exit on SIGTERM and SIGHUP like on Ctrl-C, so that a run records its status. `nohup` ignores SIGHUP."""
    sys.unraisablehook = _resend_signal
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    hang_up = getattr(signal, "SIGHUP", None)
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

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
        number = lost.exc_value.code - 128
    else:
        sys.__unraisablehook__(lost)
        return
    threading.Timer(RESEND_AFTER, _send_to_main_thread, [number]).start()


def _send_to_main_thread(number: int) -> None:
    main_thread = threading.main_thread().ident
    if main_thread is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main_thread, number)  # a signal to the thread of the timer would not wake the main thread
    else:
        _thread.interrupt_main(signal.Signals(number))
