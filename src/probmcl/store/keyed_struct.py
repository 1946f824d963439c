"""Frozen structs of stored results whose values can also be read by their keys in JSON."""

from collections.abc import Iterator
from typing import Any

import msgspec


class KeyedStruct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of a JSON object: a frozen struct whose values are attributes and can also be read by their keys.

    A key is the name of its attribute, unless the struct declares another one. A value that does not apply is None by
    default; its key is left out of the JSON, and is not in the struct.

    >>> class Scores(KeyedStruct, frozen=True, kw_only=True):
    ...     half: float = msgspec.field(name="0.5")
    ...     note: str | None = None
    >>> scores = Scores(half=0.25)
    >>> scores.half, scores["0.5"], "note" in scores, scores.to_dict()
    (0.25, 0.25, False, {'0.5': 0.25})
    """

    def keys(self) -> list[str]:
        """Return the keys in their order in the file."""
        return list(self._attributes())

    def __iter__(self) -> Iterator[str]:
        return iter(self._attributes())

    def __contains__(self, key: object) -> bool:
        return key in self._attributes()

    def __getitem__(self, key: str) -> Any:
        return getattr(self, self._attributes()[key])

    def to_dict(self) -> dict[str, Any]:
        """Return the content as dictionaries, lists, numbers and text."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        return content

    def _attributes(self) -> dict[str, str]:
        """Return the name of the attribute of each key."""
        attributes = {}
        for field in msgspec.structs.fields(self):
            if getattr(self, field.name) is not field.default:
                attributes[field.encode_name] = field.name
        return attributes
