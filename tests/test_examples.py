"""The examples run as their docstrings show."""

import runpy
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import probmcl
from helpers.commands import main
from helpers.images import folder_of_photographs
from probmcl.methods import find_method
from probmcl.methods.custom_loss import CustomContrast, CustomLoss, custom_loss
from probmcl.run.results import CandidateId, Run

pytestmark = pytest.mark.slow  # the tests train models or start processes

EXAMPLES = Path(__file__).parent.parent / "examples"
LOSS_FILE = "mine.py"
SMALL: dict[str, Any] = {
    "encoder": "test_resnet",
    "weights": "none",
    "image_size": 32,
    "probe_epochs": 2,
    "workers": 0,
    "epochs": 1,
    "report": False,
}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_photographs(tmp_path_factory.mktemp("user"))


def test_example_has_a_classification_and_a_contrastive_loss() -> None:
    assert issubclass(find_method(f"{EXAMPLES / 'own_loss.py'}:smoothed"), CustomLoss)
    assert issubclass(find_method(f"{EXAMPLES / 'own_loss.py'}:soft_contrast"), CustomContrast)


@pytest.fixture(scope="module")
def runs(photographs: Path) -> dict[str, Run]:
    """Train with both losses of the example, from a file that is then deleted."""
    folder = photographs.parent.parent
    (folder / LOSS_FILE).write_text((EXAMPLES / "own_loss.py").read_text())
    trained = {
        name: probmcl.train(photographs, loss=f"{folder / LOSS_FILE}:{name}", **SMALL, out=folder / name)
        for name in ("smoothed", "soft_contrast")
    }
    (folder / LOSS_FILE).unlink()
    return trained


@pytest.fixture
def _in_a_new_process(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the imported losses, as in a new process."""
    monkeypatch.delitem(sys.modules, str(runs["smoothed"].folder.parent / LOSS_FILE))
    custom_loss.cache_clear()


@pytest.mark.usefixtures("_in_a_new_process")
def test_custom_loss_trains_and_predicts_without_its_file(runs: dict[str, Run], photographs: Path) -> None:
    for name, run in runs.items():
        assert CandidateId(name, "re-probed") in run.candidates
        assert not (run.folder.parent / LOSS_FILE).exists()
        assert probmcl.load(run.folder).predict([photographs.parent], workers=0).scores.shape == (40, 3)


def test_own_head_is_saved_as_a_linear_layer(runs: dict[str, Run]) -> None:
    assert runs["smoothed"].candidates[CandidateId("smoothed", "own head")].method == "probe"


@pytest.mark.usefixtures("_in_a_new_process")
def test_run_with_a_custom_loss_resumes_only_if_the_loss_is_given_again(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["smoothed"].folder
    loss_file = run.parent / LOSS_FILE
    loss_file.write_text((EXAMPLES / "own_loss.py").read_text())
    shutil.copytree(run, tmp_path / "run")
    try:
        without_loss, with_loss = (
            main("train", "--resume", tmp_path / "run", *options)
            for options in ([], ["--loss", f"{loss_file}:smoothed"])
        )
    finally:
        loss_file.unlink()
    assert without_loss.returncode == 1
    assert "--loss" in without_loss.stderr
    assert with_loss.returncode == 0, with_loss.stderr


def test_invalid_loss_options_are_rejected(photographs: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"method": "bce", "loss": "x.py:y"}, "cannot be combined with"),
        ({"loss": "x:y"}, "FILE.py:FUNCTION"),
        ({"loss": "nowhere.py:y"}, "does not exist"),
    ):
        with pytest.raises(ValueError, match=message):
            probmcl.train(photographs, **options, **SMALL, out=tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_example_runs_as_a_script(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the script with a small, randomly initialized encoder and few epochs."""
    monkeypatch.setattr(probmcl, "compare", partial(probmcl.compare, **SMALL, out=tmp_path / "out"))
    monkeypatch.setattr(sys, "argv", ["own_loss.py", str(photographs)])
    runpy.run_path(str(EXAMPLES / "own_loss.py"), run_name="__main__")
    table = (tmp_path / "out" / "comparison.csv").read_text()
    assert "soft_contrast" in table
    assert "smoothed" in table
