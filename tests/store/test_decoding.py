import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from probmcl import __version__
from probmcl.errors import RunError
from probmcl.store import files
from probmcl.store.decoding import (
    SCHEMA,
    encoded_rows,
    encoded_struct,
    read_rows,
    read_struct,
    read_tensor_metadata,
    read_tensors,
)
from probmcl.store.files import File, JsonFile, TensorFile
from probmcl.store.run_folder import RunFolder
from probmcl.store.run_metadata import ImageRow, SplitRow


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seconds: dict[str, float]
    folder: Path = Path()


TIMES = JsonFile("times.json", "result", "durations", "at the end", kind=Times)
CHECKPOINT = File("times.json", "checkpoint", "durations", "after each phase").holding(Times)


def write(folder: Path, **content: Any) -> None:
    (folder / TIMES).write_text(json.dumps({"schema": SCHEMA, "seconds": {}} | content))


@pytest.mark.parametrize("file", [TIMES, CHECKPOINT], ids=["file", "checkpoint"])
def test_struct_is_read_as_it_was_written(tmp_path: Path, file: JsonFile[Times]) -> None:
    content = Times({"probe": 1.5}, Path("a"))
    RunFolder(tmp_path).write(file, content)
    assert read_struct(tmp_path, file) == content
    assert next(iter(json.loads((tmp_path / file).read_text()))) == "schema"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"seconds": {"probe": "x"}}, r"seconds\[...\]: expected float, got str"),
        ({"seconds": []}, "seconds: expected object, got array"),
        ({"evil": 1}, "unknown key 'evil'"),
        ({"schema": SCHEMA - 1}, f"schema version {SCHEMA - 1} is not valid"),
        ({"schema": None}, "schema version None is not valid"),
        ({"schema": True}, "schema version True is not valid"),
    ],
    ids=str,
)
def test_error_names_the_file_and_the_place(tmp_path: Path, content: dict[str, Any], problem: str) -> None:
    write(tmp_path, **content)
    with pytest.raises(RunError, match=rf"times\.json: {problem}; the file is damaged or was edited"):
        read_struct(tmp_path, TIMES)


def test_content_must_be_an_object(tmp_path: Path) -> None:
    (tmp_path / TIMES).write_text("[1]")
    with pytest.raises(RunError, match=r"times\.json: expected object, got array; the file is damaged"):
        read_struct(tmp_path, TIMES)


@pytest.mark.parametrize(
    ("versions", "hint"),
    [({"probmcl": "9.1"}, "it was written by probmcl 9.1, so update to that version"), ({}, "update probmcl")],
)
def test_newer_schema_version_is_refused_with_the_version_that_wrote_it(
    tmp_path: Path, versions: dict[str, str], hint: str
) -> None:
    write(tmp_path, schema=SCHEMA + 1)
    (tmp_path / "run.json").write_text(json.dumps({"versions": versions}))
    newest = f"{SCHEMA}, the newest version that probmcl {__version__} can read"
    with pytest.raises(RunError, match=rf"times\.json: schema version {SCHEMA + 1} is newer than {newest}; {hint}$"):
        read_struct(tmp_path, TIMES)


def test_checkpoint_has_a_checksum(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).write_bytes(encoded_struct(CHECKPOINT, Times({"probe": 1.5})))
    content = (tmp_path / CHECKPOINT).read_text()
    for damaged in (content.replace("1.5", "1.4"), content.replace("checksum", "other")):
        (tmp_path / CHECKPOINT).write_text(damaged)
        with pytest.raises(RunError, match=r"times\.json: is damaged: its content does not match its checksum"):
            read_struct(tmp_path, CHECKPOINT)


def test_tensors_have_typed_metadata(tmp_path: Path) -> None:
    file = TensorFile("checkpoints/*.safetensors", "checkpoint", "tensors", "after training", kind=Times).named("bce")
    RunFolder(tmp_path).write_tensors(file, {"a": torch.ones(2)}, Times({"probe": 1.5}))
    tensors, metadata = read_tensors(tmp_path, file)
    assert torch.equal(tensors["a"], torch.ones(2))
    assert metadata == read_tensor_metadata(tmp_path, file) == Times({"probe": 1.5})
    other = TensorFile(file.name, "checkpoint", "tensors", "after training", kind=int)
    with pytest.raises(RunError, match=r"bce\.safetensors: expected int, got object"):
        read_tensors(tmp_path, other)


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [ImageRow('a,"\udcff.jpg', -1, 2**60, "0f"), ImageRow("b\n.jpg", 5, 0, "")]
    (tmp_path / files.IMAGES).write_bytes(encoded_rows(files.IMAGES, rows))
    assert read_rows(tmp_path, files.IMAGES) == rows
    assert (tmp_path / files.IMAGES).read_bytes().startswith(b"path,size,mtime_ns,digest\r\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "row 1: expected the columns path, split"),
        ("path,part\na.jpg,train\n", "row 1: expected the columns path, split"),
        ("path,split\na.jpg,train\nb.jpg,trian\n", "row 3, split: invalid value 'trian'"),
        ("path,split\na.jpg\n", "row 2: expected array of length 2, got 1"),
        ("path,split\na.jpg,train,val\n", "row 2: expected array of length 2, got 3"),
        ("path,split\n,train\n", "row 2, path: expected str of length >= 1"),
    ],
)
def test_damaged_table_is_refused_with_the_row_and_the_column(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / files.SPLIT).write_text(text)
    with pytest.raises(RunError, match=rf"split\.csv, {problem}; the file is damaged or was edited"):
        read_rows(tmp_path, files.SPLIT)


def test_number_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / files.IMAGES).write_bytes(b"path,size,mtime_ns,digest\r\na.jpg,\xff,1,0\r\n")
    with pytest.raises(RunError, match=r"images\.csv, .*; the file is damaged or was edited"):
        read_rows(tmp_path, files.IMAGES)


def test_path_that_is_no_text_is_kept(tmp_path: Path) -> None:
    (tmp_path / files.SPLIT).write_bytes(b"path,split\r\na\xff.jpg,val\r\n")
    assert read_rows(tmp_path, files.SPLIT) == [SplitRow("a\udcff.jpg", "val")]
