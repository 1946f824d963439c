import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from probmcl.cli import app
from probmcl.cli.demo import command
from probmcl.console import Console
from probmcl.demo import demo
from probmcl.demo.digits import write_digits


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TRAIN": 48, "VAL": 24, "TEST": 24, "IMAGES_SEEN": 96}.items():
        monkeypatch.setattr(demo, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_command_writes_images_a_run_and_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(out=tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"data", "run", "comparison.json"}
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [row["classifier"] for row in rows] == [
        "frozen probe",
        "probmcl, re-probed",
        "asl, own head",
        "asl, re-probed",
        "bce, own head",
        "bce, re-probed",
    ]
    output = capsys.readouterr().out
    assert all(f"{100 * row['mAP']:.1f}" in output for row in rows)
    assert str(tmp_path / "out" / "comparison.json") in output
    assert output.splitlines()[-1].endswith(str(tmp_path / "out" / "run" / "report.html"))
    # The run has stored the path of its data, so that it can be evaluated.
    app()(["evaluate", str(tmp_path / "out" / "run"), "--device", "cpu", "--workers", "0", "--draws", "0"])
    (kept,) = (row for row in rows if row["kept"])
    assert f"24 test images: mAP {100 * kept['mAP']:.1f} (chance {100 * kept['chance']:.1f})" in capsys.readouterr().out


def test_every_method_sees_the_same_number_of_images(tmp_path: Path) -> None:
    records = write_digits(tmp_path, train=60, val=8, test=8)
    views = {"probmcl": 2, "asl": 1, "bce": 1}
    settings = demo.demo_settings(records)
    assert {c.training.epochs * 60 * views[c.method] for c in settings.jobs} == {demo.IMAGES_SEEN}


def test_scenes_that_do_not_divide_the_budget_are_an_error(tmp_path: Path) -> None:
    records = write_digits(tmp_path, train=7, val=3, test=3)
    with pytest.raises(ValueError, match="must divide"):
        demo.demo_settings(records)


def test_the_table_shows_percentages(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"classifier": "bce, re-probed", "mAP": 0.5, "CF1": 0.25, "OF1": 0.125, "seconds": 9.6}
    row |= {"chance": 0.0625, "macro_auroc": 0.75}
    console = RichConsole(file=StringIO(), width=100)
    Console(console).rich.print(demo.table([row]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "50.0" in text
    assert "25.0" in text
    assert "12.5" in text
    assert "10" in text
