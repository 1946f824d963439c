"""The state of a run in progress: the results of completed phases, stored as checkpoints, and its candidates."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
import pytest
import torch
from rich.console import Console as RichConsole

from helpers.evaluations import split_metrics
from helpers.images import colored_records
from helpers.run_folders import RUN
from probmcl.audit.prepare import PreparedData
from probmcl.console import Console
from probmcl.data.labels import LabelStates
from probmcl.data.records import Records
from probmcl.errors import RunError, RunWarning, SettingsError
from probmcl.neighbors.training_images import TrainingImages
from probmcl.readers.options import METADATA_FILE, ReadOptions
from probmcl.run import state as state_module
from probmcl.run import train
from probmcl.run.budget import EpochPlan
from probmcl.run.candidates import Outcome
from probmcl.run.results import FROZEN_PROBE, Candidate, CandidateId
from probmcl.run.run_files import class_labels
from probmcl.run.state import (
    NEIGHBORS_FORMAT,
    TEST_FORMAT,
    Format,
    RunState,
    ScoredTest,
    candidate_format,
    finished_phases,
    json_format,
    load_candidate,
    print_notes,
    seed_phase,
    tidy_up,
)
from probmcl.run.train import RunControl, all_candidates, train_run
from probmcl.runtime.tensor_files import load_tensors
from probmcl.settings import EncoderSettings, ProbeSettings, Settings, TrainingJob, method_settings
from probmcl.store import files
from probmcl.store.evaluation import Retrieval
from probmcl.store.files import MODEL_TESTED, NEIGHBORS, TESTED
from probmcl.store.run_folder import RunFolder
from probmcl.training import Training

LABELS = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=np.float32)
OWN_HEAD = CandidateId("bce", "own head")
RE_PROBED = CandidateId("bce", "re-probed")
PLAN = json_format(EpochPlan)
TWELVE = EpochPlan({"bce": 12}, ("plan: bce 12 epochs",))
SIX = EpochPlan({"bce": 6}, ("plan: bce 6 epochs",))


def quiet() -> Console:
    return Console(RichConsole(file=StringIO()))


def bce() -> Settings:
    training = Training(epochs=1, batch_size=8, learning_rate=1e-3)
    return Settings(
        method="bce",
        jobs=(TrainingJob("bce", method_settings("bce"), training),),
        encoder=EncoderSettings("test_resnet", weights=None, image_size=32),
        probe=ProbeSettings(epochs=2, views=1, weight_decays=(1.0,)),
        tune="last",
        workers=0,
    )


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return colored_records(tmp_path_factory.mktemp("images"))


def opened(folder: Path) -> tuple[RunState, StringIO]:
    """Open the state of a run with four validation images, as a new process does, and return what it prints."""
    run = RunFolder(folder)
    if not run.has(files.METADATA):
        running = msgspec.structs.replace(RUN, status="running", candidates=(), kept=None, model=None)
        run.write(METADATA_FILE, running)
    records = Records.from_labels(("a", "b"), [Path(f"{i}.jpg") for i in range(4)], ["val"] * 4, LABELS)
    printed = StringIO()
    return RunState(run, records, bce(), Console(RichConsole(file=printed, width=300))), printed


def made_candidate(identity: CandidateId, *, right: int, note: str = "") -> Candidate:
    """Make a candidate that ranks the images rightly for the first `right` of the two classes, and wrongly for others.

    Its parameter has the value `right`.
    """
    scores = 0.2 + 0.6 * LABELS
    scores[:, right:] = 1 - scores[:, right:]
    method = "probe" if identity.head != "own head" else identity.method
    return Candidate(
        identity,
        method,
        method_settings(method),
        state={"linear.weight": torch.full((2, 3), float(right))},
        scores={"val": torch.from_numpy(scores)},
        validation=split_metrics(scores, LABELS, note=note),
        seconds=3.0,
        fit_seconds=1.5,
        weight_decay=10.0,
    )


def returning(result: Any) -> Callable[[], Any]:
    return lambda: result


def repeated() -> NoReturn:
    raise AssertionError("this phase is complete")


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def store(folder: Path, candidates: Iterable[Candidate]) -> None:
    """Store candidates as an interrupted process has done."""
    for candidate in candidates:
        candidate_format(candidate.id).save(RunFolder(folder), candidate.id.key, candidate)


def test_once_returns_what_is_computed_and_stores_it(tmp_path: Path) -> None:
    state, printed = opened(tmp_path)
    result = EpochPlan({"bce": 12}, ())
    assert state.once("plan", returning(result), PLAN) == result
    assert PLAN.load(RunFolder(tmp_path), "plan") == result
    assert printed.getvalue() == ""


def scored_test() -> ScoredTest:
    candidate = made_candidate(OWN_HEAD, right=1)
    return ScoredTest(candidate.scores["val"], candidate.validation, Retrieval(jaccard_at_10=0.5, mAP=None))


def images_of_training() -> TrainingImages:
    return TrainingImages(("a.jpg", "b.jpg"), torch.eye(2).half(), torch.eye(2) > 0, torch.ones(2, 2) > 0)


RESULTS: dict[str, tuple[Any, Format[Any]]] = {
    "plan": (TWELVE, PLAN),
    "bce.outcome": (Outcome(2.5, None, (RunWarning("skipped", "1 batch"),)), json_format(Outcome)),
    "bce.own_head": (scored_test(), TEST_FORMAT),
    "neighbors": (images_of_training(), NEIGHBORS_FORMAT),
    "frozen": (made_candidate(FROZEN_PROBE, right=1), candidate_format(FROZEN_PROBE)),
}
"""Results of phases by their keys, with their formats."""


def assert_equal(first: Any, second: Any) -> None:
    """Compare results, which may contain tensors."""
    assert type(first) is type(second)
    for name, value in vars(first).items():
        other = getattr(second, name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other), name
        elif isinstance(value, dict) and any(isinstance(item, torch.Tensor) for item in value.values()):
            assert value.keys() == other.keys()
            assert all(torch.equal(item, other[key]) for key, item in value.items()), name
        else:
            assert value == other, name


@pytest.mark.parametrize("key", RESULTS)
def test_once_skips_a_phase_that_an_earlier_process_has_completed(tmp_path: Path, key: str) -> None:
    result, storage = RESULTS[key]
    first, _ = opened(tmp_path)
    first.once(key, returning(result), storage)
    again, printed = opened(tmp_path)
    assert_equal(again.once(key, repeated, storage), result)
    assert printed.getvalue() == ""


@pytest.mark.parametrize("key", RESULTS)
def test_once_computes_a_damaged_phase_again_and_says_so_once(tmp_path: Path, key: str) -> None:
    result, storage = RESULTS[key]
    first, _ = opened(tmp_path)
    first.once(key, returning(result), storage)
    path = tmp_path / storage.name(key)
    path.write_bytes(path.read_bytes()[:-20])
    again, printed = opened(tmp_path)
    assert_equal(again.once(key, returning(result), storage), result)
    notes = printed.getvalue().splitlines()
    assert len(notes) == 1
    assert notes[0].startswith(f"note: {path}")
    assert notes[0].endswith("; it is computed again")
    third, printed = opened(tmp_path)
    assert_equal(third.once(key, repeated, storage), result)
    assert printed.getvalue() == ""


def test_a_result_that_was_changed_is_computed_again(tmp_path: Path) -> None:
    first, _ = opened(tmp_path)
    first.once("plan", returning(TWELVE), PLAN)
    path = tmp_path / PLAN.name("plan")
    path.write_text(path.read_text().replace("12", "99"))
    again, printed = opened(tmp_path)
    assert again.once("plan", returning(SIX), PLAN) == SIX
    assert "does not match its checksum; it is computed again" in printed.getvalue()


def test_a_result_of_another_kind_is_computed_again(tmp_path: Path) -> None:
    first, _ = opened(tmp_path)
    first.once("plan", returning(Outcome(2.5)), json_format(Outcome))
    again, printed = opened(tmp_path)
    assert again.once("plan", returning(SIX), PLAN) == SIX
    assert printed.getvalue().count("it is computed again") == 1


def test_a_candidate_without_scores_is_computed_again(tmp_path: Path) -> None:
    candidate = made_candidate(OWN_HEAD, right=1)
    store(tmp_path, [candidate])
    file = files.CANDIDATE.named(OWN_HEAD.key)
    run = RunFolder(tmp_path)
    tensors, stored = run.read_tensors(file)
    del tensors["scores"]
    run.write_tensors(file, tensors, stored)
    with pytest.raises(RunError, match=r"bce\.own_head\.safetensors: has no scores"):
        load_candidate(run, OWN_HEAD)
    state, printed = opened(tmp_path)
    assert state.candidate(OWN_HEAD, returning(candidate)) is candidate
    assert "has no scores" in printed.getvalue()


def test_a_candidate_of_a_method_that_is_not_loaded_is_refused(tmp_path: Path) -> None:
    """A run folder from a stranger must not cause code to run, and its results are not overwritten."""
    store(tmp_path, [replace(made_candidate(OWN_HEAD, right=1), method="their_module:Method")])
    path = tmp_path / files.CANDIDATE.named(OWN_HEAD.key)
    before = path.read_bytes()
    state, _ = opened(tmp_path)
    with pytest.raises(SettingsError, match=r"'their_module:Method' is not part of probmcl .* `loss=\"their_module"):
        state.restore([OWN_HEAD])
    with pytest.raises(SettingsError, match="is not part of probmcl"):
        state.candidate(OWN_HEAD, repeated)
    assert path.read_bytes() == before


def test_a_phase_that_fails_stores_nothing(tmp_path: Path) -> None:
    state, _ = opened(tmp_path)
    with pytest.raises(AssertionError):
        state.once("plan", repeated, PLAN)
    assert finished_phases(RunFolder(tmp_path)) == set()


def test_once_returns_and_stores_the_result_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = opened(tmp_path)
    of_rank_0 = replace(PLAN, synchronize=lambda result: TWELVE)
    assert state.once("plan", returning(SIX), of_rank_0) == TWELVE
    assert PLAN.load(RunFolder(tmp_path), "plan") == TWELVE
    monkeypatch.setattr(state_module, "is_main_process", lambda: False)
    assert state.once("other", returning(SIX), of_rank_0) == TWELVE
    assert not (tmp_path / PLAN.name("other")).exists()


def test_json_results_are_synchronized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured times differ between processes, which must make the same plan."""
    monkeypatch.setattr(state_module, "broadcast", lambda result: {**result, "epochs": {"bce": 12}})
    assert PLAN.synchronize(SIX) == replace(SIX, epochs={"bce": 12})


