import os
from pathlib import Path

import pytest

from probmcl.audit.signatures import accepted_changes, find_changes, read_all, read_signatures, write_signatures
from probmcl.console import Console
from probmcl.data.records import Paths
from probmcl.errors import RunError


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    for name in "abc":
        (tmp_path / name).write_text(f"content of {name}")
    return Paths(tmp_path / name for name in "abc")


def test_signatures_are_stored_exactly(paths: Paths, tmp_path: Path) -> None:
    signatures = read_all(paths, Console.quiet())
    write_signatures(tmp_path, paths, signatures)
    assert read_signatures(tmp_path, paths) == signatures
    assert accepted_changes(tmp_path, paths, Console.quiet(), accept=False) is None


def test_only_files_with_another_size_or_time_are_read(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, read = read_all(paths, Console.quiet()), []

    def digest(path: Path) -> bytes:
        read.append(path)
        return b"new"

    monkeypatch.setattr("probmcl.audit.signatures.file_digest", digest)
    os.utime(paths[1], ns=(0, 0))
    assert find_changes(paths, stored, Console.quiet()).changed == [str(paths[1])]
    assert read == [paths[1]]


def test_deleted_file_is_a_change(paths: Paths) -> None:
    stored = read_all(paths, Console.quiet())
    paths[2].unlink()
    assert find_changes(paths, stored, Console.quiet()).changed == [str(paths[2])]


@pytest.mark.parametrize("text", ["", "path,size\n", "path,size,mtime_ns,digest\nother,1,2,ab\n"])
def test_damaged_file_is_refused(paths: Paths, tmp_path: Path, text: str) -> None:
    (tmp_path / "images.csv").write_text(text)
    with pytest.raises(RunError, match=r"images\.csv.* damaged or was edited"):
        read_signatures(tmp_path, paths)
