"""Whether two rows may stand in one table: a hash of everything that has to be equal for that."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from probmcl.data.records import Records
from probmcl.files import json_line, load_tensors
from probmcl.settings import Settings

LENGTH = 12
"""Hexadecimal digits that are kept."""


def fingerprint(records: Records, settings: Settings, frozen: Path, budget: object) -> dict[str, str]:
    """A hash of each part of the protocol, and one of all of them.

    The settings say what was done: the size of the images, and how much of the encoder learned. `frozen` is the file of
    the frozen probe, which has the encoder's weights; random ones, which follow the seed, count as random. The seed is
    no part: rows of one protocol differ by it. Images count by their place below the folder they share and by their
    size in bytes. `budget` is what everybody had: views, batches, trials.
    """
    e = settings.encoder
    weights = "random" if e.weights is None else _weights(frozen)
    parts = {
        "data": _digest(_places(records), records.label_space.names, records.states.digest()),
        "split": _digest(records.split),
        "encoder": _digest(e.name, e.image_size, e.statistics, settings.tune, weights),
        "augmentation": _digest(settings.augment, settings.stored_views),
        "budget": _digest(budget, settings.probe),
    }
    return parts | {"all": _digest(parts)}


def difference(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """The parts in which two protocols differ.

    >>> difference({"data": "a", "split": "b", "all": "c"}, {"data": "a", "split": "x", "all": "y"})
    ['split']
    """
    return [part for part in a if part != "all" and a[part] != b.get(part)]


def _digest(*parts: object) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else json_line(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:LENGTH]


def _places(records: Records) -> list[tuple[str, int]]:
    paths = [path.resolve() for path in records.paths]
    above = Path(os.path.commonpath(paths)) if len(paths) > 1 else paths[0].parent
    return [(path.relative_to(above).as_posix(), path.stat().st_size) for path in paths]


def _weights(frozen: Path) -> str:
    tensors, _ = load_tensors(frozen)
    digest = hashlib.sha256()
    for name in sorted(tensors):
        if name.startswith("state.encoder."):
            digest.update(name.encode())
            digest.update(tensors[name].contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()
