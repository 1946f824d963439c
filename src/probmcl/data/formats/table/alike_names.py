"""Names of classes that a reader would take for the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from probmcl.data.formats.table.sheet import listing, quoted


def alike_names(names: Iterable[str]) -> list[str]:
    """What is said of classes that differ only by case; nothing where none do.

    >>> alike_names(["Cat", "dog", "cat"])
    ["classes 'Cat' and 'cat' differ only by case"]
    """
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[name.casefold()].append(name)
    alike = [quoted(same) for same in found.values() if len(same) > 1]
    return [f"classes {listing(alike)} differ only by case"] if alike else []
