"""How an option is declared, and functions and methods whose keywords are the fields of a declaration.

A field of a subclass of `Options` is an option, with its type, its default and an `Option` that has the rest:

    @dataclass(frozen=True, kw_only=True)
    class TrainOptions(Options):
        epochs: Annotated[int | None, Option("number of epochs", Group.TRAINING, sets="training.epochs")] = None

    @keywords_of(TrainOptions)
    def train(options: TrainOptions) -> Run: ...

    train(epochs=5)

Type checkers and editors see the keywords of `train` as the parameters of the dataclass. Its signature, its docstring,
the command line and the settings derive from the same fields (docs/decisions/0009).
"""

import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field
from enum import Enum
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

from probmcl.errors import suggestion

P = ParamSpec("P")
R = TypeVar("R")
Owner = TypeVar("Owner")
OptionsT = TypeVar("OptionsT", bound="Options")

WIDTH = 120  # characters per line of a docstring


class Group(Enum):
    """The groups of options in the help of a command, in their order."""

    DATA = "Data"
    METHOD = "Method and encoder"
    TRAINING = "Training"
    DECISIONS = "Probabilities and decisions"
    COMPUTE = "Computing and files"
    EVALUATION = "Evaluation"


@dataclass(frozen=True)
class Option:
    """The declaration of an option, apart from its name, type and default, which are those of its field.

    Attributes:
        help: one sentence for the help of the command and the docstring of the function.
        in_python: what the docstring adds to it, such as values that cannot be words on the command line.
        group: group in the help of the command.
        sets: the setting of the run that it sets, as a recipe names it, such as `training.epochs`.
        with_resume: whether it can be combined with `resume`: `refused`, because a run keeps its value, `accepted`, or
            `independent` of the run.
        only_in_python: whether the command line does not have it.
    """

    help: str
    group: Group | None = None
    _: KW_ONLY
    in_python: str = ""
    sets: str = ""
    with_resume: Literal["refused", "accepted", "independent"] = "refused"
    only_in_python: bool = False


@dataclass(frozen=True)
class Argument(Option):
    """An option that is a word without a name on the command line."""


@dataclass(frozen=True)
class Options:
    """The options of a public function.

    Attributes:
        given: the options that the caller has set; a value of None means that an option is not given.
    """

    given: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)


def options_of(declaration: Callable[..., OptionsT], given: Mapping[str, Any]) -> OptionsT:
    """Return options of which some are given; the others have their defaults."""
    options = declaration(**given)
    object.__setattr__(options, "given", given)  # the dataclass is frozen
    return options


class Declared(NamedTuple):
    """An option with the name, type and default of its field. The default is `MISSING` if the option is required."""

    name: str
    type: Any
    option: Option
    default: Any
    is_keyword: bool


def declared_options(declaration: type[Any]) -> Iterator[Declared]:
    """Yield the options of a dataclass, in the order of its fields.

    >>> from typing import Annotated
    >>> @dataclass(frozen=True)
    ... class TrainOptions(Options):
    ...     epochs: Annotated[int | None, Option("number of epochs", sets="training.epochs")] = None
    >>> [(declared.name, declared.option.sets) for declared in declared_options(TrainOptions)]
    [('epochs', 'training.epochs')]
    """
    hints = typing.get_type_hints(declaration, include_extras=True)
    for declared in dataclasses.fields(declaration):
        if declared.init:  # all but `Options.given`, which is not an option
            type_, option = option_of(hints[declared.name])
            yield Declared(declared.name, type_, option, declared.default, is_keyword=bool(declared.kw_only))


def option_of(hint: Any, default: Option | None = None) -> tuple[Any, Option]:
    """Return the type and the option of an annotation; `default` is the option of an annotation without one.

    >>> option_of(typing.Annotated[int, Option("number of epochs")])[1].help
    'number of epochs'
    """
    if typing.get_origin(hint) is typing.Annotated:
        type_, *metadata = typing.get_args(hint)
        options = [item for item in metadata if isinstance(item, Option)]
        return type_, options[-1]  # of nested annotations, the outer one counts
    if default is None:
        raise TypeError(f"{hint} declares no option")
    return hint, default


