import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from made import coloured_records
from probmcl.data.records import Records
from probmcl.encoders import Encoder
from probmcl.evaluation import multilabel_metrics
from probmcl.methods.bce import BCE
from probmcl.pipeline import Run, train
from probmcl.probing import ProbeSettings
from probmcl.settings import EncoderSettings, Settings, method_settings
from probmcl.training import Event, Training
from probmcl.training.progress import Bar, Display


def settings(method: str, **changes: object) -> Settings:
    small = Settings(
        method=method,
        method_settings=method_settings(method),
        encoder=EncoderSettings("test_resnet", image_size=32),
        training=Training(epochs=2, batch_size=8, learning_rate=1e-3),
        probe=ProbeSettings(epochs=5, views=1, weight_decays=(1.0, 10.0)),
        workers=0,
    )
    return replace(small, **changes)  # type: ignore[arg-type]


def quiet() -> Display:
    return Display(Console(file=StringIO()))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return coloured_records(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def bce(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(records, settings("bce"), tmp_path_factory.mktemp("runs") / "bce", quiet())


def read(run: Run, name: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((run.folder / name).read_text())
    return content


def test_the_run_folder_holds_what_is_needed_to_use_judge_and_repeat_it(bce: Run, records: Records) -> None:
    assert read(bce, "config.json")["method"] == "bce"
    assert read(bce, "config.json")["encoder"] == {"name": "test_resnet", "weights": None, "image_size": 32}
    assert read(bce, "preprocessing.json")["size"] == 32
    assert read(bce, "labels.json")["names"] == ["red", "green", "blue"]
    with (bce.folder / "split.csv").open() as file:
        assert [row["split"] for row in csv.DictReader(file)] == list(records.split)
    about = read(bce, "run.json")
    assert about["status"] == "finished"
    assert about["kept"] == bce.kept.name
    assert about["seed"] == 0
    stages = {json.loads(line)["stage"] for line in (bce.folder / "metrics.jsonl").read_text().splitlines()}
    assert stages == {"bce", "probe, weight decay 1", "probe, weight decay 10"}
    assert (bce.folder / "metrics.csv").read_text().startswith("stage,epoch,step,loss")


def test_what_was_kept_is_the_best_on_validation(bce: Run) -> None:
    assert set(bce.candidates) == {"own head", "probe"}
    assert bce.kept.validation["mAP"] == max(c.validation["mAP"] for c in bce.candidates.values())


def test_the_saved_model_gives_the_saved_scores_and_these_the_saved_metrics(bce: Run, records: Records) -> None:
    saved = np.load(bce.folder / "predictions" / "test.npz")
    assert saved["paths"].tolist() == [str(records.paths[row]) for row in records.rows("test")]
    model = BCE(Encoder("test_resnet", image_size=32), records.label_space)
    model.load_state_dict(load_file(bce.folder / "model.safetensors"))
    kept = bce.kept.classifier
    images = torch.randn(3, 3, 32, 32)
    assert torch.equal(model.eval().logits(images), kept.logits(images))
    metrics = multilabel_metrics(saved["scores"], saved["labels"], saved["known"])
    evaluation = read(bce, "evaluation.json")
    assert evaluation["mAP"] == pytest.approx(metrics["mAP"])
    assert evaluation["at"]["0.5"]["OF1"] == pytest.approx(metrics["OF1"])  # type: ignore[index]


def test_the_same_settings_give_the_same_scores(bce: Run, records: Records, tmp_path: Path) -> None:
    torch.rand(3)  # whatever else was drawn before
    again = train(records, settings("bce"), tmp_path / "again", quiet())
    assert all(
        torch.equal(again.candidates[name].scores["test"], c.scores["test"]) for name, c in bce.candidates.items()
    )


def test_training_leaves_the_callers_generator_alone(records: Records, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    train(records, settings("probe"), tmp_path / "run", quiet())
    assert torch.equal(torch.get_rng_state(), state)


def test_probmcl_keeps_its_mixture_network_apart_from_what_predicts(records: Records, tmp_path: Path) -> None:
    run = train(records, settings("probmcl"), tmp_path / "run", quiet())
    stage_1 = load_file(run.folder / "contrastive" / "model.safetensors")
    predicts = load_file(run.folder / "model.safetensors")
    assert any(key.startswith("network.") for key in stage_1)
    assert all(key.startswith(("encoder.", "linear.")) for key in predicts)
    assert all(torch.equal(stage_1[key], value) for key, value in predicts.items() if key.startswith("encoder."))
    assert set(run.candidates) == {"probe"}


def test_the_probes_own_settings_are_used(records: Records, tmp_path: Path) -> None:
    runs = [
        train(
            records,
            settings("probe", method_settings=method_settings("probe", changes={"loss": x})),
            tmp_path / x,
            quiet(),
        )
        for x in ("asl", "bce")
    ]
    assert not torch.equal(runs[0].kept.scores["test"], runs[1].kept.scores["test"])


def test_a_folder_with_something_in_it_is_refused_and_untouched(records: Records, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="not empty"):
        train(records, settings("probe"), tmp_path, quiet())
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_split_without_images_is_said_before_anything_is_trained(records: Records, tmp_path: Path) -> None:
    without = replace(records, split=tuple("train" if split == "val" else split for split in records.split))
    with pytest.raises(ValueError, match="no image belongs to the val split"):
        train(without, settings("bce"), tmp_path / "run", quiet())
    assert not (tmp_path / "run").exists()


def test_a_device_that_is_not_here_is_said(records: Records, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device='mps'"):
        train(records, settings("bce", device="mps"), tmp_path / "run", quiet())


class Impatient(Display):
    """Presses Ctrl-C in the third training step."""

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Bar]:
        with super().stage(name, total) as bar:
            watch = bar.__call__

            class Interrupting(Bar):
                def __call__(self, event: Event) -> None:
                    watch(event)
                    if event.step == 3:
                        raise KeyboardInterrupt

            yield Interrupting(bar.progress, bar.task)


def test_an_interrupt_leaves_what_was_reached(records: Records, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(records, settings("probmcl"), tmp_path / "run", Impatient(Console(file=StringIO())))
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["status"] == "interrupted"
    assert load_file(tmp_path / "run" / "contrastive" / "model.safetensors")
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_what_is_not_known_changes_no_result(records: Records, tmp_path: Path) -> None:
    known = records.known.copy()
    known[::3, 1] = False
    results = []
    for value in (0.0, 1.0):
        labels = np.where(known, records.labels, np.float32(value)).astype(np.float32)
        changed = replace(records, labels=labels, known=known)
        results.append(train(changed, settings("probmcl"), tmp_path / str(value), quiet()))
    assert torch.equal(results[0].kept.scores["test"], results[1].kept.scores["test"])
    assert results[0].kept.test == results[1].kept.test


def test_off_a_terminal_there_are_lines_and_no_control_characters(records: Records, tmp_path: Path) -> None:
    console = Console(file=StringIO())
    train(records, settings("bce"), tmp_path / "run", Display(console))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "training bce" in text
    assert "images/s" in text
    assert "\x1b" not in text
    assert "\r" not in text
