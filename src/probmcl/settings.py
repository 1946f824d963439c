"""Everything that decides a run: frozen settings, made from options and recipes (TOML)."""

from __future__ import annotations

import dataclasses
import re
import sys
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import msgspec

from probmcl.augment import AUGMENTATIONS
from probmcl.data.intensity import IntensityRange
from probmcl.errors import OptionError, SettingsError, suggestion
from probmcl.methods import METHODS, find_method, full_name
from probmcl.run_folder import CONFIG
from probmcl.runtime.machine import find_device
from probmcl.training.optimizer import Training

AUTO = ("bce", "probmcl")
"""Methods that `auto` trains, in this order, after the frozen probe (docs/decisions/0004)."""

CPU_ENCODER, GPU_ENCODER = "tf_efficientnet_lite0", "tresnet_m"

DEFAULT_VIEWS = 12
"""Number of times a method sees each image by default."""

Tune = Literal["all", "last", "none"]

T = TypeVar("T")


@dataclass(frozen=True)
class EncoderSettings:
    """The encoder of a run.

    Attributes:
        name: any timm model.
        weights: `pretrained` for timm's own, None for random ones, or the path of a safetensors file or a run.
        image_size: side of the square input; None takes the encoder's own.
        statistics: batch normalization keeps its statistics (`fixed`) or updates them (`moving`) in training; None
            keeps them unless the weights are random (docs/decisions/0004).
    """

    name: str
    weights: str | None = "pretrained"
    image_size: int | None = None
    statistics: Literal["fixed", "moving"] | None = None


@dataclass(frozen=True)
class ProbeSettings:
    """How the linear probe is fitted on features that are extracted once.

    Attributes:
        epochs: how often every image is seen, each time in one of its views.
        views: augmented views of each training image beside the plain one.
        frozen_views: the same for the probe on the untouched encoder, which is to be there soon.
        weight_decays: tried one after the other; the best on validation is kept.
        learning_rate: at the top of the cycle.
        loss: what the probe minimizes; see `probmcl.methods.probe.Config`.
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
                f"probe: views={self.views}, frozen_views={self.frozen_views}, weight_decays={self.weight_decays}; "
                "give 0 or more, at most as many, and one or more"
            )
        for weight_decay in self.weight_decays:
            self.training(weight_decay)  # which refuses what is out of range

    def steps(self, images: int) -> int:
        """Steps of all fits together, on so many images."""
        return len(self.weight_decays) * self.epochs * (images // min(self.batch_size, images))

    def training(self, weight_decay: float) -> Training:
        """The settings of one fit."""
        fit = Training(epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate)
        return replace(fit, weight_decay=weight_decay, decay="decoupled")


@dataclass(frozen=True)
class TrainingJob:
    """A method to train, then compared with the frozen probe on validation.

    Attributes:
        method: a name in `METHODS`, or `my_package.my_file:MyMethod`.
        settings: the method's own.
        name: its name in this run, by default that of its method; two jobs with one method need two names.
        trial: number of the learning rate and weight decay that are tried for it, from 1.
    """

    method: str
    settings: Any
    training: Training
    name: str = ""
    trial: int = 1

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", short_name(self.method))

    @property
    def title(self) -> str:
        """The name in messages."""
        return job_name(self.name, self.trial)

    @property
    def key(self) -> str:
        """The name in the files of a run."""
        return job_key(self.name, self.trial)

    @property
    def random_stream(self) -> str:
        """The key of its random numbers, as in version 0.1: changing it changes scores."""
        return self.name if self.trial == 1 else f"{self.name}, trial {self.trial}"


def job_name(method: str, trial: int) -> str:
    """Return the name of a training in messages: `bce`, `bce, trial 2`."""
    return method if trial == 1 else f"{method}, trial {trial}"


def job_key(method: str, trial: int) -> str:
    """Return the name of a training in the files of a run: `bce`, `bce.trial2`."""
    return method if trial == 1 else f"{method}.trial{trial}"


def short_name(method: str) -> str:
    """What a method is called for short: its name here, or what follows the colon of a place elsewhere.

    >>> short_name("bce"), short_name("my_package.my_file:MyMethod")
    ('bce', 'MyMethod')
    """
    return method if method in METHODS else method.rpartition(":")[2]


@dataclass(frozen=True)
class MethodSpec:
    """A method with one of its presets."""

    method: str
    preset: str = "default"

    @classmethod
    def parse(cls, text: str, preset: str = "default") -> MethodSpec:
        """Parse NAME, NAME:PRESET or the place of a method outside this package; `preset` is the default preset.

        >>> MethodSpec.parse("probmcl:paper").name, MethodSpec.parse("asl").name
        ('probmcl:paper', 'asl')
        """
        name, _, own = text.partition(":")
        spec = cls(name, own or preset) if name in METHODS else cls(full_name(text), preset)
        _ = spec.settings  # refuses a preset that does not exist
        return spec

    @property
    def name(self) -> str:
        """The name in tables: that of the method, with the preset unless it is the default."""
        return short_name(self.method) + ("" if self.preset == "default" else f":{self.preset}")

    @property
    def settings(self) -> Any:
        """The settings of the method."""
        return method_settings(self.method, self.preset)


@dataclass(frozen=True)
class Settings:
    """One run: what is trained, on which encoder, and how.

    Attributes:
        method: the requested method, or `auto`.
        jobs: the trainings that this means; none if only the frozen probe is fitted.
        augment: a name in `AUGMENTATIONS`, for training and probes.
        tune: how much of the encoder learns: all of it, its last stage, or nothing.
        stored_views: with `tune` last or none, cached augmented views of each training image, besides the plain one.
        budget: seconds for the whole run; it then decides the epochs.
        workers: processes that decode and augment.
        intensity: gray levels of 16-bit and float images that become black and white; found in the data.
        cache: folder for decoded images; None decodes them every time.
        device: where to compute; `auto` takes a CUDA device if there is one, otherwise the CPU.
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

    def __post_init__(self) -> None:
        if self.augment not in AUGMENTATIONS:
            raise SettingsError(f"augment={self.augment!r}; {suggestion(self.augment, AUGMENTATIONS)}")
        if self.workers < 0:
            raise SettingsError(f"workers={self.workers}; 0 decodes in the main process, 2 in two others")
        if self.stored_views < 1:
            raise SettingsError(f"stored_views={self.stored_views}; a contrast needs 1 or more besides the plain view")
        if self.budget is not None and self.budget <= 0:
            raise SettingsError(f"budget={self.budget}: give seconds above 0")
        if self.seed < 0:
            raise SettingsError(f"seed={self.seed}; give 0 or more")
        names = [job.title for job in self.jobs]
        if len(set(names)) < len(names):
            raise SettingsError(f"methods {', '.join(names)}: give each another name")


