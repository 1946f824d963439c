"""Durable, atomic file output, and safe reading of files in folders that may come from a stranger."""

import errno
import json
import re
import sys
from pathlib import Path

import pytest

from probmcl.errors import RunError
from probmcl.methods import METHODS
from probmcl.run.results import CandidateId
from probmcl.runtime import files
from probmcl.runtime.files import file_name

NAMES = [
    ("probmcl:paper", "probmcl-paper"),
    ('a<b>c"d|e?f*g', "a-b-c-d-e-f-g"),
    ("C:\\folder\\file", "C--folder-file"),
    ("two\nlines\0", "two-lines-"),
    ("ends with dots. .", "ends with dots"),
    ("aux", "-aux"),
    ("NUL.json", "-NUL.json"),
    ("com1", "-com1"),
    ("command", "command"),
    ("größe.v2", "größe.v2"),
]


@pytest.mark.parametrize(("name", "expected"), NAMES)
def test_names_change_only_on_windows(name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_name(name) == name
    monkeypatch.setattr(sys, "platform", "win32")
    assert file_name(name) == expected


def test_names_of_methods_do_not_change_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*METHODS, *(CandidateId(method, "re-probed", trial=2).key for method in METHODS)]
    monkeypatch.setattr(sys, "platform", "win32")
    assert [file_name(name) for name in names] == names


def test_the_files_of_a_preset_have_valid_names_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = CandidateId("probmcl:paper", "own head", trial=2)
    assert candidate.key == "probmcl:paper.trial2.own_head"
    monkeypatch.setattr(sys, "platform", "win32")
    assert candidate.key == "probmcl-paper.trial2.own_head"


def test_content_that_is_not_json_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError, match="object cannot be written"):
        files.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match=r"x\.txt: no space left on the disk \(3 bytes needed, [0-9,]+ bytes free\)"):
        files.atomic_write(path, b"new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.txt"]


def test_links_below_the_root_are_not_followed(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    root.mkdir()
    (root / "inside").symlink_to(outside)
    (root / ".a.part").symlink_to(outside / "victim")
    with pytest.raises(RunError, match=r"inside is a symlink"):
        files.atomic_write(root / "inside" / "x", b"", root=root)
    files.atomic_write(root / "a", b"new", root=root)
    assert (root / "a").read_bytes() == b"new"
    assert list(outside.iterdir()) == []
    (root / "b").symlink_to(root / "a")
    with pytest.raises(RunError, match=r"b is a symlink"), files.open_file(root / "b"):
        pass
    with pytest.raises(RunError, match="is a symlink"):
        files.refuse_special_files(root)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[" * 100_000 + "]" * 100_000, "nested more than 64 levels"),
        ("[" * 65 + "]" * 65, "nested more than 64 levels"),
        ('{"a": 1', "line 1, column 8"),
        ('{"a": [1e999]}', "NaN or infinite numbers; the file is damaged"),
        ('{"a": NaN}', "NaN or infinite"),
        (b"\xff\xfe\xfa", "not UTF-8"),
    ],
)
def test_invalid_json_names_the_file(tmp_path: Path, content: str | bytes, problem: str) -> None:
    (tmp_path / "a.json").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(RunError, match=rf"a\.json.*{problem}"):
        files.read_json(tmp_path / "a.json")


def test_deepest_allowed_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" * 64 + "]" * 64)
    assert isinstance(files.read_json(tmp_path / "a.json"), list)


def test_a_folder_is_not_read_as_a_file(tmp_path: Path) -> None:
    before = len([*Path("/dev/fd").iterdir()])
    for read in (files.read_json, files.read_text):
        with pytest.raises(RunError, match="is not a regular file"):
            read(tmp_path)
    assert len([*Path("/dev/fd").iterdir()]) == before  # no descriptor is left open


def test_a_missing_file_is_named_with_its_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "a.json"))):
        files.read_json(tmp_path / "a.json", root=tmp_path)


def test_large_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("MAX_JSON", "MAX_TEXT", "MAX_TABLE"):
        monkeypatch.setattr(files, limit, 10)
    (tmp_path / "x").write_text('{"a": 12345}')
    for read in (files.read_json, files.read_text, lambda path: list(files.read_csv_rows(path))):
        with pytest.raises(RunError, match="x has 12 bytes; the limit is 10"):
            read(tmp_path / "x")


@pytest.mark.parametrize(
    "text", ["a\0b,train\n", "a" * 2_000_000, '"' + "a,train\n" * 200_000], ids=["NUL", "long line", "quote"]
)
def test_damaged_table_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(RunError, match=r"x\.csv, line [0-9]+: .*damaged"):
        list(files.read_csv_rows(tmp_path / "x.csv"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [("9" * 5000, "damaged"), ('{"a":' * 100_000, "nested"), (b"\xff", "not UTF-8")],
    ids=["digits", "deep", "bytes"],
)
def test_json_that_cannot_be_parsed_is_refused_with_the_file(
    tmp_path: Path, content: str | bytes, problem: str
) -> None:
    (tmp_path / "x.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RunError, match=rf"x\.json.*{problem}"):
        files.read_json(tmp_path / "x.json")
