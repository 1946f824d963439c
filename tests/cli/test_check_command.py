import inspect
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers import photographs
from helpers.commands import main
from probmcl.audit import prepare as audit
from probmcl.audit.statistics import LabelCounts, SplitCounts
from probmcl.cli import app
from probmcl.cli.check import SHOWN, _shown_classes
from probmcl.errors import Question, Reading
from probmcl.readers.options import DataChecks, DataSource, ReadOptions

SPLITS = ["train"] * 34 + ["val"] * 5 + ["test"] * 15
COUNT = len(SPLITS)


def test_data_without_problems_exit_with_0_and_write_a_report(tmp_path: Path) -> None:
    photographs.folder(tmp_path / "photos", COUNT, splits=SPLITS)
    before = {path.name: path.read_bytes() for path in (tmp_path / "photos").iterdir()}
    answer = main("check", "photos", "--workers", "0", cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "OK: no problems found" in answer.stdout
    assert "roof" in answer.stdout
    assert json.loads((tmp_path / "check.json").read_text())["verdict"] == "fine"
    assert {path.name: path.read_bytes() for path in (tmp_path / "photos").iterdir()} == before
    assert (
        main("check", "photos", "--workers", "0", cwd=tmp_path).returncode == 0
    )  # the report of an earlier check is overwritten


def test_warnings_exit_with_3_and_leaks_with_4(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "photos", COUNT, splits=SPLITS)
    table.write_text(table.read_text().replace("\n0.jpg,", "\n0.jpg,dragon|"))
    answer = main("check", "photos", "--workers", "0", cwd=tmp_path)
    assert answer.returncode == 3, answer.stdout + answer.stderr
    assert "warning: " in answer.stdout
    assert "(dragon)" in answer.stdout
    shutil.copy(table.parent / "2.jpg", table.parent / "50.jpg")
    answer = main("check", "photos", "--workers", "0", "--out", "other.json", cwd=tmp_path)
    assert answer.returncode == 4
    assert "blocked: " in answer.stdout
    assert "train and test: 1" in answer.stdout
    assert json.loads((tmp_path / "other.json").read_text())["verdict"] == "blocked"


def test_an_invalid_option_is_an_error_and_not_a_finding(tmp_path: Path) -> None:
    photographs.folder(tmp_path / "photos", 4)
    answer = main("check", "photos", "--workers", "0", "--group", "patient", cwd=tmp_path)
    assert answer.returncode == 1
    assert "--group patient" in answer.stderr
    assert not (tmp_path / "check.json").exists()


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    photographs.folder(tmp_path / "photos", 4)
    (tmp_path / "check.json").write_text("{}")
    answer = main("check", "photos", "--workers", "0", cwd=tmp_path)
    assert answer.returncode == 1
    assert "check.json exists" in answer.stderr
    assert (tmp_path / "check.json").read_text() == "{}"


@pytest.mark.parametrize(("count", "rows"), [(SHOWN, SHOWN), (SHOWN + 5, SHOWN + 1)])
def test_the_most_and_least_frequent_of_many_classes_are_shown(count: int, rows: int) -> None:
    per_class = {f"c{k}": LabelCounts(present=SplitCounts(train=k)) for k in range(count)}
    shown = _shown_classes(per_class)
    assert len(shown) == rows
    assert {"c0", f"c{count - 1}"} <= set(shown)


def last_command(output: str) -> list[str]:
    """Return the words of the command in the last line."""
    program, *words = shlex.split(output.splitlines()[-1])
    assert program == "probmcl"
    return words


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the options of a command by name, as the command line parses them."""
    _, bound, _ = app().parse_args(words, exit_on_error=False, print_error=False)
    return dict(bound.arguments)


def test_check_ends_with_a_command_that_trains_with_the_same_options(tmp_path: Path) -> None:
    photographs.folder(tmp_path / "my photos", COUNT, splits=SPLITS)
    words = ["my photos", "--workers", "0", "--out", "a.json", "--group", "", "--skip-bad", "0.1", "--seed=3"]
    answer = main("check", *words, cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    command = last_command(answer.stdout)
    assert command[0] == "train"
    options = parsed(command)
    assert (options["data"], options["workers"], options["seed"]) == (Path("my photos"), 0, 3)
    assert (options["read"], options["checks"]) == (ReadOptions(group=""), DataChecks(skip_bad=0.1))
    assert "out" not in options


def test_check_has_the_data_options_of_train() -> None:
    commands = [app()[name].default_command for name in ("check", "train")]
    check, train = (inspect.signature(command).parameters for command in commands if command is not None)
    assert {"data", "images", "read", "checks", "seed", "workers"} <= check.keys() <= train.keys()


def test_blocked_check_ends_with_the_decisions_and_the_resulting_command(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "photos", COUNT, splits=SPLITS)
    (table.parent / "3.jpg").unlink()
    (table.parent / "4.jpg").write_bytes(b"")
    shutil.copy(table.parent / "2.jpg", table.parent / "50.jpg")
    answer = main("check", "photos", "--workers", "0", "--skip-bad", "0.001", cwd=tmp_path)
    assert answer.returncode == 4
    assert "53 of 54 images found" in answer.stdout
    lines = answer.stdout.splitlines()
    assert lines[-4].endswith("1 missing and 1 unreadable images: --skip-bad 0.04")
    assert lines[-3].endswith(": --allow-leaks")
    assert parsed(last_command(answer.stdout))["checks"] == DataChecks(skip_bad=0.04, allow_leaks=True)
    accepted = main("check", *last_command(answer.stdout)[1:], cwd=tmp_path)
    assert accepted.returncode == 3, accepted.stdout


def test_check_offers_no_command_if_options_do_not_suffice(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "photos", 12, splits=["train"] * 6 + ["test"] * 6)
    table.write_text(table.read_text().replace("train", "test"))
    answer = main("check", "photos", "--workers", "0", cwd=tmp_path)
    assert answer.returncode == 4
    assert "fix the problem above" in answer.stdout.splitlines()[-1]
    (table.parent / "3.jpg").unlink()
    answer = main("check", "photos", "--workers", "0", "--out", "other.json", cwd=tmp_path)
    assert "--skip-bad 0.09" in answer.stdout
    assert "fix: no image is in the train or val split" in answer.stdout
    assert "probmcl train" not in answer.stdout


def test_a_question_shows_a_train_command_for_each_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [
        Reading("a blank means absent", {"blank": "negative"}, ("row 2: cat", "row 3: dog")),
        Reading("a blank means unknown", {"blank": "unknown"}, ("row 2: [bold]", "row 3: dog")),
    ]

    def ask(source: DataSource) -> None:
        raise Question("labels.csv: what does a blank mean?", readings)

    monkeypatch.setattr(audit, "read_source", ask)
    monkeypatch.setenv("COLUMNS", "40")
    folder = "photos in a folder with quite a long name"
    words = ["labels.csv", "--images", folder, "--blank", "cat=unknown", "--out", "a.json"]
    answer = main("check", *words, cwd=tmp_path)
    assert answer.returncode == 4
    commands = [shlex.split(line) for line in answer.stdout.splitlines() if line.strip().startswith("probmcl ")]
    options = [parsed(command[1:]) for command in commands]
    assert [option["read"].blank for option in options] == [("cat=unknown", "negative"), ("cat=unknown", "unknown")]
    assert all(option["images"] == Path(folder) for option in options)
    assert all(row in answer.stdout for reading in readings for row in reading.rows)
    report = json.loads((tmp_path / "a.json").read_text())
    assert [reading["meaning"] for reading in report["findings"][0]["readings"]] == [
        "a blank means absent",
        "a blank means unknown",
    ]