def method_settings(name: str, preset: str = "default", changes: Mapping[str, Any] | None = None) -> Any:
    """Return the settings of a method: one of its presets, with changes by key.

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
        # TOML and the command line have no other way to say None than the word, unless the word is a choice itself.
        values[key] = None if value == "none" and type(None) in choices and "none" not in choices else value
    return _convert(values, type(default), where=f"settings of {name}")


def default_training(method: str, tune: Tune) -> dict[str, Any]:
    """Return the default training of a method (docs/decisions/0004)."""
    cls = find_method(method)
    epochs = max(1, DEFAULT_VIEWS // cls.n_views)
    if cls.has_own_head(cls.presets["default"]):
        learning_rate = 3e-4 if tune == "all" else 1e-3
        return {"epochs": epochs, "batch_size": 64, "learning_rate": learning_rate, "head_factor": 3.0}
    return {"epochs": epochs, "batch_size": 128, "learning_rate": 3e-4}


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as 90s, 30m, 1.5h or 1h30m.

    >>> parse_duration("30m"), parse_duration("1h30m")
    (1800.0, 5400.0)
    """
    number = r"(\d+\.?\d*|\.\d+)"
    parts = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip().lower())
    if parts is None or not any(parts.groups()):
        raise SettingsError(f"budget {text!r}: give hours, minutes or seconds, as in 30m, 1h30m or 90s")
    total = sum(float(part or 0) * unit for part, unit in zip(parts.groups(), (3600, 60, 1), strict=True))
    if total <= 0:
        raise SettingsError(f"budget {text!r}: give more than nothing, as in 30m")
    return total


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a TOML file with keys for `make_settings`."""
    with path.open("rb") as file:
        try:
            return tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{path}: {error}") from error


def make_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings of a run that a recipe or options describe; whatever is missing gets a fitting default.

    Keys are those of `Settings`, except that `jobs` follows from `method`, a `preset`, a table `settings` of changes to
    it and a table `training`. A key that belongs to another method is an error.

    >>> make_settings({"method": "bce", "training": {"epochs": 3}}).jobs[0].training.epochs
    3
    """
    keys = dict(given)
    method, preset, changes = keys.pop("method", "auto"), keys.pop("preset", "default"), keys.pop("settings", {})
    training, encoder = keys.pop("training", {}), keys.pop("encoder", {})
    tables = (changes, training, encoder, keys.get("probe", {}))
    if not isinstance(method, str) or not isinstance(preset, str) or not all(isinstance(t, dict) for t in tables):
        raise SettingsError(
            'say method = "probmcl", perhaps preset = "paper"; [settings], [training], [encoder] and [probe] are tables'
        )
    if "jobs" in keys:
        raise SettingsError("no key 'jobs'; give a method, its [settings] and its [training]")
    if keys.get("budget") is not None and "epochs" in training:
        raise SettingsError("a budget and a number of epochs are both given; the budget decides the epochs, give one")
    if isinstance(keys.get("budget"), str):
        keys["budget"] = parse_duration(keys["budget"])
    keys["device"] = find_device(keys.get("device", "auto"))
    on_cpu = keys["device"] == "cpu"
    keys.setdefault("tune", "last" if on_cpu else "all")
    if keys["tune"] not in get_args(Tune):
        raise SettingsError(f"tune={keys['tune']!r}; {suggestion(str(keys['tune']), get_args(Tune))}")
    keys["encoder"] = {"name": CPU_ENCODER if on_cpu else GPU_ENCODER} | encoder
    if encoder.get("weights") == "none":
        keys["encoder"]["weights"] = None
    keys["probe"] = dict(keys.get("probe", {}))
    if method == "probe":
        keys["probe"]["loss"] = method_settings("probe", preset, changes).loss
    jobs = tuple(_jobs(method, preset, changes, training, keys["tune"]))
    return _convert({**keys, "method": method, "jobs": jobs}, Settings, where="settings")


