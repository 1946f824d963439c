"""`probmcl.train`, from Python and from the command line, on a small folder of images."""

import csv
import json
import re
import shutil
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cyclopts import Token
from rich.console import Console as RichConsole
from safetensors.torch import load_file

import probmcl
from helpers import photographs as pictures
from helpers import processes
from helpers.commands import TORCHRUN, finished, main
from helpers.images import NAMES, colored_records, folder_of_photographs
from probmcl.cli.options import key_values
from probmcl.console import Console
from probmcl.readers.options import DataChecks, ReadOptions
from probmcl.run.results import FROZEN_PROBE, Run

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "encoder": "test_resnet",
    "weights": "none",
    "image_size": 32,
    "probe_epochs": 3,
    "workers": 0,
    "report": False,
}
FLAGS = ["--encoder", "test_resnet", "--weights", "none", "--image-size", "32", "--probe-epochs", "3", "--no-report"]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_photographs(tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def terminal() -> Console:
    return Console(RichConsole(file=StringIO(), force_terminal=True, width=80))


@pytest.fixture(scope="module")
def run(photographs: Path, terminal: Console, tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(photographs.parent)  # a relative path, so that the printed lines do not depend on the machine
        out = tmp_path_factory.mktemp("runs") / "run"
        return probmcl.train(photographs.name, **SMALL, epochs=1, out=out, console=terminal)


def test_auto_trains_bce_and_probmcl_and_the_result_can_predict(run: Run, photographs: Path) -> None:
    assert [c.name for c in run.candidates.values()] == [
        "frozen probe",
        "bce, own head",
        "bce, re-probed",
        "probmcl, re-probed",
    ]
    predictions = run.model.predict([str(photographs.parent)])
    assert predictions.scores.shape == (40, 3)
    assert predictions.names == tuple(sorted(NAMES))


def test_evaluating_the_training_table_uses_the_test_images_of_the_run(run: Run, photographs: Path) -> None:
    result = probmcl.load(run.folder).evaluate(photographs, split="test")
    saved = json.loads((run.folder / "evaluation.json").read_text())
    assert result["images"] == saved["images"] == 5
    assert result["mAP"] == pytest.approx(saved["mAP"], abs=1e-3)


def test_the_command_prints_data_settings_and_result(photographs: Path, tmp_path: Path) -> None:
    words = ["train", str(photographs), *FLAGS, "--method", "probmcl", "--set", "temperature=0.2", "mean_size=8"]
    answer = main(*words, "--epochs", "1", "--workers", "0", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-photos")
    for part in (
        "path column 'filename'\n  labels: column 'tags'",
        "train 30 · val 5 · test 5",
        "classes without training positives: none",
        "encoder: test_resnet",
        "weights: random",
        "32 × 32 pixels",
        "note: random weights",
        "plan: probmcl 1 epoch (2 views)",
        "learning rates: probmcl 0.0003",
        "kept: ",
        "test mAP ",
    ):
        assert part in answer.stdout, part
    warnings = json.loads((folder / "run.json").read_text())["warnings"]
    expected = [f"next: probmcl predict {Path('runs') / folder.name} IMAGES --out predictions.csv"]
    expected += [f"warning: {warning['message']}" for warning in warnings if warning["kind"] == "chance"]
    assert answer.stdout.splitlines()[-len(expected) :] == expected
    stored = json.loads((folder / "config.json").read_text())["jobs"][0]["settings"]
    assert (stored["temperature"], stored["mean_size"]) == (0.2, 8)


def screen(output: str) -> list[str]:
    """Return the lines that a terminal shows after some output, with progress bars erased."""
    lines, row = [""], 0
    for code, text in re.findall(r"(\x1b\[[?\d;]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", output):
        if code == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif code == "\x1b[1A":
            row -= 1
        elif code == "\x1b[2K":
            lines[row] = ""
        lines[row] += text
    return [line for line in lines if line.strip()]


def test_training_two_methods_prints_at_most_25_lines_on_a_terminal(run: Run, terminal: Console) -> None:
    assert isinstance(terminal.rich.file, StringIO)
    lines = screen(terminal.rich.file.getvalue())
    assert any(line.startswith("kept: ") for line in lines)
    warned = any(warning.kind == "chance" for warning in run.warnings)  # a warning about the model takes two lines
    assert len(lines) <= 24 + 2 * warned  # the command prints one more line, with the next step


def test_the_last_line_is_a_warning_if_the_labels_cannot_be_learned(tmp_path: Path) -> None:
    records = colored_records(tmp_path / "photos", train=40, val=20, test=60)
    names = np.array(records.label_space.names)
    with (tmp_path / "photos" / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["filename", "split", "labels"])
        for path, split, labels in zip(records.paths, records.split, records.labels[::-1], strict=True):
            table.writerow([path.name, split, "|".join(names[labels > 0])])
    output = StringIO()
    console = Console(RichConsole(file=output, width=300))
    run = probmcl.train(tmp_path / "photos", **SMALL, method="probe", out=tmp_path / "run", console=console)
    (warning,) = run.warnings
    assert output.getvalue().splitlines()[-1] == f"warning: {warning.message}"
    answer = main("train", "--resume", str(run.folder), cwd=tmp_path)
    assert answer.stdout.splitlines()[-1] == f"warning: {warning.message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": "10m", "epochs": 3}, "budget"),
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
        ({"resume": "somewhere", "seed": 1}, r"cannot be combined with .*`seed`"),
    ],
)
def test_an_invalid_option_is_an_error_and_writes_no_model(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        probmcl.train(photographs, **{**SMALL, **changes})
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "run.json"]
    assert not [path for path in left if path.suffix == ".safetensors"]


