import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from probmcl.errors import RunError, check_range
from probmcl.runtime.conversion import convert, plain_values
from probmcl.runtime.files import convert_file


@dataclass
class Pair:
    first: int
    second: Path


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    a: int
    pairs: dict[str, Pair] = {}

    def __post_init__(self) -> None:
        check_range(at_least=0, a=self.a)


@dataclass
class Inner:
    number: int
    items: tuple[Pair, ...] = ()
    kind: Literal["one", "two"] = "one"
    strict: Strict | None = None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (5, "expected object, got int"),
        ({"number": "x"}, "number: expected int, got str"),
        ({}, "missing key 'number'"),
        ({"number": 1, "nmber": 2}, "unknown key 'nmber'; did you mean 'number'?"),
        ({"number": 1, "items": {}}, "items: expected array, got object"),
        ({"number": 1, "items": [{"first": 1}]}, "items[0]: missing key 'second'"),
        ({"number": 1, "items": [{"first": 1, "second": "a", "third": 1}]}, "items[0]: unknown key 'third'; "),
        ({"number": 1, "items": [{"first": 1, "second": 5}]}, "items[0].second: "),
        ({"number": 1, "kind": "other"}, "kind: invalid value 'other'"),
        ({"number": 1, "strict": {"a": 1, "`probmcl.train(1)`": 2}}, "strict: unknown key 'probmcl.train(1)'"),
        ({"number": 1, "strict": {"a": 1, "pairs": {"x": {"first": 1, "second": "", "y": 1}}}}, "strict.pairs.x: unk"),
        ({"number": 1, "strict": {"a": -1}}, "strict: a=-1 must be at least 0"),
    ],
)
def test_conversion_names_the_file_and_the_place(content: object, problem: str) -> None:
    with pytest.raises(RunError, match=rf"^x\.json: {re.escape(problem)}.*; the file is damaged or was edited$"):
        convert_file(content, Inner, Path("x.json"))


def test_conversion_accepts_missing_keys_with_defaults() -> None:
    assert convert({"number": 1}, Inner) == Inner(1)
    pair = convert({"number": 1, "items": [{"first": 1, "second": "a"}]}, Inner).items[0]
    assert pair == Pair(1, Path("a"))


def test_values_that_msgspec_has_left_to_their_defaults_are_written() -> None:
    inner = convert({"number": 1, "strict": {"a": 1, "pairs": {"x": {"first": 1, "second": "a"}}}}, Inner)
    assert plain_values([inner]) == [
        {
            "number": 1,
            "items": [],
            "kind": "one",
            "strict": {"a": 1, "pairs": {"x": {"first": 1, "second": "a"}}},
        }
    ]
    assert convert(json.loads(json.dumps(plain_values(inner))), Inner) == inner


def test_struct_leaves_out_what_it_omits() -> None:
    class Short(msgspec.Struct, omit_defaults=True):
        value: int = msgspec.field(name="0.5")
        note: str | None = None

    assert plain_values(Short(value=1)) == {"0.5": 1}


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        plain_values({"a": object()})
