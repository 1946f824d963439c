"""Folders of a run: opening their files without following links, and a lock for one process at a time."""

import multiprocessing
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from probmcl.errors import RunError
from probmcl.runtime import files, folders
from probmcl.runtime.folders import LOCK, Holder, locked

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@pytest.fixture(params=["relative", "checked"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Open folders in this way; a refused replacement is tried again at once."""
    name: str = request.param
    monkeypatch.setattr(folders, "RELATIVE", name == "relative")
    monkeypatch.setattr(folders, "SECONDS_BETWEEN_ATTEMPTS", (0.0, 0.0))
    return name


def test_files_are_written_replaced_and_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with folders.open_folder(tmp_path, folder, create=True) as opened:
        os.close(opened.open("new", CREATE))
        with pytest.raises(FileExistsError):
            opened.open("new", CREATE)
        (folder / "old").write_text("old")
        opened.replace("new", "old")
        assert (folder / "old").read_text() == ""
        opened.delete("old")
        opened.flush()
    assert list(folder.iterdir()) == []


def test_links_below_the_root_are_not_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    root.mkdir()
    (outside / "secret").write_text("secret")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / ".a.part").symlink_to(outside / "victim")
    for path in (root / "folder" / "secret", root / "file"):
        with pytest.raises(RunError, match="is a symlink"), files.open_file(path, root=root):
            pass
    for path in (root / "folder" / "new", root / "folder" / "deep" / "new"):
        with pytest.raises(RunError, match="folder is a symlink"):
            files.atomic_write(path, b"", root=root)
    for path in (root / "file", root / "folder"):
        with pytest.raises(RunError, match="is a symlink"):
            files.append_text(path, "more")
    files.atomic_write(root / "a", b"new", root=root)
    files.atomic_write(root / "file", b"new", root=root)
    assert (root / "a").read_bytes() == (root / "file").read_bytes() == b"new"
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "real")
    files.atomic_write(tmp_path / "run" / "a", b"new", root=tmp_path / "run")
    assert (tmp_path / "real" / "a").read_bytes() == b"new"


def test_special_files_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "pipe", tmp_path / "folder"):
        with pytest.raises(RunError, match="is not a regular file"), files.open_file(path):
            pass


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(FileNotFoundError, match=str(tmp_path / "a")), files.open_file(path, root=tmp_path):
            pass
    below_a_file = tmp_path / "file" / "b"
    with pytest.raises(NotADirectoryError, match=str(tmp_path / "file")), files.open_file(below_a_file, root=tmp_path):
        pass


def test_a_folder_outside_the_root_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path.parent, tmp_path / ".." / "other"):
        with pytest.raises(RunError, match="is outside"), folders.open_folder(tmp_path, folder):
            pass


def test_a_refused_replacement_is_tried_again_where_open_files_are_protected(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, refusals = os.replace, [PermissionError("in use"), PermissionError("in use")]

    def replace_later(source: Path, target: Path) -> None:
        if refusals:
            raise refusals.pop()
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_later)
    (tmp_path / "new").write_text("new")
    if way == "relative":  # POSIX: the folder is not writable
        with pytest.raises(PermissionError):
            folders.replace_file(tmp_path / "new", tmp_path / "old")
    else:
        folders.replace_file(tmp_path / "new", tmp_path / "old")
        assert (tmp_path / "old").read_text() == "new"


@pytest.mark.usefixtures("without_type_checks")  # only Windows has a status with such a tag
@pytest.mark.parametrize(("tag", "is_link"), [(0, False), (0xA000000C, True), (0xA0000003, True), (0x9000001A, False)])
def test_symlinks_and_junctions_of_windows_are_links_but_files_of_cloud_drives_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: int, is_link: bool
) -> None:
    monkeypatch.setattr(folders, "RELATIVE", False)
    status = SimpleNamespace(st_mode=stat.S_IFREG, st_reparse_tag=tag)
    (tmp_path / "a").write_text("a")
    with folders.open_folder(tmp_path, tmp_path) as folder:
        monkeypatch.setattr(Path, "lstat", lambda path: status)
        if is_link:
            with pytest.raises(RunError, match="is a symlink"):
                folder.open("a", os.O_RDONLY)
        else:
            os.close(folder.open("a", os.O_RDONLY))


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
