import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from probmcl import runs


def test_folders_of_one_day_are_numbered_and_never_reused(tmp_path: Path) -> None:
    first, second, third = (runs.new_folder(tmp_path, "demo") for _ in range(3))
    assert first.name.endswith("-demo")
    assert second.name == f"{first.name}-2"
    assert third.name == f"{first.name}-3"


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    runs.write_json(path, {"a": 1})
    with pytest.raises(TypeError, match="no place in JSON"):
        runs.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_tensors_that_share_memory_are_saved_whole(tmp_path: Path) -> None:
    tensor = torch.arange(6.0)
    runs.save_tensors(tmp_path / "deep" / "model.safetensors", {"a": tensor, "b": tensor[2:].reshape(2, 2).T})
    loaded = load_file(tmp_path / "deep" / "model.safetensors")
    assert torch.equal(loaded["a"], tensor)
    assert torch.equal(loaded["b"], tensor[2:].reshape(2, 2).T)


def test_circumstances_name_versions_and_no_path_of_the_machine() -> None:
    about = runs.circumstances(seed=3)
    assert about["seed"] == 3
    assert about["versions"]["torch"] == torch.__version__
    assert "/" not in about["command"][0]
