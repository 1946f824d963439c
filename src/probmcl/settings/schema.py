"""Settings of a run: frozen dataclasses, built from options and TOML recipes."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from probmcl.augment import AUGMENTATIONS
from probmcl.calibration.maps import Kind
from probmcl.calibration.thresholds import ThresholdRule
from probmcl.data.intensity import IntensityRange
from probmcl.errors import OptionError, RunError, SettingsError, check_range, suggestion
from probmcl.methods import METHODS, find_method, full_name
from probmcl.runtime.file_names import file_name
from probmcl.runtime.files import DAMAGED, convert
from probmcl.runtime.machine import find_device
from probmcl.store.files import CONFIG
from probmcl.store.run_folder import MAX_IMAGE_SIZE, RunFolder
from probmcl.training.optimizer import Training

AUTO = ("bce", "probmcl")
"""Methods that `auto` trains after the frozen probe, in this order (docs/decisions/0004)."""

CPU_ENCODER, GPU_ENCODER = "tf_efficientnet_lite0", "tresnet_m"

DEFAULT_VIEWS = 12
"""Number of views of each image that a method is trained on by default."""

Tune = Literal["all", "last", "none"]

ValueOrigin = Literal["default", "recipe", "auto", "user"]
"""Where a setting came from; `auto` is determined from the device, the machine, the data or an earlier run."""

AUTO_KEYS = ("encoder.name", "tune", "intensity", "device")
"""Settings that are determined automatically unless they are set."""

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
        if self.views < 0 or not 0 <= self.frozen_views <= self.views or not self.weight_decays:
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
        if set(self.name) & set("/\\\0") or len(self.name) > 100 or self.trial < 1:  # they are parts of file names
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
        spec = cls(name, own_preset or preset) if name in METHODS else cls(full_name(text), preset)
        _ = spec.settings  # raises an error if the preset does not exist
        return spec

    @property
    def name(self) -> str:
        """The name in tables: the method, with its preset unless that is the default."""
        return short_name(self.method) + ("" if self.preset == "default" else f":{self.preset}")

    @property
    def settings(self) -> Any:
        """The settings of the method with this preset."""
        return method_settings(self.method, self.preset)


@dataclass(frozen=True)
class Settings:
    """Settings of one run.

    Attributes:
        method: the requested method, or `auto`.
        jobs: the training jobs of the method; empty if only the frozen probe is fitted.
        augment: a key of `AUGMENTATIONS`, for training and probes.
        tune: the part of the encoder that is trained: all of it, its last stage, or none.
        stored_views: cached augmented views per training image, besides the plain one, if `tune` is last or none.
        budget: seconds for the whole run; if given, it determines the number of epochs.
        workers: number of processes that decode and augment images.
        intensity: gray levels of 16-bit and float images that are mapped to black and white; determined from the data.
        cache: folder for decoded images; None decodes them in every epoch.
        device: `auto` uses a CUDA device if there is one, otherwise the CPU.
        calibration: how scores become probabilities; see `probmcl.calibration.fit_calibration`.
        thresholds: how the threshold of each class is chosen; see `probmcl.calibration.ThresholdRule`.
        neighbors: whether the features of the training images are stored, to show the images nearest to a new one.
        origins: where each setting came from; the keys are paths such as `encoder.name` or `jobs.bce.training.epochs`.
    """

    method: str
    jobs: tuple[TrainingJob, ...]
    encoder: EncoderSettings
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    augment: Literal["light", "paper", "none"] = "light"
    tune: Tune = "all"
    stored_views: int = 2
    budget: float | None = None
    seed: int = 0
    workers: int = 2
    intensity: IntensityRange | None = None
    cache: str | None = None
    device: str = "auto"
    calibration: Kind = "sigmoid"
    thresholds: str = "balanced"
    neighbors: bool = True
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
    values = {f.name: getattr(default, f.name) for f in dataclasses.fields(default)}
    hints = typing.get_type_hints(type(default))
    for key, value in (changes or {}).items():
        choices = get_args(hints.get(key))
        # TOML and the command line have no None, so "none" means None unless it is itself a valid choice.
        values[key] = None if value == "none" and type(None) in choices and "none" not in choices else value
    return _convert(values, type(default), where=f"settings of {name}")


def default_training(method: str, tune: Tune) -> dict[str, Any]:
    """Return the default training settings of a method (docs/decisions/0004)."""
    cls = find_method(method)
    epochs = max(1, DEFAULT_VIEWS // cls.n_views)
    if cls.has_own_head(cls.presets["default"]):
        learning_rate = 3e-4 if tune == "all" else 1e-3
        return {"epochs": epochs, "batch_size": 64, "learning_rate": learning_rate, "head_factor": 3.0}
    return {"epochs": epochs, "batch_size": 128, "learning_rate": 3e-4}


def parse_duration(text: str) -> float:
    """Convert a duration such as 90s, 30m, 1.5h or 1h30m to seconds.

    >>> parse_duration("30m"), parse_duration("1h30m")
    (1800.0, 5400.0)
    """
    number = r"(\d+\.?\d*|\.\d+)"
    parts = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip().lower())
    if parts is None or not any(parts.groups()):
        raise SettingsError(f"budget {text!r} is not a duration; use hours, minutes or seconds, as in 30m or 1h30m")
    total = sum(float(part or 0) * unit for part, unit in zip(parts.groups(), (3600, 60, 1), strict=True))
    if total <= 0:
        raise SettingsError(f"budget {text!r} must be above 0, as in 30m")
    return total


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a TOML file with the keys of `make_settings`."""
    with path.open("rb") as file:
        try:
            return tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{path}: {error}") from error


