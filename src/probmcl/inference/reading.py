"""Labeled data that a model is judged on: how it is read, and which of its images count."""

from __future__ import annotations

import csv
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np

from probmcl.data import Records, Split
from probmcl.data.records import SPLITS
from probmcl.errors import DataError, RunError


def images_of(split: Split, records: Records, had: Mapping[str, Split]) -> Records:
    """The images that count as a split; `had` is what `read_split` says of the run.

    An image that the run has had keeps the split it had there, so that what was trained on is never tested on. A new
    one has the split that the data gives it; where the data has neither val nor test, it counts as the split asked for.
    """
    has_splits = any(own != "train" for own in records.split)
    known = [had.get(os.path.realpath(path)) for path in records.paths]
    splits = [past or (own if has_splits else split) for past, own in zip(known, records.split, strict=True)]
    rows = np.flatnonzero(np.array(splits, dtype=str) == split)
    if len(rows) == 0:
        counts = ", ".join(f"{other} {splits.count(other)}" for other in SPLITS)
        raise DataError(f"no image belongs to the {split} split ({counts}); --split says which to take")
    return dataclasses.replace(records.take(rows), split=(split,) * len(rows))


def read_split(path: Path) -> dict[str, Split]:
    """The split of every image of a run, by its resolved path."""
    if not path.is_file():
        raise RunError(
            f"{path.parent} has no {path.name}, which says what was trained on; without it nothing is scored"
        )
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows, start=2):
        if not row.get("path") or row.get("split") not in SPLITS:
            raise RunError(f"{path}: row {number}: {row}; a row has a path and a split ({', '.join(SPLITS)})")
    return {os.path.realpath(row["path"]): cast(Split, row["split"]) for row in rows}
