"""Options on the command line: how they are spelled, and how commands are made of declared options.

Library messages write options and calls as in Python, in backticks: `skip_bad=0.05`. `spell_options` replaces them with
their spelling on the command line.

An option that takes several values can be repeated, or followed by values separated by spaces or commas. Names of
columns and labels may contain commas, so the readers split them after loading the data. Paths are never split.
"""

import ast
import codecs
import dataclasses
import functools
import inspect
import io
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import cyclopts
from cyclopts import CycloptsError, CycloptsPanel, MissingArgumentError, Parameter, Token
from rich.panel import Panel

from probmcl.cli.commands import COMMANDS
from probmcl.console import Console
from probmcl.errors import Reading, printable
from probmcl.readers.options import ReadOptions
from probmcl.settings.declaration import Argument, Declared, Group, Option, Options, declared_options, option_of

SPELLING = {"data": "DATA", "settings": "--set"}
"""Parameters whose option is not just the Python name with dashes."""

OPTION = re.compile(r"`(?P<name>[a-z][a-z_]*)(?:=(?P<value>[^`]*))?`")
CALL = re.compile(r"`(?P<call>probmcl\.[a-z]+\([^`]*\))`")
NOT_PYTHON = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)
"""Errors of parsing text in backticks, which may be a placeholder or come from a file."""

Own = TypeVar("Own")

Given = dict[str, Any]
"""The options of a function that were given on the command line, by name."""

PANELS = {group: cyclopts.Group.create_ordered(group.value) for group in Group}

SEVERAL = (1, None)  # the smallest and largest number of words after an option that takes several values


def spell_options(text: str) -> str:
    """Spell the options and calls in a library message as they are typed on the command line.

    >>> spell_options("`skip_bad=0.05` cannot be combined with `folds`; see `classes.txt`")
    '--skip-bad 0.05 cannot be combined with --folds; see `classes.txt`'
    >>> spell_options('choose one with `group="Patient ID"` or `group=COLUMN`')
    "choose one with --group 'Patient ID' or --group COLUMN"
    >>> spell_options('to resume: `probmcl.train(resume="runs/photos")`')
    'to resume: probmcl train --resume runs/photos'
    >>> spell_options('`probmcl.compare(resume="runs/x", methods=["asl", "mine.py:loss"])`')
    'probmcl compare --resume runs/x --methods asl mine.py:loss'
    >>> spell_options('first run `probmcl.load("runs/photos").calibrate()`')
    'first run probmcl calibrate runs/photos'
    """
    text = CALL.sub(lambda found: _spell_call(found["call"]), text)
    return OPTION.sub(lambda found: _spell_option(found["name"], found["value"]), text)


def _spell_call(text: str) -> str:
    """Spell a call of the form `probmcl.COMMAND(…)` or `probmcl.load(RUN).COMMAND()`; other text is not changed."""
    try:
        match ast.parse(text, mode="eval").body:
            # probmcl.COMMAND(…)
            case ast.Call(ast.Attribute(ast.Name("probmcl"), command), arguments, keywords) if command in COMMANDS:
                pass
            # probmcl.load(RUN).COMMAND()
            case ast.Call(ast.Attribute(ast.Call(ast.Attribute(ast.Name("probmcl"), "load"), arguments), command), []):
                keywords = []
            case _:
                return text
        words = [str(ast.literal_eval(argument)) for argument in arguments]
        for option in keywords:
            words += _value_words(str(option.arg), ast.literal_eval(option.value))
    except NOT_PYTHON:
        return text
    return shlex.join(["probmcl", command, *words])


def _value_words(name: str, value: object) -> list[str]:
    """Return an option with a value of any type as the words of a command line."""
    if isinstance(value, dict):
        return [_spell_name(name), *[f"{key}={item}" for key, item in value.items()]]
    if isinstance(value, list):
        return [_spell_name(name), *map(str, value)]
    return option_words({name: str(value)})


