import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.commands import main
from helpers.images import colored_records
from helpers.run_folders import made_run
from probmcl.cli import app
from probmcl.cli.predict import prediction_lines
from probmcl.inference import Predictions, load

RUN = "import sys; sys.argv[0] = 'probmcl'; from probmcl.cli import main; main()"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made_run(tmp_path / "run")
    colored_records(tmp_path / "photos", train=6, val=0, test=0)
    return tmp_path / "run"


@pytest.fixture
def photos(run: Path) -> Path:
    return run.parent / "photos"


def predict(*words: str | Path) -> None:
    app()(["predict", *map(str, words), "--device", "cpu", "--workers", "0"])


def test_a_csv_file_has_the_predictions_of_the_library(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predict(run, photos / "5.png", photos, "--out", run.parent / "out.csv", "--threshold", "0.7")
    expected = load(run).predict([photos / "5.png", photos], threshold=0.7)
    names = expected.names
    with (run.parent / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["path"]) for row in rows] == list(expected.paths)
    assert [[row[f"{name}:decision"] == "1" for name in names] for row in rows] == expected.labels.tolist()
    np.testing.assert_allclose([[float(row[name]) for name in names] for row in rows], expected.scores, rtol=1e-4)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"7 images: {run.parent / 'out.csv'}" in captured.err.replace("\n", "")
    assert "could not be read" not in captured.err


def test_unreadable_images_are_counted_on_stderr_and_explained_in_the_file(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "2.png").write_bytes(b"")
    predict(run, photos, "--out", run.parent / "out.json")
    images = json.loads((run.parent / "out.json").read_text())["images"]
    assert [image["error"] for image in images] == [None, None, "the file is empty", None, None, None]
    assert "1 of 6 images could not be read" in capsys.readouterr().err


def test_counts_of_a_single_image(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict(run, photos / "1.png", "--out", run.parent / "out.csv")
    assert "predictions for 1 image:" in capsys.readouterr().err
    (photos / "2.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"^1 of 1 image could not be read; see ERROR"):
        predict(run, photos / "2.png")


def test_without_a_file_one_line_per_image_is_printed(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "2.png").write_bytes(b"")
    predict(run, photos)
    captured = capsys.readouterr()
    assert captured.out.splitlines() == list(prediction_lines(load(run).predict(photos)))
    assert captured.out.splitlines()[2] == f"{photos / '2.png'}: ERROR: the file is empty"
    assert "1 of 6 images could not be read" in captured.err


def test_a_line_has_the_predicted_classes_by_probability() -> None:
    scores = np.array([[0.7, 0.2, 0.934], [0.5, 0.1, 0.3]], dtype=np.float32)
    predictions = Predictions(("cat", "dog", ":bus:"), (Path("a [b].jpg"), Path("c.jpg")), scores, 0.5, (None, None))
    first, second = prediction_lines(predictions)
    assert first == "a [b].jpg: :bus: 0.93, cat 0.70"
    assert second == "c.jpg: no labels; most probable: cat 0.50"


def test_short_format_leaves_unreadable_images_out_and_names_them(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "2.png").write_bytes(b"")
    out = run.parent / "out.csv"
    predict(run, photos, "--format", "short", "--out", out)
    written = capsys.readouterr().err.replace("\n", "")
    assert f"1 of 6 images could not be read; not in the output: {photos / '2.png'}" in written
    assert "predictions for 5 images" in written
    predict(run, photos, "--format", "short")
    assert capsys.readouterr().out.splitlines() == out.read_text().splitlines()
    expected = [image for image in load(run).predict(photos) if image.labels is not None]
    with out.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["path", "labels"], *([str(image.path), "|".join(image.labels or ())] for image in expected)]


def test_short_format_names_the_first_unreadable_images(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = [str(photos / f"nowhere {number}.png") for number in range(1200)]
    predict(run, photos / "0.png", *missing, "--format", "short")
    message = capsys.readouterr().err.replace("\n", "")
    named = f"not in the output: {', '.join(missing[:5])} and 1,195 more"
    assert message.endswith(f"1,200 of 1,201 images could not be read; {named}")
    with pytest.raises(ValueError, match="1 of 1 image could not be read"):
        predict(run, missing[0], "--format", "short")


@pytest.mark.parametrize("terminal", [False, True])
def test_short_format_escapes_tabs_and_line_feeds_only_on_a_terminal(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    image = (photos / "1.png").rename(photos / "=a\tb\nc\x1b.png")
    monkeypatch.chdir(photos)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    for options, prefix in (([], "'"), (["--raw-cells"], "")):
        predict(run, image.name, "--format", "short", *options)
        header, row = csv.reader(io.StringIO(capsys.readouterr().out, newline=""))
        assert header == ["path", "labels"]
        assert row[0] == prefix + (r"=a\tb\nc\x1b.png" if terminal else "=a\tb\nc\\x1b.png")


def test_short_format_in_a_json_file_is_refused_before_the_model_is_loaded(run: Path, photos: Path) -> None:
    with pytest.raises(ValueError, match=r"""`format="short"` is a CSV table"""):
        predict(run.parent / "nowhere", photos, "--format", "short", "--out", run.parent / "out.json")


def test_an_existing_file_is_refused_before_the_model_is_loaded(run: Path, photos: Path) -> None:
    out = run.parent / "out.csv"
    out.write_text("precious")
    with pytest.raises(FileExistsError, match="exists"):
        predict(run.parent / "nowhere", photos, "--out", out)
    assert out.read_text() == "precious"
    with pytest.raises(ValueError, match=r"\.csv or \.json"):
        predict(run.parent / "nowhere", photos, "--out", run.parent / "out.txt")


def test_an_empty_folder_is_an_error_and_leaves_no_file(run: Path) -> None:
    (run.parent / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        predict(run, run.parent / "empty", "--out", run.parent / "out.csv")
    assert not list(run.parent.glob("out*"))


def test_a_folder_that_is_not_a_run_is_one_message_and_exit_code_1(run: Path, photos: Path) -> None:
    answer = main("predict", photos, photos)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"probmcl: {photos} is not a run folder")
    assert answer.stderr.count("\n") == 1
