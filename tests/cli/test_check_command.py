import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import photographs
from probmcl.cli.check import SHOWN, _chosen

GIVEN = ["train"] * 20 + ["val"] * 5 + ["test"] * 15


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "probmcl", "check", *words, "--workers", "0"],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


@pytest.mark.slow
def test_fine_data_ends_with_0_and_a_file_of_all_that_was_found(tmp_path: Path) -> None:
    photographs.folder(tmp_path / "photos", 40, splits=GIVEN)
    before = {path.name: path.read_bytes() for path in (tmp_path / "photos").iterdir()}
    answer = command("photos", cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "OK: no problems found" in answer.stdout
    assert "roof" in answer.stdout
    assert json.loads((tmp_path / "check.json").read_text())["verdict"] == "fine"
    assert {path.name: path.read_bytes() for path in (tmp_path / "photos").iterdir()} == before
    assert command("photos", cwd=tmp_path).returncode == 0  # its own file is written anew


@pytest.mark.slow
def test_warnings_end_with_3_and_leaks_with_4(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "photos", 40, splits=GIVEN)
    table.write_text(table.read_text().replace("\n0.jpg,", "\n0.jpg,dragon|"))
    answer = command("photos", cwd=tmp_path)
    assert answer.returncode == 3, answer.stdout + answer.stderr
    assert "warning: classes with fewer than 10 positives in train: 1 (dragon)" in answer.stdout
    shutil.copy(table.parent / "2.jpg", table.parent / "38.jpg")
    answer = command("photos", "--out", "other.json", cwd=tmp_path)
    assert answer.returncode == 4
    assert "files in train and test: 1" in answer.stdout
    assert json.loads((tmp_path / "other.json").read_text())["verdict"] == "blocked"


@pytest.mark.slow
def test_a_flag_that_is_wrong_is_no_finding(tmp_path: Path) -> None:
    photographs.folder(tmp_path / "photos", 4)
    answer = command("photos", "--group", "nobody", cwd=tmp_path)
    assert answer.returncode == 1
    assert "--group nobody is not a column of" in answer.stderr
    assert not (tmp_path / "check.json").exists()


@pytest.mark.slow
def test_a_file_of_somebody_elses_is_not_written_over(tmp_path: Path) -> None:
    photographs.folder(tmp_path / "photos", 4)
    (tmp_path / "check.json").write_text("{}")
    answer = command("photos", cwd=tmp_path)
    assert answer.returncode == 1
    assert "not an earlier check" in answer.stderr
    assert (tmp_path / "check.json").read_text() == "{}"


@pytest.mark.parametrize(("count", "rows"), [(SHOWN, SHOWN), (SHOWN + 5, SHOWN + 1)])
def test_of_many_classes_the_commonest_and_the_rarest_are_shown(count: int, rows: int) -> None:
    per_class = {f"c{k}": {"present": {"train": k}} for k in range(count)}
    chosen = _chosen(per_class)
    assert len(chosen) == rows
    assert {"c0", f"c{count - 1}"} <= set(chosen)