def _spell_option(name: str, text: str | None) -> str:
    """Spell an option of a message; `text` is its value in Python, a placeholder, or None if it has no value."""
    if text is None:
        return _spell_name(name)
    try:
        value = ast.literal_eval(text)
    except NOT_PYTHON:  # a placeholder such as FOLDER
        return f"{_spell_name(name)} {text}"
    if value is None or value is True:
        return _spell_name(name)
    if isinstance(value, str):
        return shlex.join(option_words({name: value}))
    if isinstance(value, list):
        return f"{_spell_name(name)} {shlex.join(map(str, value))}"
    return f"{_spell_name(name)} {text}"


def _spell_name(name: str) -> str:
    """Return the name of an option as it is typed, such as --skip-bad."""
    with_dashes = f"--{name.replace('_', '-')}"
    return SPELLING.get(name, with_dashes)


def reading_lines(readings: Iterable[Reading], words: Sequence[str]) -> list[str]:
    """Return, for each reading, its meaning, example rows and the command that chooses it, alone on a line.

    >>> absent = Reading("a blank means absent", {"blank": "negative"}, ("row 2: cat", "row 3: dog"))
    >>> print(*reading_lines([absent], ["train", "my labels.csv"]), sep="\\n")
      a blank means absent:
        row 2: cat
        row 3: dog
        probmcl train 'my labels.csv' --blank negative
    """
    lines: list[str] = []
    for reading in readings:
        rows_and_command = [*reading.rows, command_line(words, reading.options)]
        lines.append(f"  {spell_options(reading.meaning)}:")
        lines += [f"    {line}" for line in rows_and_command]
    return lines


def command_line(words: Sequence[str], options: Mapping[str, str]) -> str:
    """Return a command for the shell: `words` with options added, or replaced if they take a single value.

    >>> command_line(["train", "photos", "--skip-bad", "0.01", "--ignore", "site"], {"skip_bad": "0.3", "ignore": "id"})
    'probmcl train photos --ignore site --skip-bad 0.3 --ignore id'
    >>> command_line(["train", "--", "-photos"], {"allow_leaks": "True", "separator": "-"})
    'probmcl train --allow-leaks --separator=- -- -photos'
    """
    words = list(words)
    for name in options:
        takes_one_value = not isinstance(_default(name), tuple | bool)  # otherwise it is a list or a flag
        if takes_one_value:
            words = without_option(words, _spell_name(name))
    end_of_options = words.index("--") if "--" in words else len(words)
    before, after = words[:end_of_options], words[end_of_options:]
    return shlex.join(["probmcl", *before, *option_words(options), *after])


def option_words(options: Mapping[str, str]) -> list[str]:
    """Return options as the words of a command line.

    >>> option_words({"split_column": "", "allow_leaks": "True", "none_label": "-"})
    ['--split-column', '', '--allow-leaks', '--none-label=-']
    """
    words: list[str] = []
    for name, value in options.items():
        is_flag = isinstance(_default(name), bool)
        if is_flag:
            words.append(_spell_name(name))
        elif value.startswith("-"):  # as a word of its own, it would be taken for an option
            words.append(f"{_spell_name(name)}={value}")
        else:
            words += [_spell_name(name), value]
    return words


def _default(name: str) -> object:
    """Return the default of an option for reading or checking data, or None if there is no such option."""
    from probmcl.readers.options import DataChecks, ReadOptions

    defaults = vars(ReadOptions()) | vars(DataChecks())
    return defaults.get(name)


def without_option(words: Sequence[str], option: str) -> list[str]:
    """Return a command line without an option that takes one value.

    >>> without_option(["check", "photos", "--out", "a.json", "--seed=1"], "--out")
    ['check', 'photos', '--seed=1']
    >>> without_option(["train", "--skip_bad=0.1", "photos"], "--skip-bad")
    ['train', 'photos']
    """
    kept: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, _ = word.replace("_", "-").partition("=")
        if name != option:
            kept.append(word)
        elif not equals:  # the next word is its value
            next(remaining, None)
    return kept