def test_without_data_the_error_asks_for_a_table_or_folder() -> None:
    with pytest.raises(ValueError, match="a table or a folder"):
        probmcl.train()


def test_settings_are_parsed_as_toml() -> None:
    words = ("temperature=0.1", "hidden=[2048, 128]", "similarity=aligned", "literal=true")
    pairs = key_values(None, [Token(value=word) for word in words])
    assert pairs == {"temperature": 0.1, "hidden": [2048, 128], "similarity": "aligned", "literal": True}
    with pytest.raises(ValueError, match="KEY=VALUE"):
        key_values(None, [Token(value="temperature")])


def test_unreadable_images_are_an_error_before_training_unless_skipped(tmp_path: Path) -> None:
    table = folder_of_photographs(tmp_path)
    (table.parent / "7.png").write_bytes((table.parent / "7.png").read_bytes()[:200])
    (table.parent / "9.png").unlink()
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the message is checked below
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


def test_a_tiny_budget_keeps_the_frozen_probe(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = probmcl.train(photographs, **SMALL, budget="0.01s", out=tmp_path / "run")
    assert run.kept.name == "frozen probe"
    assert "too small to train bce, probmcl" in capsys.readouterr().out


def test_a_budget_sets_the_epochs(photographs: Path, tmp_path: Path) -> None:
    probmcl.train(photographs, **SMALL, budget="10h", out=tmp_path / "run")
    plan = json.loads((tmp_path / "run" / "checkpoints" / "plan.json").read_text())
    assert plan["epochs"] == {"bce": 60, "probmcl": 30}


def test_weights_of_an_earlier_run_are_used_with_its_encoder(
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


def test_images_that_an_earlier_run_was_trained_on_are_a_warning(
    run: Run, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"weights": run.folder, "method": "probe", "probe_epochs": 1, "workers": 0}
    other = probmcl.train(photographs, **options, seed=5, out=tmp_path / "other")  # type: ignore[arg-type]
    assert "were used for training in" in capsys.readouterr().out
    assert {warning.kind for warning in other.warnings} == {"seen_before", "calibration"}  # few images to calibrate
    probmcl.train(photographs, **options, out=tmp_path / "same")  # type: ignore[arg-type]
    assert "used for training in" not in capsys.readouterr().out


def test_run_and_model_have_a_short_repr(run: Run) -> None:
    assert repr(run).count("\n") == 0
    assert run.kept.name in repr(run)
    assert "3 classes" in repr(run.model)
    assert {"load", "train"} <= set(dir(probmcl))


def test_resuming_a_folder_that_is_not_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a run folder: it has no run\.json"):
        probmcl.train(resume=tmp_path)


@pytest.mark.exhaustive
def test_it_works_in_a_script_without_a_main_guard(photographs: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    options = {**SMALL, "workers": 2, "method": "probe", "out": str(tmp_path / "run")}
    script.write_text(
        f"import probmcl\nrun = probmcl.train({str(photographs)!r}, **{options!r})\nprint(run.kept.name)\n"
    )
    answer = finished(sys.executable, script)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "frozen probe"


def test_torchrun_gives_the_model_of_one_process(photographs: Path, tmp_path: Path) -> None:
    options = processes.TRAINING | {"tune": "last", "method": "probmcl"}
    one = probmcl.train(photographs, **options, report=False, out=tmp_path / "one")
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    answer = finished(*TORCHRUN, "train", photographs, *words, "--no-report", "--out", tmp_path / "two")
    assert answer.returncode == 0, answer.stderr
    printed = [line for line in answer.stdout.splitlines() if line.strip()]
    assert printed
    assert len(printed) == len(set(printed))  # printed by one process only
    processes.assert_same_model(one.folder, tmp_path / "two")


def test_an_allowed_leak_is_stored_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    table = pictures.folder(tmp_path / "photos", 30, splits=["train"] * 20 + ["val"] * 4 + ["test"] * 6)
    shutil.copy(table.parent / "1.jpg", table.parent / "28.jpg")
    with pytest.raises(ValueError, match="files in train and test"):
        probmcl.train(table, **SMALL, method="probe", out=tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    run = probmcl.train(table, **SMALL, method="probe", out=tmp_path / "run", checks=DataChecks(allow_leaks=True))
    metadata = json.loads((run.folder / "run.json").read_text())
    kinds = [warning["kind"] for warning in metadata["warnings"]]
    assert kinds[0] == "leak"
    assert set(kinds[1:]) <= {"chance", "calibration"}  # there are few images
    assert "28.jpg" in metadata["warnings"][0]["message"]
    assert metadata["data"]["leaks_allowed"] == [metadata["warnings"][0]["message"]]
    assert probmcl.train(resume=run.folder, report=False).kept.name == "frozen probe"


def test_one_fold_is_tested_and_its_file_reproduces_the_folds(tmp_path: Path) -> None:
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
    assert again.kept.test == run.kept.test  # the image cache changes nothing


def test_an_image_cache_inside_the_data_is_an_error(tmp_path: Path) -> None:
    table = pictures.folder(tmp_path / "photos", 20)
    with pytest.raises(ValueError, match="`cache="):
        probmcl.train(table, **SMALL, method="probe", out=tmp_path / "run", cache=table.parent / "cache")
    assert not (table.parent / "cache").exists()
