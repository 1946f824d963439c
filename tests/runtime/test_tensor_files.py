import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from probmcl.errors import RunError
from probmcl.runtime import tensor_files


@dataclass
class Pair:
    first: int
    second: Path


def test_tensors_that_share_memory_are_saved_separately(tmp_path: Path) -> None:
    tensor = torch.arange(6.0)
    tensor_files.save_tensors(tmp_path / "deep" / "model.safetensors", {"a": tensor, "b": tensor[2:].reshape(2, 2).T})
    loaded = load_file(tmp_path / "deep" / "model.safetensors")
    assert torch.equal(loaded["a"], tensor)
    assert torch.equal(loaded["b"], tensor[2:].reshape(2, 2).T)


def test_tensors_and_metadata_round_trip(tmp_path: Path) -> None:
    metadata = {"name": "bce, own head", "mAP": 0.5, "none": None, "pair": Pair(1, Path("a"))}
    tensor_files.save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(2)}, metadata)
    tensors, loaded = tensor_files.load_tensors(tmp_path / "x.safetensors")
    assert torch.equal(tensors["a"], torch.ones(2))
    assert loaded == {**metadata, "pair": {"first": 1, "second": "a"}}


def test_metadata_is_none_by_default(tmp_path: Path) -> None:
    tensor_files.save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(2)})
    assert tensor_files.load_tensors(tmp_path / "x.safetensors")[1] is None


@pytest.mark.parametrize("position", [9, 60, -1])
def test_damaged_tensors_are_noticed(tmp_path: Path, position: int) -> None:
    path = tmp_path / "x.safetensors"
    tensor_files.save_tensors(path, {"a": torch.ones(2), "b": torch.tensor(3)}, {"step": 7})
    assert tensor_files.load_tensors(path)[1] == tensor_files.read_metadata(path) == {"step": 7}
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"x\.safetensors"):
        tensor_files.load_tensors(path)
    path.write_bytes(content[:20])
    with pytest.raises(RunError, match=r"x\.safetensors"):
        tensor_files.load_tensors(path)


def test_files_with_equal_tensors_are_equal(tmp_path: Path) -> None:
    for name in ("one", "two"):
        tensor_files.save_tensors(tmp_path / name, {"a": torch.ones(2), "b": torch.zeros(1)}, {"x": 1, "y": 2})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_shapes_are_read_without_tensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensor_files.save_tensors(path, {"a": torch.ones(2, 3), "b": torch.ones(())})
    assert tensor_files.read_shapes(path) == {"a": (2, 3), "b": ()}
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(RunError, match="bytes instead of"):
        tensor_files.read_shapes(path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"shape": [2**40, 2**40, 2**40]}, "has 4 bytes"),
        ({"shape": [2**40, 2**40, 0], "data_offsets": [4, 4]}, "has 0 bytes"),
        ({"shape": [2]}, r"a tensor of shape \[2\] and type F32 has 4 bytes"),
        ({"shape": [1] * 65}, "shape"),
        ({"dtype": "F64"}, "type F64 has 4 bytes"),
        ({"dtype": "X1"}, "data type 'X1' is not supported"),
        ({"data_offsets": [-4, 0]}, "data_offsets"),
    ],
)
def test_sizes_in_the_header_must_agree(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    path = tmp_path / "x.safetensors"
    text = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **changes}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(RunError, match=rf"x\.safetensors: its header is damaged .*{problem}"):
        tensor_files.read_shapes(path)


@pytest.mark.parametrize(
    "name", ["bool", "uint8", "float8_e5m2", "bfloat16", "float16", "int32", "float64", "complex64"]
)
def test_all_data_types_can_be_stored(name: str, tmp_path: Path) -> None:
    dtype = getattr(torch, name)
    tensor_files.save_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(3, dtype=dtype)})
    assert tensor_files.load_tensors(tmp_path / "x.safetensors")[0]["a"].dtype == dtype
