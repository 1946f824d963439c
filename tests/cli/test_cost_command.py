"""`probmcl cost`: defaults, errors, and output files."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError

from probmcl.cli import app
from probmcl.methods import METHODS
from probmcl.settings import CPU_ENCODER

RUN = "import sys; sys.argv[0] = 'probmcl'; from probmcl.cli import main; main()"


def cost(*words: str) -> None:
    app()(["cost", *words], exit_on_error=False, print_error=False)


@pytest.mark.slow
def test_without_arguments_every_method_has_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    cost()
    output = capsys.readouterr().out
    assert f"{CPU_ENCODER}, 224 px, 80 classes" in output
    first_words = [line.split()[0] for line in output.splitlines() if line.split()]
    assert [word for word in first_words if word in METHODS] == list(METHODS)


def test_lists_are_separated_by_spaces_or_commas(tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"
    encoders = ["--encoders", "test_resnet, resnet10t,test_resnet"]
    cost("bce,asl", "csra:paper", *encoders, "--classes", "2,3,2", "--out", str(file))
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["method"] for row in rows[:3]] == ["bce", "asl", "csra:paper"]
    assert len(rows) == 3 * 2 * 2
    assert {row["encoder"] for row in rows} == {"test_resnet", "resnet10t"}


SMALL = ["bce", "--encoders", "test_resnet", "--image-sizes", "64"]


def test_the_suffix_of_the_file_sets_its_format(tmp_path: Path) -> None:
    for name in ("costs.json", "costs.md", "COSTS.CSV"):
        cost(*SMALL, "--classes", "2", "--out", str(tmp_path / name))
    (row,) = json.loads((tmp_path / "costs.json").read_text())
    assert (row["method"], row["image_size"], row["classes"], row["own_head"]) == ("bce", 64, 2, True)
    assert isinstance(row["training_parameters"], int)
    assert (tmp_path / "costs.md").read_text().startswith("### test_resnet, 64 px, 2 classes\n")
    assert (tmp_path / "COSTS.CSV").read_text().startswith("method,encoder,image_size,classes,")


def test_measure_adds_time_and_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cost(*SMALL, "--measure", "--batch-size", "2", "--device", "cpu", "--out", str(tmp_path / "c.json"))
    assert "measured on cpu" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "c.json").read_text())
    assert row["peak_memory"] > 0
    assert row["step_seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("probmlc", "'probmlc'; did you mean 'probmcl'?"),
        ("bce --encoders resnt18", "'resnt18'; did you mean 'resnet18'"),
        ("bce --encoders test_vit --image-sizes 40", "40 pixels"),
        ("csra --encoders pit_ti_224", "pit_ti_224"),
        ("bce --batch-size 4", "--measure"),
        ("bce --measure --batch-size 1", "`batch_size=1` must be at least 2"),
        ("bce --measure --device tpu", '`device="tpu"` is not available'),
        ("bce --paper", "cannot be combined with METHODS"),
        ("bce --out costs.cvs", "did you mean '.csv'?"),
        ("bce --out costs.txt", "available: .csv, .json, .md"),
    ],
)
def test_invalid_arguments_are_an_error(arguments: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        cost(*arguments.split())


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--encoders", ",", "spaces or commas"),
        ("--image-sizes", "big", "'big'"),
        ("--image-sizes", "-64", ">= 1"),
        ("--classes", "0", ">= 1"),
    ],
)
def test_an_invalid_list_is_an_error_with_its_option(option: str, value: str, message: str) -> None:
    with pytest.raises(CycloptsError) as caught:
        cost("bce", f"{option}={value}")
    assert option in str(caught.value)
    assert message in str(caught.value)


def test_a_usage_error_prints_only_its_message() -> None:
    words = [sys.executable, "-c", RUN, "cost", "bce", "--classes", "none"]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "--classes" in answer.stderr
    assert "none" in answer.stderr


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("precious")
    with pytest.raises(ValueError, match=r"mine\.csv"):
        cost("bce", "--out", str(tmp_path / "mine.csv"))
    assert (tmp_path / "mine.csv").read_text() == "precious"


def interrupted_after(count: int) -> Any:
    """Return a replacement of `cost_rows` that is interrupted after some rows."""
    from probmcl.cost.rows import cost_rows

    def rows(*grid: Any) -> Iterator[Any]:
        for number, row in enumerate(cost_rows(*grid)):
            if number == count:
                raise KeyboardInterrupt
            yield row

    return rows


def test_an_interrupt_shows_and_writes_the_finished_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("probmcl.cost.rows.cost_rows", interrupted_after(1))
    with pytest.raises(KeyboardInterrupt, match="1 of 2 rows is shown"):
        cost(*SMALL, "--classes", "2,3", "--out", str(tmp_path / "costs.json"))
    assert "test_resnet, 64 px, 2 classes" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "costs.json").read_text())
    assert row["classes"] == 2


def test_an_interrupt_before_the_first_row_writes_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("probmcl.cost.rows.cost_rows", interrupted_after(0))
    with pytest.raises(KeyboardInterrupt, match="no row"):
        cost(*SMALL, "--out", str(tmp_path / "costs.json"))
    assert not (tmp_path / "costs.json").exists()


def test_the_help_does_not_import_torch() -> None:
    report = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    answer = subprocess.run(
        [sys.executable, "-c", report + RUN, "cost", "--help"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "False"


@pytest.mark.slow
def test_the_comparison_with_the_paper_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from probmcl.cost import paper

    csra = tuple(printed for printed in paper.TABLE_3 if printed.name == "CSRA")
    monkeypatch.setattr(paper, "TABLE_3", csra)
    monkeypatch.setattr(paper, "PAPER_ROWS", 4)
    cost("--paper", "--out", str(tmp_path / "table_3.csv"))
    rows = list(csv.DictReader((tmp_path / "table_3.csv").read_text().splitlines()))
    assert [row["printed_method"] for row in rows] == ["CSRA"] * 4
    assert rows[0]["training_parameters"] == "42518592"


def test_a_problem_of_one_method_names_options_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    cost("bce", "csra", "--encoders", "pit_ti_224", "--classes", "2")
    shown = " ".join(capsys.readouterr().out.split())
    assert "choose another encoder or --image-size" in shown
