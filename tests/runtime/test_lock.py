"""The lock of a folder on POSIX, on Windows, and on a system without locks of files."""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from probmcl.errors import RunError
from probmcl.runtime.lock import LOCK, Holder, locked


class FakeMsvcrt:
    """The locks of Windows: per open file, and only for bytes after the content."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        self.locked: dict[tuple[int, int], int] = {}

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        status = os.fstat(descriptor)
        assert (mode, count) == (self.LK_NBLCK, 1)
        assert os.lseek(descriptor, 0, os.SEEK_CUR) > status.st_size
        key = status.st_dev, status.st_ino
        holder = self.locked.get(key, -1)
        if holder != descriptor and self._is_open(holder, key):
            raise PermissionError("Permission denied")
        self.locked[key] = descriptor

    def _is_open(self, descriptor: int, key: tuple[int, int]) -> bool:
        try:
            status = os.fstat(descriptor)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == key


@contextmanager
def system(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if name == "windows":
            patch.setitem(sys.modules, "msvcrt", FakeMsvcrt())
            patch.setattr(sys, "platform", "win32")
        elif name == "other":
            patch.setitem(sys.modules, "fcntl", None)
        yield


each_system = pytest.mark.parametrize("name", ["posix", "windows", "other"])


@each_system
def test_a_folder_is_locked_once(name: str, tmp_path: Path) -> None:
    with system(name):
        with locked(tmp_path / "run"):
            problem = rf"is in use by process {os.getpid()} on .*; wait until it has ended, or stop it"
            with pytest.raises(RunError, match=problem), locked(tmp_path / "run"):
                pass
        assert list((tmp_path / "run").iterdir()) == []
        with locked(tmp_path / "run"):
            pass


@each_system
def test_the_lock_of_an_ended_process_is_taken_over(name: str, tmp_path: Path) -> None:
    ended = multiprocessing.get_context("spawn").Process(target=print)
    ended.start()
    ended.join()
    holder = Holder.this_process()
    holder.pid = ended.pid or 0
    (tmp_path / LOCK).write_bytes(msgspec.json.encode(holder))
    with system(name), locked(tmp_path):
        content = msgspec.json.decode((tmp_path / LOCK).read_bytes(), type=Holder)
        assert content.pid == os.getpid()


@each_system
def test_the_lock_of_another_host_is_not_taken_over(name: str, tmp_path: Path) -> None:
    holder = Holder.this_process()
    holder.host = "elsewhere"
    (tmp_path / LOCK).write_bytes(msgspec.json.encode(holder))
    with system(name), pytest.raises(RunError, match="cannot be checked from this host"), locked(tmp_path):
        pass


def test_a_link_is_not_used_as_a_lock(tmp_path: Path) -> None:
    (tmp_path / LOCK).symlink_to(tmp_path / "victim")
    with pytest.raises(RunError, match="is a symlink"), locked(tmp_path):
        pass
    assert not (tmp_path / "victim").exists()


def test_a_lock_that_is_deleted_only_after_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows does not delete an open file."""
    unlink = Path.unlink

    def unlink_closed(path: Path, missing_ok: bool = False) -> None:
        target = SimpleNamespace(inode=path.stat().st_ino)
        opened = [entry for entry in Path("/dev/fd").iterdir() if entry.exists()]
        if target.inode in [entry.stat().st_ino for entry in opened]:
            raise PermissionError("in use")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_closed)
    with locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_deleted_is_an_error_except_on_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows, another process may have just opened the file; it then takes the lock over."""

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError("in use")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(PermissionError), locked(tmp_path):
        pass
    with system("windows"), locked(tmp_path):
        pass
