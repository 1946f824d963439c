"""The settings of a run: frozen dataclasses, and their conversion from dictionaries."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

from probmcl.augment import AUGMENTATIONS
from probmcl.calibration.thresholds import ThresholdRule
from probmcl.data.pixels import IntensityRange
from probmcl.errors import SettingsError, check_range, suggestion
from probmcl.methods import METHODS, find_method, full_name
from probmcl.runtime.conversion import convert
from probmcl.runtime.files import file_name
from probmcl.settings.options import StoredSettings, Tune
from probmcl.store.run_folder import MAX_IMAGE_SIZE
from probmcl.training.optimizer import Training

ValueOrigin = Literal["default", "recipe", "auto", "user"]
"""Where a setting came from; `auto` is determined from the device, the machine, the data or an earlier run."""

T = TypeVar("T")


@dataclass(frozen=True)
class EncoderSettings:
    """The encoder of a run.

    Attributes:
        name: name of a timm model.
        weights: `pretrained` for timm's weights, None for random weights, or the path to a safetensors file or a run.
        image_size: side of the square input in pixels; None for the encoder's default.
        statistics: whether batch normalization keeps its statistics in training (`fixed`) or updates them (`moving`);
            None means `fixed` unless the weights are random (docs/decisions/0004).
    """

    name: str
    weights: str | None = "pretrained"
    image_size: int | None = None
    statistics: Literal["fixed", "moving"] | None = None

    def __post_init__(self) -> None:
        check_range(at_most=MAX_IMAGE_SIZE, image_size=self.image_size)


@dataclass(frozen=True)
class ProbeSettings:
    """Settings of a linear probe, which is fitted on precomputed features.

    Attributes:
        epochs: passes over the training images; each pass uses one view of every image.
        views: augmented views of each training image, in addition to the plain one.
        frozen_views: the same for the probe on the frozen encoder; with few views, a first model is ready sooner.
        weight_decays: one probe is fitted for each value, and the best on validation is kept.
        learning_rate: maximum of the learning rate schedule.
        loss: see `probmcl.methods.probe.Config`.
    """

    epochs: int = 45
    views: int = 2
    frozen_views: int = 0
    weight_decays: tuple[float, ...] = (0.1, 1.0, 10.0, 30.0, 100.0, 300.0)
    learning_rate: float = 2e-3
    batch_size: int = 256
    loss: Literal["asl", "bce"] = "asl"

    def __post_init__(self) -> None:
        views_are_valid = 0 <= self.frozen_views <= self.views
        if not views_are_valid or not self.weight_decays:
            raise ValueError(
                f"probe: views={self.views} must be at least 0, frozen_views={self.frozen_views} must be "
                f"between 0 and views, and weight_decays={self.weight_decays} must not be empty"
            )
        for weight_decay in self.weight_decays:
            replace(self.training(), weight_decay=weight_decay)  # raises an error if a value is out of range

    def steps(self, images: int) -> int:
        """Return the number of steps, given the number of training images. All weight decays are fitted together."""
        return self.epochs * (images // min(self.batch_size, images))

    def training(self) -> Training:
        """Return the training settings, without the weight decays."""
        fit = Training(epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate)
        return replace(fit, weight_decay=0.0, decay="decoupled")


@dataclass(frozen=True)
class TrainingJob:
    """A method to train and compare with the frozen probe on validation.

    Attributes:
        method: a key of `METHODS`, or `my_package.my_file:MyMethod`.
        settings: the settings of the method.
        name: name of the job in this run, by default the method's; jobs of the same method need different names.
        trial: number of the trial, starting at 1; each trial uses a different learning rate or weight decay.
    """

    method: str
    settings: Any
    training: Training
    name: str = ""
    trial: int = 1

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", short_name(self.method))
        is_file_name = not set(self.name) & set("/\\\0") and len(self.name) <= 100
        if not is_file_name or self.trial < 1:  # both are parts of file names
            raise SettingsError(f"name={self.name!r} must be a short file name, and trial={self.trial} at least 1")

    @property
    def title(self) -> str:
        """The name of the job in messages."""
        return job_name(self.name, self.trial)

    @property
    def key(self) -> str:
        """The name of the job in the files of a run."""
        return job_key(self.name, self.trial)

    @property
    def random_stream(self) -> str:
        """The key of the job's random numbers. Changing it would change scores."""
        return self.name if self.trial == 1 else f"{self.name}, trial {self.trial}"


def job_name(method: str, trial: int) -> str:
    """Return the name of a job in messages, as in `bce` or `bce, trial 2`."""
    return method if trial == 1 else f"{method}, trial {trial}"


def job_key(method: str, trial: int) -> str:
    """Return the name of a job in the files of a run, as in `bce` or `bce.trial2`."""
    name = file_name(method)
    return name if trial == 1 else f"{name}.trial{trial}"


