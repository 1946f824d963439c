import json

import msgspec
import pytest

from probmcl.runtime.conversion import convert
from probmcl.runtime.files import json_bytes
from probmcl.store.keyed_struct import KeyedStruct


class Inner(KeyedStruct, frozen=True, kw_only=True):
    half: float = msgspec.field(name="0.5")


class Outer(KeyedStruct, frozen=True, kw_only=True):
    mean: float | None
    at: Inner
    by: dict[str, Inner] | None = None
    note: str | None = None


OUTER = Outer(mean=None, at=Inner(half=0.25))


def test_values_can_be_read_by_their_keys() -> None:
    assert OUTER["at"]["0.5"] == OUTER.at.half == 0.25
    assert OUTER["mean"] is None
    assert dict(OUTER) == {"mean": None, "at": Inner(half=0.25)}


def test_a_value_that_does_not_apply_has_no_key() -> None:
    assert OUTER.keys() == list(OUTER) == ["mean", "at"]
    assert "mean" in OUTER
    assert "note" not in OUTER
    noted = msgspec.structs.replace(OUTER, by={"north": Inner(half=0.5)}, note="mind this")
    assert noted.keys() == ["mean", "at", "by", "note"]
    assert noted["by"]["north"]["0.5"] == 0.5


@pytest.mark.parametrize("key", ["note", "half", "elsewhere"])
def test_an_unknown_key_and_that_of_a_missing_value_are_errors(key: str) -> None:
    with pytest.raises(KeyError, match=key):
        OUTER[key]


def test_the_name_of_an_attribute_with_another_key_is_not_a_key() -> None:
    with pytest.raises(KeyError):
        OUTER.at["half"]


def test_structs_are_written_as_objects_and_read_again() -> None:
    content = json.loads(json_bytes(OUTER))
    assert content == OUTER.to_dict() == {"mean": None, "at": {"0.5": 0.25}}
    assert list(content) == OUTER.keys()
    assert convert(content, Outer) == OUTER


def test_structs_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        OUTER.mean = 0.5  # type: ignore[misc]
