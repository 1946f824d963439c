import json
import shutil
from pathlib import Path

import pytest

from helpers import photographs
from helpers.commands import main
from probmcl.cli.check import SHOWN, _shown_classes

SPLITS = ["train"] * 20 + ["val"] * 5 + ["test"] * 15


def test_data_without_problems_exit_with_0_and_write_a_report(tmp_path: Path) -> None:
    photographs.folder(tmp_path / "photos", 40, splits=SPLITS)
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
    table = photographs.folder(tmp_path / "photos", 40, splits=SPLITS)
    table.write_text(table.read_text().replace("\n0.jpg,", "\n0.jpg,dragon|"))
    answer = main("check", "photos", "--workers", "0", cwd=tmp_path)
    assert answer.returncode == 3, answer.stdout + answer.stderr
    assert "warning: " in answer.stdout
    assert "(dragon)" in answer.stdout
    shutil.copy(table.parent / "2.jpg", table.parent / "38.jpg")
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
    per_class = {f"c{k}": {"present": {"train": k}} for k in range(count)}
    shown = _shown_classes(per_class)
    assert len(shown) == rows
    assert {"c0", f"c{count - 1}"} <= set(shown)
