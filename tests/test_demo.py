import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from probmcl import demo
from probmcl.cli.demo import demo as command
from probmcl.data.digits import write_digits
from probmcl.pipeline import Run
from probmcl.training.progress import Display


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TRAIN": 48, "VAL": 24, "TEST": 24, "IMAGES_SEEN": 96}.items():
        monkeypatch.setattr(demo, name, value)


@pytest.mark.usefixtures("small")
def test_the_command_leaves_scenes_four_runs_and_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(out=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "data", "probe", "probmcl", "asl", "bce", "comparison.json"
    }  # fmt: skip
    rows = json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert [(row["method"], row["classifier"]) for row in rows] == [
        ("untrained encoder", "probe"),
        ("probmcl", "probe"),
        ("asl", "own head"),
        ("asl", "probe"),
        ("bce", "own head"),
        ("bce", "probe"),
    ]
    said = capsys.readouterr().out
    assert all(f"{100 * row['mAP']:.1f}" in said for row in rows)
    assert said.rstrip().endswith(f"everything is in {tmp_path / 'run'}")


@pytest.mark.usefixtures("small")
def test_an_interrupt_shows_and_keeps_what_is_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_then_interrupted(folder: Path, display: Display) -> Iterator[tuple[str, Run]]:
        finished = real(folder, display)
        yield next(finished)
        yield next(finished)
        raise KeyboardInterrupt

    real = demo.run_demo
    monkeypatch.setattr(demo, "run_demo", two_then_interrupted)
    with pytest.raises(KeyboardInterrupt):
        command(out=tmp_path / "run")
    assert len(json.loads((tmp_path / "run" / "comparison.json").read_text())) == 2
    assert "probmcl" in capsys.readouterr().out


def test_every_method_sees_the_same_number_of_images_from_the_same_start(tmp_path: Path) -> None:
    records = write_digits(tmp_path, train=60, val=8, test=8)
    chosen = [demo.demo_settings(method, records) for method in ("probmcl", "asl", "bce")]
    views = {"probmcl": 2, "asl": 1, "bce": 1}
    seen = {s.training.epochs * 60 * views[s.method] for s in chosen}
    assert len(seen) == 1
    assert len({(s.encoder, s.seed, s.augment, s.probe) for s in chosen}) == 1


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"method": "bce", "classifier": "probe", "mAP": 0.5, "CF1": 0.25, "OF1": 0.125, "seconds": 9.6}
    console = Console(file=StringIO(), width=100)
    Display(console).console.print(demo.table([row]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "50.0" in text
    assert "25.0" in text
    assert "12.5" in text
    assert "10" in text