def test_a_candidate_is_computed_once(tmp_path: Path) -> None:
    state, printed = opened(tmp_path)
    candidate = made_candidate(FROZEN_PROBE, right=1)
    assert state.candidate(FROZEN_PROBE, returning(candidate)) is candidate
    assert state.candidate(FROZEN_PROBE, repeated) is candidate
    assert len(printed.getvalue().splitlines()) == 1
    again, _ = opened(tmp_path)
    assert_equal(again.candidate(FROZEN_PROBE, repeated), candidate)


def saved_value(folder: Path) -> float:
    """Return the parameter of the saved model."""
    tensors, _ = load_tensors(folder / files.MODEL)
    return float(tensors["linear.weight"][0, 0])


def test_the_best_candidate_is_saved_as_the_model(tmp_path: Path) -> None:
    state, printed = opened(tmp_path)
    state.candidate(FROZEN_PROBE, returning(made_candidate(FROZEN_PROBE, right=1)))
    assert saved_value(tmp_path) == 1
    state.candidate(OWN_HEAD, returning(made_candidate(OWN_HEAD, right=2)))
    assert saved_value(tmp_path) == 2
    state.candidate(RE_PROBED, returning(made_candidate(RE_PROBED, right=0)))
    assert saved_value(tmp_path) == 2
    lines = printed.getvalue().splitlines()
    assert [line.endswith("; saved") for line in lines] == [True, True, False]
    assert [line.partition(": val mAP ")[0] for line in lines] == ["frozen probe", "bce, own head", "bce, re-probed"]
    assert "AUROC 100.0" in lines[1]
    assert "(+" in lines[1]  # its gain over the frozen probe
    with np.load(tmp_path / "predictions" / "val.npz") as saved:
        assert np.array_equal(saved["scores"], made_candidate(OWN_HEAD, right=2).scores["val"].numpy())
    metadata = RunFolder(tmp_path).read(files.METADATA)
    assert metadata.kept == OWN_HEAD.name
    assert metadata.model is not None
    assert metadata.model.method == "bce"
    assert [entry.name for entry in metadata.candidates] == ["frozen probe", "bce, own head", "bce, re-probed"]


