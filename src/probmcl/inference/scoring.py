"""Scores of labeled images, and which of them could not be read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from probmcl.data import BadImage, Records, read_image, without_bad
from probmcl.data.image_files import PATH_LIST_SUFFIX
from probmcl.data.stream import Decoded
from probmcl.errors import ImageError

Decode = Callable[[Sequence[Path]], Iterator[Decoded]]
Probabilities = Callable[[Float[Tensor, "N 3 S S"]], Float[ndarray, "N C"]]


class Scored(NamedTuple):
    """Images that could be read, their scores, and the others."""

    records: Records
    scores: Float[ndarray, "N C"]
    bad: list[BadImage]


def score(
    records: Records,
    decode: Decode,
    probabilities: Probabilities,
    *,
    skip_bad: float | None,
    advance: Callable[[int], None],
) -> Scored:
    """Score every image that can be read; the others are an error that names them all, as `without_bad` says it.

    As soon as more are bad than `skip_bad` allows nothing is scored any longer: the rest is decoded only to be named.
    """
    bad = no_files(records)
    absent = {image.row for image in bad}
    rows = [row for row in range(len(records)) if row not in absent]
    advance(len(bad))
    scores = []
    left = iter(rows)
    for batch in decode([records.paths[row] for row in rows]) if rows else ():
        bad += _unreadable(records, list(itertools.islice(left, len(batch.paths))), batch)
        if batch.rows and len(bad) / len(records) <= (skip_bad or 0.0):
            scores.append(probabilities(batch.images))
        advance(len(batch.paths))
    bad.sort()
    kept = without_bad(records, bad, share=skip_bad)
    return Scored(kept, np.concatenate(scores), bad)


def no_files(records: Records) -> list[BadImage]:
    """Images that are not there: whoever looks for files by their names would find others in their place, or none."""
    found = []
    for row, path in enumerate(records.paths):
        if not path.is_file() or path.suffix.lower() == PATH_LIST_SUFFIX:
            try:
                read_image(path)
            except ImageError as error:
                found.append(BadImage(row, path, error.reason))
    return found


def _unreadable(records: Records, rows: Sequence[int], batch: Decoded) -> list[BadImage]:
    reasons = {error.path: error.reason for error in batch.errors}
    return [
        BadImage(row, records.paths[row], reasons[path])
        for row, path in zip(rows, batch.paths, strict=True)
        if path in reasons
    ]
