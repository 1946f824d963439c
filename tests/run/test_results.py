"""Scores of a run as they are printed and stored: gains with their intervals, chance levels, and warnings."""

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console as RichConsole

from helpers.evaluations import split_metrics
from helpers.images import colored_records
from probmcl.audit.prepare import PreparedData
from probmcl.console import Console
from probmcl.data.labels import LabelStates, State
from probmcl.data.records import Records
from probmcl.evaluation import bootstrapped_map, centered, interval, resamples
from probmcl.run.results import FROZEN_PROBE, Candidate, CandidateId, Gain, Run, ValidationGains
from probmcl.run.state import RunState
from probmcl.run.train import train_run
from probmcl.settings import EncoderSettings, ProbeSettings, Settings, TrainingJob, method_settings
from probmcl.store.run_metadata import RunStatus
from probmcl.tables import percent, points
from probmcl.training import Training

NAMES = ("a", "b")


def candidate(records: Records, scores: Any, method: str = "") -> Candidate:
    rows = records.rows("val")
    result = split_metrics(scores, records.labels[rows], records.known[rows])
    identity = FROZEN_PROBE if not method else CandidateId(method, "own head")
    return Candidate(identity, method, None, {}, {"val": torch.from_numpy(scores)}, result, 0.0)


def random_records(images: int = 60) -> Records:
    labels = (np.random.default_rng(0).random((images, 2)) < 0.4).astype(np.float32)
    return Records.from_labels(NAMES, [Path(f"{i}.jpg") for i in range(images)], ["val"] * images, labels)


def test_gain_is_paired_and_its_interval_contains_it() -> None:
    records, rng = random_records(), np.random.default_rng(1)
    noisy = records.labels + rng.normal(size=records.labels.shape)
    better, frozen = candidate(records, noisy + records.labels, "bce"), candidate(records, noisy)
    gains = ValidationGains(records)
    gain = gains.gain(better, frozen)
    assert gain is not None
    assert gain.interval is not None
    assert gain.mean == pytest.approx(better.validation_map - frozen.validation_map)
    assert gain.interval[0] < gain.mean < gain.interval[1]
    assert not gain.is_noise
    assert gains.gain(replace(frozen, id=CandidateId("bce", "re-probed")), frozen) == Gain(0.0, (0.0, 0.0))


def test_groups_are_resampled_as_a_whole() -> None:
    records, rng = random_records(), np.random.default_rng(1)
    noisy = records.labels + rng.normal(size=records.labels.shape)
    groups = tuple(f"patient {row // 20}" for row in range(60))

    frozen, other = candidate(records, noisy), candidate(records, noisy + 0.3 * noisy[::-1], "bce")
    gain = ValidationGains(replace(records, group=groups)).gain(other, frozen)
    weights = resamples(60, groups)
    maps = [
        centered(bootstrapped_map(c.scores["val"], records.labels, None, weights), c.validation_map)
        for c in (other, frozen)
    ]
    assert gain == Gain(other.validation_map - frozen.validation_map, interval(maps[0] - maps[1]))
    assert set(weights.reshape(1000, 3, 20).std(axis=2).ravel()) == {0.0}
    single = replace(records, group=("one patient",) * 60)
    gain = ValidationGains(single).gain(candidate(single, noisy, "bce"), candidate(single, noisy))
    assert gain == Gain(0.0, None)
    assert gain.is_noise
    assert str(gain) == "+0.0"


def test_few_images_have_a_gain_without_an_interval() -> None:
    labels = np.array([[1, 0], [0, 1], [0, 0]], dtype=np.float32)
    records = Records.from_labels(NAMES, [Path(name) for name in "abc"], ["val"] * 3, labels)
    better, frozen = candidate(records, labels + 0.0, "bce"), candidate(records, 1.0 - labels)
    gain = ValidationGains(records).gain(better, frozen)
    assert gain is not None
    assert gain.mean == pytest.approx(1 - 1 / 3)
    assert gain.interval is None
    assert gain.is_noise


def test_there_is_no_gain_without_a_validation_map() -> None:
    records = random_records()
    present = Records.from_labels(NAMES, records.paths, records.split, np.ones_like(records.labels))
    scores = np.zeros_like(records.labels)
    assert ValidationGains(present).gain(candidate(present, scores, "bce"), candidate(present, scores)) is None


def settings(*methods: str) -> Settings:
    training = Training(epochs=2, batch_size=8, learning_rate=1e-3)
    return Settings(
        method=methods[0] if methods else "probe",
        jobs=tuple(TrainingJob(method, method_settings(method), training) for method in methods),
        encoder=EncoderSettings("test_resnet", weights=None, image_size=32),
        probe=ProbeSettings(epochs=5, views=1, weight_decays=(1.0, 10.0)),
        workers=0,
    )


