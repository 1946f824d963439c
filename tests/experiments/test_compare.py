"""Complete comparisons, from a folder of photographs to the verdict."""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probmcl
from helpers.commands import main
from helpers.images import folder_of_photographs
from probmcl.cost import speed
from probmcl.cost.operations import Operations, prediction_operations
from probmcl.experiments import measure, runner
from probmcl.experiments.results import Comparison
from probmcl.methods import METHODS
from probmcl.methods.base import Classifier
from probmcl.methods.custom_loss import custom_loss
from probmcl.methods.pla import PLA
from probmcl.readers.options import ReadOptions
from probmcl.run import candidates
from probmcl.run.results import CandidateId
from probmcl.store.run_metadata import Head
from probmcl.training import fit

pytestmark = pytest.mark.slow  # trains or starts processes

SMALL: dict[str, Any] = {
    "encoder": "test_resnet",
    "weights": "none",
    "image_size": 32,
    "probe_epochs": 2,
    "workers": 0,
    "report": False,
}
LOSS = """
def mine(logits, labels, known):
    return ((logits.sigmoid() - labels) ** 2 * known).sum() / known.sum().clamp(min=1)
"""
OUTPUTS = ("comparison.csv", "comparison.md", "comparison.tex", "methods.bib", "plot.svg", "verdict.txt")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_photographs(tmp_path_factory.mktemp("user"), count=60)


@pytest.fixture(scope="module", autouse=True)
def _short_measurements() -> Iterator[None]:
    """Time each operation once and count those of each model once: no test here depends on the measurements."""
    counted: dict[str, Operations] = {}

    def counted_once(classifier: Classifier, image_size: int) -> Operations:
        model = f"{image_size} {classifier}"
        if model not in counted:
            counted[model] = prediction_operations(classifier, image_size)
        return counted[model]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "ROUNDS", 0)
        patch.setattr(measure, "prediction_operations", counted_once)
        yield


@pytest.fixture(scope="module")
def loss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code") / "losses.py"
    path.write_text(LOSS)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "comparison"


@pytest.fixture(scope="module")
def comparison(photographs: Path, loss: Path, folder: Path) -> Comparison:
    methods = f"asl,supcon,{loss}:mine"
    return probmcl.compare(photographs, **SMALL, methods=methods, epochs=2, seeds=2, out=folder)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_rows_of_every_method_and_the_frozen_probe(comparison: Comparison) -> None:
    assert {row.title for row in comparison.rows} == {
        "frozen probe",
        "asl, own head",
        "asl, re-probed",
        "supcon, re-probed",
        "mine, own head",
        "mine, re-probed",
    }
    assert {row.seeds for row in comparison.rows} == {2}


def test_all_methods_see_the_same_number_of_images(comparison: Comparison, folder: Path) -> None:
    (seen,) = {row.images_seen for row in comparison.rows if row.head != "frozen"}
    for seed in (0, 1):
        with (folder / f"seed-{seed}" / "split.csv").open() as file:
            images = sum(line["split"] == "train" for line in csv.DictReader(file))
        counted: dict[str, int] = {}
        with (folder / f"seed-{seed}" / "metrics.csv").open() as file:
            for line in csv.DictReader(file):
                counted[line["stage"]] = int(line["step"])
        config = json.loads((folder / f"seed-{seed}" / "config.json").read_text())
        for job in config["jobs"]:
            n_views = 2 if job["name"] == "supcon" else 1
            batch = min(job["training"]["batch_size"], images)
            assert counted[job["name"]] * batch * n_views == seen


