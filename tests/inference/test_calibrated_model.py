"""The model of a calibrated run: probabilities, thresholds, abstention, and fitting them again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers.faults import relist
from helpers.images import NAMES, colored_records, write_labels
from helpers.run_folders import made_run, write_held_out
from probmcl.console import Console
from probmcl.data import Records
from probmcl.errors import OptionError, RunError
from probmcl.evaluation import average_precision
from probmcl.inference import Model, load
from probmcl.runtime.conversion import convert
from probmcl.store.evaluation import ModelEvaluation

pytestmark = pytest.mark.slow  # it trains, or renders whole reports


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return colored_records(tmp_path / "photos", train=20, val=60, test=20)


@pytest.fixture
def model(tmp_path: Path, records: Records) -> Model:
    """Return a model without calibration; the scores of all records are stored as its held-out scores."""
    made_run(tmp_path / "run", split=list(zip(records.paths, records.split, strict=True)))
    model = load(tmp_path / "run")
    write_held_out(model.folder, records, model.predict(list(records.paths), workers=0).scores)
    return model


def paths_of(records: Records) -> list[Path]:
    return list(records.paths)


def test_a_run_without_calibration_has_raw_scores(model: Model, records: Records) -> None:
    assert model.calibration is None
    assert repr(model).endswith("not calibrated)")
    plain, raw = (model.predict(paths_of(records), raw=raw, workers=0) for raw in (False, True))
    np.testing.assert_array_equal(plain.scores, raw.scores)
    assert plain.threshold == 0.5


def test_predictions_use_the_calibration_and_its_thresholds(model: Model, records: Records) -> None:
    raw = model.predict(paths_of(records), workers=0).scores
    calibration = model.calibrate(thresholds="balanced")
    predictions = model.predict(paths_of(records), workers=0)
    expected = calibration.probabilities(raw, np.full(len(NAMES), -1))
    np.testing.assert_allclose(predictions.scores, expected, rtol=1e-12)
    np.testing.assert_array_equal(predictions.labels, expected > calibration.threshold)
    assert np.asarray(predictions.labels.sum(0)) == pytest.approx(expected.sum(0), abs=0.5)  # as many as expected
    np.testing.assert_array_equal(model.predict(paths_of(records), raw=True, workers=0).scores, raw)
    fixed = model.predict(paths_of(records), threshold=0.9, workers=0)
    np.testing.assert_array_equal(fixed.labels, expected > 0.9)


def test_a_calibrated_run_is_loaded_with_its_calibration(model: Model, records: Records) -> None:
    calibration = model.calibrate(thresholds="recall:0.8")
    again = load(model.folder)
    assert again.calibration == calibration
    before, after = (one.predict(paths_of(records), workers=0) for one in (model, again))
    np.testing.assert_array_equal(before.scores, after.scores)
    assert calibration.thresholds == "recall:0.8"


def test_calibration_does_not_change_the_ranking(model: Model, records: Records) -> None:
    raw = model.predict(paths_of(records), workers=0).scores
    model.calibrate()
    calibrated = model.predict(paths_of(records), workers=0).scores
    before, after = (average_precision(scores, records.labels, records.known) for scores in (raw, calibrated))
    np.testing.assert_allclose(before, after, atol=1e-12)


def test_decisions_with_abstention_are_yes_no_or_not_sure(model: Model, records: Records) -> None:
    model.calibrate()
    predictions = model.predict(paths_of(records), abstain=0.3, workers=0)
    assert predictions.no_up_to is not None
    yes, no = predictions.scores > predictions.threshold, predictions.scores <= predictions.no_up_to
    assert not (yes & no).any()
    np.testing.assert_array_equal(np.ma.getmaskarray(predictions.labels), ~yes & ~no)
    image = predictions[0]
    assert image.not_sure == tuple(np.array(NAMES)[(~yes & ~no)[0]])
    assert not set(image.not_sure) & set(image.labels or ())


def test_abstention_is_written_as_question_marks_and_null(model: Model, records: Records, tmp_path: Path) -> None:
    model.calibrate()
    predictions = model.predict(paths_of(records)[:10], abstain=0.01, workers=0)  # far too few images to decide
    predictions.to_csv(tmp_path / "open.csv")
    predictions.to_json(tmp_path / "open.json")
    assert all(line.endswith("?,?,?") for line in (tmp_path / "open.csv").read_text().splitlines()[1:])
    content = json.loads((tmp_path / "open.json").read_text())
    assert all(image["decisions"] == dict.fromkeys(NAMES) for image in content["images"])
    assert content["no_up_to"] == content["yes_above"] == dict.fromkeys(NAMES)
    assert "not sure: " in repr(predictions)


@pytest.mark.parametrize("other", [{"threshold": 0.5}, {"raw": True}])
def test_abstention_uses_neither_thresholds_nor_raw_scores(model: Model, other: dict[str, object]) -> None:
    model.calibrate()
    with pytest.raises(OptionError, match=r"`abstain=0\.1` cannot be combined"):
        model.predict("a.jpg", abstain=0.1, **other)  # type: ignore[arg-type]


def test_abstention_needs_a_calibration(model: Model) -> None:
    with pytest.raises(OptionError, match=r"`abstain=0.1` needs a calibration; first run `probmcl\.load\(.*calibrate"):
        model.predict("a.jpg", abstain=0.1)
    model.calibrate()
    with pytest.raises(OptionError, match="`abstain=2` must be an error rate"):
        model.predict("a.jpg", abstain=2.0)


def test_evaluation_reports_raw_and_calibrated_scores(model: Model, records: Records) -> None:
    model.calibrate()
    data = write_labels(records)
    with pytest.warns(UserWarning, match="20 of 20 images were used to fit the probabilities and thresholds"):
        result = model.evaluate(data, draws=50, workers=0, abstain=0.3)
    raw = model.evaluate(data, draws=0, workers=0, raw=True)
    assert result["calibrated_on"] == 20
    assert result["thresholds"] == "balanced"
    assert result["mAP"] == pytest.approx(raw["mAP"], abs=1e-12)
    assert {key: result["at"][key] for key in ("0.5", "0.8")} == dict(raw["at"])
    assert result["at"]["chosen"]["macro_F1"] == result["decisions"]["macro_F1"]
    assert result["calibration"]["before"]["log_loss"] == raw["calibration"]["before"]["log_loss"]
    assert result["calibration"]["after"]["log_loss"] < raw["calibration"]["before"]["log_loss"]
    assert len(result["calibration"]["after"]["calibration_error_interval"]) == 2
    assert set(result["abstention"]["per_class"]) == set(NAMES)
    assert "after" not in raw["calibration"]
    assert convert(json.loads(json.dumps(result.to_dict(), allow_nan=False)), ModelEvaluation) == result


@pytest.mark.filterwarnings("ignore:.*have the same file name")
def test_another_site_is_calibrated_with_its_own_images(model: Model, records: Records, tmp_path: Path) -> None:
    site = colored_records(tmp_path / "site", train=70, val=0, test=0, seed=1)
    calibration = model.calibrate(write_labels(site), workers=0)
    assert (calibration.predictions, calibration.images) == ("calibration", 70)
    stored = np.load(model.folder / "predictions" / "calibration.npz")
    np.testing.assert_array_equal(stored["labels"], site.labels)
    with pytest.warns(UserWarning, match="70 of 70 images were used to fit"):
        model.evaluate(tmp_path / "site", draws=0, workers=0)
    shutil.copytree(tmp_path / "site", tmp_path / "copy")
    with pytest.warns(UserWarning, match="70 of 70 images were used to fit"):  # copies count too
        load(model.folder).evaluate(tmp_path / "copy", draws=0, workers=0)


@pytest.mark.filterwarnings("ignore:.*have the same file name")
def test_classes_that_another_site_lacks_keep_their_calibration(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = model.calibrate()
    table = write_labels(colored_records(tmp_path / "site", train=70, val=0, test=0, seed=1)) / "labels.csv"
    table.write_text(table.read_text().replace("blue", "azure"))
    after = model.calibrate(tmp_path / "site", workers=0, console=Console())
    assert after.classes["blue"] == before.classes["blue"]
    assert after.classes["red"] != before.classes["red"]
    shown = capsys.readouterr().out
    assert "1 class is not in the data, so unchanged: blue" in shown
    assert "1 class is ignored: azure" in shown
    renamed = model.calibrate(tmp_path / "site", rename={"azure": "blue"}, workers=0)
    assert renamed.classes["blue"].positives + renamed.classes["blue"].negatives == 70


def test_options_that_are_not_given_stay_as_they_are(model: Model, tmp_path: Path) -> None:
    model.calibrate(calibration="none", thresholds="recall:0.8")
    again = model.calibrate(thresholds="0.3")
    assert (again.kind, again.thresholds, again.predictions) == ("none", "0.3", "val")
    site = write_labels(colored_records(tmp_path / "site", train=70, val=0, test=0, seed=1))
    with pytest.warns(UserWarning, match="have the same file name"):
        model.calibrate(site, workers=0)
    last = model.calibrate(calibration="sigmoid")
    assert (last.kind, last.thresholds, last.predictions, last.images) == ("sigmoid", "0.3", "calibration", 70)


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_an_unfinished_run_is_not_calibrated(model: Model, status: str) -> None:
    path = model.folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": status}))
    with pytest.raises(RunError, match=r"is not finished; resume it first: `probmcl\.train\(resume="):
        model.calibrate()


def test_evaluation_works_without_the_held_out_scores(model: Model, records: Records) -> None:
    model.calibrate()
    (model.folder / "predictions" / "val.npz").unlink()
    with pytest.warns(UserWarning, match="cannot be recognized"):
        result = load(model.folder).evaluate(write_labels(records), draws=0, workers=0)
    assert result["calibrated_on"] is None
    with pytest.raises(OptionError, match="needs the held-out scores of the run"):
        model.predict("a.jpg", abstain=0.1)


def test_out_of_fold_scores_are_preferred(model: Model, records: Records) -> None:
    scores = np.load(model.folder / "predictions" / "val.npz")["scores"]
    write_held_out(model.folder, records, scores, "out_of_fold")
    assert model.calibrate().predictions == "out_of_fold"


def test_the_test_scores_of_the_run_are_updated(model: Model, records: Records) -> None:
    scores = np.load(model.folder / "predictions" / "val.npz")["scores"]
    write_held_out(model.folder, records, scores, "test")
    with pytest.warns(UserWarning, match="100 of 100 images were used to fit"):
        model.calibrate(thresholds="0.25")
    evaluation = json.loads((model.folder / "evaluation.json").read_text())
    assert {rates["threshold"] for rates in evaluation["per_class"].values()} == {0.25}


@pytest.mark.usefixtures("without_type_checks")
def test_invalid_options_are_refused_before_anything_is_written(model: Model) -> None:
    for options in ({"calibration": "platt"}, {"thresholds": "recall:2"}, {"skip_bad": 3.0}):
        with pytest.raises(OptionError, match=next(iter(options))):
            model.calibrate(**options)
    assert not (model.folder / "calibration.json").exists()


def test_a_run_without_held_out_scores_cannot_be_calibrated(model: Model) -> None:
    (model.folder / "predictions" / "val.npz").unlink()
    with pytest.raises(RunError, match=r"val\.npz cannot be read"):
        model.calibrate()


@pytest.mark.parametrize("damage", ['"slope": 0.0', '"slope": -1', '"kind": "cubic"'])
def test_a_damaged_calibration_is_refused(model: Model, damage: str) -> None:
    model.calibrate()
    path = model.folder / "calibration.json"
    key = damage.partition(":")[0]
    lines = [f"{damage}," if line.strip().startswith(key) else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    with pytest.raises(RunError, match=r"calibration\.json"):
        load(model.folder)


def test_a_calibration_of_other_classes_is_refused(model: Model) -> None:
    model.calibrate()
    path = model.folder / "calibration.json"
    path.write_text(path.read_text().replace('"blue"', '"azure"'))
    relist(model.folder)
    with pytest.raises(RunError, match=r"calibration\.json does not match the classes"):
        load(model.folder)
