"""The recipes of CONTRIBUTING.md: a method and a data format in a temporary package work without other changes."""

import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path

import pytest

import probmcl
from contracts import test_methods as contracts
from helpers.images import folder_of_photographs
from probmcl.methods import METHODS, find_method
from probmcl.readers import read

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

METHOD = '''
from dataclasses import dataclass
from typing import final

from probmcl.losses import binary_cross_entropy
from probmcl.methods.base import LinearClassifier


@dataclass(frozen=True)
class Config:
    """Settings of MyMethod."""

    scale: float = 2.0


@final
class MyMethod(LinearClassifier):
    """Binary cross-entropy of scaled logits."""

    presets = {"default": Config()}

    def loss(self, logits, labels, known):
        """Return the loss of the known entries."""
        return binary_cross_entropy(self.config.scale * logits, labels, known, reduction=self.reduction)
'''
FORMAT = '''
import json

import numpy as np

from probmcl.data.records import Records


def recognizes(folder):
    """Return whether the folder has a file of labels in this format."""
    return (folder / "labels.lines").is_file()


def read_lines(folder, *, missing="error"):
    """Read one JSON object per image; a class that is not mentioned is unknown."""
    rows = [json.loads(line) for line in (folder / "labels.lines").read_text().splitlines()]
    names = sorted({name for row in rows for name in row["labels"]})
    values = np.array([[row["labels"].get(name, -1) for name in names] for row in rows])
    labels, known = (values == 1).astype(np.float32), values >= 0
    return Records.from_labels(names, [folder / row["file"] for row in rows], ["train"] * len(rows), labels, known)
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my_package"
    folder.mkdir()
    (folder / "my_method.py").write_text(textwrap.dedent(METHOD))
    (folder / "my_format.py").write_text(textwrap.dedent(FORMAT))
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_package", "my_package.my_method", "my_package.my_format"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


def test_all_files_in_the_recipes_exist() -> None:
    files = re.findall(r"`((?:src|tests|docs)/[^`\s]+)`", PAGE)
    missing = [file for file in files if "NAME" not in file and not (ROOT / file).exists()]
    folders = [Path(file).parent for file in files if "NAME" in file]
    assert len(files) > 10
    assert not missing
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_the_page_fits_on_a_screen() -> None:
    assert len(PAGE.splitlines()) <= 66


@pytest.mark.slow
def test_a_method_of_another_package_can_be_trained(package: Path, tmp_path: Path) -> None:
    run = probmcl.train(
        folder_of_photographs(tmp_path / "data"),
        method="my_package.my_method:MyMethod",
        settings={"scale": 3.0},
        encoder="test_resnet",
        weights="none",
        image_size=32,
        epochs=1,
        probe_epochs=2,
        workers=0,
        report=False,
        out=tmp_path / "run",
    )
    assert sum("MyMethod" in candidate.name for candidate in run.candidates.values()) == 2  # own head, re-probed
    assert probmcl.load(run.folder).names == ("blue", "green", "red")


@pytest.mark.parametrize(
    "check",
    [
        function
        for name, function in vars(contracts).items()
        if name.startswith("test_") and list(inspect.signature(function).parameters) == ["method"]
    ],
    ids=lambda function: function.__name__.removeprefix("test_"),
)
def test_an_added_method_passes_the_contract_tests(package: Path, monkeypatch: pytest.MonkeyPatch, check) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(METHODS, "mine", "my_package.my_method:MyMethod")
    monkeypatch.setitem(contracts.CASES, "mine-default", ("mine", find_method("mine").presets["default"]))
    check(contracts.build("mine-default"))


def test_an_added_format_is_detected_and_read(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("probmcl.readers.read")
    monkeypatch.setattr(module, "FORMATS", {**module.FORMATS, "lines": "my_package.my_format"})
    data = tmp_path / "data"
    data.mkdir()
    (data / "labels.lines").write_text(
        '{"file": "a.jpg", "labels": {"cat": 1, "dog": 0}}\n{"file": "b.jpg", "labels": {"dog": 1}}\n'
    )
    records = read(data, seed=None)
    assert records.label_space.names == ("cat", "dog")
    assert records.labels.tolist() == [[1, 0], [0, 1]]
    assert records.known.tolist() == [[True, True], [False, True]]
