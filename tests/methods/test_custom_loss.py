import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from helpers.images import label_space
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.errors import SettingsError
from probmcl.losses import contrastive
from probmcl.methods import METHODS, find_method, full_name
from probmcl.methods.base import Method
from probmcl.methods.bce import BCE
from probmcl.methods.contrast import label_overlap
from probmcl.methods.custom_loss import CustomContrast, CustomLoss
from probmcl.methods.supcon import Config, SupCon
from probmcl.settings import CONFIG_FILE, EncoderSettings, Settings, TrainingJob, read_settings
from probmcl.store.run_folder import RunFolder
from probmcl.training.optimizer import Training

FILE = """
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

def on_logits(logits, labels, known):
    '''Binary cross-entropy written out.'''
    loss = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return (loss * known).sum() / known.sum().clamp(min=1)

def on_similarity(similarity, overlap):
    positive = overlap >= 0.5
    log = (similarity / 0.1).log_softmax(1)
    return (-(overlap * log * positive).sum(1) / positive.sum(1).clamp(min=1)).mean()

def unreduced(logits, labels, known):
    return logits.mean(1)

def of_python(logits, labels, known):
    return 1.0

def unlike(predictions, targets):
    return predictions.mean()

not_a_function = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(FILE))
    return path


def build(name: str, features: int = 6) -> Method:
    torch.manual_seed(0)
    return find_method(name)(PrecomputedFeatures(features), label_space())


def batch(method: Method) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    views = torch.randn(method.n_views, 8, 6, generator=generator)
    labels = (torch.rand(8, 3, generator=generator) < 0.5).float()
    return views, labels, torch.rand(8, 3, generator=generator) < 0.8


def test_loss_on_logits_matches_bce(file: Path) -> None:
    mine = build(f"{file}:on_logits")
    torch.manual_seed(0)
    reference = BCE(PrecomputedFeatures(6), label_space())
    assert isinstance(mine, CustomLoss)
    torch.testing.assert_close(mine(*batch(mine)).loss, reference(*batch(reference)).loss)
    assert mine.state_dict().keys() == reference.state_dict().keys()


def test_loss_on_similarities_matches_supcon(file: Path) -> None:
    mine = build(f"{file}:on_similarity")
    torch.manual_seed(0)
    reference = SupCon(PrecomputedFeatures(6), label_space(), Config(threshold=0.5, temperature=0.1))
    assert isinstance(mine, CustomContrast)
    torch.testing.assert_close(mine(*batch(mine)).loss, reference(*batch(reference)).loss)


def test_rows_are_not_compared_with_themselves(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = {}
    mine = build(f"{file}:on_similarity")

    def record(similarity: torch.Tensor, overlap: torch.Tensor) -> torch.Tensor:
        recorded["similarity"], recorded["overlap"] = similarity, overlap
        return similarity.mean()

    monkeypatch.setattr(type(mine), "function", staticmethod(record))
    views, labels, known = batch(mine)
    mine(views, labels, known)
    assert recorded["similarity"].shape == recorded["overlap"].shape == (16, 15)
    overlaps = label_overlap(labels, known, n_views=2)
    expected = torch.stack([torch.cat([row[:i], row[i + 1 :]]) for i, row in enumerate(overlaps)])
    torch.testing.assert_close(recorded["overlap"], expected)
    assert recorded["similarity"].max() < 1


def test_unknown_labels_do_not_reach_the_loss(file: Path) -> None:
    for name in ("on_logits", "on_similarity"):
        mine = build(f"{file}:{name}")
        views, labels, known = batch(mine)
        losses = [mine(views, labels.where(known, value), known).loss for value in (0.0, 1.0, float("nan"))]
        assert torch.equal(losses[0], losses[1])
        assert torch.equal(losses[0], losses[2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unlike", r"mine.py:unlike: .*\(predictions, targets\)"),
        ("absent", "mine.py: function 'absent'"),
        ("not_a_function", "mine.py: function 'not_a_function'"),
    ],
)
def test_invalid_functions_raise(file: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_method(f"{file}:{name}")


def test_missing_and_failing_files_raise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere.py: .* does not exist"):
        find_method(f"{tmp_path / 'nowhere.py'}:loss")
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(ValueError, match=r"broken.py: .*ZeroDivisionError"):
        find_method(f"{tmp_path / 'broken.py'}:loss")


@pytest.mark.parametrize(("name", "message"), [("unreduced", r"a tensor of shape \(8,\)"), ("of_python", "a float")])
def test_loss_must_be_a_scalar_tensor(file: Path, name: str, message: str) -> None:
    mine = build(f"{file}:{name}")
    with pytest.raises(ValueError, match=f"loss {name} .*{message}"):
        mine(*batch(mine))


def test_relative_paths_are_resolved(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    assert full_name("mine.py:on_logits") == f"{file.resolve()}:on_logits"
    assert find_method("mine.py:on_logits") is find_method(f"{file}:on_logits")
    assert full_name("package.module:Class") == "package.module:Class"


def test_reading_settings_does_not_execute_files(file: Path, tmp_path: Path) -> None:
    name = f"{file.resolve()}:on_logits"
    job = TrainingJob(name, {}, Training(), "on_logits")
    RunFolder(tmp_path).write(CONFIG_FILE, Settings(name, (job,), EncoderSettings("resnet50")))
    with pytest.raises(SettingsError, match="`loss="):
        read_settings(RunFolder(tmp_path))
    assert str(file.resolve()) not in sys.modules


def test_a_file_can_import_its_neighbors(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("FACTOR = 3.0")
    (tmp_path / "importing.py").write_text(
        "from beside_it import FACTOR\ndef scaled(logits, labels, known):\n    return FACTOR * logits.mean()\n"
    )
    mine = build(f"{tmp_path / 'importing.py'}:scaled")
    assert mine(*batch(mine)).loss.isfinite()
    assert str(tmp_path) not in sys.path


def test_a_file_can_define_dataclasses(tmp_path: Path) -> None:
    (tmp_path / "with_classes.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Weight:\n    value: float = 2.0\n"
        "def weighted(logits, labels, known):\n    return Weight().value * (logits * labels).mean()\n"
    )
    mine = build(f"{tmp_path / 'with_classes.py'}:weighted")
    assert mine(*batch(mine)).loss.isfinite()


def test_gradients_reach_the_encoder(file: Path) -> None:
    for name in ("on_logits", "on_similarity"):
        method = find_method(f"{file}:{name}")
        mine = method(Encoder("test_resnet", image_size=32), label_space(), method.presets["default"])
        mine(torch.randn(mine.n_views, 4, 3, 32, 32), torch.eye(4, 3)).loss.backward()
        assert all(p.grad is not None for p in mine.parameters())


def test_reference_losses_are_those_of_the_package(file: Path) -> None:
    logits, labels = torch.tensor([[0.3, -1.0]]), torch.tensor([[1.0, 0.0]])
    mine = build(f"{file}:on_logits", 6)
    assert isinstance(mine, CustomLoss)
    torch.testing.assert_close(mine.loss(logits, labels, None), binary_cross_entropy_with_logits(logits, labels))
    similarity = torch.eye(3) * 0.9 + 0.1
    assert contrastive(similarity, torch.eye(3), threshold=0.5, temperature=1.0) == 0  # there are no positives
    assert all(not name.endswith(".py") for name in METHODS)
