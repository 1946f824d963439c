"""Every example runs as its first lines say."""

import subprocess
import sys
from pathlib import Path

import pytest

import probmcl
from helpers.images import folder_of_photographs
from probmcl.methods import find_method
from probmcl.methods.custom_loss import CustomContrast, CustomLoss
from probmcl.run.results import CandidateId

pytestmark = pytest.mark.slow  # it trains, or starts processes

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {"encoder": "test_resnet", "weights": "none", "image_size": 32, "probe_epochs": 2, "workers": 0, "epochs": 1}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_photographs(tmp_path_factory.mktemp("user"))


def test_it_has_a_loss_of_each_kind() -> None:
    assert issubclass(find_method(f"{EXAMPLES / 'own_loss.py'}:smoothed"), CustomLoss)
    assert issubclass(find_method(f"{EXAMPLES / 'own_loss.py'}:soft_contrast"), CustomContrast)


@pytest.mark.parametrize("name", ["smoothed", "soft_contrast"])
def test_a_loss_of_ones_own_trains_and_predicts_without_its_file(photographs: Path, tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text((EXAMPLES / "own_loss.py").read_text())
    run = probmcl.train(photographs, loss=f"{mine}:{name}", **SMALL, out=tmp_path / "run")  # type: ignore[arg-type]
    assert CandidateId(name, "re-probed") in run.candidates
    mine.unlink()
    run_folder, images = str(tmp_path / "run"), str(photographs.parent)
    code = f"import probmcl; print(probmcl.load({run_folder!r}).predict([{images!r}]).scores.shape)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.stdout.strip() == "(40, 3)", answer.stderr


def test_the_own_head_is_saved_as_the_linear_layer_that_it_is(photographs: Path, tmp_path: Path) -> None:
    place = f"{EXAMPLES / 'own_loss.py'}:smoothed"
    run = probmcl.train(photographs, loss=place, **SMALL, out=tmp_path / "run")  # type: ignore[arg-type]
    assert run.candidates[CandidateId("smoothed", "own head")].method == "probe"


def test_a_run_with_a_loss_of_ones_own_goes_on_only_if_it_is_named_again(photographs: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text((EXAMPLES / "own_loss.py").read_text())
    words = [sys.executable, "-m", "probmcl", "train"]
    probmcl.train(photographs, loss=f"{mine}:smoothed", **SMALL, out=tmp_path / "run")  # type: ignore[arg-type]
    alone, named = (
        subprocess.run([*words, "--resume", str(tmp_path / "run"), *more], capture_output=True, text=True, check=False)
        for more in ([], ["--loss", f"{mine}:smoothed"])
    )
    assert alone.returncode == 1
    assert "because a folder names it; give --loss" in alone.stderr
    assert named.returncode == 0, named.stderr


def test_a_method_and_a_loss_are_one_too_many(photographs: Path, tmp_path: Path) -> None:
    for asked, said in (
        ({"method": "bce", "loss": "x.py:y"}, "cannot be combined with"),
        ({"loss": "x:y"}, "is not FILE.py:FUNCTION"),
        ({"loss": "nowhere.py:y"}, "the file does not exist"),
    ):
        with pytest.raises(ValueError, match=said):
            probmcl.train(photographs, **asked, **SMALL, out=tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_the_example_runs_as_a_script(photographs: Path, tmp_path: Path) -> None:
    """With an encoder from random numbers and few epochs, which its last line does not say."""
    code = (
        "import functools, runpy, sys, probmcl\n"
        f"probmcl.compare = functools.partial(probmcl.compare, **{SMALL!r}, out={str(tmp_path / 'out')!r})\n"
        f"sys.argv = ['own_loss.py', {str(photographs)!r}]\n"
        f"runpy.run_path({str(EXAMPLES / 'own_loss.py')!r}, run_name='__main__')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    verdict = (tmp_path / "out" / "comparison.csv").read_text()
    assert "soft_contrast" in verdict
    assert "smoothed" in verdict