def load_settings(config: Mapping[str, Any]) -> Settings:
    """Return the settings in the config.json of a run.

    A method from outside this package has to be imported already: no code runs because a folder names it.
    """
    for job in config["jobs"]:
        refuse_unnamed(job["method"], "`loss={method}`")
    jobs = []
    for job in config["jobs"]:
        training = _convert(job["training"], Training, where=f"{CONFIG}, training")
        settings = method_settings(job["method"], changes=job["settings"])
        jobs.append(TrainingJob(job["method"], settings, training, job["name"], job["trial"]))
    stored = {key: value for key, value in config.items() if key != "schema"}
    return _convert({**stored, "jobs": tuple(jobs)}, Settings, where=CONFIG)


def refuse_unnamed(method: str, option: str) -> None:
    """Raise an error for a method from outside this package that only a folder names; `option` would name it."""
    module = method.partition(":")[0]
    if method not in METHODS and module not in sys.modules:
        remedy = f"give {option.format(method=method)}" if module.endswith(".py") else "import it first"
        raise SettingsError(
            f"the method {method!r} is not part of probmcl, and no code runs because a folder names it; {remedy}"
        )


def _jobs(
    method: str, preset: str, changes: dict[str, Any], training: dict[str, Any], tune: Tune
) -> Iterator[TrainingJob]:
    if method == "auto" and (changes or preset != "default"):
        what = f"settings {', '.join(changes)}" if changes else f"preset {preset!r}"
        raise SettingsError(f"{what} belong to one method; name it, for example `method=probmcl`, instead of auto")
    for name in {"auto": AUTO, "probe": ()}.get(method, (method,)):
        settings, values = method_settings(name, preset, changes), default_training(name, tune) | training
        if method == "auto" and isinstance(training.get("epochs"), int):  # of two views, whatever the method takes
            values["epochs"] = 2 * training["epochs"] // find_method(name).n_views
        yield TrainingJob(full_name(name), settings, _convert(values, Training, where="training"))


def _convert(values: dict[str, Any], cls: type[T], where: str) -> T:
    _check_keys(values, cls, where)
    try:
        return msgspec.convert(values, cls)
    except msgspec.ValidationError as error:
        message = str(error)
        raise SettingsError(message if message.startswith(f"{where}: ") else f"{where}: {message}") from error


def _check_keys(values: dict[str, Any], cls: type[Any], where: str) -> None:
    hints = typing.get_type_hints(cls)
    for key, value in values.items():
        if key not in hints:
            raise SettingsError(f"{where}: no key {key!r}; {suggestion(key, hints)}")
        if isinstance(value, dict) and dataclasses.is_dataclass(hints[key]) and isinstance(hints[key], type):
            _check_keys(value, hints[key], f"{where}, {key}")


# Of an installed package, of a source tree.
_FOLDERS = tuple(Path(__file__).resolve().parents[level] / "recipes" for level in (0, 2))


def recipes() -> dict[str, Path]:
    """Return the recipes of this package by name.

    >>> len(recipes()), [name for name in recipes() if "kmcl" in name]
    (17, ['adp-kmcl-tresnet-l-448', 'coco-kmcl-tresnet-l-448', 'coco-kmcl-tresnet-m-224'])
    """
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def find_recipe(name_or_path: str | Path) -> Path:
    """Return the file of a recipe, given by its path or its name in `recipes()`; an existing file takes precedence.

    >>> find_recipe("coco-tresnet-m-224").name
    'coco-tresnet-m-224.toml'
    """
    path, named = Path(name_or_path), recipes()
    if path.is_file():
        return path
    if str(name_or_path) in named:
        return named[str(name_or_path)]
    problem = "is a folder" if path.is_dir() else "is neither a file nor a recipe of probmcl"
    raise OptionError("recipe", name_or_path, f"{problem}; {suggestion(path.stem, named)}")
