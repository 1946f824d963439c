"""Crafted tensors and arrays of a run are refused with one message, without a hang or gigabytes of memory."""

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from helpers.crafted import CALIBRATE, COMPARE, PREDICT, REPORT, Craft, Crafted, cases, check_refused
from helpers.faults import Commands, edit

pytestmark = pytest.mark.slow

# Tensors.


NEIGHBORS = "neighbors.safetensors"
DAMAGED = ("model.safetensors", "damaged")
OTHER_CLASSES = "it has 2 classes; the run has 3"
HUGE = str(2**40)
NUMBERS = np.frombuffer(json.dumps(list(range(24))).encode(), np.uint8)
"""A list of numbers in JSON, where a file has a list of paths."""


def append(name: str, count: int) -> Craft:
    """Append zeros to a file."""

    def craft(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.write(bytes(count))

    return craft


def header(text: bytes, size: int | None = None) -> Craft:
    """Replace the model by a safetensors file that has only a header; `size` is a wrong size of the header."""
    claimed_size = len(text) if size is None else size
    start = struct.pack("<Q", claimed_size)
    return lambda folder: (folder / "model.safetensors").write_bytes(start + text)


def one_tensor(shape: str, size: int = 0) -> Craft:
    """Replace the model by a header with one tensor of `size` bytes, which do not follow."""
    return header(f'{{"a": {{"dtype": "F32", "shape": [{shape}], "data_offsets": [0, {size}]}}}}'.encode())


def tensors(**values: Any) -> Craft:
    """Replace tensors of the training images."""

    def craft(folder: Path) -> None:
        path = folder / NEIGHBORS
        save_file({**load_file(path), **values}, path)

    return craft


TENSORS: dict[str, Crafted] = {
    "more bytes": Crafted(
        append("model.safetensors", 100), PREDICT, ("model.safetensors: is damaged", "bytes instead of")
    ),
    "huge header": Crafted(header(b"{}", 200_000_000), PREDICT, ("200,000,000 bytes, more than 100,000,000",)),
    "deep header": Crafted(header(b'{"a":' * 100_000), PREDICT, DAMAGED),
    "header that is a list": Crafted(header(b"[]"), PREDICT, DAMAGED),
    "metadata that are a number": Crafted(header(b'{"__metadata__": 5}'), PREDICT, DAMAGED),
    "surrogate in the metadata": Crafted(header(b'{"__metadata__": {"facts": "\\ud800"}}'), PREDICT, DAMAGED),
    "huge tensor": Crafted(one_tensor("1000000000000", 4 * 10**12), PREDICT, DAMAGED),
    "negative shape": Crafted(one_tensor("-1"), PREDICT, DAMAGED),
    "overflow": Crafted(one_tensor(f"{HUGE}, {HUGE}, {HUGE}"), PREDICT, DAMAGED),
    "overflow of strides": Crafted(one_tensor(f"0, {HUGE}, {HUGE}"), PREDICT, DAMAGED),
    "unknown data type": Crafted(
        header(b'{"a": {"dtype": "F4", "shape": [0], "data_offsets": [0, 0]}}'), PREDICT, DAMAGED
    ),
    "long list": Crafted(header(b'{"a": [' + b"[]," * 30_000_000 + b"[]]}"), PREDICT, DAMAGED),
    "paths of training images": Crafted(tensors(paths=NUMBERS), REPORT, (NEIGHBORS, "paths are not text")),
    "shape of features": Crafted(tensors(features=np.zeros(24, "f2")), REPORT, (NEIGHBORS, "features [24]")),
    "shape of labels": Crafted(
        tensors(labels=np.zeros((24, 2), bool)), REPORT, (NEIGHBORS, "labels [24, 2], known [24, 3]")
    ),
    "type of labels": Crafted(tensors(labels=np.zeros((24, 3), "f4")), REPORT, (NEIGHBORS, "labels are not booleans")),
    "training images of other classes": Crafted(
        tensors(labels=np.zeros((24, 2), bool), known=np.zeros((24, 2), bool)),
        REPORT,
        (NEIGHBORS, "it has 2 classes; the run has 3"),
    ),
    "features of another encoder": Crafted(
        tensors(features=np.ones((24, 5), "f2")), ("report", "FOLDER"), (f"{NEIGHBORS}: its features",)
    ),
    "features that are NaN": Crafted(
        tensors(features=np.full((24, 64), np.nan, "f2")), ("report", "FOLDER"), (f"{NEIGHBORS}: its features",)
    ),
}

# Scores.

WriteArray = Callable[[IO[bytes]], object]
"""A function that writes the content of a .npy file."""


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file."""
    with np.load(path) as file:
        return dict(file)


def scores(**values: WriteArray) -> Craft:
    """Replace arrays of the test scores."""

    def craft(folder: Path) -> None:
        path = folder / "predictions" / "test.npz"
        contents: dict[str, WriteArray] = {key: array(old) for key, old in read_arrays(path).items()}
        contents |= values
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for key, write in contents.items():
                with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
                    write(entry)

    return craft


def array(values: Any) -> WriteArray:
    """Return a function that writes an array."""
    return lambda file: np.lib.format.write_array(file, np.asarray(values))


def array_header(*shape: int) -> WriteArray:
    """Return a function that writes the header of an array with this shape, without the array."""
    description = {"descr": "<f4", "fortran_order": False, "shape": shape}
    return lambda file: np.lib.format.write_array_header_1_0(file, description)


def zip_bomb(file: IO[bytes]) -> None:
    """Write an array of 5 GB that is zero, and therefore small in a zip file."""
    array_header(1_250_000_000, 1)(file)
    for _ in range(500):
        file.write(bytes(10_000_000))


def held_out(damage: Callable[[Path], None]) -> Craft:
    """Damage the scores that the calibration was fitted to."""

    def craft(folder: Path) -> None:
        name = json.loads((folder / "calibration.json").read_text())["predictions"]
        damage(folder / "predictions" / f"{name}.npz")

    return craft


def encrypt(path: Path) -> None:
    """Set the flag of encrypted content in all entries of a zip file."""
    archive = bytearray(path.read_bytes())
    # The flags of an entry are in its header and in the directory at the end, at these distances from a signature.
    for signature, distance in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        position = archive.find(signature)
        while position >= 0:
            archive[position + distance] |= 1
            position = archive.find(signature, position + 1)
    path.write_bytes(archive)


def delete_rows(path: Path) -> None:
    """Delete the rows of all arrays of an .npz file."""
    empty: dict[str, Any] = {key: values[:0] for key, values in read_arrays(path).items()}
    np.savez_compressed(path, **empty)


def without_a_class(split: str) -> Craft:
    """Delete a class from the scores of a split, which the calibration was fitted to."""

    def craft(folder: Path) -> None:
        edit(folder / "calibration.json", predictions="val")
        path = folder / "predictions" / f"{split}.npz"
        kept: dict[str, Any] = read_arrays(path)
        for key, values in kept.items():
            if values.ndim == 2:  # images and classes; the paths of the images have one dimension
                kept[key] = values[:, :2]
        np.savez_compressed(path, **kept)

    return craft


def candidate_of_two_classes(folder: Path) -> None:
    """Delete a class from the test scores of a candidate of a comparison."""
    craft = scores(
        scores=array(np.zeros((12, 2), "f4")),
        labels=array(np.zeros((12, 2), "f4")),
        known=array(np.zeros((12, 2), "?")),
    )
    craft(folder / "seed-0" / "frozen")


SCORES: dict[str, Crafted] = {
    "long array": Crafted(scores(scores=array_header(10**12, 3)), REPORT, ("test.npz", "Unable to allocate")),
    "too long array": Crafted(scores(scores=array_header(10**30, 3)), REPORT, ("test.npz", "too large")),
    "bomb": Crafted(scores(scores=zip_bomb), REPORT, ("test.npz", "bytes; the limit is 4,000,000,000")),
    "text": Crafted(scores(scores=array(np.zeros((12, 3), "U3"))), REPORT, ("scores has the data type <U3",)),
    "NaN": Crafted(
        scores(scores=array(np.full((12, 3), np.nan, "f4"))), REPORT, ("test.npz", "scores are not between")
    ),
    "infinite": Crafted(
        scores(scores=array(np.full((12, 3), np.inf, "f4"))), REPORT, ("scores are not between 0 and 1",)
    ),
    "paths": Crafted(scores(paths=array(range(12))), REPORT, ("paths has the data type int64",)),
    "known": Crafted(scores(known=array(np.ones((12, 3), "f4"))), REPORT, ("known has the data type float32",)),
    "labels": Crafted(scores(labels=array(np.full((12, 3), 7, "f4"))), REPORT, ("labels are not 0 and 1",)),
    "encrypted": Crafted(held_out(encrypt), CALIBRATE, (".npz", "is encrypted")),
    "no rows": Crafted(held_out(delete_rows), CALIBRATE, (".npz", "shape (0")),
    "test scores of other classes": Crafted(without_a_class("test"), REPORT, ("test.npz", OTHER_CLASSES)),
    "held-out scores of other classes": Crafted(without_a_class("val"), CALIBRATE, ("val.npz", OTHER_CLASSES)),
    "abstention by scores of other classes": Crafted(
        without_a_class("val"), (*PREDICT, "--abstain", "0.1"), ("val.npz", OTHER_CLASSES)
    ),
    "compared scores of other classes": Crafted(
        candidate_of_two_classes, COMPARE, ("test.npz", OTHER_CLASSES), "comparison"
    ),
}


@cases(
    TENSORS,
    *("more bytes", "huge header", "overflow", "long list", "paths of training images", "shape of features"),
    *("shape of labels", "training images of other classes", "features of another encoder"),
)
def test_crafted_tensors_are_refused(command: Commands, folder: Path, photos: Path, case: Crafted) -> None:
    check_refused(case, command, folder, photos)


@cases(
    SCORES,
    *("long array", "known", "infinite", "labels", "encrypted", "no rows", "test scores of other classes"),
    *("held-out scores of other classes", "compared scores of other classes"),
)
def test_crafted_scores_are_refused(command: Commands, folder: Path, photos: Path, case: Crafted) -> None:
    check_refused(case, command, folder, photos)
