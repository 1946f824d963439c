import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.run_folders import PLAIN, made_run
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.errors import OptionError, RunError
from probmcl.inference import load
from probmcl.methods.bce import BCE
from probmcl.methods.ml_gcn import MLGCN, Config
from probmcl.methods.probe import Probe
from probmcl.runtime.tensor_files import save_tensors


def update_json(path: Path, **keys: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made_run(tmp_path / "run")
    return tmp_path / "run"


def test_loaded_model_equals_the_saved_one(tmp_path: Path) -> None:
    saved = made_run(tmp_path / "run")
    model = load(str(tmp_path / "run"), device="cpu")
    assert isinstance(model.classifier, BCE)
    assert not model.classifier.training
    assert model.names == ("red", "green", "blue")
    assert model.preprocessing == PLAIN
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(model.classifier.logits(images), saved.logits(images))  # rounding depends on the layout


def test_weights_are_channels_last_and_unchanged(run: Path) -> None:
    state = load(run, device="cpu").classifier.state_dict()
    kernels = [value for value in state.values() if value.ndim == 4]
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)
    assert not all(kernel.is_contiguous() for kernel in kernels)
    saved = load_file(run / "model.safetensors")
    assert all(torch.equal(state[key], saved[key]) for key in saved.keys() | state.keys())


def test_hierarchy_is_loaded(run: Path) -> None:
    assert load(run).hierarchy is None
    update_json(run / "labels.json", hierarchy={"green": "red"})
    assert load(run).hierarchy == {"green": "red"}


def test_unavailable_device_is_rejected(run: Path) -> None:
    with pytest.raises(OptionError, match='`device="meta"`'):
        load(run, device="meta")


def test_probe_is_loaded_with_its_settings(run: Path) -> None:
    update_json(run / "run.json", model={"method": "probe", "settings": {"loss": "bce"}})
    model = load(run)
    assert isinstance(model.classifier, Probe)
    assert model.classifier.config.loss == "bce"


def test_folder_without_a_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere is not a folder; .*`probmcl\.train\(\)`"):
        load(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"is not a run folder: .*run\.json"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "preprocessing.json", "labels.json"])
def test_error_names_a_missing_file(run: Path, name: str) -> None:
    (run / name).unlink()
    with pytest.raises(RunError, match=name):
        load(run)


def test_run_without_a_model_is_rejected(run: Path) -> None:
    (run / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"model\.safetensors"):
        load(run)
    update_json(run / "run.json", status="running", model=None)
    with pytest.raises(RunError, match="no model"):
        load(run)


def test_external_method_is_not_imported(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "evil_method.py").write_text("raise SystemExit('this must not run')")
    monkeypatch.syspath_prepend(run)
    update_json(run / "run.json", model={"method": "evil_method:Evil", "settings": {}})
    with pytest.raises(RunError, match=r"run\.json: method 'evil_method:Evil'"):
        load(run)
    assert "evil_method" not in sys.modules


def test_method_without_a_classifier_is_rejected(run: Path) -> None:
    update_json(run / "run.json", model={"method": "probmcl", "settings": {}})
    with pytest.raises(RunError, match="method 'probmcl'"):
        load(run)


def test_encoder_from_the_hub_is_rejected(run: Path) -> None:
    update_json(run / "config.json", encoder={"name": "hf-hub:user/model"})
    with pytest.raises(ValueError, match="'hf-hub:user/model'"):
        load(run)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("labels.json", {"names": ["a", 1]}, r"labels\.json: names\[1\]: expected str, got int; the file is damaged"),
        ("config.json", {"encoder": {}}, r"config\.json: encoder: missing key 'name'; the file is damaged"),
        ("preprocessing.json", {"size": 0}, r"preprocessing\.json: .*size"),
        ("run.json", {"model": {"method": "bce", "settings": {"gama": 1}}}, r"run\.json: .*key 'gama'"),
        ("labels.json", {"names": ["a"], "counts": [1, 2]}, r"labels\.json: 1 name and 2 counts;"),
        ("labels.json", {"names": ["a", "a"], "counts": [1, 2]}, r"labels\.json: 2 names and 2 counts"),
        ("labels.json", {"hierarchy": {"red": "green", "green": "red"}}, r"labels\.json: class 'red'"),
    ],
)
def test_error_names_an_invalid_file(run: Path, name: str, changes: dict[str, Any], message: str) -> None:
    update_json(run / name, **changes)
    with pytest.raises(RunError, match=message):
        load(run)


def test_error_names_the_position_of_a_syntax_error(run: Path) -> None:
    (run / "labels.json").write_text("{")
    with pytest.raises(RunError, match=r"labels\.json, line 1, column 2: Expecting property name"):
        load(run)


def test_weights_of_the_wrong_shape_are_rejected(run: Path) -> None:
    update_json(run / "labels.json", names=["red", "green"], counts=[1, 1])
    with pytest.raises(RunError, match=r"model\.safetensors .*: size mismatch for linear.weight"):
        load(run)


def test_missing_tensor_is_rejected(run: Path) -> None:
    state = load_file(run / "model.safetensors")
    del state["linear.bias"]
    save_file(state, run / "model.safetensors")
    with pytest.raises(RunError, match=r'Missing key\(s\) in state_dict: "linear.bias"'):
        load(run)


def test_damaged_weights_are_rejected(run: Path) -> None:
    content = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match=r"^\S+model\.safetensors: is damaged: .*; copy the file again"):
        load(run)


def test_run_loads_without_the_files_that_its_settings_name(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "glove.txt"
    file.write_text("red 1 2 3\ngreen 4 5 6\nblue 7 8 9\n")
    config = Config(vectors=str(file), vector_size=3, hidden=4)
    label_space = LabelSpace.from_labels(("red", "green", "blue"), np.array([[1.0, 1, 0], [0, 1, 0], [0, 1, 1]]))
    saved = MLGCN(Encoder("test_resnet", image_size=32), label_space, config).eval()
    save_tensors(run / "model.safetensors", saved.state_dict())
    update_json(run / "run.json", model={"method": "ml_gcn", "settings": dataclasses.asdict(config)})
    file.unlink()
    loaded = load(run, device="cpu").classifier
    assert isinstance(loaded, MLGCN)
    assert loaded.config == dataclasses.replace(config, vectors=None)
    assert loaded.vectors.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert torch.equal(loaded.graph, saved.graph)
    assert not torch.equal(loaded.graph, torch.eye(3))
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(loaded.logits(images), saved.logits(images))