def test_only_rank_0_saves_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = opened(tmp_path)
    monkeypatch.setattr(state_module, "is_main_process", lambda: False)
    state.candidate(FROZEN_PROBE, returning(made_candidate(FROZEN_PROBE, right=1)))
    assert not (tmp_path / files.MODEL).exists()


def test_candidates_are_restored_in_order_and_the_best_is_saved(tmp_path: Path) -> None:
    made = [
        made_candidate(FROZEN_PROBE, right=1),
        made_candidate(OWN_HEAD, right=2),
        made_candidate(RE_PROBED, right=0),
    ]
    store(tmp_path, reversed(made))
    state, printed = opened(tmp_path)
    missing = CandidateId("asl", "own head")
    state.restore([FROZEN_PROBE, OWN_HEAD, missing, RE_PROBED])
    assert list(state.candidates) == [FROZEN_PROBE, OWN_HEAD, RE_PROBED]
    for candidate in made:
        assert_equal(state.candidates[candidate.id], candidate)
        assert state.candidate(candidate.id, repeated) is state.candidates[candidate.id]
    lines = printed.getvalue().splitlines()
    assert [line.partition(": val mAP ")[0] for line in lines] == [candidate.name for candidate in made]
    assert all(line.endswith("; already done") for line in lines)
    assert saved_value(tmp_path) == 2
    assert RunFolder(tmp_path).read(files.METADATA).kept == OWN_HEAD.name


