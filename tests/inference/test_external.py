"""A model on data from elsewhere: other words, sites, patients, parents."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from helpers.images import NAMES, colored_records
from helpers.run_folders import made_run
from probmcl.data import Records
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError, OptionError
from probmcl.evaluation.groups import ScoredRows, with_interval
from probmcl.inference import Model, load

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
    return written(tmp_path / "labels.csv", records, NAMES, records.labels.astype(int).tolist())


def written(path: Path, records: Records, names: Sequence[str], labels: Sequence[Sequence[Any]]) -> Path:
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


# Other words.


def test_renamed_classes_are_scored_as_their_own(tmp_path: Path, model: Model, table: Path, records: Records) -> None:
    theirs = written(tmp_path / "theirs.csv", records, ("Rot", "green", "pink"), records.labels.astype(int).tolist())
    own = model.evaluate(table, draws=0, workers=0)
    found = model.evaluate(theirs, rename={"Rot": "red"}, draws=0, workers=0)
    assert found["ap"] == {name: own["ap"][name] for name in ("red", "green")}
    assert found["renamed"] == {"Rot": "red"}
    assert (found["classes_only_in_model"], found["classes_only_in_data"]) == (["blue"], ["pink"])


def test_classes_that_become_one_are_there_if_any_is_and_absent_if_all_are(
    tmp_path: Path, model: Model, records: Records
) -> None:
    generator = np.random.default_rng(3)
    cells = generator.choice(["1", "0", ""], (42, 2))
    theirs = written(tmp_path / "theirs.csv", records, ("light red", "dark red"), cells.tolist())
    (tmp_path / "words.csv").write_text("data,model\nlight red,red\ndark red,red\n")
    found = model.evaluate(
        theirs, read=ReadOptions(blank=("unknown",)), rename=tmp_path / "words.csv", draws=0, workers=0
    )
    present, absent = (cells == "1").any(axis=1), (cells == "0").all(axis=1)
    kept = present | absent
    assert 0 < (~kept).sum() < 42
    scores = scores_of(model, records)[:, 0]
    assert found["ap"]["red"] == pytest.approx(average_precision_score(present[kept], scores[kept]), abs=1e-12)
    assert found["auroc"]["red"] == pytest.approx(roc_auc_score(present[kept], scores[kept]), abs=1e-12)
    assert found["per_class"]["red"]["n"] == kept.sum()


# Sites and patients.


def test_each_site_is_scored_by_itself_with_its_patients_resampled(model: Model, table: Path, records: Records) -> None:
    found = model.evaluate(table, read=ReadOptions(group="patient"), by="site", draws=40, seed=2, workers=0)
    assert found["by"]["column"] == "site"
    assert list(found["by"]["values"]) == ["north", "south", "(blank)"]
    scores = scores_of(model, records)
    for number, value in enumerate(("north", "south", "(blank)")):
        rows = np.flatnonzero(np.arange(42) // 15 == number)
        known = np.ones((len(rows), 3), dtype=np.bool_)
        alone = ScoredRows(scores[rows], records.labels[rows], known, tuple(PATIENTS[row] for row in rows))
        assert found["by"]["values"][value] == with_interval(alone, draws=40, seed=2)
    assert [part["groups"] for part in found["by"]["values"].values()] == [5, 5, 4]
    assert (found["resampled"], found["groups"], found["draws"]) == ("groups", 14, 40)
    json.dumps(found, allow_nan=False)


def test_without_groups_images_are_resampled(tmp_path: Path, model: Model, table: Path) -> None:
    rows = [line.split(",") for line in table.read_text().splitlines()]
    (tmp_path / "single.csv").write_text("\n".join(",".join([row[0], *row[3:]]) for row in rows))
    found = model.evaluate(tmp_path / "single.csv", draws=40, workers=0)
    assert (found["resampled"], found["groups"]) == ("images", None)
    low, high = found["mAP_interval"]
    assert low < found["mAP"] < high
    other = model.evaluate(table, read=ReadOptions(group="patient"), draws=40, workers=0)
    assert other["mAP"] == found["mAP"]
    assert other["mAP_interval"] != found["mAP_interval"]


@pytest.mark.parametrize("how", ["mean", "max"])
def test_patients_are_scored_by_all_of_their_images(how: Any, model: Model, table: Path, records: Records) -> None:
    found = model.evaluate(table, read=ReadOptions(group="patient"), aggregate=how, draws=20, workers=0)
    scores = scores_of(model, records).astype(np.float64).reshape(14, 3, 3)
    whole = scores.mean(axis=1) if how == "mean" else scores.max(axis=1)
    labels = records.labels.reshape(14, 3, 3).max(axis=1)
    for c, name in enumerate(NAMES):
        assert found["ap"][name] == pytest.approx(average_precision_score(labels[:, c], whole[:, c]), abs=1e-12)
    assert (found["images"], found["groups"], found["aggregate"], found["resampled"]) == (42, 14, how, "groups")
    assert found["decisions"]["images_fully_known"] == 14


def test_sites_are_scored_by_whole_patients(model: Model, table: Path) -> None:
    found = model.evaluate(table, read=ReadOptions(group="patient"), aggregate="mean", by="site", draws=0, workers=0)
    values = found["by"]["values"]
    assert {value: (part["images"], part["groups"]) for value, part in values.items()} == {
        "north": (15, 5),
        "south": (15, 5),
        "(blank)": (12, 4),
    }


def test_what_cannot_be_judged_is_refused_before_anything_is_scored(
    model: Model, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(*_: object) -> None:
        raise AssertionError("this takes long")

    monkeypatch.setattr(Model, "_score", scored)
    with pytest.raises(OptionError, match=r"`by=sites` is not a column .*; did you mean 'site'"):
        model.evaluate(table, by="sites")
    table.write_text(table.read_text().replace(",p03,north,", ",p03,south,", 1))
    with pytest.raises(ValueError, match="group 'p03' has images with 'south' and 'north' in column 'site'"):
        model.evaluate(table, read=ReadOptions(group="patient"), by="site", aggregate="mean")
    with pytest.raises(DataError, match=r"the model has no class 'Red'; .* red, green, blue"):
        model.evaluate(table, rename={"red": "Red"})
    with pytest.raises(ValueError, match="`draws=-1` must be a whole number"):
        model.evaluate(table, draws=-1)
    monkeypatch.setattr("probmcl.evaluation.groups.MAX_VALUES", 13)
    with pytest.raises(
        OptionError, match=r"`by=patient` has 14 different values in 42 images; choose a column with at most 13"
    ):
        model.evaluate(table, by="patient")


def test_without_groups_there_are_no_patients(tmp_path: Path, model: Model, table: Path) -> None:
    rows = [line.split(",") for line in table.read_text().splitlines()]
    (tmp_path / "single.csv").write_text("\n".join(",".join([row[0], *row[3:]]) for row in rows))
    with pytest.raises(OptionError, match=r"`aggregate=mean` joins the images of a group; `group`"):
        model.evaluate(tmp_path / "single.csv", aggregate="mean")


# How the data is read.


def test_the_meaning_of_a_blank_is_said_or_what_the_run_has_said(tmp_path: Path, records: Records) -> None:
    cells = np.where(records.labels > 0, "1", "").tolist()
    table = written(tmp_path / "labels.csv", records, NAMES, cells)
    options = {"blank": ["negative"], "ignore": ["site"], "path_column": "path"}
    data: dict[str, object] = {"data": str(table), "options": options}
    made_run(tmp_path / "run", split=[(path, "test") for path in records.paths], data=data)
    model = load(tmp_path / "run", device="cpu")
    assert model.evaluate(draws=0, workers=0)["per_class"]["red"]["n"] == 42
    known = model.evaluate(read=ReadOptions(blank=("unknown",)), draws=0, workers=0)["per_class"]["red"]["n"]
    assert known == (records.labels[:, 0] > 0).sum() < 42
    once = model.evaluate(read=ReadOptions(blank=("unknown", "red=negative")), draws=0, workers=0)["per_class"]
    assert (once["red"]["n"], once["blue"]["n"]) == (42, (records.labels[:, 2] > 0).sum())


# Parents.


def test_no_class_scores_above_its_parent(tmp_path: Path, model: Model, table: Path, records: Records) -> None:
    free = scores_of(model, records)
    child = with_parents(tmp_path / "run", {"green": "red", "blue": "green"})
    assert child.hierarchy == {"green": "red", "blue": "green"}
    np.testing.assert_array_equal(scores_of(child, records), free)
    said = child.predict(list(records.paths), below_parents=True, workers=0)
    wanted = np.minimum.accumulate(free, axis=1)  # red, green, blue: each below the one before
    assert (wanted != free).any()
    np.testing.assert_array_equal(said.scores, wanted)
    found = child.evaluate(table, below_parents=True, draws=0, workers=0)
    scored = average_precision_score(records.labels[:, 2], wanted[:, 2])
    assert found["ap"]["blue"] == pytest.approx(scored, abs=1e-12)
    assert found["ap"]["blue"] != child.evaluate(table, draws=0, workers=0)["ap"]["blue"]


def test_every_level_has_its_means_also_where_the_data_lacks_a_parent(
    tmp_path: Path, model: Model, table: Path, records: Records
) -> None:
    assert model.hierarchy is None
    assert "levels" not in model.evaluate(table, draws=0, workers=0)
    child = with_parents(tmp_path / "run", {"green": "red", "blue": "red"})
    found = child.evaluate(table, draws=0, workers=0)
    assert found["levels"]["1"]["mAP"] == found["ap"]["red"]
    assert found["levels"]["2"]["classes"] == 2
    assert found["levels"]["2"]["mAP"] == pytest.approx((found["ap"]["green"] + found["ap"]["blue"]) / 2)
    lacking = written(tmp_path / "lacking.csv", records, NAMES[1:], records.labels[:, 1:].astype(int).tolist())
    assert list(child.evaluate(lacking, draws=0, workers=0)["levels"]) == ["2"]


def test_without_parents_there_is_nothing_to_stay_below(model: Model, table: Path, records: Records) -> None:
    for ask in (
        lambda: model.stream(list(records.paths), below_parents=True),
        lambda: model.evaluate(table, below_parents=True),
    ):
        with pytest.raises(ValueError, match=r"run have no parents"):
            ask()
