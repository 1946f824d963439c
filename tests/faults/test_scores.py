"""Results that can be repeated and are right, the origin of settings, and outputs without private metadata."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image
from sklearn.metrics import average_precision_score

import probmcl
from faults.conftest import NO_REPORT, SMALL
from helpers.faults import Commands
from probmcl.errors import ProbmclError

pytestmark = pytest.mark.slow

TIMED = {
    "metrics.csv": "speed",
    "metrics.jsonl": "speed",
    "run.json": "times and the command",
    "checkpoints/bce.outcome.json": "seconds",
    "checkpoints/costs.json": "speed",
    "checkpoints/plan.json": "estimated seconds",
    "manifest.json": "the digests of these files",
}
"""Files that differ between two runs with the same seed, and why."""


def keys_of(content: Any, prefix: str = "") -> Iterator[str]:
    """Yield the path of every value in the settings of config.json; jobs are identified by their names."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from keys_of(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix


def test_config_records_where_each_value_came_from(command: Commands, photos: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('method = "bce"\nseed = 3\naugment = "none"\n[training]\nepochs = 9\nbatch_size = 4\n')
    options = ["--encoder", "test_convnext", "--weights", "none", "--image-size", "32", "--probe-epochs", "2"]
    options += ["--epochs", "1", "--seed", "4", *NO_REPORT]
    ended = command("train", photos, "--recipe", recipe, *options, "--out", tmp_path / "run")
    assert ended.code == 0, ended.text
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    origins = config.pop("origins")
    job = config.pop("jobs")[0]
    config["jobs"] = {job["name"]: {"training": job["training"], "settings": job["settings"]}}
    config.pop("schema")
    assert set(keys_of(config)) == origins.keys()
    by_origin = {origin: {key for key in origins if origins[key] == origin} for origin in set(origins.values())}
    assert by_origin.pop("user") == {
        *("encoder.name", "encoder.weights", "encoder.image_size", "probe.epochs", "seed", "jobs.bce.training.epochs")
    }
    assert by_origin.pop("recipe") == {"method", "augment", "jobs.bce.training.batch_size"}
    assert by_origin.pop("auto") == {"tune", "workers", "device", "intensity"}
    assert by_origin.keys() == {"default"}


def test_unknown_origin_is_refused(command: Commands, unfinished: Path) -> None:
    config = json.loads((unfinished / "config.json").read_text())
    config["origins"]["seed"] = "guessed"
    (unfinished / "config.json").write_text(json.dumps(config))
    ended = command("train", "--resume", unfinished, *NO_REPORT)
    assert ended.code == 1
    assert "config.json" in ended.stderr
    assert "Traceback" not in ended.text


def test_same_seed_gives_the_same_files(command: Commands, photos: Path, finished_run: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    ended = command("train", photos, *SMALL, "--out", again)
    assert ended.code == 0, ended.text
    files = {path.relative_to(again).as_posix() for path in again.rglob("*") if path.is_file()}
    assert files == {path.relative_to(finished_run).as_posix() for path in finished_run.rglob("*") if path.is_file()}
    for name in sorted(files - TIMED.keys()):
        ours, theirs = again / name, finished_run / name
        if name.endswith(".npz"):
            with np.load(ours) as first, np.load(theirs) as second:
                assert first.files == second.files, name
                assert all(
                    np.array_equal(first[key], second[key], equal_nan=first[key].dtype.kind == "f") for key in first
                )
        elif name.startswith("checkpoints/") and name.endswith(".safetensors"):
            assert tensors(ours) == tensors(theirs), name  # the header has the seconds that it took
        else:
            assert ours.read_bytes() == theirs.read_bytes(), name


def tensors(path: Path) -> bytes:
    """Return the content of a safetensors file without its header."""
    content = path.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def test_stored_metrics_are_those_of_scikit_learn(command: Commands, finished_run: Path, tmp_path: Path) -> None:
    ended = command("evaluate", finished_run, "--workers", "0", "--json", tmp_path / "evaluation.json")
    assert ended.code == 0, ended.text
    names = json.loads((finished_run / "labels.json").read_text())["names"]
    with np.load(finished_run / "predictions" / "test.npz") as stored:
        scores, labels = stored["scores"], stored["labels"]
    expected = {
        name: average_precision_score(labels[:, k], scores[:, k])
        for k, name in enumerate(names)
        if 0 < labels[:, k].sum() < len(labels)
    }
    for path in (finished_run / "evaluation.json", tmp_path / "evaluation.json"):
        evaluation = json.loads(path.read_text())
        assert {name: value for name, value in evaluation["ap"].items() if value is not None} == pytest.approx(expected)
        assert evaluation["mAP"] == pytest.approx(np.mean(list(expected.values())))


# Python calls (row "API").


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("images", [5, None, [5], object(), []], ids=["number", "None", "list", "object", "empty"])
def test_wrong_types_in_python_are_errors_with_the_remedy(finished_run: Path, images: object) -> None:
    with pytest.raises(ProbmclError, match="expected"):
        probmcl.load(finished_run).predict(images, workers=0)  # type: ignore[arg-type]


def test_two_threads_predict_the_same(finished_run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = probmcl.load(finished_run)
    with ThreadPoolExecutor(2) as threads:
        predicted = list(threads.map(lambda _: model.predict(photos, workers=0).scores, range(6)))
    assert all(np.array_equal(scores, predicted[0]) for scores in predicted)
    assert capsys.readouterr().out == ""


def test_outputs_have_no_metadata_of_the_photographs(command: Commands, photos: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(photos, tmp_path / "data"))
    for path in data.glob("*.jpg"):
        with Image.open(path) as image:
            exif = image.getexif()
            exif[ExifTags.Base.Artist] = "SECRET-ARTIST"
            exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSMapDatum] = "SECRET-PLACE"
            image.save(path, exif=exif, comment=b"SECRET-COMMENT", quality=90)
    assert all(b"SECRET-PLACE" in path.read_bytes() for path in data.glob("*.jpg"))
    run = tmp_path / "run"
    ended = command("train", data, *(option for option in SMALL if option != "--no-report"), "--out", run)
    assert ended.code == 0, ended.text
    ended = command("explain", run, data / "0.jpg", "--out", tmp_path / "explained")
    assert ended.code == 0, ended.text
    for path in [*run.rglob("*"), *(tmp_path / "explained").rglob("*")]:
        assert path.is_dir() or b"SECRET" not in path.read_bytes(), path
    for path in [*run.rglob("*.png"), *(tmp_path / "explained").rglob("*.[jp][pn]g")]:
        with Image.open(path) as image:
            assert not image.getexif()
            assert not image.info.get("comment")
