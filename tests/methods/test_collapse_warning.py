"""The collapse monitor on small real runs: it must warn if the paper's objective collapses, and only then."""

import json
from pathlib import Path

import pytest

from helpers.images import colored_records
from probmcl.audit.prepare import PreparedData
from probmcl.data.records import Records
from probmcl.run.results import Run
from probmcl.run.train import train_run
from probmcl.settings import EncoderSettings, ProbeSettings, Settings, TrainingJob, method_settings
from probmcl.training import Training

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default::UserWarning"),  # the paper's preset warns about a collapse in advance
]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return colored_records(tmp_path_factory.mktemp("images"), train=192)


def train(records: Records, folder: Path, preset: str) -> Run:
    settings = Settings(
        method="probmcl",
        jobs=(
            TrainingJob(
                "probmcl",
                method_settings("probmcl", preset),
                Training(epochs=7, batch_size=32, learning_rate=3e-3),
            ),
        ),
        encoder=EncoderSettings("test_resnet", weights=None, image_size=32),
        probe=ProbeSettings(epochs=2, views=0, weight_decays=(1.0,)),
        workers=0,
    )
    return train_run(PreparedData.of(records), settings, folder)


def last_row(run: Run) -> dict[str, float]:
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    statistics: dict[str, float] = [row for row in rows if row["stage"] == "probmcl"][-1]
    return statistics


def test_warns_on_the_paper_preset(records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(records, tmp_path / "run", "paper")
    statistics = last_row(run)
    assert statistics["similarity_positive"] - statistics["similarity_negative"] < 0.02
    assert [warning.kind for warning in run.warnings if warning.kind != "calibration"] == ["collapse"]
    output = capsys.readouterr().out
    assert "warning: collapsed" in output
    assert "probmcl with target 'feature'" in output
    assert json.loads((run.folder / "run.json").read_text())["warnings"] == [vars(w) for w in run.warnings]


def test_does_not_warn_on_a_healthy_run(records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(records, tmp_path / "run", "default")
    statistics = last_row(run)
    assert statistics["similarity_positive"] - statistics["similarity_negative"] > 0.1
    assert "collapse" not in {warning.kind for warning in run.warnings}
    assert "collapsed" not in capsys.readouterr().out