def test_a_damaged_candidate_is_not_restored_but_computed_again(tmp_path: Path) -> None:
    frozen, better = made_candidate(FROZEN_PROBE, right=1), made_candidate(OWN_HEAD, right=2)
    store(tmp_path, [frozen, better])
    path = tmp_path / files.CANDIDATE.named(OWN_HEAD.key)
    flip_last_bit(path)
    state, printed = opened(tmp_path)
    state.restore([FROZEN_PROBE, OWN_HEAD])
    assert list(state.candidates) == [FROZEN_PROBE]
    assert saved_value(tmp_path) == 1
    assert state.candidate(OWN_HEAD, returning(better)) is better
    notes = [line for line in printed.getvalue().splitlines() if line.startswith("note: ")]
    assert notes == [f"note: {path}: is damaged: its content does not match its checksum; it is computed again"]
    assert_equal(load_candidate(RunFolder(tmp_path), OWN_HEAD), better)


def test_nothing_is_saved_if_no_candidate_is_restored(tmp_path: Path) -> None:
    state, printed = opened(tmp_path)
    state.restore([FROZEN_PROBE, OWN_HEAD])
    assert len(state.candidates) == 0
    assert not (tmp_path / files.MODEL).exists()
    assert printed.getvalue() == ""


def test_the_note_of_a_candidate_is_printed_once_after_its_scores(tmp_path: Path) -> None:
    noted = made_candidate(OWN_HEAD, right=1, note="ranks sets")
    state, printed = opened(tmp_path)
    state.candidate(OWN_HEAD, returning(noted))
    state.candidate(OWN_HEAD, repeated)
    scores, note = printed.getvalue().splitlines()
    assert scores.startswith("bce, own head: val mAP ")
    assert note == "  note on bce, own head: ranks sets"
    again, printed = opened(tmp_path)
    again.restore([OWN_HEAD])
    again.candidate(OWN_HEAD, repeated)
    scores, note = printed.getvalue().splitlines()
    assert scores.endswith("; already done")
    assert note == "  note on bce, own head: ranks sets"


