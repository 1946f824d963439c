"""Loading a model from an untrusted run folder: files are validated, and no code is downloaded or run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from probmcl.calibration import Calibration
from probmcl.calibration.maps import CALIBRATION_FILE
from probmcl.data.images import PREPROCESSING_FILE
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.encoders.encoder import MODEL_ERRORS
from probmcl.errors import RunError, suggestion
from probmcl.inference.model import Model
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Classifier
from probmcl.readers.options import METADATA_FILE
from probmcl.runtime.machine import find_device
from probmcl.runtime.tensor_files import load_tensors, read_shapes, refuse_non_finite
from probmcl.settings import CONFIG_FILE, method_settings
from probmcl.store.files import CALIBRATION, CONFIG, LABELS, METADATA, MODEL
from probmcl.store.run_folder import RunFolder
from probmcl.store.run_metadata import ClassLabels, KeptModel

T = TypeVar("T")


def load(run: Path | str, *, device: str = "auto") -> Model:
    """Load the model of a run; device `auto` means a CUDA device if there is one, otherwise the CPU."""
    folder = RunFolder.existing(run)
    metadata = folder.read(METADATA_FILE)
    if metadata.model is None or not folder.has(MODEL):
        problem = f"the run has no model yet ({MODEL} does not exist)"
        raise RunError(f"{folder.path}: {problem}; see the status in {METADATA}")
    labels = folder.read(LABELS)
    preprocessing = folder.read(PREPROCESSING_FILE)
    classifier = _load_classifier(folder, metadata.model, preprocessing.size, labels)
    torch_device = torch.device(find_device(device))
    calibration = None
    if folder.has(CALIBRATION):
        calibration = _read_calibration(folder, labels.names)
    return Model(
        classifier,
        names=labels.names,
        hierarchy=labels.hierarchy,
        preprocessing=preprocessing,
        device=torch_device,
        folder=folder.path,
        source=metadata.data,
        calibration=calibration,
    )


def _read_calibration(folder: RunFolder, names: tuple[str, ...]) -> Calibration:
    """Read the calibration of a run, which must have the classes of the run in their order."""
    calibration = folder.read(CALIBRATION_FILE)
    if tuple(calibration.classes) != names:
        raise RunError(f"{folder.path / CALIBRATION} does not match the classes in {LABELS}; calibrate the run again")
    return calibration


def _load_classifier(folder: RunFolder, kept: KeptModel, size: int, labels: ClassLabels) -> Classifier:
    """Load the classifier. It must be a method of this package: a run folder must not cause other code to run.

    It is first built on the meta device, which needs no memory, and compared with the tensors in the file.
    """
    path = folder.path / MODEL
    if kept.method not in METHODS:
        problem = f"method {kept.method!r} is not part of this package and cannot be loaded"
        raise RunError(f"{folder.path / METADATA}: {problem}; {suggestion(kept.method, METHODS)}")
    with torch.device("meta"):
        shapes = _readable(path, lambda: read_shapes(path, root=folder.path))
        empty_tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
        _load_state(_build_classifier(folder, kept, size, labels), empty_tensors, folder)
    classifier = _build_classifier(folder, kept, size, labels)
    tensors, _ = _readable(path, lambda: load_tensors(path, root=folder.path))
    _load_state(classifier, tensors, folder)
    del tensors  # the classifier has copies
    refuse_non_finite(path, classifier.state_dict())
    return classifier


def _build_classifier(folder: RunFolder, kept: KeptModel, size: int, labels: ClassLabels) -> Classifier:
    """Build the classifier with its initial parameters; `size` is the width and height of its images in pixels.

    Settings from which no classifier can be built are an error that names their file.
    """
    method = find_method(kept.method)
    n_classes = len(labels.names)
    cooccurrence = np.broadcast_to(np.int64(0), (n_classes, n_classes))  # without the memory of a full matrix
    label_space = LabelSpace(labels.names, np.array(labels.counts), cooccurrence, labels.hierarchy)
    # Files named in the settings are not read: the state has their content, and the folder may be untrusted.
    changes = kept.settings | dict.fromkeys(method.files)
    file = CONFIG  # the file that an error is about
    try:
        encoder = Encoder(folder.read(CONFIG_FILE).encoder.name, image_size=size)
        file = METADATA
        settings = method_settings(kept.method, changes=changes)
        if not issubclass(method, Classifier) or not method.has_own_head(settings):
            raise ValueError(f"method {kept.method!r} has no classifier; it needs a probe to predict")
        return method(encoder, label_space, settings)
    except RunError:  # names its file
        raise
    except (*MODEL_ERRORS, MemoryError) as error:
        raise RunError(f"{folder.path / file}: {str(error) or 'out of memory'}") from error


def _load_state(classifier: Classifier, tensors: Mapping[str, torch.Tensor], folder: RunFolder) -> None:
    """Load the parameters; if their names or shapes differ from those of the classifier, the error has the first."""
    try:
        classifier.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        problem = str(error)
        if "\n" in problem:  # a title, then one difference in each line
            problem = problem.splitlines()[1].strip()
        raise RunError(f"{folder.path / MODEL} does not match {CONFIG}, {LABELS} and {METADATA}: {problem}") from error


def _readable(path: Path, read: Callable[[], T]) -> T:
    """Return the result of `read`; its errors are raised again with a remedy."""
    try:
        return read()
    except RunError as error:  # names the file
        raise RunError(f"{error}; copy the file again, or train again") from error
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error}); copy the file again, or train again") from error
