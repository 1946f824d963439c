"""The settings of a run, built from options, recipes and the config.json of a run."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from probmcl.errors import OptionError, RunError, SettingsError, keyword, suggestion
from probmcl.methods import METHODS, find_method, full_name
from probmcl.runtime.conversion import convert
from probmcl.runtime.files import DAMAGED
from probmcl.runtime.machine import find_device
from probmcl.settings.declaration import Options, declared_options
from probmcl.settings.options import StoredSettings, Tune
from probmcl.settings.schema import Settings, TrainingJob, ValueOrigin, convert_settings, method_settings
from probmcl.store.files import CONFIG
from probmcl.store.run_folder import RunFolder
from probmcl.training.optimizer import Training

AUTO = ("bce", "probmcl")
"""Methods that `auto` trains after the frozen probe, in this order (docs/decisions/0004)."""

CPU_ENCODER, GPU_ENCODER = "tf_efficientnet_lite0", "tresnet_m"

DEFAULT_VIEWS = 12
"""Number of views of each image that a method is trained on by default."""

AUTO_KEYS = ("encoder.name", "tune", "intensity", "device")
"""Settings that are determined automatically unless they are set."""

NAMED_WEIGHTS = ("pretrained", "none")

CONFIG_FILE = CONFIG.holding(Settings)
"""The row of config.json. The settings of the methods in it are plain values; see `read_settings`."""


# From options to settings.


def given_settings(options: Options) -> dict[str, Any]:
    """Return the settings that the given options set, in tables like those of a recipe.

    An option declares the setting that it sets, as in `training.epochs`: the key `epochs` in the table `training`. An
    option with the name of a field of the settings sets this field.

    >>> from probmcl.settings.declaration import options_of
    >>> from probmcl.settings.options import TrainOptions
    >>> given_settings(options_of(TrainOptions, {"epochs": 5, "seed": 1, "report": False}))
    {'training': {'epochs': 5}, 'seed': 1}
    """
    stored = {field.name for field in dataclasses.fields(StoredSettings)}
    settings: dict[str, Any] = {}
    for declared in declared_options(type(options)):
        if declared.name not in options.given:
            continue
        path = declared.option.sets
        if declared.name in stored:
            path = declared.name
        if not path:  # the option is not a setting, such as one that only affects the output
            continue
        value = options.given[declared.name]
        if isinstance(value, Mapping):
            value = dict(value)
        table, _, key = path.rpartition(".")
        target = settings.setdefault(table, {}) if table else settings
        target[key] = value
    encoder = settings.get("encoder", {})
    if "weights" in encoder:
        encoder["weights"] = find_weights(encoder["weights"])
    if "cache" in settings:
        settings["cache"] = cache_folder(settings["cache"])
    return settings


def find_weights(weights: Path | str) -> str:
    """Return `pretrained`, `none`, or the absolute path of weights that exist; a damaged run is refused."""
    if str(weights) in NAMED_WEIGHTS:
        return str(weights)
    path = Path(weights)
    if not path.exists():
        raise OptionError("weights", weights, f"does not exist; {suggestion(str(weights), NAMED_WEIGHTS)}")
    if path.is_dir():
        RunFolder.existing(path)  # refuses a run with damaged files
    return str(path.resolve())


def cache_folder(cache: Path | str) -> str:
    """Return the absolute path of the folder for decoded images; `auto` is a folder of this user."""
    from probmcl.data.image_cache import default_folder

    return str(default_folder() if str(cache) == "auto" else Path(cache).resolve())


def refuse_loss_with_method(method: str | None, loss: str | None) -> None:
    """Raise an error if a loss is not FILE.py:FUNCTION, or if a method is given too."""
    if loss is None:
        return
    if method is not None:
        raise OptionError("method", method, f"cannot be combined with {keyword('loss', loss)}")
    if not loss.partition(":")[0].endswith(".py"):
        raise OptionError("loss", loss, 'must be FILE.py:FUNCTION, as in `loss="my_losses.py:my_loss"`')


def layered_settings(layers: Mapping[ValueOrigin, Mapping[str, Any]]) -> Settings:
    """Return settings from layers that are keyed by the origin of their values; later layers override earlier ones.

    Tables are merged key by key.

    >>> settings = layered_settings({"recipe": {"seed": 1, "training": {"epochs": 9}}, "user": {"seed": 2}})
    >>> settings.seed, settings.origins["seed"], settings.jobs[1].training.epochs
    (2, 'user', 9)
    """
    merged: dict[str, Any] = {}
    origins: dict[str, ValueOrigin] = {}
    for origin, layer in layers.items():
        for key in option_keys(layer):
            origins[key] = origin
        for key, value in layer.items():
            earlier = merged.get(key)
            if isinstance(value, dict) and isinstance(earlier, dict):
                merged[key] = earlier | value
            else:
                merged[key] = value
    return make_settings(merged, origins)


# From recipes to settings.


def make_settings(options: Mapping[str, Any], origins: Mapping[str, ValueOrigin] | None = None) -> Settings:
    """Return the settings of a run, given the content of a recipe or other settings in tables like those of a recipe.

    The keys are those of `Settings`, except that `jobs` is built from `method`, `preset`, a `settings` table with
    changes to the preset, and a `training` table. Missing keys get defaults that depend on the method and the device.
    Unknown keys, including settings of other methods, raise an error. `origins` tells where each option came from, by
    its key in `option_keys` (default: from the user).

    >>> make_settings({"method": "bce", "training": {"epochs": 3}}).jobs[0].training.epochs
    3
    """
    _refuse_wrong_tables(options)
    if origins is None:
        origins = dict.fromkeys(option_keys(options), "user")
    values = dict(options)  # becomes the values of the fields of `Settings`

    # Of these, only `method` is a field. They determine the jobs.
    method = values.pop("method", "auto")
    preset = values.pop("preset", "default")
    changes = values.pop("settings", {})
    training = values.pop("training", {})

    if "budget" in values:
        values["budget"] = _budget_in_seconds(values["budget"], training)
    values["device"] = find_device(options.get("device", "auto"))
    on_cpu = values["device"] == "cpu"
    values["tune"] = _valid_tune(values.get("tune", "last" if on_cpu else "all"))
    values["encoder"] = _with_default_encoder(values.pop("encoder", {}), on_cpu)
    values["probe"] = dict(values.get("probe", {}))
    if method == "probe":  # without jobs; the preset and the changes then apply to the probe that every run fits
        values["probe"]["loss"] = method_settings("probe", preset, changes).loss
    jobs = tuple(_jobs(method, preset, changes, training, values["tune"]))
    settings = convert_settings({**values, "method": method, "jobs": jobs}, Settings, where="settings")

    given_origins = dict(origins)
    if options.get("device") == "auto":
        given_origins.pop("device", None)  # the machine decides, although the option was given
    return replace(settings, origins=_origins(settings, given_origins))


def _budget_in_seconds(budget: object, training: Mapping[str, Any]) -> object:
    """Return a budget in seconds if it is a text such as 30m, and any other value unchanged; epochs exclude it."""
    if budget is not None and "epochs" in training:
        raise SettingsError("a budget and epochs cannot be combined: the budget determines the number of epochs")
    if isinstance(budget, str):
        return parse_duration(budget)
    return budget


def _valid_tune(tune: Any) -> Tune:
    """Return the part of the encoder that is trained, or raise an error if there is no such part."""
    if tune not in get_args(Tune):
        raise SettingsError(f"tune={tune!r} is not valid; {suggestion(str(tune), get_args(Tune))}")
    valid_tune: Tune = tune
    return valid_tune


def _with_default_encoder(encoder: Mapping[str, Any], on_cpu: bool) -> dict[str, Any]:
    """Return the settings of the encoder: those that are given, and the default name for a CPU or a GPU."""
    default_name = CPU_ENCODER if on_cpu else GPU_ENCODER
    settings = {"name": default_name, **encoder}
    if encoder.get("weights") == "none":
        settings["weights"] = None
    return settings


def _refuse_wrong_tables(options: Mapping[str, Any]) -> None:
    """Raise an error if a value is not a text or a table as it must be, or if a key is not for users."""
    names = (options.get("method", "auto"), options.get("preset", "default"))
    tables = [options.get(table, {}) for table in ("settings", "training", "encoder", "probe")]
    are_texts = all(isinstance(name, str) for name in names)
    are_tables = all(isinstance(table, dict) for table in tables)
    if not are_texts or not are_tables:
        raise SettingsError(
            "method and preset must be strings, and [settings], [training], [encoder] and [probe] must be tables"
        )
    for key in ("jobs", "origins"):  # fields of `Settings` that are derived from the other keys
        if key in options:
            raise SettingsError(f"unknown key {key!r}; set a method, its [settings] and its [training]")


def _jobs(
    method: str, preset: str, changes: dict[str, Any], training: dict[str, Any], tune: Tune
) -> Iterator[TrainingJob]:
    """Yield the training jobs of a method: several for `auto`, and none for `probe`, which every run fits anyway.

    Args:
        method: the requested method.
        preset: the preset of its settings.
        changes: changes to the preset.
        training: the training settings that are given; the others have the defaults of the method.
        tune: the part of the encoder that is trained.
    """
    names: tuple[str, ...] = (method,)
    if method == "auto":
        _refuse_settings_with_auto(preset, changes)
        names = AUTO
    elif method == "probe":
        names = ()
    for name in names:
        settings = method_settings(name, preset, changes)
        values = default_training(name, tune) | training
        if method == "auto" and isinstance(training.get("epochs"), int):  # these epochs have two views of each image
            values["epochs"] = 2 * training["epochs"] // find_method(name).n_views
        yield TrainingJob(full_name(name), settings, convert_settings(values, Training, where="training"))


def _refuse_settings_with_auto(preset: str, changes: Mapping[str, Any]) -> None:
    """Raise an error if settings of a method are given without the name of the method."""
    if preset == "default" and not changes:
        return
    subject = f"settings {', '.join(changes)}" if changes else f"preset {preset!r}"
    raise SettingsError(f'{subject} cannot be combined with method auto; name a method, as in `method="probmcl"`')


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
    duration = re.fullmatch(f"(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip().lower())
    if duration is None or not any(duration.groups()):
        raise SettingsError(f"budget {text!r} is not a duration; use hours, minutes or seconds, as in 30m or 1h30m")
    seconds_per_unit = (3600, 60, 1)
    total = sum(float(part or 0) * unit for part, unit in zip(duration.groups(), seconds_per_unit, strict=True))
    if total <= 0:
        raise SettingsError(f"budget {text!r} must be above 0, as in 30m")
    return total


def option_keys(options: Mapping[str, Any]) -> list[str]:
    """Return the keys of options; those in a table are preceded by its name.

    >>> option_keys({"method": "bce", "training": {"epochs": 3}})
    ['method', 'training.epochs']
    """
    keys = []
    for key, value in options.items():
        if isinstance(value, dict):
            keys += [f"{key}.{name}" for name in value]
        else:
            keys.append(key)
    return keys


def _origins(settings: Settings, given: Mapping[str, ValueOrigin]) -> dict[str, ValueOrigin]:
    """Return the origin of every setting by its key, such as `training.epochs`; `given` has those of the options.

    A setting without an option is a default, or `auto` if the machine or the budget determines it. The settings of a
    job have keys such as `jobs.bce.training.epochs`.
    """
    values = dataclasses.asdict(replace(settings, intensity=None))  # this one is a single setting, not a table
    del values["jobs"], values["origins"]
    origins: dict[str, ValueOrigin] = {}
    for key in option_keys(values):
        origins[key] = given.get(key, "auto" if key in AUTO_KEYS else "default")
    preset = given.get("preset", "default")  # also the origin of the settings that the preset determines
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


# From the file of a run to settings.


def read_settings(folder: RunFolder) -> Settings:
    """Read the settings of a run.

    A method from outside this package must already be imported, since a run folder must not cause code to run.
    """
    stored = folder.read(CONFIG_FILE)
    jobs = []
    for number, job in enumerate(stored.jobs):
        refuse_unnamed(job.method, option='`loss="{method}"`')
        try:
            values = convert(job.settings, dict[str, Any])
            settings = method_settings(job.method, changes=values)
        except ValueError as error:
            place = f"{folder.path / CONFIG}: jobs[{number}].settings"
            raise RunError(f"{place}: {error}; {DAMAGED}") from error
        jobs.append(replace(job, settings=settings))
    return replace(stored, jobs=tuple(jobs))


def refuse_unnamed(method: str, option: str) -> None:
    """Raise an error if an external method is named only by a run folder.

    `option` tells the user how to name it; `{method}` stands for the method, as in `loss="{method}"`.
    """
    if method in METHODS:
        return
    module, _, attribute = method.partition(":")
    if module in sys.modules:
        loaded = vars(sys.modules[module]).get(attribute)
        # A loss in a file is loaded under the path of its file, and only if the user has named it.
        if loaded is not None and (module.endswith(".py") or _is_method(loaded)):
            return
    problem = f"method {method!r} is not part of probmcl and is not loaded just because a folder names it"
    raise SettingsError(f"{problem}; pass {option.format(method=method)}")


def _is_method(loaded: object) -> bool:
    """Return whether an object is the class of a method."""
    from probmcl.methods.base import Method

    return isinstance(loaded, type) and issubclass(loaded, Method)