def option_keys(options: Mapping[str, Any]) -> list[str]:
    """Return the keys of options; those in a table are preceded by its name.

    >>> option_keys({"method": "bce", "training": {"epochs": 3}})
    ['method', 'training.epochs']
    """
    tables = {key: value if isinstance(value, dict) else {"": None} for key, value in options.items()}
    return [f"{key}.{name}".removesuffix(".") for key, table in tables.items() for name in table]


def make_settings(options: Mapping[str, Any], origins: Mapping[str, ValueOrigin] | None = None) -> Settings:
    """Return the settings of a run, given options or the content of a recipe.

    The keys are those of `Settings`, except that `jobs` is built from `method`, `preset`, a `settings` table with
    changes to the preset, and a `training` table. Missing keys get defaults that depend on the method and the device.
    Unknown keys, including settings of other methods, raise an error. `origins` tells where each option came from, by
    its key in `option_keys` (default: from the user).

    >>> make_settings({"method": "bce", "training": {"epochs": 3}}).jobs[0].training.epochs
    3
    """
    keys = dict(options)
    method, preset, changes = keys.pop("method", "auto"), keys.pop("preset", "default"), keys.pop("settings", {})
    training, encoder = keys.pop("training", {}), keys.pop("encoder", {})
    tables = (changes, training, encoder, keys.get("probe", {}))
    if not isinstance(method, str) or not isinstance(preset, str) or not all(isinstance(t, dict) for t in tables):
        raise SettingsError(
            "method and preset must be strings, and [settings], [training], [encoder] and [probe] must be tables"
        )
    for key in {"jobs", "origins"} & keys.keys():
        raise SettingsError(f"unknown key {key!r}; set a method, its [settings] and its [training]")
    if keys.get("budget") is not None and "epochs" in training:
        raise SettingsError("a budget and epochs cannot be combined: the budget determines the number of epochs")
    if isinstance(keys.get("budget"), str):
        keys["budget"] = parse_duration(keys["budget"])
    if origins is None:
        origins = dict.fromkeys(option_keys(options), "user")
    given = dict(origins)
    if keys.get("device") == "auto":
        given.pop("device", None)
    keys["device"] = find_device(keys.get("device", "auto"))
    on_cpu = keys["device"] == "cpu"
    keys.setdefault("tune", "last" if on_cpu else "all")
    if keys["tune"] not in get_args(Tune):
        raise SettingsError(f"tune={keys['tune']!r} is not valid; {suggestion(str(keys['tune']), get_args(Tune))}")
    keys["encoder"] = {"name": CPU_ENCODER if on_cpu else GPU_ENCODER} | encoder
    if encoder.get("weights") == "none":
        keys["encoder"]["weights"] = None
    keys["probe"] = dict(keys.get("probe", {}))
    if method == "probe":
        keys["probe"]["loss"] = method_settings("probe", preset, changes).loss
    jobs = tuple(_jobs(method, preset, changes, training, keys["tune"]))
    settings = _convert({**keys, "method": method, "jobs": jobs}, Settings, where="settings")
    return replace(settings, origins=_origins(settings, given))


