"""From a run folder to a model: its files checked, its encoder built without any download, no code taken from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from probmcl.data.hierarchy import parents_of
from probmcl.data.images import Preprocessing
from probmcl.data.options import DataSource
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.errors import RunError, suggestion
from probmcl.inference.model import Model
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Classifier
from probmcl.runtime.device import find_device
from probmcl.settings import method_settings

T = TypeVar("T")

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class _NamedEncoder:
    name: str


@dataclass(frozen=True)
class _Config:
    encoder: _NamedEncoder


@dataclass(frozen=True)
class _Labels:
    names: tuple[str, ...]
    counts: tuple[int, ...]
    hierarchy: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names) or len(self.counts) != len(self.names):
            raise ValueError(f"{len(self.names)} names and {len(self.counts)} counts; each class has one of both")
        parents_of(self.names, self.hierarchy)  # refuses a circle

    def space(self) -> LabelSpace:
        classes = len(self.names)
        together = np.zeros((classes, classes), dtype=np.int64)
        return LabelSpace(self.names, np.array(self.counts), together, self.hierarchy)


@dataclass(frozen=True)
class _Kept:
    method: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class _About:
    model: _Kept | None = None
    data: dict[str, Any] | None = None


def load(run: Path | str, *, device: str = "auto") -> Model:
    """Load what a run has kept.

    Args:
        run: the run folder.
        device: where it is computed; `auto` takes a CUDA device where there is one, and else the CPU.
    """
    folder = Path(run)
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder; give the folder that `probmcl train` has written")
    about = _read(folder / "run.json", _About)
    if about.model is None or not (folder / WEIGHTS).is_file():
        raise RunError(f"{folder}: this run has saved no model yet ({WEIGHTS} is missing); see its status in run.json")
    labels, preprocessing = _read(folder / "labels.json", _Labels), _read(folder / "preprocessing.json", Preprocessing)
    encoder = Encoder(_read(folder / "config.json", _Config).encoder.name, image_size=preprocessing.size)
    classifier = _classifier(folder, about.model, encoder, labels)
    _fill(classifier, folder / WEIGHTS)
    return Model(
        classifier,
        names=labels.names,
        hierarchy=labels.hierarchy,
        preprocessing=preprocessing,
        device=torch.device(find_device(device)),
        folder=folder,
        source=None if about.data is None else DataSource.parse(about.data),
    )


def _read(path: Path, kind: type[T]) -> T:
    if not path.is_file():
        raise RunError(f"{path.parent} is no run folder: it has no {path.name}; give what `probmcl train` has written")
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RunError(f"{path}: {error}; the file is not as `probmcl train` writes it") from error


def _classifier(folder: Path, kept: _Kept, encoder: Encoder, labels: _Labels) -> Classifier:
    """Only a method of this package: a folder from elsewhere must not be able to name code that is then run."""
    place = folder / "run.json"
    if kept.method not in METHODS:
        near = suggestion(kept.method, METHODS)
        raise RunError(f"{place}: method {kept.method!r} is none of this package, and no other is loaded; {near}")
    method = find_method(kept.method)
    # What the files held is in the state: a run loads where they are not, and none is read because a folder says so.
    changes = kept.settings | dict.fromkeys(method.files)
    try:
        settings = method_settings(kept.method, changes=changes)
        if not issubclass(method, Classifier) or not method.has_own_head(settings):
            raise ValueError(f"method {kept.method!r} does not predict by itself; a probe on it does")
        return method(encoder, labels.space(), settings)
    except ValueError as error:
        raise RunError(f"{place}: {error}") from error


def _fill(classifier: Classifier, path: Path) -> None:
    try:
        classifier.load_state_dict(load_file(path), strict=True)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read ({error}); the file is damaged, copy or train it again") from error
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise RunError(f"{path}: does not fit what config.json, labels.json and run.json say: {first}") from error
