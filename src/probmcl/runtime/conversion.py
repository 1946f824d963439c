"""Conversion between the content of JSON and classes, with errors that name the place in the content."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from probmcl.errors import suggestion

T = TypeVar("T")

PLACE = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<place>[^`]*)`$")
"""The end of a message of msgspec: the place of the problem in the content."""

PHRASES = (
    (re.compile("^Expected (.*)$"), r"expected \1"),
    (re.compile("^Object missing required field (.*)$"), r"missing key '\1'"),
    (re.compile("^Object contains unknown field (.*)$"), r"unknown key '\1'"),
    (re.compile("^Invalid enum value (.*)$"), r"invalid value \1"),
)
"""Messages of msgspec, without backticks, and how they are written here."""

if TYPE_CHECKING:
    TypeForm = type[T]
else:

    class TypeForm:
        """The type of a class that may have parameters, such as `dict[str, int]`; at run time, any object.

        `type[T]` would refuse such a class at run time. PEP 747 will make it possible to write this.
        """

        def __class_getitem__(cls, item: object) -> type[object]:
            return object


def convert(content: Any, kind: TypeForm[T], *, strict: bool = True) -> T:
    """Convert JSON content to a dataclass, a struct or another class that msgspec knows.

    Without `strict`, text is converted to numbers, for content from a table. A wrong type, an invalid value, a missing
    key and an unknown key raise `ValueError` with their place in the content.

    >>> convert({"candidates": [{"trial": "x"}]}, dict[str, list[dict[str, int]]])
    Traceback (most recent call last):
    ValueError: [...][0][...]: expected int, got str
    """
    try:
        value = msgspec.convert(content, kind, strict=strict, dec_hook=_from_json)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ValueError(_problem(error)) from error
    _refuse_unknown_keys(content, value, "")
    return value


def _from_json(kind: TypeForm[Any], value: Any) -> Any:
    """Convert a value to a class that JSON does not have, such as a path; content of any class is kept as it is."""
    return value if kind is object else kind(value)


def _problem(error: Exception) -> str:
    """Return the place and the problem of an error that msgspec has raised."""
    message = str(error)
    found = PLACE.search(message)
    if found is None:
        return _rephrased(message)
    problem = _rephrased(message[: found.start()])
    place = found["place"]
    if found["key"]:
        place = f"a key of {place}"
    return f"{place}: {problem}"


def _rephrased(problem: str) -> str:
    """Return a problem that msgspec has found, as it is written here."""
    for pattern, replacement in PHRASES:
        if pattern.match(problem):
            return pattern.sub(replacement, problem.replace("`", ""))
    return problem.replace("`", "'")  # backticks mark options and calls in our messages


def _refuse_unknown_keys(content: Any, value: Any, place: str) -> None:
    """Raise `ValueError` if an object of the content has a key that was ignored in its conversion to a dataclass.

    Structs refuse unknown keys themselves; msgspec has no such option for dataclasses.

    Args:
        content: JSON content.
        value: the result of its conversion.
        place: place of the content for the error, such as `candidates[0]`; empty for the whole content.
    """
    if isinstance(content, list) and isinstance(value, list | tuple):
        for number, (inner, converted) in enumerate(zip(content, value, strict=True)):
            _refuse_unknown_keys(inner, converted, f"{place}[{number}]")
    if not isinstance(content, dict):
        return
    fields = _fields(value)
    for key, inner in content.items():
        if key in fields:
            inner_place = f"{place}.{key}" if place else str(key)
            _refuse_unknown_keys(inner, fields[key], inner_place)
        elif dataclasses.is_dataclass(value):
            where = f"{place}: " if place else ""
            raise ValueError(f"{where}unknown key {key!r}; {suggestion(str(key), fields)}")


def _fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of a dataclass or a struct by key, or a mapping itself; nothing for other values."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, msgspec.Struct):
        # A struct may write a field under another key than its name.
        keys_and_names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {key: getattr(value, name) for key, name in keys_and_names}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {}


def plain_values(value: Any) -> Any:
    """Return the JSON content of a value: dataclasses and structs become objects, and paths become strings.

    `msgspec.to_builtins` leaves out the defaults of a dataclass that msgspec has made, and this function does not.

    >>> plain_values({"folder": Path("a"), "trials": (1, 2)})
    {'folder': 'a', 'trials': [1, 2]}
    """
    if isinstance(value, Mapping):
        return {key: plain_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, msgspec.Struct):
        written = msgspec.to_builtins(value, enc_hook=str)  # without defaults that the struct omits
        return {key: plain_values(inner) for key, inner in _fields(value).items() if key in written}
    if dataclasses.is_dataclass(value):
        return {key: plain_values(inner) for key, inner in _fields(value).items()}
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
