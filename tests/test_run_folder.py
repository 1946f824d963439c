import json
from pathlib import Path

import pytest
import torch

from probmcl import run_folder
from probmcl.errors import RunError
from probmcl.run_folder import CONFIG, METADATA, SCHEMA, RunFolder


def test_folders_of_one_day_are_numbered_and_never_reused(tmp_path: Path) -> None:
    first, second, third = (run_folder.new_folder(tmp_path, "demo") for _ in range(3))
    assert first.name.endswith("-demo")
    assert second.name == f"{first.name}-2"
    assert third.name == f"{first.name}-3"


def test_the_environment_has_versions_and_no_path_of_the_machine() -> None:
    about = run_folder.environment(seed=3)
    assert about["seed"] == 3
    assert about["versions"]["torch"] == torch.__version__
    assert "/" not in about["command"][0]


def test_an_interrupt_is_noted_where_a_run_was_begun(tmp_path: Path) -> None:
    RunFolder(tmp_path).note_interrupt()
    assert not list(tmp_path.iterdir())
    (tmp_path / "run.json").write_text('{"status": "running", "seed": 3}')
    RunFolder(tmp_path).note_interrupt()
    assert json.loads((tmp_path / "run.json").read_text()) == {"status": "interrupted", "seed": 3}


def run(folder: Path, schema: object = SCHEMA) -> RunFolder:
    (folder / CONFIG).write_text(json.dumps({"schema": schema, "jobs": []}))
    (folder / METADATA).write_text("{}")
    return RunFolder(folder)


def test_a_run_of_a_newer_schema_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"schema version {SCHEMA + 1} is newer than {SCHEMA}.*update probmcl"):
        run(tmp_path, SCHEMA + 1).read(METADATA)
    assert run(tmp_path).read(METADATA) == {}


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    folder = run(tmp_path)
    with pytest.raises(RunError, match=r"it has no labels\.json"):
        folder.read("labels.json")
    (tmp_path / METADATA).write_text("{oops")
    with pytest.raises(RunError, match=r"run\.json: .*not as `probmcl train` writes it"):
        folder.read(METADATA)
    with pytest.raises(RunError, match="is not a folder"):
        RunFolder.existing(tmp_path / "nowhere")


def test_the_split_of_a_run_is_read_row_by_row(tmp_path: Path) -> None:
    (tmp_path / "split.csv").write_text("path,split\na.jpg,train\nb.jpg,test\n")
    assert RunFolder(tmp_path).read_split() == {"a.jpg": "train", "b.jpg": "test"}
    (tmp_path / "split.csv").write_text("path,split\na.jpg,trian\n")
    with pytest.raises(RunError, match="row 2"):
        RunFolder(tmp_path).read_split()
