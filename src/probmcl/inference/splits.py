"""The split of each image in an evaluation, and training images under other names, whose scores say nothing."""

import dataclasses
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from probmcl.data.image_files import equal_files
from probmcl.data.records import SPLITS, Records, Split
from probmcl.errors import DataError
from probmcl.run_folder import RunFolder


def read_run_splits(folder: Path) -> dict[str, Split]:
    """Return the split of every image of a run, by its resolved path."""
    return {os.path.realpath(path): cast(Split, split) for path, split in RunFolder(folder).read_split().items()}


def select_split(records: Records, split: Split, run_splits: Mapping[str, Split]) -> Records:
    """Return the images of a split.

    An image of the run keeps its split there, so that training images are never tested on. A new image has its split
    in the data; if the data have neither val nor test, it counts as the requested split.
    """
    has_splits = any(own != "train" for own in records.split)
    known = [run_splits.get(os.path.realpath(path)) for path in records.paths]
    splits = [past or (own if has_splits else split) for past, own in zip(known, records.split, strict=True)]
    rows = np.flatnonzero(np.array(splits, dtype=str) == split)
    if len(rows) == 0:
        counts = ", ".join(f"{other} {splits.count(other)}" for other in SPLITS)
        raise DataError(f"the {split} split has no images ({counts}); choose another with `split`")
    return dataclasses.replace(records.take(rows), split=(split,) * len(rows))


def count_trained_on(paths: Sequence[Path], run_splits: Mapping[str, Split], split: Split) -> int:
    """Return how many images of a split the run was trained on, by their path or their bytes.

    Unless the split is train, copies of training images under new paths are a warning, and so are new images with the
    file name of a training image.
    """
    resolved = [os.path.realpath(path) for path in paths]
    trained = [path for path, past in run_splits.items() if past == "train"]
    new = [path for path in resolved if path not in run_splits]
    copied = copies(new, trained)
    if split != "train":
        _warn(copied, new, len(paths), set(map(os.path.basename, trained)))
    return sum(path in copied or run_splits.get(path) == "train" for path in resolved)


def copies(new: Iterable[str], old: Iterable[str]) -> dict[str, str]:
    """Return, for every new file with the bytes of an old one, the first such old file."""
    if not (new := list(new)):
        return {}
    ours, theirs = equal_files(new, old)
    first = {digest: path for path, digest in reversed(theirs.items())}
    return {path: first[digest] for path, digest in ours.items()}


def _warn(copied: Mapping[str, str], new: Sequence[str], images: int, trained: Collection[str]) -> None:
    if copied:
        count = f"{sum(path in copied for path in new):,} of {images:,} images"
        pair = " is ".join(next(iter(copied.items())))
        problem = f"are byte by byte images that this run was trained on ({pair}); their scores are too good"
        warnings.warn(f"{count} {problem}: leave them out", stacklevel=2)
    others = [path for path in new if path not in copied]
    alike = [path for path in others if os.path.basename(path) in trained]  # noqa: PTH119
    if alike:
        count = f"{len(alike):,} of {len(others):,} images that are new to this run"
        problem = f"have the file name of one it was trained on ({alike[0]})"
        doubt = "if they are the same, moved or saved again, this score is too good: leave them out"
        warnings.warn(f"{count} {problem}; {doubt}", stacklevel=2)
