"""A run folder from a stranger cannot run code, write or delete elsewhere, or exhaust the machine."""

import itertools
import json
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.conftest import NO_REPORT, SMALL
from helpers.crafted import RESUME, Crafted, cases, change, check_refused
from helpers.faults import Commands, edit, kill_after, refused, relist

pytestmark = pytest.mark.slow

LOADED_MODULES: dict[str, Crafted] = {
    method: Crafted(change("config.json", "jobs.0.method", method), RESUME, (method,), "unfinished")
    for method in ("os:system", "builtins:exec", "probmcl.runtime.files:write_json")
}


def edit_header(path: Path, old: str, new: str) -> None:
    """Replace text in the facts of a safetensors file, and delete their checksum.

    Such a file starts with the size of the header in 8 bytes and the header, and the tensors follow.
    """
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    tensors = content[8 + size :]
    facts = json.loads(header["__metadata__"]["probmcl"])["facts"]
    header["__metadata__"]["probmcl"] = json.dumps({"facts": facts.replace(old, new)})
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the tensors start at a multiple of 8 bytes
    path.write_bytes(struct.pack("<Q", len(text)) + text + tensors)


def write_code(run: Path) -> None:
    """Write a Python file that leaves a trace when it is imported."""
    trace = str(run / "executed")
    (run / "notes.py").write_text(f"open({trace!r}, 'w')\ndef f(logits, labels, known): return logits\n")


@pytest.mark.parametrize("state", ["run", "unfinished"])
def test_resume_does_not_import_a_file_that_a_checkpoint_names(
    command: Commands, request: pytest.FixtureRequest, state: str
) -> None:
    run = request.getfixturevalue(state)
    write_code(run)
    (checkpoint,) = (run / "checkpoints").glob("frozen*.safetensors")
    edit_header(checkpoint, '"method": "probe"', f'"method": "{run}/notes.py:f"')
    ended = command("train", "--resume", run, *NO_REPORT)
    assert not (run / "executed").exists()
    refused(ended, "notes.py", "is not part of probmcl")


@pytest.mark.parametrize("words", [["evaluate"], ["predict"], ["train", "--resume"]], ids=lambda words: words[0])
def test_no_command_imports_a_file_that_the_run_names(
    command: Commands, run: Path, photos: Path, words: list[str]
) -> None:
    write_code(run)
    method = f"{run}/notes.py:f"
    edit(run / "run.json", model={"method": method, "settings": {}})
    change("config.json", "jobs.0.method", method)(run)
    relist(run)
    data = [photos] if words == ["predict"] else []
    ended = command(*words, run, *data)
    assert not (run / "executed").exists()
    refused(ended, "notes.py")


