"""Parts of the benchmarks whose errors would not be visible in their results."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
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
    """Return a folder of colored squares with a table of label indices; the first image has a difficult label."""
    records = colored_records(tmp_path / "images", train=24, val=9, test=9)
    (tmp_path / "classes.txt").write_text("\n".join(NAMES))
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["filename", "split", "labels", "difficult"])
        for i, path in enumerate(records.paths):
            indices: list[int] = [] if i == 0 else np.flatnonzero(records.labels[i]).tolist()
            table.writerow([path.name, records.split[i], " ".join(map(str, indices)), "1" if i == 0 else ""])
    return tmp_path


def test_competitors_alternate_in_both_orders(capsys: pytest.CaptureFixture[str]) -> None:
    called: list[str] = []

    def competitor(name: str) -> Callable[[], float]:
        return lambda: called.append(name) or float(len(called))  # type: ignore[func-returns-value]

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
        assert [file.name for file in photos.files] == [records.paths[row].name for row in rows]
        assert np.array_equal(photos.known.numpy() == 1, records.known[rows])
        assert np.array_equal((photos.labels * photos.known).numpy(), records.labels[rows] * records.known[rows])
    assert not records.known[0].all()


def test_plain_script_computes_the_same_map(data: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 3))
    photos = plain_script.Photos(
        data, "train", lambda image: torch.tensor(image.resize((1, 1)).getpixel((0, 0))) / 255, None
    )
    images = torch.stack([photos[i][0] for i in range(len(photos))])
    with torch.no_grad():
        expected = average_precision(model(images), photos.labels, photos.known == 1).nanmean()
    score = plain_script.mean_average_precision(model, DataLoader(photos, batch_size=5))
    assert score == pytest.approx(expected.item())


def test_plain_script_loads_weights_from_a_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(1)
    original = plain_script.create_model("test_resnet", "none", 1000)
    save_file(original.state_dict(), tmp_path / "weights.safetensors")
    loaded = plain_script.create_model("test_resnet", str(tmp_path / "weights.safetensors"), 3)
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
    end_times = [float(5 * i) for i in range(1, 11)] + [
        51.0,
        52.0,
        53.0,
        54.0,
    ]  # slow at first, then one second per step
    assert training_overhead.after_warm_up(end_times, batch_size=8) == 8.0


def test_run_can_predict_once_its_metadata_has_a_model(tmp_path: Path) -> None:
    assert not first_minutes.can_predict(tmp_path / "nowhere")
    (tmp_path / "model.safetensors").touch()
    assert not first_minutes.can_predict(tmp_path)
    (tmp_path / "run.json").write_text('{"model": null}')
    assert not first_minutes.can_predict(tmp_path)
    (tmp_path / "run.json").write_text('{"model": {"method": "probe", "settings": {}}}')
    assert first_minutes.can_predict(tmp_path)


def test_only_complete_files_of_a_run_are_copied(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("run.json", "model.safetensors", ".labels.json.part", "checkpoints/large"):
        (run / name).write_text(name)
    first_minutes.copy_files(run, tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["model.safetensors", "run.json"]


def test_simplest_candidate_is_within_one_standard_error_of_the_best() -> None:
    candidates = {
        "frozen probe": {"val": 0.70, "error": 0.02, "test": 0.60},
        "bce": {"val": 0.74, "error": 0.02, "test": 0.65},
        "probmcl": {"val": 0.75, "error": 0.0, "test": 0.62},
    }
    assert (selection.best(candidates), selection.simplest(candidates)) == ("probmcl", "bce")
    candidates["frozen probe"]["error"] = 0.06
    assert selection.simplest(candidates) == "frozen probe"
    candidates["bce"]["val"] = 0.75
    assert selection.best(candidates) == "bce"  # on a tie, the earlier candidate
    *_, row = selection.report([{"trial": "voc-100-0", "candidates": candidates}])
    assert row == "| voc-100 | 1 | 1 | 65.0 | -5.00 |"
