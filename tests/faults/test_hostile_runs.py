"""Damaged or hostile content of a run folder gives one message, without a traceback, a hang or gigabytes of memory."""

import json
import os
import struct
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from faults.conftest import NO_REPORT
from helpers.faults import Commands, Ended, edit, refused, relist

pytestmark = pytest.mark.slow

LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))"
"""Code that limits the memory of a command, so that a failing test does not exhaust the machine."""

MEMORY = 2 << 30
"""Peak memory of a refused command in bytes; importing torch takes a quarter of it."""

SECONDS = 60.0
"""Seconds after which a refused command is considered to hang; on an idle machine, most take less than one."""


def exhaustive(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def resume(command: Commands, run: Path) -> Ended:
    return command("train", "--resume", run, *NO_REPORT, timeout=SECONDS, prepare=LIMITED)


def predict(command: Commands, run: Path, photos: Path) -> Ended:
    return command("predict", run, photos / "1.jpg", timeout=SECONDS, prepare=LIMITED)


def report(command: Commands, run: Path) -> Ended:
    return command("report", run, "--no-images", timeout=SECONDS, prepare=LIMITED)


# Resources.


@pytest.mark.parametrize("name", ["run.json", exhaustive("manifest.json"), "metrics.jsonl"])
def test_huge_file_is_refused(command: Commands, unfinished: Path, name: str) -> None:
    os.truncate(unfinished / name, 10 << 30)
    ended = resume(command, unfinished)
    refused(ended, name, "10,737,418,240 bytes; the limit is 500,000,000")
    assert ended.peak < MEMORY


def test_long_file_of_tensors_is_refused(command: Commands, run: Path, photos: Path) -> None:
    path = run / "model.safetensors"
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(100))
    relist(run)
    refused(predict(command, run, photos), "model.safetensors", f"{size + 100:,} bytes instead of {size:,}")


@pytest.mark.parametrize("hierarchy", [False, exhaustive(True)])
def test_many_classes_are_refused_quickly(command: Commands, run: Path, photos: Path, hierarchy: bool) -> None:
    names = [f"class {number}" for number in range(100_000)]
    chain = dict(pairwise(names)) if hierarchy else None
    edit(run / "labels.json", names=names, counts=[1] * len(names), hierarchy=chain)
    relist(run)
    ended = predict(command, run, photos)
    refused(ended, "model.safetensors does not match", "linear.weight")
    assert ended.peak < MEMORY


@pytest.mark.parametrize("size", [30_000, exhaustive(10**6), exhaustive(10**20)])
def test_huge_image_size_is_refused(command: Commands, run: Path, photos: Path, size: int) -> None:
    edit(run / "preprocessing.json", size=size)
    relist(run)
    refused(predict(command, run, photos), "preprocessing.json", f"size={size} must be at most 4096")
    ended = command("train", photos, "--weights", run, "--out", run.parent / "new", *NO_REPORT, prepare=LIMITED)
    refused(ended, "preprocessing.json", f"size={size}")


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ml_gcn", {"hidden": 10**7}),
        exhaustive("ml_decoder", {"groups": 10**7}),
        exhaustive("kssnet", {"vector_size": 10**9}),
        exhaustive("tdrg", {"width": 10**7}),
    ],
)
def test_huge_model_is_refused(
    command: Commands, run: Path, photos: Path, method: str, settings: dict[str, Any]
) -> None:
    edit(run / "run.json", model={"method": method, "settings": settings})
    relist(run)
    ended = predict(command, run, photos)
    refused(ended, "run.json")
    assert ended.peak < MEMORY


def test_graph_of_many_classes_is_refused(command: Commands, run: Path, photos: Path) -> None:
    names = [f"class {number}" for number in range(50_000)]
    edit(run / "labels.json", names=names, counts=[1] * len(names))
    edit(run / "run.json", model={"method": "ml_gcn", "settings": {}})
    relist(run)
    ended = predict(command, run, photos)
    refused(ended, "model.safetensors does not match")
    assert ended.peak < MEMORY


def test_huge_encoder_is_refused(command: Commands, run: Path, photos: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    edit(run / "config.json", encoder={**config["encoder"], "name": "vit_gigantic_patch14_clip_224"})
    relist(run)
    ended = predict(command, run, photos)
    refused(ended, "model.safetensors does not match", "encoder.model")
    assert ended.peak < MEMORY


def write_header(path: Path, text: bytes) -> None:
    """Write a safetensors file that has only a header."""
    path.write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize(
    "text",
    [
        exhaustive(b'{"a":' * 100_000),
        exhaustive(b"[]"),
        exhaustive(b'{"__metadata__": 5}'),
        exhaustive(b'{"__metadata__": {"facts": "\\ud800"}}'),
        exhaustive(b'{"a": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}}'),
        exhaustive(b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}'),
        b'{"a": [' + b"[]," * 30_000_000 + b"[]]}",
    ],
    ids=["deep", "list", "number", "surrogate", "tensor", "negative", "long"],
)
def test_damaged_header_is_refused(command: Commands, run: Path, photos: Path, text: bytes) -> None:
    write_header(run / "model.safetensors", text)
    relist(run)
    refused(predict(command, run, photos), "model.safetensors", "damaged")


WriteArray = Callable[[IO[bytes]], object]


def replace_arrays(path: Path, **arrays: WriteArray) -> None:
    """Replace arrays of an .npz file."""
    with np.load(path) as file:
        old = {key: file[key] for key in file}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in old.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
                arrays[key](entry) if key in arrays else np.lib.format.write_array(entry, array)


def array_header(*shape: int) -> WriteArray:
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    return lambda file: np.lib.format.write_array_header_1_0(file, header)


def array(values: Any) -> WriteArray:
    return lambda file: np.lib.format.write_array(file, np.asarray(values))


def zip_bomb(file: IO[bytes]) -> None:
    array_header(1_250_000_000, 1)(file)
    for _ in range(500):
        file.write(bytes(10_000_000))


@pytest.mark.parametrize(
    ("key", "content", "problem"),
    [
        ("scores", array_header(10**12, 3), "Unable to allocate"),
        exhaustive("scores", array_header(10**30, 3), "too large"),
        exhaustive("scores", zip_bomb, "bytes; the limit is 4,000,000,000"),
        exhaustive("scores", array(np.zeros((12, 3), "U3")), "scores has the data type <U3"),
        exhaustive("scores", array(np.full((12, 3), np.nan, "f4")), "scores"),
        exhaustive("paths", array(range(12)), "paths has the data type int64"),
        ("known", array(np.ones((12, 3), "f4")), "known has the data type float32"),
    ],
    ids=["long", "too long", "bomb", "text", "nan", "paths", "known"],
)
def test_damaged_scores_are_refused(command: Commands, run: Path, key: str, content: WriteArray, problem: str) -> None:
    replace_arrays(run / "predictions" / "test.npz", **{key: content})
    relist(run)
    ended = report(command, run)
    refused(ended, "test.npz", problem)
    assert ended.peak < MEMORY
