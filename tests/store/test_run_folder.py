import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from helpers.run_folders import RUN, made_run
from probmcl.errors import RunError
from probmcl.readers.options import METADATA_FILE
from probmcl.settings import CONFIG_FILE
from probmcl.store import files, run_folder
from probmcl.store.files import File
from probmcl.store.run_folder import RunFolder
from probmcl.store.run_metadata import environment


def test_folders_of_the_same_day_are_numbered(tmp_path: Path) -> None:
    first, second, third = (run_folder.new_folder(tmp_path, "demo") for _ in range(3))
    assert first.name.endswith("-demo")
    assert second.name == f"{first.name}-2"
    assert third.name == f"{first.name}-3"


def test_environment_has_versions_but_no_local_path() -> None:
    started = environment()
    assert started.versions["torch"] == torch.__version__
    assert "/" not in started.command[0]


def test_interrupt_is_recorded_only_if_the_run_has_started(tmp_path: Path) -> None:
    RunFolder(tmp_path).note_interrupt()
    assert not list(tmp_path.iterdir())
    folder = run(tmp_path)
    folder.note_interrupt()
    assert folder.read(METADATA_FILE) == replace(RUN, status="interrupted")


def test_files_of_the_user_are_not_part_of_the_run(tmp_path: Path) -> None:
    folder = run(tmp_path)
    (tmp_path / "train.log").write_text("seed 1")
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / ".test.npz.part").write_bytes(b"of a killed process")
    (tmp_path / "predictions" / "test.npz").write_bytes(b"scores")
    folder.seal()
    (tmp_path / "train.log").write_text("seed 1, seed 2")
    assert RunFolder.existing(tmp_path) == folder
    assert set(run_folder.read_manifest(tmp_path).files) == {
        *("config.json", "labels.json", "model.safetensors", "preprocessing.json", "run.json", "split.csv"),
        "predictions/test.npz",
    }


def test_deleted_optional_file_is_no_damage(tmp_path: Path) -> None:
    folder = run(tmp_path)
    for file in (files.VIEWS, files.REPORT, files.METRICS):
        (tmp_path / file).write_bytes(b"content")
    folder.seal()
    for file in (files.VIEWS, files.REPORT, files.METRICS):
        (tmp_path / file).unlink()
    assert RunFolder.existing(tmp_path) == folder
    (tmp_path / files.SPLIT).unlink()
    with pytest.raises(RunError, match=r"split\.csv is missing, but manifest\.json lists it"):
        RunFolder.existing(tmp_path)


def test_an_update_during_the_check_of_files_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, entry = run(tmp_path), run_folder._entry
    folder.seal()
    contents: list[Mapping[File, bytes]] = [{files.REPORT_DATA: b"{}"}, {files.REPORT_DATA: b"{} "}]
    updates = iter(contents)
    folder.update(next(updates))

    def slowly(path: Path, name: str) -> run_folder.Entry:
        for content in updates:
            folder.update(content)
        return entry(path, name)

    monkeypatch.setattr(run_folder, "_entry", slowly)
    assert RunFolder.existing(tmp_path) == folder


def run(folder: Path) -> RunFolder:
    made_run(folder)
    return RunFolder(folder)


def test_error_names_a_missing_or_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run folder: it has no labels\.json"):
        RunFolder(tmp_path).read(files.LABELS)
    (tmp_path / files.METADATA).write_text("{oops")
    with pytest.raises(RunError, match=r"run\.json, line 1.*damaged"):
        RunFolder(tmp_path).read(files.METADATA)
    with pytest.raises(RunError, match="is not a folder"):
        RunFolder.existing(tmp_path / "nowhere")


def test_newer_run_is_named_before_its_files_are_compared(tmp_path: Path) -> None:
    folder = run(tmp_path)
    folder.seal()
    config = json.loads((tmp_path / CONFIG_FILE).read_text())
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config | {"schema": 99}))
    with pytest.raises(RunError, match=r"config\.json: schema version 99 is newer"):
        RunFolder.existing(tmp_path)


def test_split_is_read_and_checked(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(RunError, match=r"has no split\.csv; without it, training images cannot be excluded"):
        folder.read_split()
    (tmp_path / "split.csv").write_text("path,split\na.jpg,train\nb.jpg,test\n")
    assert folder.read_split() == {"a.jpg": "train", "b.jpg": "test"}
    (tmp_path / "split.csv").write_text("path,split\n")
    with pytest.raises(RunError, match=r"split\.csv is empty; without it, training images cannot be excluded"):
        folder.read_split()


def test_manifest_names_nothing_outside_the_folder(tmp_path: Path) -> None:
    run(tmp_path).seal()
    content = json.loads((tmp_path / "manifest.json").read_text())
    content["files"]["../secret.csv"] = {"size": 1, "sha256": "0" * 64}
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"manifest\.json: '../secret\.csv' is outside the folder; the file is damaged"):
        RunFolder.existing(tmp_path)
