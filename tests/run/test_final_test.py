"""Calibration at the end of a run: which scores it is fitted to, what it writes, and what resuming does."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console as RichConsole

from helpers.images import colored_records
from probmcl.audit.prepare import PreparedData
from probmcl.calibration import fit_calibration
from probmcl.console import Console
from probmcl.data import Records
from probmcl.evaluation.scores import read_scores, scores_file
from probmcl.inference import load
from probmcl.methods import find_method
from probmcl.run import train
from probmcl.run.results import FROZEN_PROBE, CandidatePool, Run
from probmcl.run.train import train_run
from probmcl.settings import EncoderSettings, ProbeSettings, Settings, TrainingJob
from probmcl.store.decoding import SCHEMA
from probmcl.training.optimizer import Training

pytestmark = pytest.mark.slow  # it trains, or renders whole reports

NO_PARENTS = np.full(3, -1)


def settings(*methods: str, **changes: object) -> Settings:
    training = Training(epochs=2, batch_size=8, learning_rate=1e-3)
    jobs = tuple(TrainingJob(method, find_method(method).presets["default"], training) for method in methods)
    encoder = EncoderSettings("test_resnet", weights=None, image_size=32)
    probe = ProbeSettings(epochs=5, views=1, weight_decays=(1.0, 10.0))
    small = Settings("test", jobs, encoder, probe, workers=0, tune="none")
    return replace(small, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    records = colored_records(tmp_path_factory.mktemp("images"), train=40, val=20, test=20)
    return replace(records, group=tuple(f"patient {row // 2}" for row in range(len(records))))


@pytest.fixture(scope="module")
def frozen(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run(PreparedData.of(records), settings(), tmp_path_factory.mktemp("runs") / "frozen", quiet())


def quiet() -> Console:
    return Console(RichConsole(file=StringIO()))


def test_the_frozen_probe_is_calibrated_on_out_of_fold_scores(frozen: Run, records: Records) -> None:
    model, held_out = load(frozen.folder), read_scores(scores_file(frozen.folder, "out_of_fold"))
    rows = [*records.rows("train"), *records.rows("val")]
    assert model.calibration is not None
    assert (model.calibration.predictions, model.calibration.images) == ("out_of_fold", len(rows))
    assert held_out.paths == tuple(str(records.paths[row]) for row in rows)
    np.testing.assert_array_equal(held_out.rows.labels, records.labels[rows])
    expected = fit_calibration(held_out.rows, model.names, parents=NO_PARENTS, predictions="out_of_fold")
    assert model.calibration == expected


def test_out_of_fold_scores_do_not_come_from_the_final_probe(frozen: Run, records: Records) -> None:
    held_out = read_scores(scores_file(frozen.folder, "out_of_fold")).rows
    fitted = load(frozen.folder).predict([str(path) for path in records.paths], raw=True, workers=0).scores
    rows = [*records.rows("train"), *records.rows("val")]
    difference = np.abs(held_out.scores - fitted[rows])
    assert (difference.max(axis=1) > 1e-4).all()  # every image was left out once
    assert difference.mean() < 0.2  # and the probes are similar


def test_a_trained_method_is_calibrated_on_validation(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CandidatePool, "best", lambda candidates: list(candidates.values())[-1])
    run = train_run(PreparedData.of(records), settings("bce", tune="all"), tmp_path / "run", quiet())
    assert run.kept.id != FROZEN_PROBE
    calibration = load(run.folder).calibration
    assert calibration is not None
    assert (calibration.predictions, calibration.images) == ("val", 20)
    assert calibration.strength is None  # fewer than 50 images
    assert [warning.kind for warning in run.warnings].count("calibration") == 1
    assert not scores_file(run.folder, "out_of_fold").exists()


def test_the_evaluation_is_that_of_the_loaded_model(frozen: Run, records: Records) -> None:
    evaluation = json.loads((frozen.folder / "evaluation.json").read_text())
    assert frozen.kept.test is not None
    assert evaluation == {"schema": SCHEMA, **frozen.kept.test.to_dict()}
    paths = [str(records.paths[row]) for row in records.rows("test")]
    model = load(frozen.folder)
    assert model.calibration is not None
    predictions = model.predict(paths, workers=0)
    labels = records.labels[records.rows("test")] == 1
    assert evaluation["decisions"]["hamming_loss"] == pytest.approx((predictions.labels.data != labels).mean())
    frozen_evaluation = json.loads((frozen.folder / "frozen" / "evaluation.json").read_text())
    assert "chosen" not in frozen_evaluation["at"]  # other candidates are compared by their raw scores
    assert frozen_evaluation["at"] == {key: evaluation["at"][key] for key in ("0.5", "0.8")}


def test_settings_choose_the_calibration_and_the_thresholds(records: Records, tmp_path: Path) -> None:
    run = train_run(
        PreparedData.of(records), settings(calibration="none", thresholds="cost:3,1"), tmp_path / "run", quiet()
    )
    calibration = load(run.folder).calibration
    assert calibration is not None
    assert (calibration.kind, calibration.thresholds) == ("none", "cost:3,1")
    assert {fitted.threshold for fitted in calibration.classes.values()} == {0.25}
    assert json.loads((run.folder / "config.json").read_text())["thresholds"] == "cost:3,1"


def test_an_interrupted_run_is_calibrated_once(
    records: Records, tmp_path: Path, frozen: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train, "evaluate_loaded_model", fail)
        with pytest.raises(KeyboardInterrupt):
            train_run(PreparedData.of(records), settings(), tmp_path / "run", quiet())
    assert not (tmp_path / "run" / "evaluation.json").exists()
    monkeypatch.setattr(train, "calibrate_candidate", fail)  # it must not be fitted again
    run = train_run(PreparedData.of(records), settings(), tmp_path / "run", quiet())
    assert load(run.folder).calibration == load(frozen.folder).calibration


def test_the_calibration_is_printed_with_its_notes(records: Records, tmp_path: Path) -> None:
    output = StringIO()
    console = Console(RichConsole(file=output, width=200))
    train_run(PreparedData.of(records), settings(thresholds="precision:0.99"), tmp_path / "run", console)
    lines = output.getvalue().splitlines()
    assert any(line.startswith("calibrated on 60 images: log loss ") for line in lines)
    assert any(line.startswith("note: precision:0.99 cannot be promised for 3 classes") for line in lines)


def test_an_invalid_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="`thresholds="):
        settings(thresholds="recall")
