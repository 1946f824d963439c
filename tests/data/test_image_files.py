"""Image files: which files are images, and whether a file has changed or equals another."""

import os
import tracemalloc
from hashlib import sha256
from pathlib import Path

import pytest

from probmcl.console import Console
from probmcl.data.deep_images import NEVER_DEEP
from probmcl.data.image_files import (
    IMAGE_SUFFIXES,
    accepted_changes,
    equal_files,
    expand,
    file_digest,
    find_changes,
    is_image,
    read_all,
    read_signatures,
    walk,
    write_signatures,
)
from probmcl.data.records import Paths
from probmcl.errors import DataError, RunError
from probmcl.readers.file_index import split_folders


@pytest.mark.parametrize("suffix", IMAGE_SUFFIXES)
def test_image_suffixes_are_found_ignoring_case(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix}").touch()
    (tmp_path / f"b{suffix.upper()}").touch()
    (tmp_path / f"c{suffix}x").touch()
    assert [path.name for path in expand(tmp_path)] == [f"a{suffix}", f"b{suffix.upper()}"]


def test_8_bit_formats_are_images() -> None:
    assert all(is_image(f"a{suffix}") for suffix in NEVER_DEEP)


def test_linked_folder_is_visited_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").touch()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert [entry.path for entry in walk(tmp_path)] == [str(tmp_path / "a" / "1.jpg")]


def test_walk_handles_symlink_cycles_and_missing_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "round").symlink_to(tmp_path)
    (tmp_path / "a" / "1.jpg").touch()
    (tmp_path / ".hidden.jpg").touch()
    (tmp_path / "itself.jpg").symlink_to(tmp_path / "itself.jpg")
    assert [entry.name for entry in walk(tmp_path)] == ["itself.jpg", "1.jpg"]

    def refuse(folder: str) -> None:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="Permission denied"):
        list(walk(tmp_path))


def test_equal_files_within_one_group_and_between_two(tmp_path: Path) -> None:
    contents = {"a": "same", "b": "same", "c": "else", "d": "", "e": ""}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    a, b, c, d, e = (str(tmp_path / name) for name in contents)
    assert [*equal_files([a, b, c, d, e])[0]] == [a, b]
    assert [[*group] for group in equal_files([a, b], [c])] == [[], []]
    ours, theirs = equal_files([c, a], [b, str(tmp_path / "nowhere")])
    assert ([*ours], [*theirs]) == ([a], [b])
    assert ours[a] == theirs[b]


def test_digest_of_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    os.truncate(path, 2**25)
    tracemalloc.start()
    digest = file_digest(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert digest == sha256(bytes(2**25)).digest()
    assert file_digest(tmp_path) == file_digest(tmp_path / "nowhere") == b""


def test_split_folders_are_in_order(tmp_path: Path) -> None:
    for name in ("test", "Valid", "train", "images"):
        (tmp_path / name).mkdir()
    (tmp_path / "val").touch()
    assert split_folders(tmp_path) == {
        tmp_path / "train": "train",
        tmp_path / "Valid": "val",
        tmp_path / "test": "test",
    }
    assert list(split_folders(tmp_path)) == [tmp_path / name for name in ("train", "Valid", "test")]
    assert split_folders(tmp_path / "nowhere") == {}


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

    monkeypatch.setattr("probmcl.data.image_files.file_digest", digest)
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
