"""Folders of a run: opening their files without following links, and a lock for one process at a time.

On POSIX, each folder is opened relative to its parent, so a link cannot redirect an access to another place. Windows
cannot do this. There, each path is checked for links right before it is used. A process that replaces a folder by a
link between the check and the use could still redirect the access.
"""

from __future__ import annotations

import datetime
import errno
import os
import shutil
import socket
import stat
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, final

import msgspec

from probmcl.errors import RunError

BINARY = getattr(os, "O_BINARY", 0)  # without it, Windows translates line endings

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)

NO_WAIT = getattr(os, "O_NONBLOCK", 0)
"""Flag without which opening a named pipe would wait for another process. It has no effect on regular files."""

DIRECTORY = getattr(os, "O_DIRECTORY", 0)

RELATIVE = {os.open, os.mkdir, os.rename, os.unlink} <= os.supports_dir_fd and 0 not in (NO_FOLLOW, DIRECTORY)
"""True if the system can open files relative to an open folder."""

NAME_SURROGATE = 0x20000000
"""Bit of the tag of a Windows reparse point that stands for another path, such as a symlink or a junction."""

SECONDS_BETWEEN_ATTEMPTS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Waits between attempts to replace a file that another process, such as a virus scanner, has just opened."""

LOCK = ".lock"
"""Name of the lock file, which exists while a process changes the folder, and after a process was killed."""

LOCKED_BYTE = 2**30
"""Position of the byte that is locked on Windows: after the content, because other processes cannot read it."""

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OpenFolder(ABC):
    """A folder whose files are accessed by name, without following links."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def enter(self, name: str, *, create: bool) -> OpenFolder:
        """Open a folder in this folder; with `create`, it is created if it is missing."""

    @abstractmethod
    def open(self, name: str, flags: int) -> int:
        """Open a regular file and return its descriptor. A link or special file raises `RunError`."""

    @abstractmethod
    def replace(self, source: str, target: str) -> None:
        """Rename a file of this folder. A file or link with the new name is replaced."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file or a link, but not the target of the link."""

    @abstractmethod
    def flush(self) -> None:
        """Flush the names of the files to disk, without which a rename can be lost in a power failure."""

    @abstractmethod
    def close(self) -> None:
        """Close the folder."""


@final
class _RelativeFolder(OpenFolder):
    """A folder that is open as a descriptor, relative to which its files are opened."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        super().__init__(path)
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | DIRECTORY)
        self.descriptor = descriptor

    def enter(self, name: str, *, create: bool) -> OpenFolder:
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self.descriptor)
        descriptor = self._open(name, os.O_RDONLY | DIRECTORY)
        return _RelativeFolder(self.path / name, descriptor)

    def open(self, name: str, flags: int) -> int:
        descriptor = self._open(name, flags | NO_WAIT)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise RunError(_special_problem(self.path / name))
        return descriptor

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def delete(self, name: str) -> None:
        os.unlink(name, dir_fd=self.descriptor)

    def flush(self) -> None:
        os.fsync(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)

    def _open(self, name: str, flags: int) -> int:
        """Open a file or folder of this folder and return its descriptor. A link raises `RunError`."""
        path = self.path / name
        try:
            return os.open(name, flags | NO_FOLLOW, 0o666, dir_fd=self.descriptor)
        except OSError as error:
            # A link gives ELOOP, or ENOTDIR if a folder is expected.
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
                raise RunError(link_problem(path)) from error
            error.filename = str(path)  # instead of the name in its folder
            raise


@final
class _CheckedFolder(OpenFolder):
    """A folder that is known by its path. Paths in it are checked for links before they are used."""

    def enter(self, name: str, *, create: bool) -> OpenFolder:
        path = self.path / name
        if create:
            with suppress(FileExistsError):
                path.mkdir()
        status = _status_without_link(path)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return _CheckedFolder(path)

    def open(self, name: str, flags: int) -> int:
        path = self.path / name
        with suppress(FileNotFoundError):  # `flags` may say that a missing file is created
            status = _status_without_link(path)
            if not stat.S_ISREG(status.st_mode):
                raise RunError(_special_problem(path))
        return os.open(path, flags | BINARY, 0o666)

    def replace(self, source: str, target: str) -> None:
        replace_file(self.path / source, self.path / target)

    def delete(self, name: str) -> None:
        (self.path / name).unlink()

    def flush(self) -> None:
        """Do nothing, because these systems cannot open a folder to flush it."""

    def close(self) -> None:
        """Do nothing, because there is no descriptor."""


@contextmanager
def open_folder(root: Path, folder: Path, *, create: bool = False) -> Iterator[OpenFolder]:
    """Open a folder without following links below `root`. With `create`, missing folders below `root` are created."""
    if not folder.is_relative_to(root) or ".." in folder.relative_to(root).parts:
        raise RunError(f"{folder} is outside {root}; a file of the folder was edited")
    opened: OpenFolder = _RelativeFolder(root) if RELATIVE else _CheckedFolder(root)
    try:
        for name in folder.relative_to(root).parts:
            inner = opened.enter(name, create=create)
            opened.close()
            opened = inner
        yield opened
    finally:
        opened.close()


def replace_file(source: Path, target: Path) -> None:
    """Rename a file. If there is a file with the new name, it is replaced.

    Windows refuses this while any process, such as a virus scanner, has one of the files open, so it is tried again.
    """
    is_windows = not RELATIVE  # the other systems can open files relative to an open folder
    if is_windows:
        for seconds in SECONDS_BETWEEN_ATTEMPTS:
            try:
                source.replace(target)
            except PermissionError:
                time.sleep(seconds)
            else:
                return
    source.replace(target)  # on Windows the last attempt, which may raise an error


def is_link(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry of a folder is a symlink or, on Windows, a junction."""
    if entry.is_symlink():
        return True
    return os.name == "nt" and _stands_for_another_path(entry.stat(follow_symlinks=False))


