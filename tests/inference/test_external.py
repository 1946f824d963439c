"""Evaluation on external data: renamed classes, sites, patients, class hierarchies."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from helpers.images import NAMES, colored_records
from helpers.run_folders import made_run, write_held_out
from probmcl.data import Records
from probmcl.errors import DataError, OptionError
from probmcl.evaluation.intervals import with_interval
from probmcl.evaluation.scores import ScoredRows
from probmcl.inference import Model, load
from probmcl.readers.options import DataSource, ReadOptions

PATIENTS = tuple(f"p{number // 3:02d}" for number in range(42))
SITES = tuple(("north", "south", "")[number // 15] for number in range(42))


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return colored_records(tmp_path / "photos")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    made_run(tmp_path / "run")
    return load(tmp_path / "run", device="cpu")


@pytest.fixture
def table(tmp_path: Path, records: Records) -> Path:
    return write_table(tmp_path / "labels.csv", records, NAMES, records.labels.astype(int).tolist())


def write_table(path: Path, records: Records, names: Sequence[str], labels: Sequence[Sequence[Any]]) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "patient", "site", *names])
        for image, patient, site, values in zip(records.paths, PATIENTS, SITES, labels, strict=True):
            rows.writerow([image, patient, site, *values])
    return path


def scores_of(model: Model, records: Records) -> Any:
    return model.predict(list(records.paths), workers=0).scores


def with_parents(run: Path, hierarchy: dict[str, str]) -> Model:
    labels = json.loads((run / "labels.json").read_text())
    (run / "labels.json").write_text(json.dumps(labels | {"hierarchy": hierarchy}))
    return load(run, device="cpu")


# Renamed classes.


def test_renamed_classes_are_scored(tmp_path: Path, model: Model, table: Path, records: Records) -> None:
    external = write_table(
        tmp_path / "external.csv", records, ("Rot", "green", "pink"), records.labels.astype(int).tolist()
    )
    own = model.evaluate(table, draws=0, workers=0)
    result = model.evaluate(external, rename={"Rot": "red"}, draws=0, workers=0)
    assert result["ap"] == {name: own["ap"][name] for name in ("red", "green")}
    assert result["renamed"] == {"Rot": "red"}
    assert (result["classes_only_in_model"], result["classes_only_in_data"]) == (["blue"], ["pink"])


def test_merged_classes_are_present_if_any_is_and_absent_if_all_are(
    tmp_path: Path, model: Model, records: Records
) -> None:
    generator = np.random.default_rng(3)
    cells = generator.choice(["1", "0", ""], (42, 2))
    external = write_table(tmp_path / "external.csv", records, ("light red", "dark red"), cells.tolist())
    (tmp_path / "words.csv").write_text("data,model\nlight red,red\ndark red,red\n")
    result = model.evaluate(
        external, read=ReadOptions(blank=("unknown",)), rename=tmp_path / "words.csv", draws=0, workers=0
    )
    present, absent = (cells == "1").any(axis=1), (cells == "0").all(axis=1)
    kept = present | absent
    assert 0 < (~kept).sum() < 42
    scores = scores_of(model, records)[:, 0]
    assert result["ap"]["red"] == pytest.approx(average_precision_score(present[kept], scores[kept]), abs=1e-12)
    assert result["auroc"]["red"] == pytest.approx(roc_auc_score(present[kept], scores[kept]), abs=1e-12)
    assert result["per_class"]["red"]["n"] == kept.sum()


# Sites and patients.


def test_each_site_is_scored_separately_with_patients_resampled(model: Model, table: Path, records: Records) -> None:
    result = model.evaluate(table, read=ReadOptions(group="patient"), by="site", draws=40, seed=2, workers=0)
    assert result["by"]["column"] == "site"
    assert list(result["by"]["values"]) == ["north", "south", "(blank)"]
    scores = scores_of(model, records)
    for number, value in enumerate(("north", "south", "(blank)")):
        rows = np.flatnonzero(np.arange(42) // 15 == number)
        known = np.ones((len(rows), 3), dtype=np.bool_)
        site_rows = ScoredRows(scores[rows], records.labels[rows], known, tuple(PATIENTS[row] for row in rows))
        assert result["by"]["values"][value] == with_interval(site_rows, draws=40, seed=2)
    assert [part["groups"] for part in result["by"]["values"].values()] == [5, 5, 4]
    assert (result["resampled"], result["groups"], result["draws"]) == ("groups", 14, 40)
    json.dumps(result.to_dict(), allow_nan=False)


def test_images_are_resampled_without_groups(tmp_path: Path, model: Model, table: Path) -> None:
    rows = [line.split(",") for line in table.read_text().splitlines()]
    (tmp_path / "single.csv").write_text("\n".join(",".join([row[0], *row[3:]]) for row in rows))
    result = model.evaluate(tmp_path / "single.csv", draws=40, workers=0)
    assert (result["resampled"], result["groups"]) == ("images", None)
    low, high = result["mAP_interval"]
    assert low < result["mAP"] < high
    other = model.evaluate(table, read=ReadOptions(group="patient"), draws=40, workers=0)
    assert other["mAP"] == result["mAP"]
    assert other["mAP_interval"] != result["mAP_interval"]


@pytest.mark.parametrize("how", ["mean", "max"])
def test_scores_are_aggregated_over_the_images_of_a_patient(
    how: Any, model: Model, table: Path, records: Records
) -> None:
    result = model.evaluate(table, read=ReadOptions(group="patient"), aggregate=how, draws=20, workers=0)
    scores = scores_of(model, records).astype(np.float64).reshape(14, 3, 3)
    aggregated = scores.mean(axis=1) if how == "mean" else scores.max(axis=1)
    labels = records.labels.reshape(14, 3, 3).max(axis=1)
    for c, name in enumerate(NAMES):
        assert result["ap"][name] == pytest.approx(average_precision_score(labels[:, c], aggregated[:, c]), abs=1e-12)
    assert (result["images"], result["groups"], result["aggregate"], result["resampled"]) == (42, 14, how, "groups")
    assert result["decisions"]["images_fully_known"] == 14


def test_sites_are_scored_with_aggregated_patients(model: Model, table: Path) -> None:
    result = model.evaluate(table, read=ReadOptions(group="patient"), aggregate="mean", by="site", draws=0, workers=0)
    values = result["by"]["values"]
    assert {value: (part["images"], part["groups"]) for value, part in values.items()} == {
        "north": (15, 5),
        "south": (15, 5),
        "(blank)": (12, 4),
    }


def test_invalid_options_are_rejected_before_scoring(
    model: Model, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(*_: object) -> None:
        raise AssertionError("nothing must be scored")

    monkeypatch.setattr(Model, "score", scored)
    with pytest.raises(OptionError, match=r"""`by="sites"` .*did you mean 'site'"""):
        model.evaluate(table, by="sites")
    table.write_text(table.read_text().replace(",p03,north,", ",p03,south,", 1))
    with pytest.raises(ValueError, match=r"'p03' .*'south' and 'north'"):
        model.evaluate(table, read=ReadOptions(group="patient"), by="site", aggregate="mean")
    with pytest.raises(DataError, match=r"'Red'; .* red, green, blue"):
        model.evaluate(table, rename={"red": "Red"})
    with pytest.raises(ValueError, match="`draws=-1` must be"):
        model.evaluate(table, draws=-1)
    monkeypatch.setattr("probmcl.evaluation.intervals.MAX_VALUES", 13)
    with pytest.raises(OptionError, match=r'`by="patient"` has 14 .*42 images; .*13'):
        model.evaluate(table, by="patient")


def test_aggregate_needs_groups(tmp_path: Path, model: Model, table: Path) -> None:
    rows = [line.split(",") for line in table.read_text().splitlines()]
    (tmp_path / "single.csv").write_text("\n".join(",".join([row[0], *row[3:]]) for row in rows))
    with pytest.raises(OptionError, match=r'`aggregate="mean"` .*`group`'):
        model.evaluate(tmp_path / "single.csv", aggregate="mean")


# Reading options.


def test_meaning_of_a_blank_is_that_of_the_run_unless_given(tmp_path: Path, records: Records) -> None:
    cells = np.where(records.labels > 0, "1", "").tolist()
    table = write_table(tmp_path / "labels.csv", records, NAMES, cells)
    options = ReadOptions(blank=("negative",), ignore=("site",), path_column="path")
    data = DataSource(table, options=options)
    made_run(tmp_path / "run", split=[(path, "test") for path in records.paths], data=data)
    model = load(tmp_path / "run", device="cpu")
    assert model.evaluate(draws=0, workers=0)["per_class"]["red"]["n"] == 42
    known = model.evaluate(read=ReadOptions(blank=("unknown",)), draws=0, workers=0)["per_class"]["red"]["n"]
    assert known == (records.labels[:, 0] > 0).sum() < 42
    per_class = model.evaluate(read=ReadOptions(blank=("unknown", "red=negative")), draws=0, workers=0)["per_class"]
    assert (per_class["red"]["n"], per_class["blue"]["n"]) == (42, (records.labels[:, 2] > 0).sum())


# Class hierarchy.


def test_no_calibrated_probability_is_above_the_parent(
    tmp_path: Path, model: Model, table: Path, records: Records
) -> None:
    free = scores_of(model, records)
    capped = with_parents(tmp_path / "run", {"green": "red", "blue": "green"})
    np.testing.assert_array_equal(scores_of(capped, records), free)  # raw scores are not capped
    write_held_out(tmp_path / "run", records, free)
    capped.calibrate(calibration="none")
    predictions = capped.predict(list(records.paths), workers=0)
    expected = np.minimum.accumulate(free, axis=1)  # red is the parent of green, green that of blue
    assert (expected != free).any()
    np.testing.assert_array_equal(predictions.scores, expected)
    with pytest.warns(UserWarning, match="used to fit the probabilities"):
        result = capped.evaluate(table, draws=0, workers=0)
    scored = average_precision_score(records.labels[:, 2], expected[:, 2])
    assert result["ap"]["blue"] == pytest.approx(scored, abs=1e-12)
    before = capped.evaluate(table, draws=0, workers=0, raw=True)["ap"]["blue"]
    assert result["ap_changes"]["blue"] == pytest.approx(scored - before)


def test_levels_are_scored_even_if_the_data_lack_a_parent(
    tmp_path: Path, model: Model, table: Path, records: Records
) -> None:
    assert model.hierarchy is None
    assert "levels" not in model.evaluate(table, draws=0, workers=0)
    limited = with_parents(tmp_path / "run", {"green": "red", "blue": "red"})
    result = limited.evaluate(table, draws=0, workers=0)
    assert result["levels"]["1"]["mAP"] == result["ap"]["red"]
    assert result["levels"]["2"]["classes"] == 2
    assert result["levels"]["2"]["mAP"] == pytest.approx((result["ap"]["green"] + result["ap"]["blue"]) / 2)
    without_parent = write_table(
        tmp_path / "without_parent.csv", records, NAMES[1:], records.labels[:, 1:].astype(int).tolist()
    )
    assert list(limited.evaluate(without_parent, draws=0, workers=0)["levels"]) == ["2"]
