"""Everything that decides a run, in one frozen place, and the TOML files that say it."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from probmcl.methods import find_method
from probmcl.probing import ProbeSettings
from probmcl.training.optim import Training


@dataclass(frozen=True)
class EncoderSettings:
    """Which encoder, from which weights, at which size.

    Attributes:
        name: any model of timm.
        weights: None for random numbers, `pretrained` for timm's own, or the path of a safetensors file.
        image_size: side of the square input; None takes the encoder's own.
    """

    name: str
    weights: str | None = None
    image_size: int | None = None


@dataclass(frozen=True)
class Settings:
    """One run: a method and its own settings, an encoder, how both stages are trained.

    Attributes:
        method: a name in `METHODS`, or `my_package.my_file:MyMethod`.
        method_settings: the method's own settings.
        encoder: which one, from which weights.
        training: of the method itself.
        probe: of the linear probe that follows.
        augment: a name in `AUGMENTATIONS`; both stages use it.
        seed: of everything that is drawn.
        workers: processes that decode and augment.
        device: where it is computed.
    """

    method: str
    method_settings: Any
    encoder: EncoderSettings
    training: Training = field(default_factory=Training)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    augment: Literal["light", "paper", "none"] = "light"
    seed: int = 0
    workers: int = 2
    device: str = "cpu"


class SettingsError(ValueError):
    """A settings file says something that cannot be understood; the message names the file and the key."""


def method_settings(name: str, preset: str = "default", changes: dict[str, Any] | None = None) -> Any:
    """The settings of a method: a preset of its, with changes by key.

    >>> method_settings("probmcl", "paper", {"threshold": 0.5}).threshold
    0.5
    """
    presets = find_method(name).presets
    if preset not in presets:
        raise SettingsError(f"method {name!r} has no preset {preset!r}; there are {', '.join(presets)}")
    default = presets[preset]
    given = {f.name: getattr(default, f.name) for f in dataclasses.fields(default)} | (changes or {})
    return _convert(given, type(default), where=f"settings of {name}")


def read_recipe(path: Path) -> Settings:
    """The run that a TOML file describes.

    Top-level keys are those of `Settings`, but that a method's settings are a `preset` and a table `[settings]` of
    changes to it. They are read only once the method is known: a key of another method is an error.
    """
    with path.open("rb") as file:
        try:
            given = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{path}: {error}") from error
    if "method" not in given:
        raise SettingsError(f'{path}: says no method; add for example method = "probmcl"')
    try:
        own = method_settings(given["method"], given.pop("preset", "default"), given.pop("settings", {}))
        settings: Settings = _convert(given | {"method_settings": own}, Settings, where="recipe")
    except (SettingsError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from error
    return settings


def _convert(given: dict[str, Any], kind: type[Any], where: str) -> Any:
    _check_keys(given, kind, where)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{where}: {error}") from error


def _check_keys(given: dict[str, Any], kind: type[Any], where: str) -> None:
    hints = typing.get_type_hints(kind)
    for key, value in given.items():
        if key not in hints:
            near = difflib.get_close_matches(key, hints, n=1)
            raise SettingsError(
                f"{where}: no key {key!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(hints)}")
            )
        if isinstance(value, dict) and dataclasses.is_dataclass(hints[key]) and isinstance(hints[key], type):
            _check_keys(value, hints[key], f"{where}, {key}")