def short_name(method: str) -> str:
    """Return the short name of a method: a key of `METHODS`, or the part of a path after the colon.

    >>> short_name("bce"), short_name("my_package.my_file:MyMethod")
    ('bce', 'MyMethod')
    """
    return method if method in METHODS else method.rpartition(":")[2]


@dataclass(frozen=True)
class MethodSpec:
    """A method and one of its presets."""

    method: str
    preset: str = "default"

    @classmethod
    def parse(cls, text: str, preset: str = "default") -> MethodSpec:
        """Parse NAME, NAME:PRESET or MODULE:CLASS; `preset` is used if the text does not name one.

        >>> MethodSpec.parse("probmcl:paper").name, MethodSpec.parse("asl").name
        ('probmcl:paper', 'asl')
        """
        name, _, own_preset = text.partition(":")
        if name in METHODS:
            method = name
            preset = own_preset or preset
        else:  # the path of a class or a function, which has a colon, too
            method = full_name(text)
        spec = cls(method, preset)
        _ = spec.settings  # raises an error if the preset does not exist
        return spec

    @property
    def name(self) -> str:
        """The name in tables: the method, with its preset unless that is the default."""
        name = short_name(self.method)
        return name if self.preset == "default" else f"{name}:{self.preset}"

    @property
    def settings(self) -> Any:
        """The settings of the method with this preset."""
        return method_settings(self.method, self.preset)


@dataclass(frozen=True)
class Settings(StoredSettings):
    """Settings of one run, including the options of `train` that are stored as they are.

    Attributes:
        method: the requested method, or `auto`.
        jobs: the training jobs of the method; empty if only the frozen probe is fitted.
        tune: the part of the encoder that is trained: all of it, its last stage, or none.
        stored_views: cached augmented views per training image, besides the plain one, if `tune` is last or none.
        budget: seconds for the whole run; if given, it determines the number of epochs.
        workers: number of processes that decode and augment images.
        intensity: gray levels of 16-bit and float images that are mapped to black and white; determined from the data.
        cache: folder for decoded images; None decodes them in every epoch.
        device: `auto` uses a CUDA device if there is one, otherwise the CPU.
        origins: where each setting came from; the keys are paths such as `encoder.name` or `jobs.bce.training.epochs`.
    """

    method: str
    jobs: tuple[TrainingJob, ...]
    encoder: EncoderSettings
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    tune: Tune = "all"
    stored_views: int = 2
    budget: float | None = None
    workers: int = 2
    intensity: IntensityRange | None = None
    cache: str | None = None
    device: str = "auto"
    origins: Mapping[str, ValueOrigin] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        ThresholdRule.parse(self.thresholds)  # raises an error if it is not a rule
        if self.augment not in AUGMENTATIONS:
            raise SettingsError(f"augment={self.augment!r} is not valid; {suggestion(self.augment, AUGMENTATIONS)}")
        if self.workers < 0:
            raise SettingsError(f"workers={self.workers} must be at least 0; 0 decodes in the main process")
        if self.stored_views < 1:
            raise SettingsError(f"stored_views={self.stored_views} must be at least 1, as some methods need two views")
        if self.budget is not None and self.budget <= 0:
            raise SettingsError(f"budget={self.budget} must be above 0 seconds")
        if self.seed < 0:
            raise SettingsError(f"seed={self.seed} must be at least 0")
        names = [job.title for job in self.jobs]
        if len(set(names)) < len(names):
            raise SettingsError(f"job names must be unique, got {', '.join(names)}")


def method_settings(name: str, preset: str = "default", changes: Mapping[str, Any] | None = None) -> Any:
    """Return the settings of a method: a preset, with some of its values changed.

    >>> method_settings("probmcl", "paper", {"threshold": 0.5}).threshold
    0.5
    """
    presets = find_method(name).presets
    if preset not in presets:
        raise SettingsError(f"method {name!r} has no preset {preset!r}; {suggestion(preset, presets)}")
    default = presets[preset]
    values = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    hints = typing.get_type_hints(type(default))
    for key, value in (changes or {}).items():
        choices = get_args(hints.get(key))
        values[key] = value
        # TOML and the command line have no None, so "none" means None unless it is itself a valid choice.
        if value == "none" and type(None) in choices and "none" not in choices:
            values[key] = None
    return convert_settings(values, type(default), where=f"settings of {name}")


def convert_settings(values: dict[str, Any], cls: type[T], where: str) -> T:
    """Convert a dictionary to a dataclass; `where` names the dictionary in errors. Unknown keys are errors."""
    try:
        settings = convert(values, cls)
    except ValueError as error:
        message = str(error)
        if not message.startswith(f"{where}: "):  # some settings name themselves in their errors
            message = f"{where}: {message}"
        raise SettingsError(message) from error
    for name, value in vars(settings).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"{where}: {name}={value} must be a finite number")
    return settings
