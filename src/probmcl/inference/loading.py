"""Loading a model from an untrusted run folder: files are validated, and no code is downloaded or run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from probmcl.calibration import Calibration
from probmcl.data.hierarchy import parents_of
from probmcl.data.images import Preprocessing
from probmcl.data.options import DataSource
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.errors import RunError, counted, suggestion
from probmcl.inference.model import Model
from probmcl.legacy import upgrade_tensor_names
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Classifier
from probmcl.run_folder import CALIBRATION, CONFIG, LABELS, METADATA, MODEL, PREPROCESSING, RunFolder
from probmcl.runtime.machine import find_device
from probmcl.settings import method_settings

T = TypeVar("T")


@dataclass(frozen=True)
class _EncoderName:
    name: str


@dataclass(frozen=True)
class _Config:
    encoder: _EncoderName


@dataclass(frozen=True)
class _Labels:
    names: tuple[str, ...]
    counts: tuple[int, ...]
    hierarchy: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names) or len(self.counts) != len(self.names):
            names, counts = counted(len(self.names), "name"), counted(len(self.counts), "count")
            raise ValueError(f"{names} and {counts}; expected one of each per class")
        parents_of(self.names, self.hierarchy)  # raises an error if the hierarchy has a cycle


@dataclass(frozen=True)
class _KeptModel:
    method: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class _Metadata:
    model: _KeptModel | None = None
    data: dict[str, Any] | None = None


def load(run: Path | str, *, device: str = "auto") -> Model:
    """Load the model of a run; device `auto` means a CUDA device if there is one, otherwise the CPU."""
    folder = RunFolder.existing(run)
    metadata = _read(folder, METADATA, _Metadata)
    if metadata.model is None or not folder.has(MODEL):
        problem = f"the run has no model yet ({MODEL} does not exist)"
        raise RunError(f"{folder.path}: {problem}; see the status in {METADATA}")
    labels, preprocessing = _read(folder, LABELS, _Labels), _read(folder, PREPROCESSING, Preprocessing)
    encoder = Encoder(_read(folder, CONFIG, _Config).encoder.name, image_size=preprocessing.size)
    return Model(
        _load_classifier(folder, metadata.model, encoder, labels),
        names=labels.names,
        hierarchy=labels.hierarchy,
        preprocessing=preprocessing,
        device=torch.device(find_device(device)),
        folder=folder.path,
        source=None if metadata.data is None else DataSource.parse(metadata.data),
        calibration=_read_calibration(folder, labels.names) if folder.has(CALIBRATION) else None,
    )


def _read(folder: RunFolder, name: str, schema: type[T]) -> T:
    content = folder.read(name)
    try:
        return msgspec.convert(content, schema)
    except ValueError as error:
        raise RunError(f"{folder.path / name}: {error}; the file is damaged or was edited") from error


def _read_calibration(folder: RunFolder, names: tuple[str, ...]) -> Calibration:
    calibration = _read(folder, CALIBRATION, Calibration)
    if tuple(calibration.classes) != names:
        raise RunError(f"{folder.path / CALIBRATION} does not match the classes in {LABELS}; calibrate the run again")
    return calibration


def _load_classifier(folder: RunFolder, kept: _KeptModel, encoder: Encoder, labels: _Labels) -> Classifier:
    """Load the classifier. It must be a method of this package: a run folder must not cause other code to run."""
    path = folder.path / METADATA
    if kept.method not in METHODS:
        hint = suggestion(kept.method, METHODS)
        raise RunError(f"{path}: method {kept.method!r} is not part of this package and cannot be loaded; {hint}")
    method, classes = find_method(kept.method), len(labels.names)
    cooccurrence = np.zeros((classes, classes), dtype=np.int64)
    label_space = LabelSpace(labels.names, np.array(labels.counts), cooccurrence, labels.hierarchy)
    # Files named in the settings are not read: the state has their content, and the folder may be untrusted.
    changes = kept.settings | dict.fromkeys(method.files)
    try:
        settings = method_settings(kept.method, changes=changes)
        if not issubclass(method, Classifier) or not method.has_own_head(settings):
            raise ValueError(f"method {kept.method!r} has no classifier; it needs a probe to predict")
        classifier = method(encoder, label_space, settings)
    except ValueError as error:
        raise RunError(f"{path}: {error}") from error
    _load_state(classifier, folder)
    return classifier


def _load_state(classifier: Classifier, folder: RunFolder) -> None:
    path = folder.path / MODEL
    try:
        state = load_file(path)
        classifier.load_state_dict(upgrade_tensor_names(state) if folder.schema == 1 else state, strict=True)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read ({error}); copy the file again, or train again") from error
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise RunError(f"{path} does not match {CONFIG}, {LABELS} and {METADATA}: {first}") from error
