import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from probmcl import files


@dataclass
class Pair:
    first: int
    second: Path


def test_content_that_is_not_json_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError, match="object cannot be written"):
        files.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_tensors_that_share_memory_are_saved_separately(tmp_path: Path) -> None:
    tensor = torch.arange(6.0)
    files.save_tensors(tmp_path / "deep" / "model.safetensors", {"a": tensor, "b": tensor[2:].reshape(2, 2).T})
    loaded = load_file(tmp_path / "deep" / "model.safetensors")
    assert torch.equal(loaded["a"], tensor)
    assert torch.equal(loaded["b"], tensor[2:].reshape(2, 2).T)


def test_tensors_and_metadata_round_trip(tmp_path: Path) -> None:
    metadata = {"name": "bce, own head", "mAP": 0.5, "none": None, "pair": Pair(1, Path("a"))}
    files.save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(2)}, metadata)
    tensors, loaded = files.load_tensors(tmp_path / "x.safetensors")
    assert torch.equal(tensors["a"], torch.ones(2))
    assert loaded == {**metadata, "pair": {"first": 1, "second": "a"}}


def test_metadata_is_none_by_default(tmp_path: Path) -> None:
    files.save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(2)})
    assert files.load_tensors(tmp_path / "x.safetensors")[1] is None


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def write_part(temporary: Path) -> None:
        temporary.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        files.atomic_write(path, write_part)
    assert path.read_text() == "old"