def _origins(settings: Settings, given: Mapping[str, ValueOrigin]) -> dict[str, ValueOrigin]:
    """Return the origin of every setting, given the origins of the options that were set."""
    values = dataclasses.asdict(replace(settings, intensity=None))
    del values["jobs"], values["origins"]
    origins: dict[str, ValueOrigin] = {}
    for key in option_keys(values):
        origins[key] = given.get(key, "auto" if key in AUTO_KEYS else "default")
    preset = given.get("preset", "default")
    if settings.method == "probe":
        origins["probe.loss"] = given.get("settings.loss", preset)
    for job in settings.jobs:
        for key in option_keys({"training": dataclasses.asdict(job.training)}):
            origins[f"jobs.{job.name}.{key}"] = given.get(key, "default")
        for key in option_keys({"settings": dataclasses.asdict(job.settings)}):
            origins[f"jobs.{job.name}.{key}"] = given.get(key, preset)
        if settings.budget is not None:
            origins[f"jobs.{job.name}.training.epochs"] = "auto"
    return origins


CONFIG_FILE = CONFIG.holding(Settings)
"""The row of config.json. The settings of the methods in it are plain values; see `read_settings`."""


def read_settings(folder: RunFolder) -> Settings:
    """Read the settings of a run.

    A method from outside this package must already be imported, since a run folder must not cause code to run.
    """
    stored = folder.read(CONFIG_FILE)
    jobs = []
    for number, job in enumerate(stored.jobs):
        refuse_unnamed(job.method, '`loss="{method}"`')
        try:
            settings = method_settings(job.method, changes=convert(job.settings, dict[str, Any]))
        except ValueError as error:
            place = f"{folder.path / CONFIG}: jobs[{number}].settings"
            raise RunError(f"{place}: {error}; {DAMAGED}") from error
        jobs.append(replace(job, settings=settings))
    return replace(stored, jobs=tuple(jobs))


def refuse_unnamed(method: str, option: str) -> None:
    """Raise an error if an external method is named only by a run folder; `option` tells the user how to name it."""
    module, _, attribute = method.partition(":")
    loaded = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
    if method not in METHODS and (loaded is None or not (module.endswith(".py") or _is_method(loaded))):
        problem = f"method {method!r} is not part of probmcl and is not loaded just because a folder names it"
        raise SettingsError(f"{problem}; pass {option.format(method=method)}")


def _is_method(loaded: object) -> bool:
    from probmcl.methods.base import Method

    return isinstance(loaded, type) and issubclass(loaded, Method)


def _jobs(
    method: str, preset: str, changes: dict[str, Any], training: dict[str, Any], tune: Tune
) -> Iterator[TrainingJob]:
    if method == "auto" and (changes or preset != "default"):
        subject = f"settings {', '.join(changes)}" if changes else f"preset {preset!r}"
        raise SettingsError(f'{subject} cannot be combined with method auto; name a method, as in `method="probmcl"`')
    for name in {"auto": AUTO, "probe": ()}.get(method, (method,)):
        settings, values = method_settings(name, preset, changes), default_training(name, tune) | training
        if method == "auto" and isinstance(training.get("epochs"), int):  # these epochs have two views of each image
            values["epochs"] = 2 * training["epochs"] // find_method(name).n_views
        yield TrainingJob(full_name(name), settings, _convert(values, Training, where="training"))


def _convert(values: dict[str, Any], cls: type[T], where: str) -> T:
    try:
        settings = convert(values, cls)
    except ValueError as error:
        message = str(error)
        raise SettingsError(message if message.startswith(f"{where}: ") else f"{where}: {message}") from error
    for name, value in vars(settings).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingsError(f"{where}: {name}={value} must be a finite number")
    return settings


# The folders of recipes in an installed package and in a source tree.
_FOLDERS = tuple(Path(__file__).resolve().parents[level] / "recipes" for level in (1, 3))


def recipes() -> dict[str, Path]:
    """Return the paths of this package's recipes by name.

    >>> len(recipes()), [name for name in recipes() if "kmcl" in name]
    (17, ['adp-kmcl-tresnet-l-448', 'coco-kmcl-tresnet-l-448', 'coco-kmcl-tresnet-m-224'])
    """
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def find_recipe(name_or_path: str | Path) -> Path:
    """Return the path of a recipe, given its path or its name in `recipes()`; an existing file takes precedence.

    >>> find_recipe("coco-tresnet-m-224").name
    'coco-tresnet-m-224.toml'
    """
    path, by_name = Path(name_or_path), recipes()
    if path.is_file():
        return path
    if str(name_or_path) in by_name:
        return by_name[str(name_or_path)]
    problem = "is a folder" if path.is_dir() else "is neither a file nor a probmcl recipe"
    raise OptionError("recipe", name_or_path, f"{problem}; {suggestion(path.stem, by_name)}")