def test_notes_are_printed_of_candidates_that_have_one() -> None:
    printed = StringIO()
    noted = made_candidate(OWN_HEAD, right=1, note="ranks sets")
    other = made_candidate(RE_PROBED, right=1, note="without connections")
    candidates = [other, made_candidate(FROZEN_PROBE, right=1), noted]
    print_notes(Console(RichConsole(file=printed, width=300)), candidates)
    assert printed.getvalue().splitlines() == [
        "  note on bce, re-probed: without connections",
        "  note on bce, own head: ranks sets",
    ]


def test_record_writes_the_status_and_the_time_of_all_attempts(tmp_path: Path) -> None:
    state, _ = opened(tmp_path)
    state.run_record.started -= 100
    state.record("interrupted")
    metadata = RunFolder(tmp_path).read(files.METADATA)
    assert (metadata.status, metadata.candidates, metadata.kept) == ("interrupted", (), None)
    assert 100 <= metadata.seconds < 160
    again, _ = opened(tmp_path)
    again.run_record.started -= 100
    again.record("running")
    metadata = RunFolder(tmp_path).read(files.METADATA)
    assert metadata.status == "running"
    assert metadata.seconds >= 200


def test_a_warning_is_stored_and_printed_once(tmp_path: Path) -> None:
    collapse = RunWarning("collapse", "all features are alike")
    state, printed = opened(tmp_path)
    state.warn(collapse)
    state.warn(collapse)
    state.warn(RunWarning("skipped", "1 batch was skipped"))
    assert printed.getvalue().splitlines() == ["warning: all features are alike", "warning: 1 batch was skipped"]
    stored = json.loads((tmp_path / files.METADATA).read_text())["warnings"]
    assert [warning["message"] for warning in stored] == ["all features are alike", "1 batch was skipped"]
    again, printed = opened(tmp_path)
    again.warn(collapse)
    assert printed.getvalue() == ""
    assert len(again.run_record.log.warnings) == 2


def test_finished_phases_are_those_that_rank_0_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path)
    assert finished_phases(run) == set()
    PLAN.save(run, "plan", SIX)
    assert finished_phases(run) == {"checkpoints/plan.json"}
    NEIGHBORS_FORMAT.save(run, "neighbors", images_of_training())
    assert finished_phases(run) == {"checkpoints/plan.json", NEIGHBORS.name}
    monkeypatch.setattr(state_module, "broadcast", lambda names: ["of rank 0"])
    assert finished_phases(run) == {"of rank 0"}


