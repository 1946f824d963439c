"""Commands generated from declarations of options.

An option that takes several values can be repeated, or followed by values separated by spaces or commas. Names of
columns and labels may contain commas, so the readers split them after loading the data. Paths are never split.
"""

import dataclasses
import functools
import inspect
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import cyclopts
from cyclopts import CycloptsError, CycloptsPanel, MissingArgumentError, Parameter, Token
from rich.panel import Panel

from probmcl.cli.spelling import SPELLING, spell_options
from probmcl.errors import printable
from probmcl.readers.options import ReadOptions
from probmcl.settings.declaration import Argument, Declared, Group, Option, Options, declared_options, option_of

Own = TypeVar("Own")

Given = dict[str, Any]
"""The options of a function that were given on the command line, by name."""

PANELS = {group: cyclopts.Group.create_ordered(group.value) for group in Group}

SEVERAL = (1, None)  # the smallest and largest number of words after an option that takes several values


@dataclass(frozen=True)
class ModelCommand:
    """What all commands have that load a model."""

    run: Annotated[Path, Argument("run folder of the model")]
    _: KW_ONLY
    device: Annotated[str, Option("auto, cpu, cuda or mps", Group.COMPUTE)] = "auto"


@dataclass(frozen=True)
class Layout:
    """How the options of a command differ from those of the function that it calls.

    Attributes:
        types: the types of options whose type in Python cannot be written as words, or with an `Option` of their own.
        replaced: options of the function that the command does not have; its own options replace them.
        follows: for an option of the command alone, the option that precedes it in the help (default: the first ones).
        has_groups: whether the help shows the groups of options.
        has_defaults: whether the help shows the defaults that the help texts do not mention.
    """

    types: Mapping[str, Any] = field(default_factory=dict)
    replaced: Sequence[str] = ()
    follows: Mapping[str, str] = field(default_factory=dict)
    has_groups: bool = True
    has_defaults: bool = True


SAME = Layout()


def command_of(
    declaration: type[Options], layout: Layout = SAME
) -> Callable[[Callable[[Given], None]], Callable[..., None]]:
    """Make a command with the options of a function. The decorated function gets those that were given."""

    def decorate(function: Callable[[Given], None]) -> Callable[..., None]:
        signature = command_signature([], list(declared_options(declaration)), layout)

        @functools.wraps(function)
        def command(*arguments: Any, **options: Any) -> None:
            function(signature.bind(*arguments, **options).arguments)

        _set_signature(command, signature)
        return command

    return decorate


def own_command_of(
    own: type[Own], declaration: type[Options], layout: Layout = SAME
) -> Callable[[Callable[[Own, Given], None]], Callable[..., None]]:
    """Make a command with the options of a function and with options of its own.

    The decorated function gets its own options and those of the function that were given.
    """

    def decorate(function: Callable[[Own, Given], None]) -> Callable[..., None]:
        own_options = list(declared_options(own))
        signature = command_signature(own_options, list(declared_options(declaration)), layout)

        @functools.wraps(function)
        def command(*arguments: Any, **options: Any) -> None:
            given = signature.bind(*arguments, **options).arguments
            own_values = {option.name: given.pop(option.name) for option in own_options if option.name in given}
            function(own(**own_values), given)

        _set_signature(command, signature)
        return command

    return decorate


def _set_signature(command: Callable[..., None], signature: inspect.Signature) -> None:
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}


def command_signature(own: Sequence[Declared], shared: Sequence[Declared], layout: Layout) -> inspect.Signature:
    """Return the parameters of a command: the words without a name, then the options in the order of the help."""
    hidden = [option.name for option in shared if option.option.only_in_python or option.name in layout.replaced]
    ordered = [option for option in own if option.name not in layout.follows]
    ordered += [option for option in shared if option.name not in hidden]
    for option in own:
        if option.name in layout.follows:
            names = [earlier.name for earlier in ordered]
            ordered.insert(names.index(layout.follows[option.name]) + 1, option)
    parameters = [_parameter(option, layout) for option in ordered]
    return inspect.Signature(sorted(parameters, key=lambda parameter: parameter.kind))


