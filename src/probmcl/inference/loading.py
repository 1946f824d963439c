"""Loading a model from an untrusted run folder: files are validated, and no code is downloaded or run."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from probmcl.calibration import Calibration
from probmcl.data.hierarchy import parents_of
from probmcl.data.images import Preprocessing
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.encoders.encoder import MODEL_ERRORS
from probmcl.encoders.weights import refuse_non_finite
from probmcl.errors import DataError, RunError, counted, plain, suggestion
from probmcl.inference.model import Model
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Classifier
from probmcl.readers.options import DataSource
from probmcl.runtime.files import convert_file
from probmcl.runtime.machine import find_device
from probmcl.runtime.tensor_files import load_tensors, read_shapes
from probmcl.settings import EncoderSettings, Settings, method_settings
from probmcl.store.run_folder import (
    CALIBRATION,
    CONFIG,
    LABELS,
    MAX_CLASSES,
    MAX_IMAGE_SIZE,
    METADATA,
    MODEL,
    OTHER_IMAGES,
    OUT_OF_FOLD,
    PREPROCESSING,
    RunFolder,
)
from probmcl.store.run_metadata import KeptModel

T = TypeVar("T")


UNPRINTABLE = re.compile(r"[\x00\ud800-\udfff]")
"""Characters that files and figures cannot contain: NUL and lone surrogates."""


@dataclass(frozen=True)
class Policy:
    """How the labels of a run were read, for the report."""

    unknown: str
    blank: tuple[str, ...] | None
    minus_one: tuple[str, ...] | None
    chance_of_uncertain: dict[str, float]
    labels: dict[str, int]


@dataclass(frozen=True)
class Labels:
    """The content of labels.json: the classes, their training positives, their parents and the label policy."""

    names: tuple[str, ...]
    counts: tuple[int, ...]
    hierarchy: dict[str, str] | None
    policy: Policy

    def __post_init__(self) -> None:
        if unprintable := [name for name in self.names if UNPRINTABLE.search(name)]:
            raise ValueError(f"the class name {unprintable[0]!r} has characters that cannot be written")
        if len(self.names) > MAX_CLASSES:
            raise ValueError(f"{counted(len(self.names), 'class', 'classes')}; the limit is {MAX_CLASSES:,}")
        if not self.names or len(set(self.names)) < len(self.names) or len(self.counts) != len(self.names):
            names, counts = counted(len(self.names), "name"), counted(len(self.counts), "count")
            raise ValueError(f"{names} and {counts}; expected one of each per class")
        parents_of(self.names, self.hierarchy)  # raises an error if the hierarchy has a cycle


@dataclass(frozen=True)
class _Config:
    encoder: EncoderSettings


def load(run: Path | str, *, device: str = "auto") -> Model:
    """Load the model of a run; device `auto` means a CUDA device if there is one, otherwise the CPU."""
    folder = RunFolder.existing(run)
    model = folder.metadata.model
    if model is None or not folder.has(MODEL):
        problem = f"the run has no model yet ({MODEL} does not exist)"
        raise RunError(f"{folder.path}: {problem}; see the status in {METADATA}")
    labels, preprocessing = read_labels(folder), read_preprocessing(folder)
    return Model(
        _load_classifier(folder, model, preprocessing.size, labels),
        names=labels.names,
        hierarchy=labels.hierarchy,
        preprocessing=preprocessing,
        device=torch.device(find_device(device)),
        folder=folder.path,
        source=recorded_source(folder),
        calibration=_read_calibration(folder, labels.names) if folder.has(CALIBRATION) else None,
    )


def recorded_source(folder: RunFolder) -> DataSource | None:
    """Read the data of a run; None if it was trained on records in memory."""
    data = folder.read(METADATA)["data"]
    try:
        return None if data is None else DataSource.parse(data)
    except DataError as error:
        raise RunError(f"{folder.path / METADATA}, data: {plain(error)}; the file is damaged or was edited") from error


def read_labels(folder: RunFolder) -> Labels:
    """Read the classes of a run."""
    return convert_file(folder.read(LABELS), Labels, folder.path / LABELS)


def read_preprocessing(folder: RunFolder) -> Preprocessing:
    """Read the preprocessing of a run."""
    preprocessing = convert_file(folder.read(PREPROCESSING), Preprocessing, folder.path / PREPROCESSING)
    if preprocessing.size > MAX_IMAGE_SIZE:
        problem = f"size={preprocessing.size} must be at most {MAX_IMAGE_SIZE}"
        raise RunError(f"{folder.path / PREPROCESSING}: {problem}; the file is damaged or was edited")
    return preprocessing


def read_encoder(folder: RunFolder) -> EncoderSettings:
    """Read the encoder of a run. Its other settings, which need not be valid to predict, are only checked by name."""
    content = folder.read(CONFIG)
    settings = [setting.name for setting in fields(Settings)]
    if unknown := sorted(content.keys() - set(settings)):
        raise RunError(f"{folder.path / CONFIG}: unknown key {unknown[0]!r}; {suggestion(unknown[0], settings)}")
    return convert_file({"encoder": content.get("encoder")}, _Config, folder.path / CONFIG).encoder


def _read_calibration(folder: RunFolder, names: tuple[str, ...]) -> Calibration:
    calibration = convert_file(folder.read(CALIBRATION), Calibration, folder.path / CALIBRATION)
    if tuple(calibration.classes) != names:
        raise RunError(f"{folder.path / CALIBRATION} does not match the classes in {LABELS}; calibrate the run again")
    if calibration.predictions not in (held_out := ("val", OUT_OF_FOLD, OTHER_IMAGES)):
        problem = f"predictions={calibration.predictions!r} must be one of {', '.join(held_out)}"
        raise RunError(f"{folder.path / CALIBRATION}: {problem}; the file is damaged or was edited")
    return calibration


def _load_classifier(folder: RunFolder, kept: KeptModel, size: int, labels: Labels) -> Classifier:
    """Load the classifier. It must be a method of this package: a run folder must not cause other code to run.

    It is first built on the meta device, which needs no memory, and compared with the tensors in the file.
    """
    path = folder.path / MODEL
    if kept.method not in METHODS:
        problem = f"method {kept.method!r} is not part of this package and cannot be loaded"
        raise RunError(f"{folder.path / METADATA}: {problem}; {suggestion(kept.method, METHODS)}")
    with torch.device("meta"):
        shapes = _readable(path, lambda: read_shapes(path, root=folder.path))
        tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
        _load_state(_build_classifier(folder, kept, size, labels), tensors, folder)
    classifier = _build_classifier(folder, kept, size, labels)
    _load_state(classifier, _readable(path, lambda: load_tensors(path, root=folder.path))[0], folder)
    refuse_non_finite(path, classifier.state_dict())
    return classifier


def _build_classifier(folder: RunFolder, kept: KeptModel, size: int, labels: Labels) -> Classifier:
    method, classes = find_method(kept.method), len(labels.names)
    cooccurrence = np.broadcast_to(np.int64(0), (classes, classes))  # without the memory of a full matrix
    label_space = LabelSpace(labels.names, np.array(labels.counts), cooccurrence, labels.hierarchy)
    # Files named in the settings are not read: the state has their content, and the folder may be untrusted.
    changes, file = kept.settings | dict.fromkeys(method.files), CONFIG
    try:
        encoder = Encoder(read_encoder(folder).name, image_size=size)
        file = METADATA
        settings = method_settings(kept.method, changes=changes)
        if not issubclass(method, Classifier) or not method.has_own_head(settings):
            raise ValueError(f"method {kept.method!r} has no classifier; it needs a probe to predict")
        return method(encoder, label_space, settings)
    except RunError:
        raise
    except (*MODEL_ERRORS, MemoryError) as error:
        raise RunError(f"{folder.path / file}: {str(error) or 'out of memory'}") from error


def _load_state(classifier: Classifier, tensors: Mapping[str, torch.Tensor], folder: RunFolder) -> None:
    try:
        classifier.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise RunError(f"{folder.path / MODEL} does not match {CONFIG}, {LABELS} and {METADATA}: {first}") from error


def _readable(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except RunError as error:  # names the file
        raise RunError(f"{error}; copy the file again, or train again") from error
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error}); copy the file again, or train again") from error
