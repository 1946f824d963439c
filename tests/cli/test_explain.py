import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.commands import main
from helpers.images import NAMES, colored_records
from helpers.run_folders import made_run
from probmcl.cli import app
from probmcl.inference import load


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made_run(tmp_path / "run")
    colored_records(tmp_path / "photos", train=3, val=0, test=0)
    return tmp_path / "run"


@pytest.fixture
def photos(run: Path) -> Path:
    return run.parent / "photos"


def explain(*words: str | Path) -> None:
    app()(["explain", *map(str, words), "--device", "cpu", "--workers", "0"])


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_pictures_and_maps_are_written(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run.parent / "out"
    explain(run, photos, "--out", out)
    assert files(out) == ["0.png", "1.png", "2.png", "maps.npz"]
    with Image.open(out / "0.png") as sheet:
        assert min(sheet.size) > 300
    expected = [(str(image.path), label) for image in load(run).explain(photos, workers=0) for label in image.maps]
    with np.load(out / "maps.npz") as maps:
        assert list(zip(maps["path"].tolist(), maps["label"].tolist(), strict=True)) == expected
    assert f"pictures of 3 images and maps.npz: {out}" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize(("labels", "count"), [(["all"], 3), (["red", "blue"], 2)])
def test_labels_can_be_chosen(run: Path, photos: Path, labels: list[str], count: int) -> None:
    explain(run, photos / "1.png", "--labels", *labels, "--out", run.parent / "out")
    with np.load(run.parent / "out" / "maps.npz") as maps:
        assert len(maps["maps"]) == count


def test_two_runs_are_compared_on_the_labels_of_either(run: Path, photos: Path) -> None:
    other, out = run.parent / "other", run.parent / "out"
    made_run(other, names=["blue", "red", "pink"])  # the classes of the same outputs have other names
    explain(run, photos, "--against", other, "--out", out)
    assert files(out) == ["0.png", "1.png", "2.png", "maps-against.npz", "maps.npz"]
    decided = [set(image.decided) for image in load(run).explain(photos, workers=0)]
    also = [set(image.decided) for image in load(other).explain(photos, workers=0)]
    expected = [(one | two) & {"red", "blue"} for one, two in zip(decided, also, strict=True)]
    with np.load(out / "maps.npz") as maps, np.load(out / "maps-against.npz") as others:
        assert maps["label"].tolist() == others["label"].tolist()
        assert maps["path"].tolist() == others["path"].tolist()
        labels = {path: set(maps["label"][maps["path"] == path]) for path in maps["path"]}
    assert [labels.get(str(photos / f"{k}.png"), set()) for k in range(3)] == expected


def test_unreadable_images_are_named(run: Path, photos: Path) -> None:
    (photos / "1.png").write_bytes(b"")
    result = main("explain", run, photos, "--out", run.parent / "out", "--workers", "0")
    assert result.returncode == 0
    assert "1 of 3 images could not be read:" in result.stderr
    assert "the file is empty" in result.stderr
    assert files(run.parent / "out") == ["0.png", "2.png", "maps.npz"]
    failed = main("explain", run, photos / "1.png", "--out", run.parent / "new", "--workers", "0")
    assert failed.returncode == 1
    assert "1 of 1 image could not be read" in failed.stderr


def test_nothing_is_overwritten(run: Path, photos: Path) -> None:
    (run.parent / "out").mkdir()
    (run.parent / "out" / "note.txt").touch()
    result = main("explain", run, photos, "--out", run.parent / "out")
    assert result.returncode == 1
    assert "is not empty, and existing files are never overwritten" in result.stderr
    assert files(run.parent / "out") == ["note.txt"]


def test_errors_spell_options_as_typed(run: Path, photos: Path) -> None:
    result = main("explain", run, photos, "--labels", "red", "gren", "--out", run.parent / "out")
    assert result.returncode == 1
    expected = "--labels red gren contains 'gren', which is not a class of the model; did you mean 'green'?"
    assert result.stderr == f"probmcl: {expected}\n"
    assert not (run.parent / "out").exists()


def test_runs_that_cannot_be_compared_are_refused(run: Path, photos: Path) -> None:
    same = main("explain", run, photos, "--against", run, "--out", run.parent / "out")
    assert same.returncode == 1
    assert "is the same run" in same.stderr
    made_run(run.parent / "other", names=["x", "y", "z"])
    other = main("explain", run, photos, "--against", run.parent / "other", "--out", run.parent / "out")
    assert other.returncode == 1
    assert "have no class in common" in other.stderr


def test_class_names_are_drawn_as_text(run: Path, photos: Path) -> None:
    labels = json.loads((run / "labels.json").read_text())
    (run / "labels.json").write_text(json.dumps(labels | {"names": ["$\\frac{$", "猫", "[red]" * 30]}))
    assert len(NAMES) == 3
    explain(run, photos / "0.png", "--labels", "all", "--out", run.parent / "out")
    assert files(run.parent / "out") == ["0.png", "maps.npz"]
