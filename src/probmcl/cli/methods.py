"""`probmcl methods`: list the methods, or show the settings of one."""

from __future__ import annotations

import inspect
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from probmcl.console import Console
from probmcl.errors import counted

if TYPE_CHECKING:
    from probmcl.methods.base import Method

UNDESCRIBED = "(no description)"  # for settings without a docstring, in methods outside this package


class Setting(NamedTuple):
    """A setting of a method; all fields are text."""

    name: str
    choices: str  # allowed values
    values: Mapping[str, str]  # value in each preset
    meaning: str  # description from the docstring of `Config`


def command(
    name: Annotated[str | None, Parameter(help="name of a method, or my_package.my_file:MyMethod")] = None, /
) -> None:
    """List the methods that can be trained, or show the settings of one.

    Example: probmcl methods probmcl
    """
    from probmcl.methods import METHODS, find_method

    console = Console()
    if name is not None:
        _show_settings(console, name, find_method(name))
        return
    for key in METHODS:
        method = find_method(key)
        presets = "" if len(method.presets) == 1 else f"; presets: {', '.join(method.presets)}"
        console.print(f"{key}: {_kind(method)}, {_views(method)}{presets}")
        _print_indented(console, _first_sentence(method))
    console.print("show the settings of a method: probmcl methods NAME")


def settings(method: type[Method]) -> list[Setting]:
    """Return the settings of a method, in the order of its `Config`."""
    config, result = type(method.presets["default"]), []
    hints, descriptions = typing.get_type_hints(config), meanings(config)
    for name in (field.name for field in fields(config)):
        values = {preset: as_text(getattr(values, name)) for preset, values in method.presets.items()}
        result.append(Setting(name, choices(hints[name]), values, descriptions.get(name, UNDESCRIBED)))
    return result


def meanings(described: type[Any]) -> dict[str, str]:
    """Return the `Attributes:` section of a docstring as a dictionary."""
    _, _, section = inspect.cleandoc(described.__doc__ or "").partition("\nAttributes:\n")
    section = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]  # up to the next unindented line
    entries = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def choices(hint: Any) -> str:
    """Return a description of the values that a type allows.

    >>> choices(float | Literal["balanced"])
    'number, balanced'
    >>> choices(tuple[int, ...] | None)
    '[integer, …], none'
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(map(as_text, parts))
    if origin in (typing.Union, types.UnionType):
        return ", ".join(map(choices, parts))
    if origin in (tuple, list):
        return f"[{choices(parts[0])}, …]"
    names = {bool: "true, false", int: "integer", float: "number", str: "text", type(None): "none"}
    return names.get(hint, str(getattr(hint, "__name__", hint)))


def as_text(value: object) -> str:
    """Return a value in recipe syntax, but with strings unquoted.

    >>> as_text((2048, 128)), as_text(None), as_text(True), as_text(0.1)
    ('[2048, 128]', 'none', 'true', '0.1')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(as_text, value))}]" if isinstance(value, tuple | list) else str(value)


def _show_settings(console: Console, name: str, method: type[Method]) -> None:
    probed = "trains only the encoder; predictions come from a linear probe on it"
    predicts = "has its own classifier" if _kind(method) == "classifier" else probed
    others = [preset for preset in method.presets if preset != "default"]
    shown = "default settings" if settings(method) else "no settings"
    differing = f", with values that differ in other presets ({', '.join(others)}) in parentheses" if others else ""
    console.print(f"{name}: {_first_sentence(method)}")
    console.print(f"It {predicts}. Each step uses {_views(method)} of each image. Below: {shown}{differing}.")
    for setting in settings(method):
        default = setting.values["default"]
        presets = [f"{preset}: {value}" for preset, value in setting.values.items() if value != default]
        console.print(f"\n{setting.name} = {default}" + (f"   ({', '.join(presets)})" if presets else ""))
        _print_indented(console, setting.meaning)
        _print_indented(console, f"values: {setting.choices}")
    if settings(method):
        console.print(f"\nchange a setting: probmcl train DATA --method {name} --set NAME=VALUE")


def _print_indented(console: Console, text: str) -> None:
    console.print(textwrap.indent(textwrap.fill(text, console.rich.width - 4), " " * 4))


def _kind(method: type[Method]) -> str:
    return "classifier" if method.has_own_head(method.presets["default"]) else "contrastive"


def _views(method: type[Method]) -> str:
    return counted(method.n_views, "view")


def _first_sentence(method: type[Method]) -> str:
    return inspect.cleandoc(method.__doc__ or UNDESCRIBED).splitlines()[0]
