"""Run folders of version 0.1 can be loaded, evaluated, resumed and compared."""

import json
from pathlib import Path
from typing import Any

import pytest

import probmcl
from helpers.old_runs import expected, restore
from probmcl.run.results import FROZEN_PROBE

COARSE = 0.25
"""Tolerance for the mAP of a few images after training on a processor that rounds differently."""


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    return expected()


@pytest.mark.parametrize("image", ["00.png", "01.png", "02.png"])
def test_a_finished_run_predicts_the_same_scores(tmp_path: Path, numbers: dict[str, Any], image: str) -> None:
    folder = restore("finished", tmp_path)
    predicted = probmcl.load(folder, device="cpu").predict(tmp_path / "photos" / image, workers=0)
    assert predicted.names == ("blue", "green", "red")
    assert predicted.scores[0].tolist() == pytest.approx(numbers["finished"]["predicted"][image], abs=1e-4)


def test_a_finished_run_evaluates_on_its_own_test_images(tmp_path: Path, numbers: dict[str, Any]) -> None:
    result = probmcl.load(restore("finished", tmp_path), device="cpu").evaluate(workers=0, draws=10)
    assert result["mAP"] == pytest.approx(numbers["finished"]["evaluated_mAP"], abs=1e-4)
    assert (result["images"], result["trained_on"]) == (16, 0)


def test_a_finished_run_is_read_exactly(tmp_path: Path, numbers: dict[str, Any]) -> None:
    run = probmcl.train(resume=restore("finished", tmp_path), report=False)
    expected_run = numbers["finished"]
    assert run.kept.name == expected_run["kept"] == "asl, own head"
    assert {c.name: c.validation_map for c in run.candidates.values()} == expected_run["validation_mAP"]
    assert {c.name: c.test["mAP"] for c in run.candidates.values() if c.test} == expected_run["test_mAP"]


def test_an_interrupted_run_resumes_from_its_checkpoint(
    tmp_path: Path, numbers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, expected_run = restore("interrupted", tmp_path), numbers["interrupted"]
    assert (folder / "checkpoints" / "training asl.safetensors").is_file()
    run = probmcl.train(resume=folder, report=False)
    assert "frozen probe: val mAP 76.9 (chance " in capsys.readouterr().out  # scored again
    assert run.candidates[FROZEN_PROBE].validation_map == pytest.approx(0.7693, abs=5e-5)
    scores = {c.name: c.validation_map for c in run.candidates.values()}
    assert scores == pytest.approx(expected_run["validation_mAP"], abs=COARSE)
    assert scores["frozen probe"] == expected_run["validation_mAP"]["frozen probe"]  # loaded, not fitted again
    metadata = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert metadata["status"] == "finished"
    assert metadata["test_mAP"]["frozen probe"] == pytest.approx(expected_run["test_mAP"]["frozen probe"], abs=1e-4)
    stages = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [row["step"] for row in stages if row["stage"] == "asl"]
    assert steps == [10, 20, 30, 40, 50, 60, 70, 80, 90]  # 30 were before the interrupt; no step is repeated


def test_a_finished_comparison_is_read_exactly(tmp_path: Path, numbers: dict[str, Any]) -> None:
    again = probmcl.compare(resume=restore("comparison", tmp_path), report=False)
    assert {row.title: row.mAP for row in again.rows} == numbers["comparison"]["mAP"]


def test_an_old_and_a_new_comparison_can_be_merged(tmp_path: Path, numbers: dict[str, Any]) -> None:
    old, new = restore("comparison", tmp_path), tmp_path / "new"
    table, settings = tmp_path / "photos" / "labels.csv", numbers["comparison"]["settings"]
    made = probmcl.compare(table, **settings, methods="focal", out=new, add=[old / "results.jsonl"])
    joined = probmcl.compare(resume=old, add=[new / "results.jsonl"], report=False)
    assert len({row.fingerprint for row in made.rows}) == 1
    for comparison in (made, joined):
        scores = {row.title: row.mAP for row in comparison.rows}
        assert scores == pytest.approx(numbers["added"]["mAP"], abs=COARSE)
        assert {title: scores[title] for title in scores if title.startswith(("bce", "asl"))} == {
            title: mean for title, mean in numbers["comparison"]["mAP"].items() if title != "frozen probe"
        }
