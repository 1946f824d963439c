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
        facts = f"{_kind(method)}, {_views(method)}"
        if len(method.presets) > 1:
            facts += f"; presets: {', '.join(method.presets)}"
        console.print(f"{key}: {facts}")
        _print_indented(console, _first_sentence(method))
    console.print("show the settings of a method: probmcl methods NAME")


def settings(method: type[Method]) -> list[Setting]:
    """Return the settings of a method, in the order of its `Config`."""
    config = type(method.presets["default"])
    hints = typing.get_type_hints(config)
    descriptions = meanings(config)
    result = []
    for field in fields(config):
        name = field.name
        values = {preset: as_text(getattr(chosen, name)) for preset, chosen in method.presets.items()}
        meaning = descriptions.get(name, UNDESCRIBED)
        result.append(Setting(name, choices(hints[name]), values, meaning))
    return result


def meanings(described: type[Any]) -> dict[str, str]:
    """Return the `Attributes:` section of a docstring as a dictionary."""
    _, _, rest = inspect.cleandoc(described.__doc__ or "").partition("\nAttributes:\n")
    section = re.split(r"^\S", rest, maxsplit=1, flags=re.MULTILINE)[0]  # up to the next unindented line
    # A split by a pattern with a group returns the text before the first name, then names and texts in turn.
    _, *names_and_texts = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)
    names, texts = names_and_texts[::2], names_and_texts[1::2]
    return {name: " ".join(text.split()) for name, text in zip(names, texts, strict=True)}


def choices(hint: Any) -> str:
    """Return a description of the values that a type allows.

    >>> choices(float | Literal["balanced"])
    'number, balanced'
    >>> choices(tuple[int, ...] | None)
    '[integer, …], none'
    """
    origin = typing.get_origin(hint)
    parts = typing.get_args(hint)
    if origin is Literal:
        return ", ".join(map(as_text, parts))
    if origin in (typing.Union, types.UnionType):
        return ", ".join(map(choices, parts))
    if origin in (tuple, list):
        return f"[{choices(parts[0])}, …]"
    names = {bool: "true, false", int: "integer", float: "number", str: "text", type(None): "none"}
    if hint in names:
        return names[hint]
    return str(getattr(hint, "__name__", hint))


def as_text(value: object) -> str:
    """Return a value in recipe syntax, but with strings unquoted.

    >>> as_text((2048, 128)), as_text(None), as_text(True), as_text(0.1)
    ('[2048, 128]', 'none', 'true', '0.1')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(as_text, value))}]"
    return str(value)


def _show_settings(console: Console, name: str, method: type[Method]) -> None:
    """Print what a method does, and each of its settings with its values and its meaning."""
    shown_settings = settings(method)
    predicts = "trains only the encoder; predictions come from a linear probe on it"
    if _kind(method) == "classifier":
        predicts = "has its own classifier"
    below = "default settings" if shown_settings else "no settings"
    others = [preset for preset in method.presets if preset != "default"]
    if others:
        below += f", with values that differ in other presets ({', '.join(others)}) in parentheses"
    console.print(f"{name}: {_first_sentence(method)}")
    console.print(f"It {predicts}. Each step uses {_views(method)} of each image. Below: {below}.")
    for setting in shown_settings:
        console.print(f"\n{_setting_line(setting)}")
        _print_indented(console, setting.meaning)
        _print_indented(console, f"values: {setting.choices}")
    if shown_settings:
        console.print(f"\nchange a setting: probmcl train DATA --method {name} --set NAME=VALUE")


def _setting_line(setting: Setting) -> str:
    """Return a setting with its default value and, in parentheses, the values of the presets that differ."""
    default = setting.values["default"]
    line = f"{setting.name} = {default}"
    differing = [f"{preset}: {value}" for preset, value in setting.values.items() if value != default]
    return f"{line}   ({', '.join(differing)})" if differing else line


def _print_indented(console: Console, text: str) -> None:
    """Print a paragraph that is indented by four spaces."""
    paragraph = textwrap.fill(text, console.rich.width - 4)
    console.print(textwrap.indent(paragraph, " " * 4))


def _kind(method: type[Method]) -> str:
    """Return what a method trains: a classifier, or an encoder by contrastive learning."""
    return "classifier" if method.has_own_head(method.presets["default"]) else "contrastive"


def _views(method: type[Method]) -> str:
    """Return the number of views per image, such as "2 views"."""
    return counted(method.n_views, "view")


def _first_sentence(method: type[Method]) -> str:
    """Return the first line of the docstring of a method, which is a sentence."""
    return inspect.cleandoc(method.__doc__ or UNDESCRIBED).splitlines()[0]
