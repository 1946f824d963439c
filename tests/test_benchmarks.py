"""Parts of the benchmarks whose errors would not be visible in their results."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import first_minutes
import plain_script
import rounds
import selection
import training_overhead
from helpers.images import NAMES, colored_records
from probmcl.data.records import SPLITS
from probmcl.evaluation import average_precision
from probmcl.readers import read


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of colored squares with a table of label indices; the first image has only a difficult label."""
    records = colored_records(tmp_path / "images", train=24, val=9, test=9)
    (tmp_path / "classes.txt").write_text("\n".join(NAMES))
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["filename", "split", "labels", "difficult"])
        for row, path in enumerate(records.paths):
            indices = " ".join(map(str, np.flatnonzero(records.labels[row])))
            labels, difficult = ("", "1") if row == 0 else (indices, "")
            table.writerow([path.name, records.split[row], labels, difficult])
    return tmp_path


def test_competitors_alternate_in_both_orders(capsys: pytest.CaptureFixture[str]) -> None:
    called: list[str] = []

    def competitor(name: str) -> Callable[[], float]:
        def measure() -> float:
            called.append(name)
            return float(len(called))

        return measure

    competitors = {"a": competitor("a"), "b": competitor("b")}
    values = rounds.alternate(competitors, 2, "s")
    assert called == ["a", "b", "b", "a"]
    assert values == {"a": [1.0, 4.0], "b": [2.0, 3.0]}
    assert "round 2 of 2: b 3 s" in capsys.readouterr().out


def test_plain_script_reads_the_same_labels(data: Path) -> None:
    records = read(data)
    for split in SPLITS:
        rows = records.rows(split)
        photos = plain_script.Photos(data, split, lambda image: torch.zeros(1), None)
        known = photos.known.numpy()
        assert [file.name for file in photos.files] == [records.paths[row].name for row in rows]
        assert np.array_equal(known == 1, records.known[rows])
        assert np.array_equal(photos.labels.numpy() * known, records.labels[rows] * records.known[rows])
    assert not records.known[0].all()


def test_plain_script_computes_the_same_map(data: Path) -> None:
    def mean_color(image: Image.Image) -> torch.Tensor:
        return torch.tensor(image.resize((1, 1)).getpixel((0, 0))) / 255

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 3))
    photos = plain_script.Photos(data, "train", mean_color, None)
    images = torch.stack([photos[row][0] for row in range(len(photos))])
    with torch.no_grad():
        expected = average_precision(model(images), photos.labels, photos.known == 1).nanmean()
    score = plain_script.mean_average_precision(model, DataLoader(photos, batch_size=5))
    assert score == pytest.approx(expected.item())


def test_plain_script_loads_weights_from_a_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(1)
    weights = tmp_path / "weights.safetensors"
    original = plain_script.create_model("test_resnet", "none", 1000)
    save_file(original.state_dict(), weights)
    loaded = plain_script.create_model("test_resnet", str(weights), 3)
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(loaded.eval().forward_features(images), original.eval().forward_features(images))
    assert loaded(images).shape == (2, 3)


def test_subset_has_images_of_each_split_and_is_readable(data: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    training_overhead.write_subset(data, small, 10)
    records = read(small)
    assert [len(records.rows(split)) for split in SPLITS] == [10, 9, 9]
    assert records.label_space.names == NAMES


def test_speed_of_a_stage_excludes_the_first_row(tmp_path: Path) -> None:
    rows = [
        {"stage": "frozen probe", "step": 10, "images_per_second": 9.0},
        {"stage": "bce", "step": 10, "images_per_second": 1.0},
        {"stage": "bce", "step": 20, "images_per_second": 40.0},  # 10 steps
        {"stage": "bce", "step": 25, "images_per_second": 10.0},  # 5 steps
        {"stage": "bce, re-probed", "step": 30, "images_per_second": 7.0},
    ]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    batch = 8
    seconds = 10 * batch / 40 + 5 * batch / 10
    assert training_overhead.speed_of(metrics, "bce") == pytest.approx(15 * batch / seconds)
    with pytest.raises(SystemExit, match="0 rows"):
        training_overhead.speed_of(metrics, "asl")


def test_warm_up_steps_and_their_time_are_excluded() -> None:
    slow_steps = [5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0]
    steps_of_one_second = [51.0, 52.0, 53.0, 54.0]
    assert training_overhead.after_warm_up(slow_steps + steps_of_one_second, batch_size=8) == 8.0


@pytest.mark.parametrize(
    ("files", "can_predict"),
    [
        pytest.param(None, False, id="no folder"),
        pytest.param({"model.safetensors": ""}, False, id="only weights"),
        pytest.param({"model.safetensors": "", "run.json": '{"model": null}'}, False, id="no model in the metadata"),
        pytest.param(
            {"model.safetensors": "", "run.json": '{"model": {"method": "probe", "settings": {}}}'}, True, id="model"
        ),
    ],
)
def test_run_can_predict_once_its_metadata_has_a_model(
    tmp_path: Path, files: dict[str, str] | None, can_predict: bool
) -> None:
    run = tmp_path / "run"
    if files is not None:
        run.mkdir()
        for name, text in files.items():
            (run / name).write_text(text)
    assert first_minutes.can_predict(run) == can_predict


def test_only_complete_files_of_a_run_are_copied(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("run.json", "model.safetensors", ".labels.json.part", "checkpoints/large"):
        (run / name).write_text(name)
    first_minutes.copy_files(run, tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["model.safetensors", "run.json"]


@pytest.mark.parametrize(
    ("probe_error", "bce_val", "best", "simplest", "row"),
    [
        pytest.param(0.02, 0.74, "probmcl", "bce", "| voc-100 | 1 | 1 | 62.0 | +3.00 |", id="error of bce"),
        pytest.param(0.06, 0.74, "probmcl", "frozen probe", "| voc-100 | 1 | 1 | 62.0 | -2.00 |", id="large error"),
        pytest.param(0.06, 0.75, "bce", "frozen probe", "| voc-100 | 1 | 1 | 65.0 | -5.00 |", id="tie: the earlier"),
    ],
)
def test_simplest_candidate_is_within_one_standard_error_of_the_best(
    probe_error: float, bce_val: float, best: str, simplest: str, row: str
) -> None:
    candidates = {
        "frozen probe": {"val": 0.70, "error": probe_error, "test": 0.60},
        "bce": {"val": bce_val, "error": 0.02, "test": 0.65},
        "probmcl": {"val": 0.75, "error": 0.0, "test": 0.62},
    }
    assert selection.best(candidates) == best
    assert selection.simplest(candidates) == simplest
    *_, last_line = selection.report([{"trial": "voc-100-0", "candidates": candidates}])
    assert last_line == row
