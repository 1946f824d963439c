import json
from pathlib import Path

import pytest

from helpers.commands import main
from helpers.images import folder_of_photographs
from helpers.reports import finished_run
from probmcl.errors import RunError

pytestmark = pytest.mark.slow  # it trains, or renders whole reports


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("command") / "run")


def test_the_page_is_written_to_the_run_folder(run: Path) -> None:
    done = main("report", run, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("report: do not use; ")
    assert done.stdout.strip().endswith("report.html")
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads((run / "report.json").read_text(encoding="utf-8"))["photographs"] > 0


def test_out_and_no_images(run: Path, tmp_path: Path) -> None:
    done = main("report", run, "--out", tmp_path / "private.html", "--no-images", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "data:image/jpeg" not in (tmp_path / "private.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "private.json").read_text(encoding="utf-8"))["photographs"] == 0


def test_the_folders_of_the_images_are_printed_before_they_are_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RunError("stopped before images are read")

    monkeypatch.setattr("probmcl.report.run_report.embed_test_images", fail)
    done = main("report", run, run, "--out", tmp_path / "report.html", "--device", "cpu")
    line = f"images of the run: reading only files in {run.parent / 'run-photos'}\n"
    assert done.stderr == f"{line}probmcl: stopped before images are read\n"  # images of the other run are not read


@pytest.mark.parametrize("options", [[], ["--no-images"]])
def test_images_outside_the_data_are_not_read(tmp_path: Path, options: list[str]) -> None:
    run = finished_run(tmp_path / "run")
    (tmp_path / "run-photos").rename(tmp_path / "moved")
    (tmp_path / "run-photos").symlink_to(tmp_path / "moved")
    metadata = json.loads((run / "run.json").read_text())
    recorded = {"data": str(tmp_path), "roots": [str(tmp_path / "recorded")]}
    (run / "run.json").write_text(json.dumps(metadata | {"data": recorded}))
    done = main("report", run, "--device", "cpu", *options)
    assert done.returncode == 0, done.stderr
    note = f"is outside the data of the run ({tmp_path / 'recorded'}), so it is not read; the report has no photographs"
    assert note in done.stderr
    content = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert content["photographs"] == 0
    assert content["embedding"] is None


def test_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    done = main("report", tmp_path)
    assert done.returncode == 1
    assert "is not a run folder" in done.stderr


def test_a_comparison_is_refused_with_the_remedy(run: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text("{}")
    done = main("report", tmp_path)
    assert done.returncode == 1
    assert "pass one of its runs" in done.stderr


@pytest.mark.slow
def test_train_writes_the_report_and_the_features_unless_they_are_turned_off(tmp_path: Path) -> None:
    data = folder_of_photographs(tmp_path / "data")
    options = [
        "--method",
        "probe",
        "--encoder",
        "test_resnet",
        "--weights",
        "none",
        "--image-size",
        "32",
        "--probe-epochs",
        "3",
        "--workers",
        "0",
    ]
    done = main("train", data, *options, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "report: " in done.stdout
    assert all((tmp_path / "run" / name).is_file() for name in ("report.html", "report.json", "neighbors.safetensors"))
    done = main("train", data, *options, "--no-report", "--no-neighbors", "--out", tmp_path / "plain")
    assert done.returncode == 0, done.stderr
    assert "report: " not in done.stdout
    assert not list((tmp_path / "plain").glob("report.*"))
    assert not (tmp_path / "plain" / "neighbors.safetensors").exists()
