"""`probmcl cost`: defaults that work, clear answers to what cannot be, and the same numbers in every form."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probmcl.cli.cost import cost
from probmcl.methods import METHODS
from probmcl.settings import CPU_ENCODER

RUN = "import sys; sys.argv[0] = 'probmcl'; from probmcl.cli import main; main()"


def probmcl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, check=False)


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
    cost(
        "bce,asl",
        "csra:paper",
        encoders="test_resnet, resnet10t,test_resnet",
        classes="2,3,2",
        out=tmp_path / "costs.csv",
    )
    rows = list(csv.DictReader((tmp_path / "costs.csv").read_text().splitlines()))
    assert [row["method"] for row in rows[:3]] == ["bce", "asl", "csra:paper"]
    assert len(rows) == 3 * 2 * 2
    assert {row["encoder"] for row in rows} == {"test_resnet", "resnet10t"}


def test_a_file_has_what_was_asked_for_in_its_form(tmp_path: Path) -> None:
    for name in ("costs.json", "costs.md", "COSTS.CSV"):
        cost("bce", encoders="test_resnet", image_sizes="64", classes="2", out=tmp_path / name)
    (row,) = json.loads((tmp_path / "costs.json").read_text())
    assert (row["method"], row["image_size"], row["classes"], row["own_head"]) == ("bce", 64, 2, True)
    assert isinstance(row["training_parameters"], int)
    assert (tmp_path / "costs.md").read_text().startswith("### test_resnet, 64 px, 2 classes\n")
    assert (tmp_path / "COSTS.CSV").read_text().startswith("method,encoder,image_size,classes,")


def test_by_choice_it_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cost(
        "bce",
        encoders="test_resnet",
        image_sizes="64",
        measure=True,
        batch_size=2,
        device="cpu",
        out=tmp_path / "c.json",
    )
    said = capsys.readouterr().out
    assert "measured on cpu, 2 images at once" in said
    (row,) = json.loads((tmp_path / "c.json").read_text())
    assert row["peak_memory"] > 0
    assert row["step_seconds"] > 0


@pytest.mark.parametrize(
    ("methods", "flags", "answer"),
    [
        ("probmlc", {}, "no method 'probmlc'; did you mean 'probmcl'?"),
        ("bce", {"encoders": "resnt18"}, "timm has no model 'resnt18'; did you mean 'resnet18'"),
        ("bce", {"encoders": ","}, "--encoders ',' names nothing"),
        ("bce", {"encoders": "test_vit", "image_sizes": "40"}, "test_vit cannot take images of 40 pixels"),
        (
            "bce",
            {"image_sizes": "big"},
            "--image-sizes big: 'big' is no whole number from 1 on; say it as in --image-sizes 224,448",
        ),
        ("bce", {"image_sizes": "-64"}, "--image-sizes -64: '-64' is no whole number from 1 on"),
        ("bce", {"classes": "0"}, "--classes 0: '0' is no whole number from 1 on; say it as in --classes 9,80"),
        ("csra", {"encoders": "pit_ti_224"}, "csra needs feature maps, and pit_ti_224 has none"),
        ("bce", {"batch_size": 4}, "--batch-size: only a measurement needs it; add --measure"),
        ("bce", {"measure": True, "batch_size": 1}, "--batch-size 1: a step has 2 images or more"),
        ("bce", {"measure": True, "device": "tpu"}, "device 'tpu': this machine"),
        ("bce", {"paper": True}, "--paper has its own methods, encoders and sizes; leave out METHODS"),
        ("bce", {"out": "costs.cvs"}, "--out costs.cvs: what is written goes by its ending; did you mean '.csv'?"),
        (
            "bce",
            {"out": "costs.txt"},
            "--out costs.txt: what is written goes by its ending; there are .csv, .json, .md",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(methods: str, flags: dict[str, Any], answer: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(answer)}"):
        cost(methods, **flags)


def test_an_error_is_said_and_nothing_else() -> None:
    found = probmcl("cost", "bce", "--classes", "none")
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("probmcl: --classes none: 'none' is no whole number")


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("precious")
    with pytest.raises(ValueError, match="there is such a file already"):
        cost("bce", out=tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() == "precious"


def test_its_help_loads_no_torch() -> None:
    said = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    answer = subprocess.run(
        [sys.executable, "-c", said + RUN, "cost", "--help"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "False"


def test_the_paper_is_written_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import probmcl.cost.paper as paper

    csra = tuple(printed for printed in paper.TABLE_3 if printed.name == "CSRA")
    monkeypatch.setattr(paper, "TABLE_3", csra)
    cost(paper=True, out=tmp_path / "table_3.csv")
    rows = list(csv.DictReader((tmp_path / "table_3.csv").read_text().splitlines()))
    assert [row["printed_method"] for row in rows] == ["CSRA"] * 4
    assert rows[0]["training_parameters"] == "42518592"
