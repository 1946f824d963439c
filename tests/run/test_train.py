import csv
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console as RichConsole
from safetensors.torch import load_file
from sklearn.metrics import average_precision_score

from helpers.images import colored_records
from probmcl.audit.prepare import PreparedData
from probmcl.console import Console, ProgressBar
from probmcl.data.labels import LabelStates, State
from probmcl.data.records import LabelSpace, Records
from probmcl.evaluation import multilabel_metrics
from probmcl.inference import load
from probmcl.methods.kssnet import KSSNet
from probmcl.methods.pla import PLA
from probmcl.run import activation_cache, candidates, train, workspace
from probmcl.run.results import FROZEN_PROBE, CandidateId, Run
from probmcl.run.train import RunControl, all_candidates, read_run, train_run
from probmcl.settings import EncoderSettings, ProbeSettings, Settings, TrainingJob, Tune, method_settings
from probmcl.settings.model_options import EvaluateOptions
from probmcl.store.decoding import SCHEMA
from probmcl.store.run_folder import RunFolder
from probmcl.training import Checkpoint, Training, features

pytestmark = pytest.mark.slow  # it trains, or starts processes


def settings(*methods: str, **changes: object) -> Settings:
    small = Settings(
        method=methods[0] if methods else "probe",
        jobs=tuple(
            TrainingJob(method, method_settings(method), Training(epochs=2, batch_size=8, learning_rate=1e-3))
            for method in methods
        ),
        encoder=EncoderSettings("test_resnet", weights=None, image_size=32),
        probe=ProbeSettings(epochs=5, views=1, weight_decays=(1.0, 10.0)),
        workers=0,
    )
    return replace(small, **changes)  # type: ignore[arg-type]