def test_every_output_is_written(comparison: Comparison, folder: Path) -> None:
    assert all((folder / name).stat().st_size for name in OUTPUTS)
    with (folder / "comparison.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(comparison.rows)
    assert "ridnik2021asl" in (folder / "methods.bib").read_text()
    assert "untuned" in (folder / "verdict.txt").read_text()


def test_results_of_each_seed_match_its_predictions(comparison: Comparison, folder: Path) -> None:
    result = lines(folder)
    assert len(result) == 2 * len(comparison.rows)
    for line in result:
        with np.load(folder / line["predictions"]) as predictions:
            expected = probmcl.evaluation.average_precision(predictions["scores"], predictions["labels"])
        assert line["test"]["mAP"] == pytest.approx(float(expected.nanmean()))
    assert {line["fidelity"] for line in result if line["name"] == "mine"} == {"own"}
    assert len({line["fingerprint"]["all"] for line in result}) == 1


def test_both_heads_of_a_method_share_an_embedding(comparison: Comparison) -> None:
    rows = {row.title: row for row in comparison.rows}
    assert rows["asl, own head"].retrieval_mAP == rows["asl, re-probed"].retrieval_mAP
    assert rows["asl, own head"].probability_mAP != rows["asl, re-probed"].probability_mAP


def test_finished_comparison_is_not_trained_again(
    comparison: Comparison, folder: Path, loss: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "fit", forbidden)
    monkeypatch.setattr(runner, "measure", forbidden)
    again = probmcl.compare(resume=folder, methods=f"asl, supcon, {loss}:mine", device="auto", workers=0, report=False)
    assert {r.title: r.mAP for r in again.rows} == {r.title: r.mAP for r in comparison.rows}


def forbidden(*args: object, **kwargs: object) -> None:
    raise AssertionError("nothing must be trained")


def test_resumed_comparison_gives_the_same_scores(
    comparison: Comparison, photographs: Path, loss: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_seed = tmp_path / "killed" / "seed-1"
    monkeypatch.setattr(candidates, "fit", interrupted_in(second_seed, 2, fit))
    options: dict[str, Any] = {
        "methods": f"asl,supcon,{loss}:mine",
        "epochs": 2,
        "seeds": 2,
        "out": tmp_path / "killed",
    }
    with pytest.raises(KeyboardInterrupt):
        probmcl.compare(photographs, **SMALL, **options)
    monkeypatch.undo()
    again = probmcl.compare(resume=tmp_path / "killed", workers=0, report=False)
    assert {r.title: r.mAP for r in again.rows} == {r.title: r.mAP for r in comparison.rows}


def interrupted_in(folder: Path, times: int, fit: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """Return `fit` with Ctrl-C after some calls since a folder was created."""
    count: Iterator[int] = iter(range(times))

    def limited(*args: Any, **kwargs: Any) -> list[int]:
        if folder.is_dir() and next(count, None) is None:
            raise KeyboardInterrupt
        return fit(*args, **kwargs)

    return limited


def test_only_rows_of_the_same_protocol_can_be_added(
    comparison: Comparison, folder: Path, photographs: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {**SMALL, "methods": "bce", "seeds": 2, "add": [folder / "results.jsonl"]}
    both = probmcl.compare(photographs, **options, epochs=2, out=tmp_path / "bce")
    rows = {row.title: row for row in both.rows}
    assert {row.title for row in comparison.rows} < rows.keys()
    assert rows["asl, own head"].mAP == next(r.mAP for r in comparison.rows if r.title == "asl, own head")
    assert rows["asl, own head"].interval is not None
    with pytest.raises(ValueError, match=r"differ in budget"):
        probmcl.compare(photographs, **options, epochs=1, out=tmp_path / "other")


def test_groups_are_resampled(photographs: Path, tmp_path: Path) -> None:
    result = probmcl.compare(
        photographs, **SMALL, methods="bce", epochs=1, seeds=1, read=ReadOptions(group="film"), out=tmp_path / "groups"
    )
    assert result.groups is not None
    assert result.groups < result.test_images
    assert "groups" in (tmp_path / "groups" / "comparison.md").read_text()


def test_best_trial_on_validation_is_used_for_the_other_seeds(photographs: Path, tmp_path: Path) -> None:
    result = probmcl.compare(photographs, **SMALL, methods="bce", epochs=1, seeds=2, trials=3, out=tmp_path / "trials")
    first, second = (json.loads((tmp_path / "trials" / f"seed-{seed}" / "run.json").read_text()) for seed in (0, 1))
    best = max(first["candidates"][1:], key=lambda c: c["validation_mAP"])
    assert len(first["candidates"]) == 1 + 3 * 2
    heads: tuple[Head, ...] = ("own head", "re-probed")
    chosen = [CandidateId("bce", head, best["trial"]) for head in heads]
    assert [c["name"] for c in second["candidates"][1:]] == [identity.name for identity in chosen]
    tested = {path.name for path in (tmp_path / "trials" / "seed-0" / "candidates").iterdir()}
    assert tested == {identity.key for identity in chosen}  # the other trials are not tested
    assert result.trials == 3
    assert "untuned" not in (tmp_path / "trials" / "comparison.md").read_text()


def test_budget_is_divided_among_all_runs(photographs: Path, tmp_path: Path) -> None:
    result = probmcl.compare(photographs, **SMALL, methods="bce,supcon", budget="10m", seeds=1, out=tmp_path / "budget")
    plan = json.loads((tmp_path / "budget" / "seed-0" / "checkpoints" / "plan.json").read_text())
    assert plan["epochs"]["bce"] == 2 * plan["epochs"]["supcon"]
    assert result.images_seen == plan["views"] > 0


def test_error_for_a_small_budget_has_the_required_time(photographs: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a budget of 1 s .*1 method and 3 seeds.* about "):
        probmcl.compare(photographs, **SMALL, methods="bce", budget="1s", out=tmp_path / "small")


def test_method_that_cannot_run_is_left_out_of_all_and_an_error_if_named(photographs: Path, tmp_path: Path) -> None:
    none = {**SMALL, "tune": "none", "epochs": 1, "seeds": 1}
    with pytest.raises(ValueError, match="csra"):
        probmcl.compare(photographs, **none, methods="bce,csra", out=tmp_path / "named")
    result = probmcl.compare(photographs, **none, methods="all", out=tmp_path / "all")
    assert any(message.startswith("csra ") for message in result.left_out)
    names = {row.name for row in result.rows if row.head != "frozen"}
    on_maps = {"csra", "ml_gcn", "kssnet", "tdrg", "srn", "pla", "ml_decoder"}
    assert names == set(METHODS) - {"probe"} - on_maps


def test_method_that_emits_a_set_has_a_note_and_a_fixed_threshold(photographs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    result = probmcl.compare(photographs, **SMALL, methods="pla", epochs=1, seeds=1, out=folder)
    assert {row.title: row.note for row in result.rows if row.note} == {"pla, own head": PLA.note}
    with (folder / "comparison.csv").open() as file:
        assert {line["note"] for line in csv.DictReader(file) if line["head"] == "own head"} == {PLA.note}
    for name in ("comparison.md", "comparison.tex"):
        assert "pla, own head: " in (folder / name).read_text()
    (line,) = (line for line in lines(folder) if line["head"] == "own head")
    with np.load(folder / line["predictions"]) as predictions:
        decided = predictions["scores"], predictions["labels"], predictions["known"]
    assert line["macro_F1"] == probmcl.evaluation.multilabel_metrics(*decided, f1="per_class")["CF1"]


def test_frozen_probe_has_as_many_views_as_the_others(comparison: Comparison, folder: Path) -> None:
    probe = json.loads((folder / "seed-0" / "config.json").read_text())["probe"]
    assert probe["frozen_views"] == probe["views"] > 0


def test_method_that_diverges_is_left_out(photographs: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def bad(logits, labels, known):\n    return logits.mean() * float('nan')\n")
    options = {**SMALL, "epochs": 1, "seeds": 2}
    result = probmcl.compare(photographs, **options, methods=f"bce,{tmp_path}/bad.py:bad", out=tmp_path / "one")
    assert {row.name for row in result.rows} == {"frozen probe", "bce"}
    assert any("bad " in message and "NaN" in message for message in result.left_out)
    alone = probmcl.compare(photographs, **options, methods=f"{tmp_path}/bad.py:bad", out=tmp_path / "alone")
    assert [row.name for row in alone.rows] == ["frozen probe"]


def test_added_rows_are_kept_on_resume(comparison: Comparison, folder: Path, photographs: Path, tmp_path: Path) -> None:
    options = {**SMALL, "methods": "bce", "seeds": 1, "epochs": 2}
    alone = probmcl.compare(photographs, **options, out=tmp_path / "bce")
    added = probmcl.compare(resume=tmp_path / "bce", add=[folder / "results.jsonl"], workers=0, report=False)
    with pytest.raises(ValueError, match=r"includes .*results\.jsonl, but files that only a run folder names are not"):
        probmcl.compare(resume=tmp_path / "bce", workers=0, report=False)
    again = probmcl.compare(resume=tmp_path / "bce", add=folder / "results.jsonl", workers=0, report=False)
    assert len(alone.rows) < len(added.rows) == len(again.rows)


def test_batch_size_is_part_of_the_protocol(
    comparison: Comparison, folder: Path, photographs: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="differ in budget"):
        probmcl.compare(
            photographs,
            **SMALL,
            methods="bce",
            seeds=1,
            epochs=2,
            batch_size=21,
            add=[folder / "results.jsonl"],
            out=tmp_path / "bce",
        )


def test_training_images_of_an_earlier_run_are_a_warning(
    comparison: Comparison, folder: Path, tmp_path: Path, photographs: Path
) -> None:
    table = tmp_path / "leak.csv"
    with (folder / "seed-0" / "split.csv").open() as file, photographs.open() as labels:
        trained = {Path(line["path"]).name for line in csv.DictReader(file) if line["split"] == "train"}
        rows = list(csv.DictReader(labels))
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["filename", "tags", "split"])
        for number, row in enumerate(rows):
            split = ("train", "val", "test")[number % 3] if row["filename"] in trained else "train"
            writer.writerow([row["filename"], row["tags"], split])
    options = {key: value for key, value in SMALL.items() if key not in ("weights", "encoder", "image_size")}
    probmcl.compare(
        table,
        images=photographs.parent,
        **options,
        weights=folder / "seed-0",
        methods="bce",
        epochs=1,
        seeds=1,
        out=tmp_path / "leak",
    )
    assert "used for training" in (tmp_path / "leak" / "verdict.txt").read_text()


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (("val", "test"), "train split"),
        (("train", "val", "empty"), "20 test images"),
    ],
)
def test_unusable_data_are_rejected(photographs: Path, tmp_path: Path, splits: tuple[str, ...], message: str) -> None:
    with photographs.open() as labels:
        rows = list(csv.DictReader(labels))
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["filename", "tags", "split"])
        for number, row in enumerate(rows):
            split = splits[number % len(splits)]
            writer.writerow([row["filename"], "" if split == "empty" else row["tags"], split.replace("empty", "test")])
    with pytest.raises(ValueError, match=message):
        probmcl.compare(
            tmp_path / "labels.csv", images=photographs.parent, **SMALL, methods="bce", out=tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": "bce", "epochs": 1, "budget": "1h"}, "`budget` and `epochs` cannot be combined"),
        ({"methods": "bce", "seeds": 0}, "`seeds=0` must be at least 1"),
        ({"methods": "bce", "trials": 99}, "`trials=99` must be at most"),
        ({"methods": "bce", "add": [Path("nowhere.jsonl")]}, "nowhere.jsonl"),
    ],
)
def test_invalid_options_are_rejected_before_training(
    photographs: Path, tmp_path: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "fit", forbidden)
    with pytest.raises(ValueError, match=message):
        probmcl.compare(photographs, **SMALL, **options, out=tmp_path / "refused")


def test_resume_cannot_be_combined_with_other_options(comparison: Comparison, folder: Path) -> None:
    with pytest.raises(ValueError, match="cannot be combined with `epochs`"):
        probmcl.compare(resume=folder, epochs=3)
    with pytest.raises(ValueError, match='`methods="bce"`'):
        probmcl.compare(resume=folder, methods="bce")
    with pytest.raises(ValueError, match="is not a comparison"):
        probmcl.compare(resume=folder.parent)


def test_resume_does_not_import_code_named_by_the_folder(
    comparison: Comparison, folder: Path, loss: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, str(loss))  # as in a new process
    custom_loss.cache_clear()
    done = main("compare", "--resume", folder)
    assert done.returncode == 1
    assert "because a folder names it" in done.stderr
    assert str(loss) not in sys.modules