def test_only_the_results_of_a_finished_run_remain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path)
    PLAN.save(run, "plan", SIX)
    store(tmp_path, [made_candidate(OWN_HEAD, right=1)])
    TEST_FORMAT.save(run, OWN_HEAD.key, scored_test())
    unfinished = [files.TRAINED.named("bce"), files.TRAINING.named("bce"), files.TRAINING.named("previous.bce")]
    for file in (*unfinished, MODEL_TESTED):
        (tmp_path / file).touch()
    cache = run.checkpoints / "activations"
    cache.mkdir()
    (cache / "train.npy").touch()
    before = set(run.checkpoints.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(state_module, "is_main_process", lambda: False)
        tidy_up(run)
    assert set(run.checkpoints.rglob("*")) == before
    tidy_up(run)
    assert {path.name for path in run.checkpoints.iterdir()} == {"plan.json", "bce.own_head.safetensors"}


def test_the_random_numbers_of_a_phase_depend_on_its_seed_and_stream_only() -> None:
    def drawn(seed: int, stream: str) -> list[float]:
        torch.rand(3)  # an earlier phase
        seed_phase(seed, stream)
        numbers: list[float] = torch.rand(4).tolist()
        return numbers

    assert drawn(0, "bce") == drawn(0, "bce")
    assert drawn(0, "bce") != drawn(1, "bce")
    assert drawn(0, "bce") != drawn(0, "probmcl")
    torch.manual_seed(4285157976)  # the CRC-32 of "0 bce"; another seed would change the scores of every run
    expected = torch.rand(4).tolist()
    assert drawn(0, "bce") == expected


def test_a_stored_test_is_read_as_it_was_written(tmp_path: Path) -> None:
    scores = torch.rand(3, 2)
    metrics = split_metrics(scores, torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), split="test")
    test = ScoredTest(scores, metrics, Retrieval(jaccard_at_10=0.5, mAP=None))
    TEST_FORMAT.save(RunFolder(tmp_path), "bce.own_head", test)
    stored = TEST_FORMAT.load(RunFolder(tmp_path), "bce.own_head")
    assert torch.equal(stored.scores, test.scores)
    assert (stored.evaluation, stored.retrieval) == (test.evaluation, test.retrieval)


def test_a_damaged_test_is_refused(tmp_path: Path) -> None:
    scores = torch.rand(3, 2)
    TEST_FORMAT.save(RunFolder(tmp_path), "frozen", ScoredTest(scores, split_metrics(scores, torch.eye(3)[:, :2])))
    path = tmp_path / TEST_FORMAT.name("frozen")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"frozen\.test\.safetensors: is damaged"):
        TEST_FORMAT.load(RunFolder(tmp_path), "frozen")


@pytest.mark.slow
def test_a_resumed_run_repeats_neither_tests_nor_neighbors(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def repeated(*_: object) -> None:
        raise AssertionError("this phase was complete")

    data, folder, control = PreparedData.of(records), tmp_path / "run", RunControl(test=all_candidates)
    expected = train_run(data, bce(), tmp_path / "uninterrupted", quiet(), control)
    with monkeypatch.context() as patch:
        patch.setattr(train, "_finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            train_run(data, bce(), folder, quiet(), control)
    tested = {path.relative_to(folder).as_posix() for path in folder.glob(TESTED.name)}
    assert tested == {MODEL_TESTED.name, *(TESTED.named(identity.key).name for identity in expected.candidates)}
    with monkeypatch.context() as patch:
        patch.setattr(train, "evaluate_on_test", repeated)
        patch.setattr(train, "evaluate_loaded_model", repeated)
        patch.setattr(train, "training_images", repeated)
        run = train_run(data, bce(), folder, quiet(), control)
    assert not list(folder.glob(TESTED.name))
    assert (folder / NEIGHBORS).read_bytes() == (expected.folder / NEIGHBORS).read_bytes()
    for identity, candidate in expected.candidates.items():
        assert torch.equal(run.candidates[identity].scores["test"], candidate.scores["test"])
        assert run.candidates[identity].test == candidate.test
        assert run.candidates[identity].retrieval == candidate.retrieval


def test_labels_json_has_names_parents_and_policy() -> None:
    states = LabelStates.from_states(
        np.array([[1, 1], [0, 3]], dtype=np.uint8), chance=np.array([np.nan, 0.5], dtype=np.float32)
    )
    records = Records.from_labels(
        ["animal", "cat"], [Path("a"), Path("b")], ["train", "test"], states, hierarchy={"cat": "animal"}
    )
    metadata = class_labels(records, ReadOptions(minus_one=("unknown", "cat=soft:0.5")))
    assert metadata.names == ("animal", "cat")
    assert metadata.counts == (1, 1)
    assert metadata.hierarchy == {"cat": "animal"}
    assert metadata.policy.minus_one == ("unknown", "cat=soft:0.5")
    assert metadata.policy.chance_of_uncertain == {"cat": 0.5}
    assert metadata.policy.labels == {
        "absent": 2,
        "present": 2,
        "unknown": 0,
        "uncertain": 0,
    }  # the parent is absent
