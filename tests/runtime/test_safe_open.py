"""Both ways of opening folders: relative to an open folder as on POSIX, and by checked paths as on Windows."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from probmcl.errors import RunError
from probmcl.runtime import files, safe_open

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@pytest.fixture(params=["relative", "checked"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Open folders in this way; a refused replacement is tried again at once."""
    name: str = request.param
    monkeypatch.setattr(safe_open, "RELATIVE", name == "relative")
    monkeypatch.setattr(safe_open, "SECONDS_BETWEEN_ATTEMPTS", (0.0, 0.0))
    return name


def test_files_are_written_replaced_and_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with safe_open.open_folder(tmp_path, folder, create=True) as opened:
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
        with pytest.raises(RunError, match="is outside"), safe_open.open_folder(tmp_path, folder):
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
            safe_open.replace_file(tmp_path / "new", tmp_path / "old")
    else:
        safe_open.replace_file(tmp_path / "new", tmp_path / "old")
        assert (tmp_path / "old").read_text() == "new"


@pytest.mark.usefixtures("without_type_checks")  # only Windows has a status with such a tag
@pytest.mark.parametrize(("tag", "is_link"), [(0, False), (0xA000000C, True), (0xA0000003, True), (0x9000001A, False)])
def test_symlinks_and_junctions_of_windows_are_links_but_files_of_cloud_drives_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: int, is_link: bool
) -> None:
    monkeypatch.setattr(safe_open, "RELATIVE", False)
    status = SimpleNamespace(st_mode=stat.S_IFREG, st_reparse_tag=tag)
    (tmp_path / "a").write_text("a")
    with safe_open.open_folder(tmp_path, tmp_path) as folder:
        monkeypatch.setattr(Path, "lstat", lambda path: status)
        if is_link:
            with pytest.raises(RunError, match="is a symlink"):
                folder.open("a", os.O_RDONLY)
        else:
            os.close(folder.open("a", os.O_RDONLY))
