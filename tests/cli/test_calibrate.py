import json
from pathlib import Path

import pytest

from helpers.images import NAMES, colored_records, write_labels
from helpers.run_folders import made_run, write_held_out
from probmcl.cli import app
from probmcl.data import Records
from probmcl.errors import OptionError
from probmcl.inference import load


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return colored_records(tmp_path / "photos", train=60, val=0, test=0)


@pytest.fixture
def run(tmp_path: Path, records: Records) -> Path:
    made_run(tmp_path / "run")
    write_held_out(tmp_path / "run", records, load(tmp_path / "run").predict(list(records.paths), workers=0).scores)
    return tmp_path / "run"


def command(*words: str | Path) -> None:
    app()([*map(str, words), "--device", "cpu", "--workers", "0"])


def test_thresholds_are_shown_and_stored(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("calibrate", run, "--thresholds", "recall:0.9")
    shown = capsys.readouterr().out
    assert all(f"│ {name}" in shown for name in NAMES)
    assert "calibrated on 60 images: log loss " in shown
    assert "thresholds: recall:0.9" in shown
    assert load(run).calibration == load(run).calibrate(thresholds="recall:0.9")


def test_classes_without_a_guarantee_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("calibrate", run, "--thresholds", "precision:0.99")
    shown = " ".join(capsys.readouterr().out.split())
    assert "note: precision:0.99 cannot be promised for 3 classes" in shown
    assert "so it is balanced for red, green, blue" in shown


def test_other_images_can_be_used(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = write_labels(colored_records(tmp_path / "site", train=20, val=0, test=0, seed=1))
    command("calibrate", run, site, "--calibration", "none")
    shown = " ".join(capsys.readouterr().out.split())
    assert "not calibrated; thresholds: balanced, fitted on 20 images" in shown


def test_an_unknown_rule_is_an_error(run: Path) -> None:
    with pytest.raises(OptionError, match=r"`thresholds=\"best\"` must be balanced, f1, precision:P"):
        command("calibrate", run, "--thresholds", "best")


def test_predict_uses_the_calibration_unless_raw_scores_are_requested(run: Path, records: Records) -> None:
    command("predict", run, records.paths[0].parent, "--out", run.parent / "raw.json")
    command("calibrate", run)
    command("predict", run, records.paths[0].parent, "--out", run.parent / "calibrated.json")
    command("predict", run, records.paths[0].parent, "--out", run.parent / "again.json", "--raw")
    raw, calibrated, again = (
        json.loads((run.parent / f"{name}.json").read_text())["images"] for name in ("raw", "calibrated", "again")
    )
    assert raw == again
    assert raw[0]["probabilities"] != calibrated[0]["probabilities"]


def test_predict_points_to_calibrate_without_a_calibration(
    run: Path, records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    command("predict", run, records.paths[0])
    assert f"first run: probmcl calibrate {run}" in " ".join(capsys.readouterr().err.split()).replace("- ", "-")
    command("predict", run, records.paths[0], "--raw")
    assert "calibrate" not in capsys.readouterr().err


def test_short_tables_have_no_place_for_open_decisions(run: Path, records: Records) -> None:
    command("calibrate", run)
    with pytest.raises(ValueError, match=r"--abstain 0\.1 cannot be combined with --format short"):
        command("predict", run, records.paths[0], "--format", "short", "--abstain", "0.1")


@pytest.mark.filterwarnings("ignore:.*used to fit the probabilities")
def test_evaluate_shows_probabilities_and_abstention(
    run: Path, records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    command("calibrate", run)
    command("evaluate", run, write_labels(records), "--abstain", "0.3", "--draws", "20")
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "chosen: balanced",
        "raw score > 0.5",
        "macro F1",
        "probabilities: log loss",
        "yes, no or not sure",
    ):
        assert part in shown
    assert "labels per image (true: " in shown