def quiet() -> Console:
    return Console(RichConsole(file=StringIO()))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return colored_records(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def bce(records: Records, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run(
        PreparedData.of(records),
        settings("bce"),
        tmp_path_factory.mktemp("runs") / "bce",
        quiet(),
        control=RunControl(test=all_candidates),
    )


def read(run: Run, name: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((run.folder / name).read_text())
    return content


def test_the_run_folder_has_all_files(bce: Run, records: Records) -> None:
    assert read(bce, "config.json")["method"] == "bce"
    assert read(bce, "config.json")["encoder"] == {
        "name": "test_resnet",
        "weights": None,
        "image_size": 32,
        "statistics": None,
    }
    assert read(bce, "preprocessing.json")["size"] == 32
    assert read(bce, "labels.json")["names"] == ["red", "green", "blue"]
    with (bce.folder / "split.csv").open() as file:
        assert [row["split"] for row in csv.DictReader(file)] == list(records.split)
    metadata = read(bce, "run.json")
    assert (metadata["status"], metadata["kept"], metadata["seed"]) == ("finished", bce.kept.name, 0)
    entries = [{**c.id._asdict(), "name": c.name, "validation_mAP": c.validation_map} for c in bce.candidates.values()]
    assert [{key: entry[key] for key in entries[0]} for entry in metadata["candidates"]] == entries  # type: ignore[attr-defined]
    gained = [entry.keys() - entries[0].keys() for entry in metadata["candidates"]]  # type: ignore[attr-defined]
    assert gained == [set(), {"gain", "gain_interval"}, {"gain", "gain_interval"}]
    stages = {json.loads(line)["stage"] for line in (bce.folder / "metrics.jsonl").read_text().splitlines()}
    assert stages == {"bce", "frozen probe", "bce, re-probed"}
    assert (bce.folder / "metrics.csv").read_text().startswith("stage,epoch,step,loss")
    with Image.open(bce.folder / "views.png") as image:
        assert min(image.size) > 32


def test_the_kept_candidate_is_the_best_on_validation(bce: Run) -> None:
    assert [c.name for c in bce.candidates.values()] == ["frozen probe", "bce, own head", "bce, re-probed"]
    assert bce.kept.validation["mAP"] == max(c.validation["mAP"] for c in bce.candidates.values())


def test_the_saved_model_reproduces_saved_scores_and_metrics(bce: Run, records: Records) -> None:
    saved = np.load(bce.folder / "predictions" / "test.npz")
    assert saved["paths"].tolist() == [str(records.paths[row]) for row in records.rows("test")]
    predicted = bce.model.predict([str(path) for path in saved["paths"]], raw=True)
    np.testing.assert_allclose(predicted.scores, saved["scores"], atol=1e-5)
    metrics = multilabel_metrics(saved["scores"], saved["labels"], saved["known"])
    evaluation = read(bce, "evaluation.json")
    assert evaluation["mAP"] == pytest.approx(metrics["mAP"])
    assert evaluation["at"]["0.5"]["OF1"] == pytest.approx(metrics["OF1"])  # type: ignore[index]


def test_the_same_settings_give_the_same_scores(bce: Run, records: Records, tmp_path: Path) -> None:
    torch.rand(3)  # earlier random numbers must not matter
    again = train_run(
        PreparedData.of(records), settings("bce"), tmp_path / "again", quiet(), control=RunControl(test=all_candidates)
    )
    assert all(
        torch.equal(again.candidates[name].scores["test"], c.scores["test"]) for name, c in bce.candidates.items()
    )


@pytest.mark.parametrize("tune", ["all", "last", "none"])
def test_only_the_kept_candidate_and_the_frozen_probe_are_tested(records: Records, tmp_path: Path, tune: Tune) -> None:
    run = train_run(PreparedData.of(records), settings("bce", tune=tune), tmp_path / "run", quiet())
    assert {c.name for c in run.candidates.values() if c.test} == {run.kept.name, "frozen probe"}
    assert read(run, "run.json")["test_mAP"].keys() == {run.kept.name, "frozen probe"}  # type: ignore[attr-defined]
    frozen = json.loads((run.folder / "frozen" / "evaluation.json").read_text())
    tested = run.candidates[FROZEN_PROBE].test
    assert tested is not None
    assert frozen == {"schema": SCHEMA, **tested.to_dict()}
    saved = np.load(run.folder / "predictions" / "test.npz")
    predicted = run.model.predict(saved["paths"].tolist(), raw=True)
    np.testing.assert_allclose(predicted.scores, saved["scores"], atol=2e-3)  # stored in half precision


def test_tune_last_trains_only_the_last_stage(records: Records, tmp_path: Path) -> None:
    run = train_run(
        PreparedData.of(records),
        settings("bce", tune="last"),
        tmp_path / "run",
        quiet(),
        control=RunControl(test=all_candidates),
    )
    frozen, tuned = run.candidates[FROZEN_PROBE].state, run.candidates[CandidateId("bce", "own head")].state
    changed = {key for key in frozen if not torch.equal(frozen[key], tuned[key]) and key.startswith("encoder")}
    assert changed
    assert all(key.startswith("encoder.model.layer4.") for key in changed)
    assert not any("running" in key or "num_batches" in key for key in changed)  # batch statistics are fixed


def test_an_encoder_that_cannot_be_split_is_trained_completely_with_a_note(records: Records, tmp_path: Path) -> None:
    console = RichConsole(file=StringIO())
    encoder = EncoderSettings("test_vit", weights=None, image_size=32)
    train_run(
        PreparedData.of(records), settings("bce", tune="last", encoder=encoder), tmp_path / "run", Console(console)
    )
    assert "test_vit cannot be split" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_finished_run_has_no_cached_activations(records: Records, tmp_path: Path) -> None:
    run = train_run(PreparedData.of(records), settings("bce", tune="last"), tmp_path / "run", quiet())
    left = {path.name for path in (run.folder / "checkpoints").iterdir()}
    results = {f"{identity.key}.safetensors" for identity in run.candidates}
    assert left == {"plan.json", "costs.json", "calibration.json", "bce.outcome.json", *results}


def test_an_interrupt_after_the_last_file_leaves_a_finished_run(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "_print_summary", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_run(PreparedData.of(records), settings(), tmp_path / "run", quiet())
    run = read_run(RunFolder.existing(tmp_path / "run"))
    assert read(run, "run.json")["status"] == "finished"
    assert run.kept.name == "frozen probe"


def test_training_does_not_change_the_random_state_of_the_caller(records: Records, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    train_run(PreparedData.of(records), settings(), tmp_path / "run", quiet())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_mixture_network_of_probmcl_is_saved_separately(records: Records, tmp_path: Path) -> None:
    run = train_run(PreparedData.of(records), settings("probmcl"), tmp_path / "run", quiet())
    stage_1 = load_file(run.folder / "contrastive" / "model.safetensors")
    predicts = run.candidates[CandidateId("probmcl", "re-probed")].state
    assert any(key.startswith("network.") for key in stage_1)
    assert all(key.startswith(("encoder.", "linear.")) for key in predicts)
    assert all(torch.equal(stage_1[key], value) for key, value in predicts.items() if key.startswith("encoder."))
    assert set(run.candidates) == {FROZEN_PROBE, CandidateId("probmcl", "re-probed")}


def test_probe_settings_are_used(records: Records, tmp_path: Path) -> None:
    runs = [
        train_run(
            PreparedData.of(records),
            settings(probe=ProbeSettings(epochs=5, views=0, loss=loss)),
            tmp_path / loss,
            quiet(),
        )
        for loss in ("asl", "bce")
    ]
    assert not torch.equal(runs[0].kept.scores["test"], runs[1].kept.scores["test"])


def test_a_folder_in_use_is_an_error_and_not_changed(records: Records, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(OSError, match="not empty"):
        train_run(PreparedData.of(records), settings(), tmp_path, quiet())
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_empty_split_is_an_error_before_training(records: Records, tmp_path: Path) -> None:
    without = replace(records, split=tuple("train" if split == "val" else split for split in records.split))
    with pytest.raises(ValueError, match="the val split"):
        train_run(PreparedData.of(without), settings("bce"), tmp_path / "run", quiet())
    assert not (tmp_path / "run").exists()


def test_an_unavailable_device_is_an_error(records: Records, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='`device="mps"`'):
        train_run(PreparedData.of(records), settings("bce", device="mps"), tmp_path / "run", quiet())


class Killed(BaseException):
    """Simulates a kill: no code in the package handles it."""


class Counting(Console):
    """A console that counts the steps of all progress bars and raises an exception at one of them."""

    def __init__(self, fatal_step: int | None = None, error: type[BaseException] = Killed) -> None:
        super().__init__(RichConsole(file=StringIO()))
        self.fatal_step, self.error, self.steps = fatal_step, error, 0

    @contextmanager
    def progress(self, name: str, total: int, *, hidden_terms: Collection[str] = ()) -> Iterator[ProgressBar]:
        with super().progress(name, total, hidden_terms=hidden_terms) as bar:
            bar.advance = self.counted(bar.advance)  # type: ignore[method-assign]
            yield bar

    def counted(self, advance: Callable[..., None]) -> Callable[..., None]:
        def count(images: int = 0, steps: int = 1) -> None:
            advance(images, steps)
            self.steps += 1
            if self.steps == self.fatal_step:
                raise self.error

        return count


@contextmanager
def small_batches() -> Iterator[None]:
    """Use small batches, and save a checkpoint after every step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "Checkpoint", partial(Checkpoint, seconds_apart=0.0))
        patch.setattr(activation_cache, "SECONDS_APART", 0.0)
        patch.setattr(workspace, "CPU_PIXELS", 4 * 32 * 32)
        patch.setattr(features, "ROWS_AT_ONCE", 8)
        yield


@pytest.fixture(scope="module")
def uninterrupted(records: Records, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, int]:
    """An uninterrupted run and its number of steps."""
    console = Counting()
    with small_batches():
        folder = tmp_path_factory.mktemp("uninterrupted") / "run"
        return train_run(
            PreparedData.of(records), settings("bce", "probmcl", tune="last"), folder, console
        ), console.steps


@pytest.fixture(scope="module")
def probe_steps(records: Records, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The number of steps to fit and test the frozen probe."""
    console = Counting()
    train_run(PreparedData.of(records), settings(), tmp_path_factory.mktemp("probe") / "run", console)
    return console.steps


@pytest.mark.parametrize(
    "share",
    [0.1, 0.7, 0.99]
    + [pytest.param(share, marks=pytest.mark.exhaustive) for share in (0.02, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 0.9)],
)
def test_resuming_after_a_kill_at_any_step_gives_the_scores_of_an_uninterrupted_run(
    records: Records, uninterrupted: tuple[Run, int], tmp_path: Path, share: float
) -> None:
    config, folder, (expected, steps) = settings("bce", "probmcl", tune="last"), tmp_path / "run", uninterrupted
    with small_batches():
        with pytest.raises(Killed):
            train_run(PreparedData.of(records), config, folder, Counting(fatal_step=max(1, round(share * steps))))
        torch.rand(3)
        run = train_run(PreparedData.of(records), config, folder, quiet())
    assert run.kept.name == expected.kept.name
    for identity, candidate in expected.candidates.items():
        assert torch.allclose(run.candidates[identity].scores["val"], candidate.scores["val"], atol=1e-5)
    assert torch.allclose(run.kept.scores["test"], expected.kept.scores["test"], atol=1e-5)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps_of = [(row["stage"], row["step"]) for row in rows]
    assert len(set(steps_of)) == len(steps_of)


def test_resuming_a_finished_run_changes_no_file(records: Records, bce: Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in bce.folder.rglob("*")}
    again = train_run(PreparedData.of(records), settings("bce"), bce.folder, quiet())
    assert again.kept.name == bce.kept.name
    assert before == {path: path.stat().st_mtime_ns for path in bce.folder.rglob("*")}


@pytest.mark.parametrize("pretrained", [True, False])
def test_the_linear_layer_starts_as_the_frozen_probe_if_a_pretrained_encoder_is_tuned(
    records: Records, bce: Run, tmp_path: Path, pretrained: bool
) -> None:
    still = TrainingJob("bce", method_settings("bce"), Training(epochs=1, batch_size=8, learning_rate=1e-30, ema=0.0))
    encoder = EncoderSettings("test_resnet", weights=str(bce.folder) if pretrained else None, image_size=32)
    config = settings("bce", jobs=(still,), encoder=encoder, tune="all")
    trained = train_run(PreparedData.of(records), config, tmp_path / "run", quiet()).candidates
    own, frozen = trained[CandidateId("bce", "own head")].scores["val"], trained[FROZEN_PROBE].scores["val"]
    assert torch.allclose(own, frozen, atol=1e-4) == pretrained


def test_resuming_deletes_files_left_by_a_kill_during_cleanup(records: Records, tmp_path: Path) -> None:
    run = train_run(PreparedData.of(records), settings("bce"), tmp_path / "run", quiet())
    (run.folder / "checkpoints" / "activations").mkdir()
    (run.folder / "checkpoints" / "bce.trained.safetensors").touch()
    train_run(PreparedData.of(records), settings("bce"), run.folder, quiet())
    left = {path.name for path in (run.folder / "checkpoints").iterdir()}
    assert not left & {"activations", "bce.trained.safetensors"}
    assert "frozen.safetensors" in left


def test_a_method_that_diverges_is_left_out(records: Records, tmp_path: Path) -> None:
    wild = TrainingJob(
        "bce", method_settings("bce"), Training(epochs=9, batch_size=8, learning_rate=1e30, ema=0.0), "wild"
    )
    config = settings("bce", jobs=(wild, *settings("bce").jobs))
    run = train_run(PreparedData.of(records), config, tmp_path / "run", quiet())
    assert [c.name for c in run.candidates.values()] == ["frozen probe", "bce, own head", "bce, re-probed"]
    warnings = [w for w in run.warnings if w.kind != "calibration"]  # there are few images
    assert {w.message.split()[0].rstrip(",") for w in warnings} == {"wild"}
    assert "diverged" in {w.kind for w in warnings}
    assert read(run, "run.json")["status"] == "finished"


def test_a_resume_that_fails_early_keeps_the_saved_model(
    records: Records, tmp_path: Path, probe_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Killed):
        train_run(PreparedData.of(records), settings("bce"), tmp_path / "run", Counting(fatal_step=probe_steps))
    monkeypatch.setattr("probmcl.run.train.views_sheet", lambda images: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_run(PreparedData.of(records), settings("bce"), tmp_path / "run", quiet())
    assert json.loads((tmp_path / "run" / "run.json").read_text())["kept"] == "frozen probe"
    assert load(tmp_path / "run").predict([str(records.paths[0])]).scores.shape == (1, 3)


def test_resuming_with_other_labels_is_an_error(records: Records, bce: Run) -> None:
    other = replace(records, states=LabelStates.from_labels(1 - records.labels))
    with pytest.raises(ValueError, match="have changed"):
        train_run(PreparedData.of(other), settings("bce"), bce.folder, quiet())


def test_an_interrupted_run_records_its_status_and_can_predict(
    records: Records, tmp_path: Path, probe_steps: int
) -> None:
    console = Counting(fatal_step=probe_steps, error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        train_run(PreparedData.of(records), settings("probmcl"), tmp_path / "run", console)
    metadata = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (metadata["status"], metadata["kept"]) == ("interrupted", "frozen probe")
    assert load(tmp_path / "run").predict([str(records.paths[0])]).scores.shape == (1, 3)


def test_heads_of_an_earlier_run_are_copied_by_class_name(records: Records, bce: Run, tmp_path: Path) -> None:
    names = ("blue", "violet", "red")
    other = replace(records, label_space=LabelSpace.from_labels(names, records.labels))
    console = RichConsole(file=StringIO(), width=200)
    encoder = EncoderSettings("test_resnet", weights=str(bce.folder), image_size=32)
    idle = TrainingJob("bce", method_settings("bce"), Training(epochs=1, batch_size=8, learning_rate=1e-12, ema=0.0))
    config = settings("bce", encoder=encoder, jobs=(idle,), tune="last")
    run = train_run(
        PreparedData.of(other), config, tmp_path / "run", Console(console), control=RunControl(test=all_candidates)
    )
    assert "2 of 3; new: violet; not used: green" in console.file.getvalue()  # type: ignore[attr-defined]
    state, earlier = run.candidates[CandidateId("bce", "own head")].state, load_file(bce.folder / "model.safetensors")
    assert torch.allclose(state["linear.weight"][[0, 2]], earlier["linear.weight"][[2, 0]])


def hidden(records: Records, state: State) -> Records:
    """Return the records with half of their labels in another state."""
    states = records.states.dense()
    states[np.random.default_rng(0).random(states.shape) < 0.5] = state
    changed = LabelStates.from_states(states)
    return Records.from_labels(records.label_space.names, records.paths, records.split, changed)


def test_unknown_and_uncertain_labels_do_not_change_results(records: Records, tmp_path: Path) -> None:
    results = [
        train_run(PreparedData.of(hidden(records, state)), settings("probmcl"), tmp_path / state.name, quiet())
        for state in (State.UNKNOWN, State.UNCERTAIN)
    ]
    assert torch.equal(results[0].kept.scores["test"], results[1].kept.scores["test"])
    assert results[0].kept.test == results[1].kept.test
    known = train_run(PreparedData.of(records), settings("probmcl"), tmp_path / "known", quiet())
    assert not torch.equal(results[0].kept.scores["test"], known.kept.scores["test"])


def test_metrics_with_unknown_labels_match_scikit_learn_on_the_known_ones(records: Records, tmp_path: Path) -> None:
    half = hidden(records, State.UNKNOWN)
    run = train_run(PreparedData.of(half), settings("bce"), tmp_path / "run", quiet())
    with np.load(run.folder / "predictions" / "test.npz") as saved:
        scores, labels, known = saved["scores"], saved["labels"], saved["known"]
    assert np.array_equal(known, half.known[half.rows("test")])
    assert 0 < known.mean() < 1
    ap = read(run, "evaluation.json")["ap"]
    assert isinstance(ap, dict)
    for k, name in enumerate(half.label_space.names):
        rows = known[:, k]
        expected = average_precision_score(labels[rows, k], scores[rows, k]) if labels[rows, k].any() else None
        assert ap[name] == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_uncertain_labels_are_trained_on_by_their_chance_and_never_scored(records: Records, tmp_path: Path) -> None:
    states = records.states.dense()
    states[:, 1] = State.UNCERTAIN
    chances = {"always": 1.0, "never": 0.0, "often": 0.6}
    # Fitted until the scores are far apart: about 0.03, 0.7 and 0.97.
    probe = ProbeSettings(epochs=60, views=0, weight_decays=(0.01,), learning_rate=0.1, batch_size=8, loss="bce")
    scores = {}
    for name, chance in chances.items():
        uncertain = LabelStates.from_states(states, chance=np.array([np.nan, chance, np.nan], dtype=np.float32))
        changed = Records.from_labels(records.label_space.names, records.paths, records.split, uncertain)
        run = train_run(PreparedData.of(changed), settings("bce", probe=probe), tmp_path / name, quiet())
        scores[name] = run.candidates[FROZEN_PROBE].scores["val"][:, 1].mean()
        known = run.kept.validation["per_class"]["green"]["n"]
        assert (known == 0) == (name == "often")
    assert scores["never"] < scores["often"] < scores["always"]


def test_output_to_a_file_has_no_control_characters(records: Records, tmp_path: Path) -> None:
    console = RichConsole(file=StringIO())
    train_run(PreparedData.of(records), settings("bce"), tmp_path / "run", Console(console))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "training bce" in text
    assert "images/s" in text
    assert "\x1b" not in text
    assert "\r" not in text


@pytest.mark.parametrize(("statistics", "moving"), [(None, False), ("fixed", False), ("moving", True)])
def test_batch_statistics_of_given_weights_are_fixed_by_default(
    records: Records, bce: Run, tmp_path: Path, statistics: Literal["fixed", "moving"] | None, moving: bool
) -> None:
    encoder = EncoderSettings("test_resnet", str(bce.folder), 32, statistics)
    run = train_run(PreparedData.of(records), settings("bce", encoder=encoder), tmp_path / "run", quiet())
    before, after = run.candidates[FROZEN_PROBE].state, run.candidates[CandidateId("bce", "own head")].state
    moved = [key for key in before if "running_mean" in key and not torch.equal(before[key], after[key])]
    assert bool(moved) == moving


def test_the_note_of_a_method_is_printed_and_stored_with_its_map(records: Records, tmp_path: Path) -> None:
    console = Console(RichConsole(file=StringIO(), width=200))
    run = train_run(
        PreparedData.of(records), settings("pla"), tmp_path / "run", console, control=RunControl(test=all_candidates)
    )
    note = PLA.note
    own, probed = run.candidates[CandidateId("pla", "own head")], run.candidates[CandidateId("pla", "re-probed")]
    assert (own.note, probed.note) == (note, "")
    assert repr(replace(run, kept=own)).endswith(f"; {note})")
    assert note not in repr(replace(run, kept=probed))
    assert [c.get("note") for c in read(run, "run.json")["candidates"]] == [None, note, None]  # type: ignore[attr-defined]
    for candidate in (own, probed):
        saved = json.loads((run.folder / "candidates" / candidate.id.key / "evaluation.json").read_text())
        assert saved.get("note", "") == candidate.note
    text = console.rich.file.getvalue()  # type: ignore[attr-defined]
    assert text.count(f"note on pla, own head: {note}") == 2  # after its validation mAP, and at the end
    assert text[text.index("kept: ") :].splitlines()[1].strip() == f"note on pla, own head: {note}"


def test_the_probe_note_of_a_method_is_stored_with_its_probe_only(records: Records, tmp_path: Path) -> None:
    run = train_run(
        PreparedData.of(records), settings("kssnet"), tmp_path / "run", quiet(), control=RunControl(test=all_candidates)
    )
    notes = {candidate.name: candidate.note for candidate in run.candidates.values() if candidate.note}
    assert notes == {"kssnet, re-probed": KSSNet.probe_note}
    saved = json.loads((run.folder / "candidates" / "kssnet.re_probed" / "evaluation.json").read_text())
    assert saved["note"] == KSSNet.probe_note


def test_a_note_is_read_from_a_finished_run(records: Records, tmp_path: Path) -> None:
    train_run(PreparedData.of(records), settings("pla"), tmp_path / "run", quiet())
    again = read_run(RunFolder(tmp_path / "run"))
    assert again.candidates[CandidateId("pla", "own head")].note == PLA.note


@pytest.mark.parametrize("tune", ["last", "none"])
def test_the_evaluation_of_a_run_is_that_of_the_loaded_model(records: Records, tmp_path: Path, tune: Tune) -> None:
    """Cached activations have half precision, so their scores differ in the fourth digit."""
    run = train_run(PreparedData.of(records), settings("bce", tune=tune), tmp_path / "run", quiet())
    model = load(run.folder)
    evaluated = model.evaluate_records(records, EvaluateOptions(workers=0, console=quiet()))
    stored = read(run, "evaluation.json")
    assert stored == {"schema": SCHEMA, **evaluated.evaluation.to_dict()}
    saved = np.load(run.folder / "predictions" / "test.npz")
    assert np.array_equal(saved["scores"], evaluated.scores)
    model.calibrate()  # with the same rule
    assert read(run, "evaluation.json") == stored
