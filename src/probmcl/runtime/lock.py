"""A lock that lets only one process at a time change a run folder."""

from __future__ import annotations

import datetime
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from probmcl.errors import RunError
from probmcl.runtime.files import explained_no_space
from probmcl.runtime.safe_open import open_folder

LOCK = ".lock"
"""Name of the lock file, which exists while a process changes the folder, and after a process was killed."""

LOCKED_BYTE = 2**30
"""Position of the byte that is locked on Windows: after the content, because other processes cannot read it."""


class Holder(msgspec.Struct):
    """The process that holds a lock. `ticks` is its start time in clock ticks since boot; process ids are reused."""

    host: str
    pid: int
    ticks: int | None
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"

    @classmethod
    def this_process(cls) -> Holder:
        """Return this process."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(socket.gethostname(), os.getpid(), _start_ticks(os.getpid()), now)

    def is_running(self) -> bool:
        """True if the process exists on this host."""
        if sys.platform == "win32":
            return False  # the kernel lock, which this process holds by now, ends with its process
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass
        return self.pid > 0 and (self.ticks is None or _start_ticks(self.pid) in (None, self.ticks))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, or raise `RunError` if another process holds it. A stale lock is taken over.

    The kernel lock decides between processes of one host, and ends with its process. The content of the file also
    protects against processes on other hosts.
    """
    path = folder / LOCK
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_file(path) as file:
        holder = _read(file)
        if holder is not None:
            if holder.host != socket.gethostname():
                problem = f"{folder} is locked by {holder}, which cannot be checked from this host"
                raise RunError(f"{problem}; if that process has ended, delete {path}")
            if holder.is_running():
                raise _in_use(folder, holder)
        content = msgspec.json.encode(Holder.this_process())
        with explained_no_space(path, len(content)):
            file.seek(0)
            file.truncate()
            file.write(content)
            file.flush()
        try:
            yield
        finally:
            _delete(path, file)


@contextmanager
def _lock_file(path: Path) -> Iterator[IO[bytes]]:
    """Open the lock file and lock it, or raise `RunError` if another process has done so."""
    while True:
        with open_folder(path.parent, path.parent) as folder:
            descriptor = folder.open(path.name, os.O_RDWR | os.O_CREAT)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            try:
                _lock(file)
            except (BlockingIOError, PermissionError):
                raise _in_use(path.parent, _read(file)) from None
            except OSError as error:  # for example a network disk without locks
                raise RunError(f"{path} cannot be locked ({error}); use a folder on another disk") from error
            if _is_at(path, file):  # otherwise the process that held the lock has just deleted the file
                yield file
                return


def _lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed. `PermissionError` or `BlockingIOError` means that another process has locked it.

    On a system that has neither kind of lock, the content of the file alone decides.
    """
    if sys.platform == "win32":
        import msvcrt

        file.seek(LOCKED_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        return
    with suppress(ImportError):
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _delete(path: Path, file: IO[bytes]) -> None:
    """Delete a lock file, if possible before it is unlocked: afterwards, it could be the file of another process."""
    try:
        path.unlink(missing_ok=True)
    except PermissionError:  # Windows does not delete an open file
        file.close()
        try:
            path.unlink(missing_ok=True)
        except PermissionError:
            if sys.platform != "win32":
                raise
            # Another process has just opened the file, and takes it over.


def _is_at(path: Path, file: IO[bytes]) -> bool:
    """Return whether the file is still the one at the path."""
    if sys.platform == "win32":
        return True  # an open file cannot be deleted
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _in_use(folder: Path, holder: Holder | None) -> RunError:
    return RunError(f"{folder} is in use by {holder or 'another process'}; wait until it has ended, or stop it")


def _read(file: IO[bytes]) -> Holder | None:
    """Return the holder that a lock file names; None if it is empty or damaged."""
    file.seek(0)
    try:
        return msgspec.json.decode(file.read(10_000), type=Holder)
    except msgspec.MsgspecError:
        return None


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process from /proc; None if it is not available."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
