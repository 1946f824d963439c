"""Options shared by commands, and `as_command`, which turns a public function into a command.

An option that takes several values can be repeated, or followed by values separated by spaces or commas. Names of
columns and labels may contain commas, so the readers split them after loading the data. Paths are never split.
"""

import functools
import inspect
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from cyclopts import CycloptsError, CycloptsPanel, Group, MissingArgumentError, Parameter, Token
from rich.panel import Panel

from probmcl.cli.spelling import spell_options
from probmcl.cli.terminal import command_console
from probmcl.console import Console
from probmcl.errors import printable
from probmcl.readers.options import DataChecks, ReadOptions

T = TypeVar("T")

DATA = Group.create_ordered("Data")
METHOD = Group.create_ordered("Method and encoder")
TRAINING = Group.create_ordered("Training")
DECISIONS = Group.create_ordered("Probabilities and decisions")
COMPUTE = Group.create_ordered("Computing and files")

SEVERAL = (1, None)  # the smallest and largest number of words after an option that takes several values

Read = Annotated[
    ReadOptions, Parameter(name="*", group=DATA, consume_multiple=SEVERAL, negative="", show_default=False)
]
Checks = Annotated[DataChecks, Parameter(name="*", group=DATA, negative="", show_default=False)]

Images = Annotated[
    Path | None, Parameter(help="folder that image paths are relative to (default: the table's folder)", group=DATA)
]
SkipBad = Annotated[
    float | None,
    Parameter(help="largest share of missing and unreadable images to skip (default: any is an error)", group=DATA),
]
Device = Annotated[str, Parameter(help="auto, cpu, cuda or mps", group=COMPUTE)]
BatchSize = Annotated[int | None, Parameter(help="images per batch (default: the fastest size)", group=COMPUTE)]
Workers = Annotated[int | None, Parameter(help="processes for decoding images (default: one per core)", group=COMPUTE)]

GROUPS: Mapping[Group, str] = {
    DATA: "data images",
    METHOD: "method methods loss preset recipe encoder weights image_size tune",
    TRAINING: "epochs budget seeds trials probe_epochs batch_size lr augment seed",
    DECISIONS: "calibration thresholds",
    COMPUTE: "device workers cache out add resume accept_data_change",
}
"""The parameters in each option group of a command's help."""


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
SET = Parameter(
    name="--set", converter=key_values, n_tokens=-1, consume_multiple=SEVERAL, accepts_keys=False, group=METHOD
)
REPORT = Parameter(negative="--no-report", group=COMPUTE, show_default=False)
NEIGHBORS = Parameter(negative="--no-neighbors", group=COMPUTE, show_default=False)
SPECIAL: Mapping[str, Any] = {
    "read": Read,
    "checks": Checks,
    "settings": Annotated[Mapping[str, Any] | None, SET],
    "report": Annotated[bool, REPORT],
    "neighbors": Annotated[bool, NEIGHBORS],
    "methods": Annotated[tuple[str, ...] | None, COMMA_LIST, Parameter(group=METHOD)],
}
"""Parameters with a type or converter of their own."""


PUT_FIRST = "an option that takes several values takes all words up to the next option, so put DATA first"


def as_command(
    function: Callable[..., T], finish: Callable[[T, Console], object], help_text: str
) -> Callable[..., None]:
    """Return a command with the parameters of a public function.

    Args:
        function: a function with a `console` parameter; its docstring describes every option.
        finish: called with the result of the function and the console.
        help_text: text shown above the options in the help.
    """
    group_of = {name: group for group, names in GROUPS.items() for name in names.split()}
    # The return type is not resolved: importing its module is slow.
    hints = get_type_hints(function, localns={function.__annotations__["return"]: None})
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name != "console":
            option = Parameter(group=group_of.get(name), consume_multiple=SEVERAL, negative="", show_default=False)
            annotation = SPECIAL.get(name, Annotated[hints[name], option])
            kind = parameter.POSITIONAL_ONLY if name == "data" else parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=kind, annotation=annotation))

    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> None:
        if not arguments and options.get("resume") is None:
            _refuse_data_as_value(options)
        console = command_console(holds_last=True)
        with console.working():
            result = function(*arguments, **options, console=console)
        finish(result, console)
        console.print_held()

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    arguments = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")[2]
    command.__doc__ = f"{inspect.cleandoc(help_text)}\n\nArgs:\n{spell_options(arguments)}"
    return command


def _refuse_data_as_value(options: Mapping[str, Any]) -> None:
    """Raise an error if DATA seems to be the last value of an option that takes several."""
    values = {**options, **vars(options.get("read", ReadOptions()))}
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