def _parameter(declared: Declared, layout: Layout) -> inspect.Parameter:
    type_, option = option_of(layout.types.get(declared.name, declared.type), declared.option)
    if isinstance(option, Argument) and type_ == tuple[Path, ...]:  # all other words
        annotation = _annotation(Path, option, MISSING, layout)
        return inspect.Parameter(declared.name, inspect.Parameter.VAR_POSITIONAL, annotation=annotation)
    annotation = _annotation(type_, option, declared.default, layout)
    is_word = isinstance(option, Argument)
    kind = inspect.Parameter.POSITIONAL_ONLY if is_word else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if declared.default is MISSING else declared.default
    return inspect.Parameter(declared.name, kind, default=default, annotation=annotation)


def _annotation(type_: Any, option: Option, default: Any, layout: Layout) -> Any:
    """Return the annotation from which cyclopts makes an option."""
    if dataclasses.is_dataclass(type_):  # each of its fields is an option
        parameters = [Parameter(name="*", consume_multiple=SEVERAL, negative="", show_default=False)]
    else:
        shows_default = None if layout.has_defaults and "(default" not in option.help else False
        negative = None if default is True else ""
        text = spell_options(option.help)
        parameters = [
            Parameter(help=text, consume_multiple=SEVERAL, negative=negative, show_default=shows_default),
        ]
    if option.group is not None and layout.has_groups:
        parameters.append(Parameter(group=PANELS[option.group]))
    if type_ == Mapping[str, Any] | None:
        parameters.append(KEY_VALUES)
    elif type_ == Sequence[str] | str | None:
        type_ = tuple[str, ...] | None
        parameters.append(COMMA_LIST)
    return Annotated[type_, *parameters]


# Converters of options that take several words.


def key_values(_: Any, tokens: Sequence[Token]) -> dict[str, Any]:
    """Parse pairs such as temperature=0.1. A value is parsed as TOML; if that fails, it is kept as a string."""
    pairs = {}
    for token in tokens:
        key, equals, value = token.value.partition("=")
        if not equals:
            raise ValueError(f"--set {token.value}: expected KEY=VALUE, as in --set temperature=0.1")
        try:
            pairs[key] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            pairs[key] = value
    return pairs


def comma_separated(type_: Any, tokens: Sequence[Token]) -> tuple[Any, ...]:
    """Convert words such as bce,asl to a tuple without duplicates."""
    item = type_.__args__[0]
    parts = [part.strip() for token in tokens for part in token.value.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"{tokens[0].value!r} is empty; expected values separated by spaces or commas")
    if item is int and (wrong := [part for part in parts if not re.fullmatch("-?[0-9]+", part)]):
        raise ValueError(f"{tokens[0].keyword} {wrong[0]!r} is not an integer")
    return tuple(dict.fromkeys(item(part) for part in parts))


COMMA_LIST = Parameter(
    converter=comma_separated,
    n_tokens=-1,
    consume_multiple=SEVERAL,
    accepts_keys=False,
    negative="",
    show_default=False,
)
KEY_VALUES = Parameter(
    name=SPELLING["settings"], converter=key_values, n_tokens=-1, consume_multiple=SEVERAL, accepts_keys=False
)


# Errors about the place of DATA.

PUT_FIRST = "an option that takes several values takes all words up to the next option, so put DATA first"


def refuse_data_as_value(given: Given) -> None:
    """Raise an error if DATA is missing and seems to be the last value of an option that takes several."""
    if "data" in given or "resume" in given:
        return
    values = {**given, **vars(given.get("read", ReadOptions()))}
    for name, words in values.items():
        if isinstance(words, tuple | list) and words and Path(words[-1]).exists():
            option = spell_options(f"`{name}`")
            raise ValueError(f"DATA is missing: {words[-1]} was read as a value of {option}; {PUT_FIRST}")


def format_error(error: CycloptsError) -> Panel:
    """Return the message for an invalid command line."""
    argument = error.argument if isinstance(error, MissingArgumentError) else None
    if argument is not None and argument.name == "DATA":
        return CycloptsPanel(f"{error}\nHint: {PUT_FIRST}")
    text = printable(str(error))
    return CycloptsPanel(error if text == str(error) else text)  # the error itself is shown in color
