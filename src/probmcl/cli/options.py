"""Options shared by commands, and `as_command`, which turns a public function into a command."""

import functools
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from cyclopts import Group, Parameter, Token

from probmcl.console import Console
from probmcl.data.options import DataChecks, ReadOptions

T = TypeVar("T")

DATA = Group.create_ordered("Data")
METHOD = Group.create_ordered("Method and encoder")
TRAINING = Group.create_ordered("Training")
COMPUTE = Group.create_ordered("Computing and files")

Read = Annotated[ReadOptions, Parameter(name="*", group=DATA, consume_multiple=True, negative="", show_default=False)]
Checks = Annotated[DataChecks, Parameter(name="*", group=DATA, negative="", show_default=False)]

Images = Annotated[
    Path | None, Parameter(help="folder that image paths are relative to (default: the table's folder)", group=DATA)
]
SkipBad = Annotated[
    float | None,
    Parameter(help="largest share of missing and unreadable images to skip (default: any is an error)", group=DATA),
]
Workers = Annotated[int | None, Parameter(help="processes for decoding images (default: one per core)", group=COMPUTE)]

GROUPS: Mapping[Group, str] = {
    DATA: "data images",
    METHOD: "method methods loss preset recipe encoder weights image_size tune",
    TRAINING: "epochs budget seeds trials probe_epochs batch_size lr augment seed",
    COMPUTE: "device workers cache out add resume",
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


SET = Parameter(
    name="--set", converter=key_values, n_tokens=-1, consume_multiple=True, accepts_keys=False, group=METHOD
)
SPECIAL: Mapping[str, Any] = {"read": Read, "checks": Checks, "settings": Annotated[Mapping[str, Any] | None, SET]}
"""Parameters with a type or converter of their own."""


def as_command(
    function: Callable[..., T], finish: Callable[[T, Console], object], help_text: str
) -> Callable[..., None]:
    """Return a command with the parameters of a public function.

    Args:
        function: a function with a `console` parameter; its docstring describes every option.
        finish: called with the result of the function and the console.
        help_text: text shown above the options in the help.
    """
    from probmcl.cli import command_console, spell_options

    group_of = {name: group for group, names in GROUPS.items() for name in names.split()}
    # The return type is not resolved: importing its module is slow.
    hints = get_type_hints(function, localns={function.__annotations__["return"]: None})
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name != "console":
            option = Parameter(group=group_of.get(name), negative="", show_default=False)
            annotation = SPECIAL.get(name, Annotated[hints[name], option])
            kind = parameter.POSITIONAL_ONLY if name == "data" else parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=kind, annotation=annotation))

    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> None:
        console = command_console()
        finish(function(*arguments, **options, console=console), console)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    arguments = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")[2]
    command.__doc__ = f"{inspect.cleandoc(help_text)}\n\nArgs:\n{spell_options(arguments)}"
    return command
