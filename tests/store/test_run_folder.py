import json
from pathlib import Path

import pytest
import torch

from helpers.run_folders import RUN
from probmcl.errors import RunError
from probmcl.store import manifest, run_folder
from probmcl.store.run_folder import CONFIG, METADATA, SCHEMA, RunFolder


def test_folders_of_the_same_day_are_numbered(tmp_path: Path) -> None:
    first, second, third = (run_folder.new_folder(tmp_path, "demo") for _ in range(3))
    assert first.name.endswith("-demo")
    assert second.name == f"{first.name}-2"
    assert third.name == f"{first.name}-3"


def test_environment_has_versions_but_no_local_path() -> None:
    environment = run_folder.environment(seed=3)
    assert environment["seed"] == 3
    assert environment["versions"]["torch"] == torch.__version__
    assert "/" not in environment["command"][0]


def test_interrupt_is_recorded_only_if_the_run_has_started(tmp_path: Path) -> None:
    RunFolder(tmp_path).note_interrupt()
    assert not list(tmp_path.iterdir())
    folder = run(tmp_path)
    folder.note_interrupt()
    assert folder.read(METADATA) == {**content_of_run(), "status": "interrupted"}


def test_files_of_the_user_are_not_part_of_the_run(tmp_path: Path) -> None:
    folder = run(tmp_path)
    (tmp_path / "train.log").write_text("seed 1")
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / ".test.npz.part").write_bytes(b"of a killed process")
    folder.seal()
    (tmp_path / "train.log").write_text("seed 1, seed 2")
    assert RunFolder.existing(tmp_path) == folder
    assert set(manifest.read_manifest(tmp_path).files) == {CONFIG, METADATA}


def test_an_update_during_the_check_of_files_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, entry = run(tmp_path), manifest._entry
    folder.seal()
    updates = iter([{"report.json": b"{}"}, {"report.json": b"{} "}])
    folder.update(next(updates))

    def slowly(path: Path, name: str) -> manifest.Entry:
        for content in updates:
            folder.update(content)
        return entry(path, name)

    monkeypatch.setattr(manifest, "_entry", slowly)
    assert RunFolder.existing(tmp_path) == folder


def run(folder: Path, schema: object = SCHEMA) -> RunFolder:
    (folder / CONFIG).write_text(json.dumps({"schema": schema, "jobs": []}))
    (folder / METADATA).write_text(json.dumps(RUN))
    return RunFolder(folder)


def content_of_run() -> dict[str, object]:
    return {key: value for key, value in RUN.items() if key != "schema"}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (SCHEMA + 1, f"schema version {SCHEMA + 1} is newer than {SCHEMA}.*update probmcl"),
        (SCHEMA - 1, f"schema version {SCHEMA - 1} is not valid; the file is damaged"),
        (None, "schema version None is not valid"),
        (True, "schema version True is not valid"),
    ],
)
def test_only_the_current_schema_version_is_read(tmp_path: Path, schema: object, message: str) -> None:
    with pytest.raises(RunError, match=rf"config\.json: {message}"):
        run(tmp_path, schema).read(CONFIG)
    assert run(tmp_path).read(METADATA) == content_of_run()


def test_error_names_a_missing_or_damaged_file(tmp_path: Path) -> None:
    folder = run(tmp_path)
    with pytest.raises(RunError, match=r"labels\.json"):
        folder.read("labels.json")
    (tmp_path / METADATA).write_text("{oops")
    with pytest.raises(RunError, match=r"run\.json, line 1.*damaged"):
        folder.read(METADATA)
    with pytest.raises(RunError, match="is not a folder"):
        RunFolder.existing(tmp_path / "nowhere")


def test_split_is_read_and_checked(tmp_path: Path) -> None:
    (tmp_path / "split.csv").write_text("path,split\na.jpg,train\nb.jpg,test\n")
    assert RunFolder(tmp_path).read_split() == {"a.jpg": "train", "b.jpg": "test"}
    (tmp_path / "split.csv").write_text("path,split\na.jpg,trian\n")
    with pytest.raises(RunError, match="row 2"):
        RunFolder(tmp_path).read_split()
