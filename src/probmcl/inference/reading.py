"""Labeled data that a model is judged on: how it is read, and which of its images count."""

from __future__ import annotations

import csv
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from probmcl.data import Records, Split, read
from probmcl.data.records import SPLITS
from probmcl.errors import DataError, RunError


@dataclass(frozen=True)
class Skipped:
    """An image that could not be read, and that a run was told to go on without."""

    path: str


@dataclass(frozen=True)
class Reading:
    """Where data is, and how it is read: what `probmcl.data.read` takes, and the images that are left out."""

    data: str | None = None
    images: str | None = None
    format: str | None = None
    path_column: str | None = None
    labels_column: str | None = None
    split_column: str | None = None
    group_column: str | None = None
    weight_column: str | None = None
    rows: str | None = None
    blank: str | tuple[str, ...] | None = None
    minus_one: str | tuple[str, ...] | None = None
    none_label: str | None = None
    ignore: tuple[str, ...] | None = None
    hierarchy: str | None = None
    skipped: tuple[Skipped, ...] = ()

    def over(self, other: Reading) -> Reading:
        """The other one, but for what this one says; an empty word says something, too."""
        said = {name: value for name, value in vars(self).items() if value not in (None, ())}
        return dataclasses.replace(other, **said)

    def records(self, *, keep: Sequence[str] = ()) -> Records:
        """What is there, in the splits that the data itself has, with further columns of a table.

        Images whose files do not exist are among them, as long as any does: whoever decodes them names them all.
        """
        if self.data is None:
            raise DataError("this run was trained on records that no file holds; name the data to evaluate on")
        skipped = {image.path for image in self.skipped}
        records = read(
            self.data,
            images=self.images,
            format=self.format,
            path_column=self.path_column,
            labels_column=self.labels_column,
            split_column=self.split_column,
            group_column=self.group_column,
            weight_column=self.weight_column,
            rows=self.rows,
            blank=self.blank,
            minus_one=self.minus_one,
            none_label=self.none_label,
            ignore=self.ignore or (),
            hierarchy=self.hierarchy,
            keep=keep,
            carved=False,
            missing="keep",
        )
        return records.without(skipped)


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


def as_words(said: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    """What may be said in one word or in several, as `Reading` has it.

    >>> as_words("negative"), as_words(["unknown", "cat=negative"])
    ('negative', ('unknown', 'cat=negative'))
    """
    return said if said is None or isinstance(said, str) else tuple(said)


def as_text(path: Path | str | None) -> str | None:
    """A path as `Reading` has it.

    >>> as_text(Path("labels.csv"))
    'labels.csv'
    """
    return None if path is None else str(path)
