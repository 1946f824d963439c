import json
from pathlib import Path
from typing import Any

import pytest

from made import NAMES, coloured_records
from made_run import made_run
from probmcl.cli import app
from probmcl.cli.evaluate import lines
from probmcl.model import load


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run, and the table of the images it had."""
    records = coloured_records(tmp_path / "photos")
    rows = [
        f"{path},{split},{'|'.join(name for name, present in zip(NAMES, labels, strict=True) if present)}"
        for path, split, labels in zip(records.paths, records.split, records.labels, strict=True)
    ]
    (tmp_path / "labels.csv").write_text("\n".join(["path,part,labels", *rows]))
    made_run(
        tmp_path / "run",
        split=list(zip(records.paths, records.split, strict=True)),
        data={"data": str(tmp_path / "labels.csv"), "split_column": "part"},
    )
    return tmp_path / "run"


def evaluate(*words: str | Path) -> None:
    app()(["evaluate", *map(str, words), "--device", "cpu", "--workers", "0"])


def test_the_runs_own_test_split_is_shown_and_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(run, "--json", run.parent / "scores.json")
    result = json.loads((run.parent / "scores.json").read_text())
    assert result == load(run).evaluate()
    assert result["images"] == 9
    shown = capsys.readouterr().out
    assert f"test: mAP {100 * result['mAP']:.1f} %" in shown
    assert "9 images, 3 of 3 classes" in shown
    assert f"{100 * result['at']['0.8']['OF1']:.1f}" in shown
    assert "only in the" not in shown


@pytest.mark.filterwarnings("always")
def test_other_data_is_matched_by_name_with_the_columns_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = coloured_records(run.parent / "other", train=4, val=0, test=0)
    rows = [f"{path.name},{number % 2},{number // 2},0" for number, path in enumerate(other.paths)]
    (run.parent / "other.csv").write_text("\n".join(["where,indoors,red,pink", *rows]))
    evaluate(
        run, run.parent / "other.csv", "--images", run.parent / "other", "--path-column", "where", "--split", "val"
    )
    captured = capsys.readouterr()
    assert "val: mAP" in captured.out
    assert "not scored, 2 classes only in the model: green, blue" in captured.out
    assert "not scored, 2 classes only in the data: indoors, pink" in captured.out
    assert "note: 4 of 4 images that are new to this run have the file name of one it was trained on" in captured.err


def test_an_existing_file_is_refused_before_the_model_is_loaded(run: Path) -> None:
    (run.parent / "scores.json").write_text("precious")
    with pytest.raises(FileExistsError, match="exists already"):
        evaluate(run.parent / "nowhere", "--json", run.parent / "scores.json")
    assert (run.parent / "scores.json").read_text() == "precious"


def result(ap: dict[str, float | None], **only: list[str]) -> dict[str, Any]:
    return {"ap": ap, "classes_only_in_model": [], "classes_only_in_data": [], **only}


def test_few_classes_are_all_listed_and_those_without_a_positive_are_not() -> None:
    assert lines(result({"cat": 0.9, "dog": 0.25, "emu": None})) == [
        "average precision, worst first: dog 25.0, cat 90.0"
    ]
    assert lines(result({"emu": None})) == []


def test_of_many_classes_the_worst_and_the_best_are_listed() -> None:
    ap: dict[str, float | None] = {f"c{number}": number / 20 for number in range(11)}
    assert lines(result(ap, classes_only_in_data=list("abcdefg"))) == [
        "worst: c0 0.0, c1 5.0, c2 10.0, c3 15.0, c4 20.0",
        "best: c10 50.0, c9 45.0, c8 40.0, c7 35.0, c6 30.0",
        "not scored, 7 classes only in the data: a, b, c, d, e and 2 more",
    ]


def test_what_a_classifier_has_to_say_of_its_map_comes_first() -> None:
    assert lines(result({"cat": 0.9}) | {"note": "mind this"})[0] == "note: mind this"