def modification_times(folder: Path) -> dict[Path, int]:
    """Return the modification time of everything inside of a folder."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


LINKED_FOLDERS = itertools.product(["run", "unfinished"], ["checkpoints", "predictions", "frozen", "contrastive"])
SAMPLED_FOLDERS = (("unfinished", "checkpoints"), ("run", "predictions"))


@pytest.mark.parametrize(
    ("state", "name"),
    [case if case in SAMPLED_FOLDERS else pytest.param(*case, marks=pytest.mark.exhaustive) for case in LINKED_FOLDERS],
)
def test_folder_behind_a_link_is_not_touched(
    command: Commands, request: pytest.FixtureRequest, tmp_path: Path, state: str, name: str
) -> None:
    run = request.getfixturevalue(state)
    victim = tmp_path / "victim"
    if (run / name).exists():
        shutil.move(run / name, victim)
    (victim / "precious").mkdir(parents=True)
    (victim / "precious" / "thesis.tex").write_text("years of work")
    (run / name).symlink_to(victim)
    before = modification_times(victim)
    ended = command("train", "--resume", run, *NO_REPORT)
    assert modification_times(victim) == before
    refused(ended, name, "symlink")


@pytest.mark.parametrize(
    "name",
    [
        *(".run.json.part", "model.safetensors"),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in (".metrics.csv.part", "metrics.jsonl")),
    ],
)
def test_file_behind_a_link_is_not_overwritten(command: Commands, unfinished: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "thesis.tex"
    victim.write_text("years of work")
    (unfinished / name).unlink(missing_ok=True)
    (unfinished / name).symlink_to(victim)
    ended = command("train", "--resume", unfinished, *NO_REPORT)
    assert victim.read_text() == "years of work"
    refused(ended, name, "symlink")


def test_only_files_of_the_run_are_deleted(command: Commands, run: Path) -> None:
    theses = [run / "checkpoints/mine/thesis.tex", run / "checkpoints/activations/thesis.tex"]
    for thesis in theses:
        thesis.parent.mkdir(parents=True, exist_ok=True)
        thesis.write_text("years of work")
    assert command("train", "--resume", run, *NO_REPORT).code == 0
    for thesis in theses:
        assert thesis.exists()


# Paths.


def test_evaluate_prints_the_data_folder_and_reads_nothing_outside(
    command: Commands, run: Path, photos: Path, tmp_path: Path
) -> None:
    ended = command("evaluate", run)
    assert ended.code == 0, ended.text
    assert str(photos) in ended.text
    secret = tmp_path / "secret"
    secret.mkdir()
    shutil.copy(photos / "0.jpg", secret / "private.jpg")
    table = tmp_path / "tables" / "labels.csv"
    table.parent.mkdir()
    table.write_text((photos / "labels.csv").read_text().replace("47.jpg", str(secret / "private.jpg")))
    change("run.json", "data.data", str(table))(run)
    change("run.json", "data.images", str(photos))(run)
    relist(run)
    refused(command("evaluate", run), str(table), "outside the data of the run")
    edit(run / "run.json", data={"data": str(table), "images": str(photos)})
    relist(run)
    refused(command("evaluate", run), str(secret), "outside the data of the run")
    assert command("evaluate", run, table, "--images", photos).code == 0  # the user's own table may name any file


@pytest.mark.parametrize("data", ["null", "elsewhere"])
def test_report_shows_no_image_outside_the_data(
    command: Commands, run: Path, photos: Path, tmp_path: Path, data: str
) -> None:
    if data == "null":
        change("run.json", "data", None)(run)
        reasons = ["does not name the folder of its images"]
    else:
        change("run.json", "data.data", str(tmp_path))(run)
        change("run.json", "data.images", None)(run)
        change("run.json", "data.roots", [str(tmp_path / "photos")])(run)
        reasons = [str(photos), "is outside the data of the run"]
    relist(run)
    ended = command("report", run)
    assert ended.code == 0, ended.text
    for reason in reasons:
        assert reason in ended.stderr
    assert "data:image/jpeg" not in (run / "report.html").read_text()
    assert json.loads((run / "report.json").read_text())["embedding"] is None


def test_resume_reads_the_data_that_the_user_names(command: Commands, unfinished: Path, photos: Path) -> None:
    change("run.json", "data.roots", [str(photos / "elsewhere")])(unfinished)
    relist(unfinished)
    refused(command("train", "--resume", unfinished, *NO_REPORT), str(photos), "outside the data of the run")
    assert command("train", photos, "--resume", unfinished, *NO_REPORT).code == 0


def test_resume_reads_no_weights_that_only_the_run_names(command: Commands, unfinished: Path, tmp_path: Path) -> None:
    weights = str(tmp_path / "weights.safetensors")
    change("config.json", "encoder.weights", weights)(unfinished)
    relist(unfinished)
    refused(command("train", "--resume", unfinished, *NO_REPORT), weights, "files that only a run folder names are not")


def test_resume_does_not_write_to_a_cache_that_only_the_run_names(
    command: Commands, unfinished: Path, tmp_path: Path
) -> None:
    edit(unfinished / "config.json", cache=str(tmp_path / "cache"))
    relist(unfinished)
    assert command("train", "--resume", unfinished, *NO_REPORT).code == 0
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "name",
    ["../../victim", "/tmp/victim", "a/../../../victim", "victim/x", pytest.param("x" * 300, id="too long for a file")],
)
def test_name_of_a_job_is_not_a_path(command: Commands, unfinished: Path, tmp_path: Path, name: str) -> None:
    def existing_files() -> set[Path]:
        return {*tmp_path.rglob("*"), *unfinished.parents[1].glob("*")}

    change("config.json", "jobs.0.name", name)(unfinished)
    for file in ("plan.json", "costs.json"):
        (unfinished / "checkpoints" / file).unlink(missing_ok=True)
    relist(unfinished)
    before = existing_files()
    refused(command("train", "--resume", unfinished, *NO_REPORT), "name")
    assert existing_files() == before


@cases(LOADED_MODULES, *LOADED_MODULES)
def test_loaded_modules_are_no_methods(command: Commands, folder: Path, photos: Path, case: Crafted) -> None:
    check_refused(case, command, folder, photos)


# Formats.


def test_every_json_file_has_a_schema_version(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path
) -> None:
    options = [*SMALL[: SMALL.index("--method")], "--methods", "bce", "--out", str(tmp_path / "comparison")]
    ended = command("compare", photos, *options, prepare=kill_after("measured.json"))  # before the first seed
    assert ended.code == -signal.SIGKILL, ended.text
    paths = [*finished_run.rglob("*.json"), *tmp_path.rglob("*.json")]
    assert {"spec.json", "measured.json", "run.json", "plan.json"} <= {path.name for path in paths}
    for path in paths:
        assert "schema" in json.loads(path.read_text()), path


# Manifest.


def truncate(path: Path) -> None:
    """Cut a file in the middle; a table keeps nine complete rows, so that it can still be read."""
    content = path.read_bytes()
    if path.suffix == ".csv":
        path.write_bytes(b"".join(content.splitlines(keepends=True)[:10]))
    else:
        path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    """Delete the content of a file; a table keeps its header."""
    content = path.read_bytes()
    header = content.splitlines(keepends=True)[0] if path.suffix == ".csv" else b""
    path.write_bytes(header)


def flip_bit(path: Path) -> None:
    """Change one bit near the end of a file."""
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, empty, Path.unlink, flip_bit], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["split.csv", "labels.json", "model.safetensors", "preprocessing.json"])
def test_damaged_file_is_refused_by_name(
    command: Commands, run: Path, name: str, damage: Callable[[Path], object]
) -> None:
    damage(run / name)
    refused(command("evaluate", run), name)


def test_commands_that_add_files_update_the_manifest(command: Commands, run: Path, photos: Path) -> None:
    assert command("calibrate", run, "--thresholds", "f1").code == 0
    assert command("report", run).code == 0
    assert command("predict", run, photos).code == 0
    listed = json.loads((run / "manifest.json").read_text())["files"]
    assert {"report.html", "report.json", "calibration.json", "run.json"} <= listed.keys()
    assert "schema" in json.loads((run / "report.json").read_text())
    edit(run / "calibration.json", kind="none")
    refused(command("predict", run, photos), "calibration.json")


@pytest.mark.parametrize(("name", "change"), [("plan", {"epochs": {"bce": 3}}), ("bce.outcome", {"error": "a lie"})])
def test_edited_checkpoint_is_computed_again(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    run = tmp_path / "run"
    ended = command("train", photos, *SMALL, "--out", run, prepare=kill_after("bce.outcome.json"))
    assert ended.code == -signal.SIGKILL, ended.text
    edit(run / "checkpoints" / f"{name}.json", **change)
    ended = command("train", "--resume", run, *NO_REPORT)
    assert ended.code == 0, ended.text
    assert f"{name}.json: is damaged: its content does not match its checksum; it is computed again" in ended.stdout
    assert (run / "model.safetensors").read_bytes() == (finished_run / "model.safetensors").read_bytes()


# Locks.


def test_running_run_cannot_be_resumed(command: Commands, photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    slow = "import probmcl.run.train as t; import time; t.evaluate_on_test = lambda *_: time.sleep(1000)"
    process = command.start("train", photos, *SMALL, "--out", run, prepare=slow)
    process.wait_until(run / "checkpoints" / "bce.own_head.safetensors")
    ended = command("train", "--resume", run, *NO_REPORT)
    process.signal(signal.SIGKILL)
    process.wait()
    refused(ended, str(run), f"in use by process {process.pid}")
    assert command("train", "--resume", run, *NO_REPORT).code == 0  # the lock of a killed process is stale
    assert not list(run.glob(".*"))


def test_lock_of_another_host_is_not_taken_over(command: Commands, unfinished: Path) -> None:
    holder = {"host": "elsewhere", "pid": 1, "ticks": None, "since": "2026-11-18T10:00:00+00:00"}
    (unfinished / ".lock").write_text(json.dumps(holder))
    refused(command("train", "--resume", unfinished, *NO_REPORT), "process 1 on elsewhere", "delete", ".lock")
    (unfinished / ".lock").unlink()
    assert command("train", "--resume", unfinished, *NO_REPORT).code == 0