def keywords_of(declaration: Callable[P, OptionsT]) -> Callable[[Callable[[OptionsT], R]], Callable[P, R]]:
    """Give a function that takes options the keywords of their declaration.

    >>> from typing import Annotated
    >>> @dataclass(frozen=True, kw_only=True)
    ... class DrawOptions(Options):
    ...     color: Annotated[str, Option("name of a color")] = "red"
    >>> @keywords_of(DrawOptions)
    ... def draw(options: DrawOptions) -> str:
    ...     return options.color
    >>> draw(color="blue"), draw(color=None), str(inspect.signature(draw))
    ('blue', 'red', "(*, color: str = 'red') -> str")
    >>> draw(colr="blue")
    Traceback (most recent call last):
    ...
    TypeError: draw() got an unexpected keyword argument 'colr'; did you mean 'color'?
    """
    signature = public_signature(declaration)

    def decorate(function: Callable[[OptionsT], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> R:
            given = _given(function.__name__, signature, arguments, keywords)
            return function(options_of(declaration, given))

        _describe(call, signature, declaration)
        return call

    return decorate


def method_keywords_of(
    declaration: Callable[P, OptionsT],
) -> Callable[[Callable[[Owner, OptionsT], R]], Callable[Concatenate[Owner, P], R]]:
    """Give a method that takes options the keywords of their declaration, as `keywords_of` does for a function."""
    signature = public_signature(declaration)

    def decorate(method: Callable[[Owner, OptionsT], R]) -> Callable[Concatenate[Owner, P], R]:
        @functools.wraps(method)
        def call(self: Owner, /, *arguments: P.args, **keywords: P.kwargs) -> R:
            given = _given(method.__name__, signature, arguments, keywords)
            return method(self, options_of(declaration, given))

        owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        with_owner = signature.replace(parameters=[owner, *signature.parameters.values()])
        _describe(call, with_owner, declaration)
        return call

    return decorate


def public_signature(declaration: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function with the keywords of a declaration."""
    assert isinstance(declaration, type)
    parameters = []
    for declared in declared_options(declaration):
        kind = inspect.Parameter.KEYWORD_ONLY if declared.is_keyword else inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = inspect.Parameter.empty if declared.default is MISSING else declared.default
        parameters.append(inspect.Parameter(declared.name, kind, default=default, annotation=declared.type))
    return inspect.Signature(parameters)


def _given(
    name: str, signature: inspect.Signature, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options that a call sets. None means that an option is not given, unless the option is required."""
    known = signature.parameters
    for keyword in keywords:
        if keyword not in known:
            hint = suggestion(keyword, known)
            raise TypeError(f"{name}() got an unexpected keyword argument {keyword!r}; {hint}")
    try:
        bound = signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise TypeError(f"{name}(): {error}") from None
    given = {}
    for key, value in bound.arguments.items():
        is_required = known[key].default is inspect.Signature.empty
        if value is not None or is_required:
            given[key] = value
    return given


def _describe(call: Callable[..., Any], signature: inspect.Signature, declaration: Callable[..., Any]) -> None:
    """Set the signature of a public function, and list its options in its docstring."""
    assert isinstance(declaration, type)
    return_type = call.__annotations__.get("return", inspect.Signature.empty)
    type_of_option = {declared.name: declared.type for declared in declared_options(declaration)}
    call.__signature__ = signature.replace(return_annotation=return_type)  # type: ignore[attr-defined]
    call.__annotations__ = {**type_of_option, "return": return_type}
    call.__doc__ = with_arguments(inspect.cleandoc(call.__doc__ or ""), declaration)


def with_arguments(docstring: str, declaration: type[Any]) -> str:
    """Return a docstring with the options as its arguments, before the section `Returns`."""
    text, returns, result = docstring.partition("\n\nReturns:\n")
    lines = [f"{text}\n\nArgs:"]
    for declared in declared_options(declaration):
        line = f"{declared.name}: {declared.option.help}{declared.option.in_python}"
        lines.append(textwrap.fill(line, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8))
    return "\n".join(lines) + returns + result
