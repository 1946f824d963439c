"""The examples run as their docstrings show."""

import subprocess
import sys
from pathlib import Path

import pytest

import probmcl
from helpers.images import folder_of_photographs
from probmcl.methods import find_method
from probmcl.methods.custom_loss import CustomContrast, CustomLoss
from probmcl.run.results import CandidateId

pytestmark = pytest.mark.slow  # the tests train models or start processes

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {"encoder": "test_resnet", "weights": "none", "image_size": 32, "probe_epochs": 2, "workers": 0, "epochs": 1}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_photographs(tmp_path_factory.mktemp("user"))


def test_example_has_a_classification_and_a_contrastive_loss() -> None:
    assert issubclass(find_method(f"{EXAMPLES / 'own_loss.py'}:smoothed"), CustomLoss)
    assert issubclass(find_method(f"{EXAMPLES / 'own_loss.py'}:soft_contrast"), CustomContrast)


@pytest.mark.parametrize("name", ["smoothed", "soft_contrast"])
def test_custom_loss_trains_and_predicts_without_its_file(photographs: Path, tmp_path: Path, name: str) -> None:
    loss_file = tmp_path / "mine.py"
    loss_file.write_text((EXAMPLES / "own_loss.py").read_text())
    run = probmcl.train(photographs, loss=f"{loss_file}:{name}", **SMALL, out=tmp_path / "run")  # type: ignore[arg-type]
    assert CandidateId(name, "re-probed") in run.candidates
    loss_file.unlink()
    run_folder, images = str(tmp_path / "run"), str(photographs.parent)
    code = f"import probmcl; print(probmcl.load({run_folder!r}).predict([{images!r}]).scores.shape)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "(40, 3)", result.stderr


def test_own_head_is_saved_as_a_linear_layer(photographs: Path, tmp_path: Path) -> None:
    loss = f"{EXAMPLES / 'own_loss.py'}:smoothed"
    run = probmcl.train(photographs, loss=loss, **SMALL, out=tmp_path / "run")  # type: ignore[arg-type]
    assert run.candidates[CandidateId("smoothed", "own head")].method == "probe"


def test_run_with_a_custom_loss_resumes_only_if_the_loss_is_given_again(photographs: Path, tmp_path: Path) -> None:
    loss_file = tmp_path / "mine.py"
    loss_file.write_text((EXAMPLES / "own_loss.py").read_text())
    command = [sys.executable, "-m", "probmcl", "train"]
    probmcl.train(photographs, loss=f"{loss_file}:smoothed", **SMALL, out=tmp_path / "run")  # type: ignore[arg-type]
    without_loss, with_loss = (
        subprocess.run(
            [*command, "--resume", str(tmp_path / "run"), *options], capture_output=True, text=True, check=False
        )
        for options in ([], ["--loss", f"{loss_file}:smoothed"])
    )
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


def test_example_runs_as_a_script(photographs: Path, tmp_path: Path) -> None:
    """Run the script with a small, randomly initialized encoder and few epochs."""
    code = (
        "import functools, runpy, sys, probmcl\n"
        f"probmcl.compare = functools.partial(probmcl.compare, **{SMALL!r}, out={str(tmp_path / 'out')!r})\n"
        f"sys.argv = ['own_loss.py', {str(photographs)!r}]\n"
        f"runpy.run_path({str(EXAMPLES / 'own_loss.py')!r}, run_name='__main__')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    table = (tmp_path / "out" / "comparison.csv").read_text()
    assert "soft_contrast" in table
    assert "smoothed" in table
