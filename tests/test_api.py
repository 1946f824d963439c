"""The front door, from Python and from the command line, on a small folder as a user has it."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cyclopts import Token
from safetensors.torch import load_file

import probmcl
from helpers import photographs as pictures
from helpers.commands import PROBMCL, TORCHRUN, finished, wait_until
from helpers.images import NAMES, folder_of_photographs
from probmcl.cli.options import key_values
from probmcl.data.options import DataChecks, ReadOptions
from probmcl.run.results import FROZEN_PROBE, Run

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"encoder": "test_resnet", "weights": "none", "image_size": 32, "probe_epochs": 3, "workers": 0}
FLAGS = [
    word for key, value in SMALL.items() if key != "workers" for word in (f"--{key.replace('_', '-')}", str(value))
]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_photographs(tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def run(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return probmcl.train(photographs, **SMALL, epochs=1, out=tmp_path_factory.mktemp("runs") / "run")


def test_auto_tries_the_probe_bce_and_probmcl_and_the_result_predicts(run: Run, photographs: Path) -> None:
    assert [c.name for c in run.candidates.values()] == [
        "frozen probe",
        "bce, own head",
        "bce, re-probed",
        "probmcl, re-probed",
    ]
    predictions = run.model.predict([str(photographs.parent)])
    assert predictions.scores.shape == (40, 3)
    assert predictions.names == tuple(sorted(NAMES))


def test_evaluating_on_the_training_table_scores_the_runs_own_test_images(run: Run, photographs: Path) -> None:
    result = probmcl.load(run.folder).evaluate(photographs, split="test")
    saved = json.loads((run.folder / "evaluation.json").read_text())
    assert result["images"] == saved["images"] == 8
    assert result["mAP"] == pytest.approx(saved["mAP"], abs=1e-3)


def test_the_command_says_what_it_understood_what_it_does_and_what_it_kept(photographs: Path, tmp_path: Path) -> None:
    words = ["train", str(photographs), *FLAGS, "--method", "probmcl", "--set", "temperature=0.2", "mean_size=8"]
    answer = finished(*PROBMCL, *words, "--epochs", "1", "--workers", "0", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name.endswith("-photos")
    for part in (
        "path column 'filename', labels 'tags'",
        "train 28 · val 4 · test 8",
        "classes without training positives: none",
        "encoder: test_resnet",
        "weights random; 32 px, mean",
        "note: random weights and 28 training images",
        "plan: probmcl, 1 epochs of 2 views",
        "learning rate 0.0003",
        "kept: ",
        "test mAP ",
        f"next: probmcl predict {Path('runs') / made.name}",
    ):
        assert part in answer.stdout, part
    own = json.loads((made / "config.json").read_text())["jobs"][0]["settings"]
    assert (own["temperature"], own["mean_size"]) == (0.2, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": "10m", "epochs": 3}, "give one|cannot be combined"),
        ({"epochs": 0}, "epochs=0 must be at least 1"),
        ({"method": "probmcl", "settings": {"temperature": -1.0}}, "above 0"),
        ({"method": "probmlc"}, "did you mean 'probmcl'"),
        ({"encoder": "test_resnett"}, "did you mean 'test_resnet'"),
        ({"weights": "pretraind"}, "did you mean 'pretrained'"),
        ({"method": "probmcl", "preset": "papr"}, "did you mean 'paper'"),
        ({"method": "probmcl", "settings": {"temprature": 0.1}}, "did you mean 'temperature'"),
        ({"recipe": "coco-tresnet-m"}, "did you mean 'coco-tresnet-m-224'"),
        ({"read": ReadOptions(labels_column="tag")}, "tags"),
        ({"read": ReadOptions(format="tabel")}, "did you mean 'table'"),
        ({"resume": "somewhere"}, "cannot be combined with `data`"),
    ],
)
def test_a_mistake_is_answered_with_the_nearest_and_leaves_nothing(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        probmcl.train(photographs, **{**SMALL, **changes})
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "run.json"]
    assert not [path for path in left if path.suffix == ".safetensors"]


def test_without_data_it_says_what_to_give() -> None:
    with pytest.raises(ValueError, match="a table or a folder"):
        probmcl.train()


def test_settings_are_read_as_toml_reads_them() -> None:
    words = ("temperature=0.1", "hidden=[2048, 128]", "similarity=aligned", "literal=true")
    pairs = key_values(None, [Token(value=word) for word in words])
    assert pairs == {"temperature": 0.1, "hidden": [2048, 128], "similarity": "aligned", "literal": True}
    with pytest.raises(ValueError, match="KEY=VALUE"):
        key_values(None, [Token(value="temperature")])


def test_a_bad_image_is_named_before_anything_is_trained_and_skipped_only_on_demand(tmp_path: Path) -> None:
    table = folder_of_photographs(tmp_path)
    (table.parent / "7.png").write_bytes((table.parent / "7.png").read_bytes()[:200])
    (table.parent / "9.png").unlink()
    with pytest.raises(ValueError) as error:  # noqa: PT011  # what it says is asked below
        probmcl.train(table, **SMALL, out=tmp_path / "run")
    assert "row 9" in str(error.value)
    assert "7.png" in str(error.value)
    assert "9.png: does not exist" in str(error.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="more than `skip_bad"):
        probmcl.train(table, **SMALL, checks=DataChecks(skip_bad=0.01), out=tmp_path / "run")
    run = probmcl.train(table, **SMALL, checks=DataChecks(skip_bad=0.05), method="probe", out=tmp_path / "run")
    skipped = json.loads((run.folder / "run.json").read_text())["data"]["skipped"]
    assert [Path(entry["path"]).name for entry in skipped] == ["7.png", "9.png"]
    assert all(entry["reason"] for entry in skipped)
    with (run.folder / "split.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 38


def test_a_budget_that_the_probe_uses_up_keeps_the_probe(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = probmcl.train(photographs, **SMALL, budget="0.01s", out=tmp_path / "run")
    assert run.kept.name == "frozen probe"
    assert "leaves no time for bce, probmcl" in capsys.readouterr().out


def test_a_budget_decides_the_epochs(photographs: Path, tmp_path: Path) -> None:
    probmcl.train(photographs, **SMALL, budget="10h", out=tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "checkpoints" / "plan.json").read_text())
    assert plan["epochs"] == {"bce": 60, "probmcl": 30}


def test_training_goes_on_from_an_earlier_run_with_its_encoder(
    run: Run, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = probmcl.train(
        photographs, weights=run.folder, method="bce", epochs=1, probe_epochs=3, workers=0, out=tmp_path / "run"
    )
    config = json.loads((again.folder / "config.json").read_text())
    assert (config["encoder"]["name"], config["encoder"]["image_size"]) == ("test_resnet", 32)
    assert "3 of 3; new: none; not used: none" in capsys.readouterr().out
    before, frozen = load_file(run.folder / "model.safetensors"), again.candidates[FROZEN_PROBE].state
    assert all((frozen[key] == value).all() for key, value in before.items() if key.startswith("encoder."))


def test_images_that_an_earlier_run_was_trained_on_are_called_out(
    run: Run, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"weights": run.folder, "method": "probe", "probe_epochs": 1, "workers": 0}
    other = probmcl.train(photographs, **given, seed=5, out=tmp_path / "other")  # type: ignore[arg-type]
    assert "were trained on in" in capsys.readouterr().out
    assert [warning.kind for warning in other.warnings] == ["seen_before"] * len(other.warnings) != []
    probmcl.train(photographs, **given, out=tmp_path / "same")  # type: ignore[arg-type]
    assert "were trained on in" not in capsys.readouterr().out


def test_a_run_and_its_model_are_shown_in_a_line(run: Run) -> None:
    assert repr(run).count("\n") == 0
    assert run.kept.name in repr(run)
    assert "3 classes" in repr(run.model)
    assert {"load", "train"} <= set(dir(probmcl))


def test_a_killed_command_is_resumed_to_the_scores_of_an_undisturbed_one(photographs: Path, tmp_path: Path) -> None:
    whole = probmcl.train(photographs, **SMALL, method="bce", epochs=150, out=tmp_path / "whole")
    words = ["train", str(photographs), *FLAGS, "--method", "bce", "--epochs", "150", "--workers", "0"]
    killed = tmp_path / "killed"
    metrics = killed / "metrics.jsonl"
    with subprocess.Popen([*PROBMCL, *words, "--out", str(killed)], text=True, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: metrics.exists() and '"stage": "bce"' in metrics.read_text(), process)
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert json.loads((killed / "run.json").read_text())["status"] == "running"
    assert probmcl.load(killed).predict(photographs.parent / "0.png").scores.shape == (1, 3)  # of the frozen probe
    probmcl.train(resume=killed)
    one, other = (json.loads((folder / "evaluation.json").read_text()) for folder in (whole.folder, killed))
    assert one == other
    about = [json.loads((folder / "run.json").read_text()) for folder in (whole.folder, killed)]
    assert about[0]["candidates"] == about[1]["candidates"]


def test_resuming_what_is_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        probmcl.train(resume=tmp_path)


def test_it_works_in_a_script_without_a_main_guard(photographs: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    given = {**SMALL, "workers": 2, "method": "probe", "out": str(tmp_path / "run")}
    script.write_text(f"import probmcl\nrun = probmcl.train({str(photographs)!r}, **{given!r})\nprint(run.kept.name)\n")
    answer = finished(sys.executable, script)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "frozen probe"


@pytest.mark.parametrize("tune", ["last", "all"])
def test_two_processes_end_in_the_model_of_one(photographs: Path, tmp_path: Path, tune: str) -> None:
    # An encoder without batch statistics, since these are a process's own.
    given: dict[str, Any] = {**SMALL, "encoder": "test_convnext", "tune": tune, "epochs": 2, "batch_size": 8}
    one = probmcl.train(photographs, **given, out=tmp_path / "one").folder
    words = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    answer = finished(*TORCHRUN, "train", photographs, *words, "--out", tmp_path / "two")
    assert answer.returncode == 0, answer.stderr
    printed = [line for line in answer.stdout.splitlines() if line.strip()]
    assert printed
    assert len(printed) == len(set(printed))  # by one process
    for split in ("val", "test"):
        alone, together = (np.load(run / "predictions" / f"{split}.npz")["scores"] for run in (one, tmp_path / "two"))
        np.testing.assert_allclose(alone, together, atol=2e-3)
    candidates = [json.loads((run / "run.json").read_text())["candidates"] for run in (one, tmp_path / "two")]
    assert [c["name"] for c in candidates[0]] == [c["name"] for c in candidates[1]]


def test_a_leak_that_is_allowed_is_remembered_and_the_run_goes_on_from_its_own_split(tmp_path: Path) -> None:
    table = pictures.folder(tmp_path / "photos", 30, splits=["train"] * 20 + ["val"] * 4 + ["test"] * 6)
    shutil.copy(table.parent / "1.jpg", table.parent / "28.jpg")
    with pytest.raises(ValueError, match="files in train and test"):
        probmcl.train(table, **SMALL, method="probe", out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    run = probmcl.train(table, **SMALL, method="probe", out=tmp_path / "run", checks=DataChecks(allow_leaks=True))
    about = json.loads((run.folder / "run.json").read_text())
    assert [warning["kind"] for warning in about["warnings"]] == ["leak"]
    assert "28.jpg" in about["warnings"][0]["message"]
    assert about["data"]["leaks_allowed"] == [about["warnings"][0]["message"]]
    assert probmcl.train(resume=run.folder).kept.name == "frozen probe"


def test_a_fold_is_tested_and_its_file_gives_the_same_folds_back(tmp_path: Path) -> None:
    table = pictures.folder(tmp_path / "photos", 30)
    run = probmcl.train(
        table,
        **SMALL,
        method="probe",
        out=tmp_path / "one",
        checks=DataChecks(folds=3, fold=2),
        cache=tmp_path / "cache",
    )
    with (run.folder / "folds.csv").open() as file:
        folds = {row["path"]: row["fold"] for row in csv.DictReader(file)}
    with (run.folder / "split.csv").open() as file:
        splits = {row["path"]: row["split"] for row in csv.DictReader(file)}
    assert {path for path, fold in folds.items() if fold == "2"} == {p for p, s in splits.items() if s == "test"}
    assert any((tmp_path / "cache").rglob("*"))
    again = probmcl.train(
        table,
        **SMALL,
        method="probe",
        out=tmp_path / "two",
        checks=DataChecks(split_file=run.folder / "folds.csv", fold=2),
        seed=0,
    )
    assert (again.folder / "split.csv").read_text() == (run.folder / "split.csv").read_text()
    assert again.kept.test == run.kept.test  # and so from the cache as without


def test_a_cache_inside_the_data_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    table = pictures.folder(tmp_path / "photos", 12)
    with pytest.raises(ValueError, match="`cache="):
        probmcl.train(table, **SMALL, method="probe", out=tmp_path / "run", cache=table.parent / "cache")
    assert not (table.parent / "cache").exists()
