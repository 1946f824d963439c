"""`probmcl cost`: defaults that work, clear answers to what cannot be, and the same numbers in every form."""

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
def test_without_any_argument_every_method_has_a_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    cost()
    said = capsys.readouterr().out
    assert f"{CPU_ENCODER}, 224 px, 80 classes" in said
    first_words = [line.split()[0] for line in said.splitlines() if line.split()]
    assert [word for word in first_words if word in METHODS] == list(METHODS)


def test_lists_may_be_parted_by_spaces_or_commas(tmp_path: Path) -> None:
    file = tmp_path / "costs.csv"
    encoders = ["--encoders", "test_resnet, resnet10t,test_resnet"]
    cost("bce,asl", "csra:paper", *encoders, "--classes", "2,3,2", "--out", str(file))
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["method"] for row in rows[:3]] == ["bce", "asl", "csra:paper"]
    assert len(rows) == 3 * 2 * 2
    assert {row["encoder"] for row in rows} == {"test_resnet", "resnet10t"}


SMALL = ["bce", "--encoders", "test_resnet", "--image-sizes", "64"]


def test_a_file_has_what_was_asked_for_in_its_form(tmp_path: Path) -> None:
    for name in ("costs.json", "costs.md", "COSTS.CSV"):
        cost(*SMALL, "--classes", "2", "--out", str(tmp_path / name))
    (row,) = json.loads((tmp_path / "costs.json").read_text())
    assert (row["method"], row["image_size"], row["classes"], row["own_head"]) == ("bce", 64, 2, True)
    assert isinstance(row["training_parameters"], int)
    assert (tmp_path / "costs.md").read_text().startswith("### test_resnet, 64 px, 2 classes\n")
    assert (tmp_path / "COSTS.CSV").read_text().startswith("method,encoder,image_size,classes,")


def test_by_choice_it_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cost(*SMALL, "--measure", "--batch-size", "2", "--device", "cpu", "--out", str(tmp_path / "c.json"))
    said = capsys.readouterr().out
    assert "measured on cpu, batch size 2" in said
    (row,) = json.loads((tmp_path / "c.json").read_text())
    assert row["peak_memory"] > 0
    assert row["step_seconds"] > 0


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("probmlc", "no method 'probmlc'; did you mean 'probmcl'?"),
        ("bce --encoders resnt18", "timm has no model 'resnt18'; did you mean 'resnet18'"),
        ("bce --encoders test_vit --image-sizes 40", "test_vit does not support images of 40 pixels"),
        ("csra --encoders pit_ti_224", "csra needs feature maps"),
        ("bce --batch-size 4", "--batch-size and --device are for a measurement; add --measure"),
        ("bce --measure --batch-size 1", "`batch_size=1` must be at least 2"),
        ("bce --measure --device tpu", "`device=tpu` is not available"),
        ("bce --paper", "--paper has its own methods, encoders and sizes; leave out METHODS"),
        ("bce --out costs.cvs", "--out costs.cvs: its suffix decides the format; did you mean '.csv'?"),
        ("bce --out costs.txt", "--out costs.txt: its suffix decides the format; available: .csv, .json, .md"),
    ],
)
def test_what_cannot_be_is_one_sentence(words: str, answer: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(answer)}"):
        cost(*words.split())


@pytest.mark.parametrize(
    ("option", "value", "answer"),
    [
        ("--encoders", ",", "comma-separated list"),
        ("--image-sizes", "big", "'big'"),
        ("--image-sizes", "-64", ">= 1"),
        ("--classes", "0", ">= 1"),
    ],
)
def test_a_list_that_cannot_be_is_named_with_its_option(option: str, value: str, answer: str) -> None:
    with pytest.raises(CycloptsError) as caught:
        cost("bce", f"{option}={value}")
    assert option in str(caught.value)
    assert answer in str(caught.value)


@pytest.mark.slow
def test_an_error_is_said_and_nothing_else() -> None:
    words = [sys.executable, "-c", RUN, "cost", "bce", "--classes", "none"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert "--classes" in found.stderr
    assert "none" in found.stderr


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("precious")
    with pytest.raises(ValueError, match="exists already; give another name"):
        cost("bce", "--out", str(tmp_path / "mine.csv"))
    assert (tmp_path / "mine.csv").read_text() == "precious"


def interrupted_after(count: int) -> Any:
    """The rows of `cost_rows`, and Ctrl-C after some of them."""
    from probmcl.cost.rows import cost_rows

    def rows(*grid: Any) -> Iterator[Any]:
        for number, row in enumerate(cost_rows(*grid)):
            if number == count:
                raise KeyboardInterrupt
            yield row

    return rows


def test_an_interrupt_shows_and_writes_the_rows_that_are_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("probmcl.cost.rows.cost_rows", interrupted_after(1))
    with pytest.raises(KeyboardInterrupt, match="1 of 2 rows are shown"):
        cost(*SMALL, "--classes", "2,3", "--out", str(tmp_path / "costs.json"))
    assert "test_resnet, 64 px, 2 classes" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "costs.json").read_text())
    assert row["classes"] == 2


def test_an_interrupt_before_the_first_row_does_not_claim_to_keep_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("probmcl.cost.rows.cost_rows", interrupted_after(0))
    with pytest.raises(KeyboardInterrupt, match="no row was complete"):
        cost(*SMALL, "--out", str(tmp_path / "costs.json"))
    assert not (tmp_path / "costs.json").exists()


def test_its_help_loads_no_torch() -> None:
    said = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    answer = subprocess.run(
        [sys.executable, "-c", said + RUN, "cost", "--help"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "False"


def test_the_paper_is_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