def link_problem(path: Path) -> str:
    """Return the message for a symlink in a run folder."""
    return f"{path} is a symlink, and links inside a run folder are not followed; replace it with the file or folder"


def _special_problem(path: Path) -> str:
    """Return the message for a file that is, for example, a pipe or a device."""
    return f"{path} is not a regular file"


def _status_without_link(path: Path) -> os.stat_result:
    """Return the status of a file or folder; a link raises `RunError`."""
    status = path.lstat()
    if _stands_for_another_path(status):
        raise RunError(link_problem(path))
    return status


def _stands_for_another_path(status: os.stat_result) -> bool:
    """Return whether a status belongs to a symlink or, on Windows, to a junction."""
    tag = getattr(status, "st_reparse_tag", 0)  # only on Windows
    return stat.S_ISLNK(status.st_mode) or bool(tag & NAME_SURROGATE)


@contextmanager
def explained_no_space(path: Path, needed: int) -> Iterator[None]:
    """Turn the error of a full disk, a quota or a file size limit into a message with the file and the space.

    `needed` is the size of the content in bytes.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        problem = "no space left on the disk"
        if error.errno == errno.EFBIG:
            problem = "the file is larger than the limit of this process or disk"
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
        free = shutil.disk_usage(folder).free
        space = f"{needed:,} bytes needed, {free:,} bytes free"
        raise OSError(f"{path}: {problem} ({space}); free some space, then run or resume the command again") from error


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
        if self.pid <= 0:
            return False  # these numbers name groups of processes
        try:
            os.kill(self.pid, 0)  # sends no signal, but fails if there is no such process
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass  # a process of another user
        if self.ticks is None:
            return True
        ticks = _start_ticks(self.pid)
        return ticks is None or ticks == self.ticks  # with another start time, the process id was reused


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, or raise `RunError` if another process holds it. A stale lock is taken over.

    The kernel lock decides between processes of one host, and ends with its process. The content of the file also
    protects against processes on other hosts.
    """
    path = folder / LOCK
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_file(path) as file:
        holder = _read_holder(file)
        if holder is not None:
            _refuse_holder(folder, holder)
        content = msgspec.json.encode(Holder.this_process())
        with explained_no_space(path, len(content)):
            file.seek(0)
            file.truncate()
            file.write(content)
            file.flush()
        try:
            yield
        finally:
            _delete_lock_file(path, file)


def _refuse_holder(folder: Path, holder: Holder) -> None:
    """Raise `RunError` if the process that is named in the lock file may still run."""
    if holder.host != socket.gethostname():
        problem = f"{folder} is locked by {holder}, which cannot be checked from this host"
        raise RunError(f"{problem}; if that process has ended, delete {folder / LOCK}")
    if holder.is_running():
        raise _in_use(folder, holder)


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
                raise _in_use(path.parent, _read_holder(file)) from None
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


def _delete_lock_file(path: Path, file: IO[bytes]) -> None:
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
    """Return the error for a folder that is locked; None means that the process is not known."""
    return RunError(f"{folder} is in use by {holder or 'another process'}; wait until it has ended, or stop it")


def _read_holder(file: IO[bytes]) -> Holder | None:
    """Return the holder that a lock file names; None if it is empty or damaged."""
    file.seek(0)
    try:
        return msgspec.json.decode(file.read(10_000), type=Holder)  # a lock file is shorter
    except msgspec.MsgspecError:
        return None


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process from /proc, in clock ticks since boot; None if it is not available."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        _, _, after_name = status.rpartition(")")  # the name of the program may contain spaces
        return int(after_name.split()[19])  # field 22 of the file; the first field after the name is field 3
    except (OSError, ValueError, IndexError):
        return None
