"""Everything that decides a run, in one frozen place, and the TOML files that say it."""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from probmcl.augment import AUGMENTATIONS
from probmcl.methods import find_method
from probmcl.nearest import suggestion
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
        device: where it is computed; `auto` takes a CUDA device where there is one, and else the CPU.
    """

    method: str
    method_settings: Any
    encoder: EncoderSettings
    training: Training = field(default_factory=Training)
    probe: ProbeSettings = field(default_factory=ProbeSettings)
    augment: Literal["light", "paper", "none"] = "light"
    seed: int = 0
    workers: int = 2
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.augment not in AUGMENTATIONS:
            raise SettingsError(f"augment={self.augment!r}; {suggestion(self.augment, AUGMENTATIONS)}")
        if self.workers < 0:
            raise SettingsError(f"workers={self.workers}; 0 decodes in the main process, 2 beside it")

    def resolved(self) -> Settings:
        """The same with the device that `auto` stands for here; a device that is not here is an error."""
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        kind = torch.device(device).type
        if (kind == "cuda" and not torch.cuda.is_available()) or (kind == "mps" and not torch.mps.is_available()):
            raise SettingsError(f"device={self.device!r}, but this machine or this build of torch has none; try 'cpu'")
        return dataclasses.replace(self, device=device)


class SettingsError(ValueError):
    """A settings file says something that cannot be understood; the message names the file and the key."""


def method_settings(name: str, preset: str = "default", changes: dict[str, Any] | None = None) -> Any:
    """The settings of a method: a preset of its, with changes by key.

    >>> method_settings("probmcl", "paper", {"threshold": 0.5}).threshold
    0.5
    """
    presets = find_method(name).presets
    if preset not in presets:
        raise SettingsError(f"method {name!r} has no preset {preset!r}; {suggestion(preset, presets)}")
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
    try:
        own = method_settings(*_of_the_method(given))
        settings: Settings = _convert(given | {"method_settings": own}, Settings, where="recipe")
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error
    return settings


def _of_the_method(given: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """The method's name, preset and changes; all but the name are taken out of what was given."""
    if "method_settings" in given:
        raise SettingsError("no key 'method_settings'; a method's own settings stand in a table [settings]")
    name, preset, changes = given.get("method"), given.pop("preset", "default"), given.pop("settings", {})
    if not isinstance(name, str) or not isinstance(preset, str) or not isinstance(changes, dict):
        raise SettingsError('say method = "probmcl", perhaps preset = "paper", and changes in a table [settings]')
    return name, preset, changes


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
            raise SettingsError(f"{where}: no key {key!r}; {suggestion(key, hints)}")
        if isinstance(value, dict) and dataclasses.is_dataclass(hints[key]) and isinstance(hints[key], type):
            _check_keys(value, hints[key], f"{where}, {key}")
