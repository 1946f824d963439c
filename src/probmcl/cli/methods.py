"""`probmcl methods`: the methods that can be trained, and the settings of each."""

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

if TYPE_CHECKING:
    from probmcl.methods.base import Method

UNDESCRIBED = "(not described)"  # shown for a setting that a method outside this package does not describe


class Setting(NamedTuple):
    """One setting of a method, as text."""

    name: str
    choices: str  # the values that it may have
    values: Mapping[str, str]  # its value in each preset
    meaning: str  # its description in the docstring of the method's `Config`


def methods(
    name: Annotated[str | None, Parameter(help="one of them; or my_package.my_file:MyMethod")] = None, /
) -> None:
    """List the methods that can be trained; with a name, show the settings of that method.

    Example: probmcl methods probmcl
    """
    from probmcl.methods import METHODS, find_method

    console = Console()
    if name is not None:
        _show_settings(console, name, find_method(name))
        return
    for known in METHODS:
        method = find_method(known)
        presets = "" if len(method.presets) == 1 else f"; presets: {', '.join(method.presets)}"
        console.print(f"{known}: {_kind(method)}, {_views(method)}{presets}")
        _print_indented(console, _first_sentence(method))
    console.print("the settings of one: probmcl methods NAME")


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
    section = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]  # until the indentation ends
    entries = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def choices(hint: Any) -> str:
    """Return the values that a type allows, in words.

    >>> choices(float | Literal["balanced"])
    'a number, balanced'
    >>> choices(tuple[int, ...] | None)
    'a list, each a whole number, none'
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(map(as_text, parts))
    if origin in (typing.Union, types.UnionType):
        return ", ".join(map(choices, parts))
    if origin in (tuple, list):
        return f"a list, each {choices(parts[0])}"
    words = {bool: "true, false", int: "a whole number", float: "a number", str: "a text", type(None): "none"}
    return words.get(hint, str(getattr(hint, "__name__", hint)))


def as_text(value: object) -> str:
    """Return a value as it is written in a recipe, text without its quotes.

    >>> as_text((2048, 128)), as_text(None), as_text(True), as_text(0.1)
    ('[2048, 128]', 'none', 'true', '0.1')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(as_text, value))}]" if isinstance(value, tuple | list) else str(value)


def _show_settings(console: Console, name: str, method: type[Method]) -> None:
    probed = "It trains the encoder; a linear probe on it predicts"
    predicts = "It predicts by itself" if _kind(method) == "classifier" else probed
    others = [preset for preset in method.presets if preset != "default"]
    shown = "its settings" if settings(method) else "no settings of its own"
    differing = f", and {', '.join(others)} where it differs" if others else ""
    console.print(f"{name}: {_first_sentence(method)}")
    console.print(f"{predicts}; {_views(method)} of each image in a step; {shown}{differing}.")
    for setting in settings(method):
        default = setting.values["default"]
        presets = [f"{preset}: {value}" for preset, value in setting.values.items() if value != default]
        console.print(f"\n{setting.name} = {default}" + (f"   ({', '.join(presets)})" if presets else ""))
        _print_indented(console, setting.meaning)
        _print_indented(console, f"→ {setting.choices}")
    if settings(method):
        console.print(f"\nto change one: probmcl train DATA --method {name} --set NAME=VALUE")


def _print_indented(console: Console, text: str) -> None:
    console.print(textwrap.indent(textwrap.fill(text, console.rich.width - 4), " " * 4))


def _kind(method: type[Method]) -> str:
    return "classifier" if method.has_own_head(method.presets["default"]) else "contrastive"


def _views(method: type[Method]) -> str:
    return f"{method.n_views} view{'s' if method.n_views > 1 else ''}"


def _first_sentence(method: type[Method]) -> str:
    return inspect.cleandoc(method.__doc__ or UNDESCRIBED).splitlines()[0]