def command_console(*, stderr: bool = False, holds_last: bool = False) -> Console:
    """Return a console that spells options as on the command line. Under torchrun, only rank 0 prints."""
    from rich.console import Console as RichConsole

    output = RichConsole(quiet=not is_rank_zero(), stderr=stderr, emoji=False)
    return Console(output, rewrite=spell_options, holds_last=holds_last)


def is_rank_zero() -> bool:
    """Return whether this is the only process or, under torchrun, rank 0. It does not import torch."""
    return os.environ.get("RANK", "0") == "0"


def escape_missing_characters() -> None:
    """Escape characters that the encoding of the output does not have, instead of failing in the middle of a command.

    On Windows, output that does not go to a terminal has an encoding such as cp1252, which has no − (minus).
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if stream.errors == "strict" and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="backslashreplace")


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
            own_values = {}
            for option in own_options:
                if option.name in given:
                    own_values[option.name] = given.pop(option.name)
            function(own(**own_values), given)

        _set_signature(command, signature)
        return command

    return decorate


def _set_signature(command: Callable[..., None], signature: inspect.Signature) -> None:
    """Give a function that takes any arguments the signature from which cyclopts makes the options."""
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
            predecessor = names.index(layout.follows[option.name])
            ordered.insert(predecessor + 1, option)
    parameters = [_parameter(option, layout) for option in ordered]
    parameters.sort(key=lambda parameter: parameter.kind)  # positional ones first, as Python requires
    return inspect.Signature(parameters)


def _parameter(declared: Declared, layout: Layout) -> inspect.Parameter:
    """Return the parameter of a command for an option: words without a name are positional, others are keywords."""
    type_, option = option_of(layout.types.get(declared.name, declared.type), declared.option)
    is_word = isinstance(option, Argument)
    takes_all_other_words = is_word and type_ == tuple[Path, ...]
    if takes_all_other_words:
        annotation = _annotation(Path, option, MISSING, layout)
        return inspect.Parameter(declared.name, inspect.Parameter.VAR_POSITIONAL, annotation=annotation)
    annotation = _annotation(type_, option, declared.default, layout)
    kind = inspect.Parameter.POSITIONAL_ONLY if is_word else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if declared.default is MISSING else declared.default
    return inspect.Parameter(declared.name, kind, default=default, annotation=annotation)


def _annotation(type_: Any, option: Option, default: Any, layout: Layout) -> Any:
    """Return the annotation from which cyclopts makes an option."""
    if dataclasses.is_dataclass(type_):  # each of its fields is an option
        parameters = [Parameter(name="*", consume_multiple=SEVERAL, negative="", show_default=False)]
    else:
        # For cyclopts, None stands for its own choice: the default is shown, and a flag gets an opposite.
        shows_default = None if layout.has_defaults and "(default" not in option.help else False
        negative = None if default is True else ""
        text = spell_options(option.help)
        parameters = [Parameter(help=text, consume_multiple=SEVERAL, negative=negative, show_default=shows_default)]
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
    item_type = type_.__args__[0]  # of a type such as tuple[int, ...]
    parts = [part.strip() for token in tokens for part in token.value.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"{tokens[0].value!r} is empty; expected values separated by spaces or commas")
    if item_type is int:
        wrong = [part for part in parts if not re.fullmatch("-?[0-9]+", part)]
        if wrong:
            raise ValueError(f"{tokens[0].keyword} {wrong[0]!r} is not an integer")
    return tuple(dict.fromkeys(item_type(part) for part in parts))


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
        takes_several = isinstance(words, tuple | list)
        if takes_several and words and Path(words[-1]).exists():
            option = spell_options(f"`{name}`")
            raise ValueError(f"DATA is missing: {words[-1]} was read as a value of {option}; {PUT_FIRST}")


def format_error(error: CycloptsError) -> Panel:
    """Return the message for an invalid command line."""
    argument = error.argument if isinstance(error, MissingArgumentError) else None
    if argument is not None and argument.name == "DATA":
        return CycloptsPanel(f"{error}\nHint: {PUT_FIRST}")
    text = printable(str(error))
    if text != str(error):
        return CycloptsPanel(text)
    return CycloptsPanel(error)  # unlike its text, it is shown in color
