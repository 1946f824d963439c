"""`probmcl methods`: what can be trained, and what each setting of a method means."""

from __future__ import annotations

import inspect
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from rich.table import Table

    from probmcl.methods import Method

INDENT = " " * 4

NOBODY_SAYS = "(not described)"
"""In the place of a meaning that a method from elsewhere does not give."""


@dataclass(frozen=True)
class Setting:
    """One setting of a method, as a person reads it.

    Attributes:
        name: what `--set NAME=VALUE` calls it.
        choices: what it may be.
        values: what it is in each preset.
        meaning: from the docstring of the method's `Config`.
    """

    name: str
    choices: str
    values: Mapping[str, str]
    meaning: str


def methods(
    name: Annotated[str | None, Parameter(help="one of them; or my_package.my_file:MyMethod")] = None,
    /,
) -> None:
    """Show the methods there are or, with a name, what can be set in one of them.

    Example: probmcl methods probmcl
    """
    from probmcl.console import Console
    from probmcl.methods import METHODS, find_method

    console = Console()
    if name is None:
        console.rich.print(_overview({known: find_method(known) for known in METHODS}))
        console.print("the settings of one: probmcl methods NAME")
        return
    method = find_method(name)
    console.print(_what_it_is(name, method))
    for setting in settings(method):
        console.print(f"\n{_values(setting)}")
        for text in (setting.meaning, f"→ {setting.choices}"):
            console.print(textwrap.fill(text, console.rich.width, initial_indent=INDENT, subsequent_indent=INDENT))
    if settings(method):
        console.print(f"\nto change one: probmcl train DATA --method {name} --set NAME=VALUE")


def settings(method: type[Method]) -> list[Setting]:
    """What can be set in a method, in the order of its `Config`."""
    config = type(method.presets["default"])
    hints, said = typing.get_type_hints(config), meanings(config)
    return [
        Setting(
            field.name,
            choices(hints[field.name]),
            {preset: shown(getattr(values, field.name)) for preset, values in method.presets.items()},
            said.get(field.name, NOBODY_SAYS),
        )
        for field in fields(config)
    ]


def meanings(kind: type[Any]) -> dict[str, str]:
    """What the `Attributes:` section of a docstring says of each name.

    >>> class Config:
    ...     '''Settings.
    ...
    ...     Attributes:
    ...         floor: the least that it may be,
    ...             and no less.
    ...     '''
    >>> meanings(Config)
    {'floor': 'the least that it may be, and no less.'}
    """
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")
    section = re.split(r"^\S", section, maxsplit=1, flags=re.MULTILINE)[0]  # up to where the indentation ends
    entries = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def choices(hint: Any) -> str:
    """What a value of a type may be, in a person's words.

    >>> choices(float | Literal["balanced"])
    'a number, balanced'
    >>> choices(tuple[int, ...] | None)
    'a list, each a whole number, none'
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(map(shown, parts))
    if origin in (typing.Union, types.UnionType):
        return ", ".join(map(choices, parts))
    if origin in (tuple, list):
        return f"a list, each {choices(parts[0])}"
    words = {bool: "true, false", int: "a whole number", float: "a number", str: "a text", type(None): "none"}
    return words.get(hint, str(getattr(hint, "__name__", hint)))


def shown(value: object) -> str:
    """A value as it is written in a recipe, text without its quotes.

    >>> shown((2048, 128)), shown(None), shown(True), shown(0.1)
    ('[2048, 128]', 'none', 'true', '0.1')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(shown, value))}]"
    return str(value)


def _kind(method: type[Method]) -> str:
    return "classifier" if method.has_own_head(method.presets["default"]) else "contrastive"


def _first_sentence(method: type[Method]) -> str:
    return inspect.cleandoc(method.__doc__ or NOBODY_SAYS).splitlines()[0]


def _overview(found: Mapping[str, type[Method]]) -> Table:
    from rich.table import Table

    table = Table()
    table.add_column("method", no_wrap=True)
    for column in ("what it is", "kind", "views", "presets"):
        table.add_column(column, justify="right" if column == "views" else "left")
    for name, method in found.items():
        table.add_row(
            name, _first_sentence(method), _kind(method), str(method.n_views), ", ".join(map(str, method.presets))
        )
    return table


def _what_it_is(name: str, method: type[Method]) -> str:
    predicts = {
        "classifier": "It predicts by itself",
        "contrastive": "It trains the encoder, and a linear probe on that predicts",
    }
    views = f"{method.n_views} view{'s' if method.n_views > 1 else ''} of each image in a step"
    others = [preset for preset in method.presets if preset != "default"]
    own = "its settings" if settings(method) else "no settings of its own"
    differing = f", and {', '.join(others)} where it differs" if others else ""
    return f"{name}: {_first_sentence(method)}\n{predicts[_kind(method)]}; {views}; {own}{differing}."


def _values(setting: Setting) -> str:
    """The default, and what other presets have instead."""
    default = setting.values["default"]
    others = [f"{preset}: {value}" for preset, value in setting.values.items() if value != default]
    return f"{setting.name} = {default}" + (f"   ({', '.join(others)})" if others else "")