def read(run: Run, name: str) -> Any:
    return json.loads((run.folder / name).read_text())


def train(records: Records, folder: Path, *methods: str) -> tuple[Run, list[str]]:
    """Train and return the run with the lines that were printed."""
    output = StringIO()
    run = train_run(PreparedData.of(records), settings(*methods), folder, Console(RichConsole(file=output, width=300)))
    return run, output.getvalue().splitlines()


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return colored_records(tmp_path_factory.mktemp("images"), test=24)


@pytest.mark.slow
def test_gains_are_stored_and_printed_with_their_intervals(records: Records, tmp_path: Path) -> None:
    run, lines = train(records, tmp_path / "run", "bce")
    frozen, *others = read(run, "run.json")["candidates"]
    assert "gain" not in frozen
    for entry in others:
        assert entry["gain"] == pytest.approx(entry["validation_mAP"] - frozen["validation_mAP"])
        low, high = entry["gain_interval"]
        assert low < high
        validation = run.candidates[CandidateId(entry["method"], entry["head"])].validation
        line = next(line for line in lines if line.startswith(f"{entry['name']}: "))
        gain = f"{points(entry['gain'])} [{points(low)}, {points(high)}]"
        scores = f"mAP {percent(validation['mAP'])} ({gain}, chance {percent(validation['chance'])})"
        auroc = f"AUROC {percent(validation['macro_auroc'])}"
        assert f"val {scores}, {auroc}" in line


@pytest.mark.slow
def test_the_test_score_has_an_interval_and_the_chance_level(records: Records, tmp_path: Path) -> None:
    run, lines = train(records, tmp_path / "run")
    result, labels = read(run, "evaluation.json"), records.labels[records.rows("test")]
    assert result["chance"] == pytest.approx(labels.mean())
    low, high = result["mAP_interval"]
    assert low < result["mAP"] < high
    scores = f"mAP {percent(result['mAP'])} [{percent(low)}, {percent(high)}] (chance {percent(result['chance'])})"
    assert f"kept: frozen probe; test {scores}, AUROC {percent(result['macro_auroc'])}" in lines
    assert result["macro_auroc_interval"][0] < result["macro_auroc"]
    assert {warning.kind for warning in run.warnings} == {"calibration"}  # there are few images
    assert lines[-1].startswith("finished in ")
    assert repr(run) == f"Run({str(run.folder)!r}, kept {run.kept!r})"
    assert re.fullmatch(r"Candidate\('frozen probe', validation mAP [^\n]+; test mAP [^\n]+\)", repr(run.kept))


@pytest.mark.slow
def test_a_useless_model_is_warned_about_once(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffled = records.states.dense()[np.random.default_rng(1).permutation(len(records))]
    useless = Records.from_labels(
        records.label_space.names, records.paths, records.split, LabelStates.from_states(shuffled)
    )
    record = RunState.record

    def interrupt(state: RunState, status: RunStatus) -> None:
        if status == "finished":
            raise KeyboardInterrupt
        record(state, status)

    monkeypatch.setattr(RunState, "record", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_run(PreparedData.of(useless), settings(), tmp_path / "run", Console(RichConsole(quiet=True)))
    monkeypatch.setattr(RunState, "record", record)
    run, lines = train(useless, tmp_path / "run")
    (warning,) = [
        warning for warning in run.warnings if warning.kind == "chance"
    ]  # although the interrupted run had stored it too
    assert warning.kind == "chance"
    assert re.match(r"test (mAP|AUROC) \S+ \[.*\] is not clearly above chance", warning.message)
    assert read(run, "run.json")["warnings"] == [vars(warning) for warning in run.warnings]
    assert lines[-1].startswith("finished in ")  # `probmcl.train` prints the warning


@pytest.mark.slow
def test_a_test_split_without_negatives_has_no_map(records: Records, tmp_path: Path) -> None:
    states = records.states.dense()
    states[records.rows("test")] = State.PRESENT
    always = Records.from_labels(
        records.label_space.names, records.paths, records.split, LabelStates.from_states(states)
    )
    run, lines = train(always, tmp_path / "run")
    assert "kept: frozen probe; test mAP undefined: no class has both a positive and a negative" in lines
    message = run.warnings[-1].message
    assert message.startswith("the model could not be scored on the test split: no class has both")
    assert read(run, "evaluation.json")["mAP"] is None
