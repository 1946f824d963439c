"""The state of a run in progress: the results of completed phases, stored as checkpoints, and its candidates."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console as RichConsole

from helpers.evaluations import split_metrics
from helpers.images import colored_records
from probmcl.audit.prepare import PreparedData
from probmcl.console import Console
from probmcl.data.labels import LabelStates
from probmcl.data.records import Records
from probmcl.errors import RunError
from probmcl.readers.options import ReadOptions
from probmcl.run import train
from probmcl.run.run_files import class_labels
from probmcl.run.state import TEST_FORMAT, ScoredTest
from probmcl.run.train import RunControl, all_candidates, train_run
from probmcl.settings import EncoderSettings, ProbeSettings, Settings, TrainingJob, method_settings
from probmcl.store.evaluation import Retrieval
from probmcl.store.files import MODEL_TESTED, NEIGHBORS, TESTED
from probmcl.store.run_folder import RunFolder
from probmcl.training import Training


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
