"""The split of each image in an evaluation, and detection of training images under other paths."""

import dataclasses
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from probmcl.data.image_files import equal_files
from probmcl.data.records import SPLITS, Records, Split
from probmcl.errors import DataError, counted
from probmcl.store.run_folder import RunFolder


def read_run_splits(folder: Path) -> dict[str, Split]:
    """Return the split of every image in a run, keyed by resolved path."""
    return {os.path.realpath(path): split for path, split in RunFolder(folder).read_split().items()}


def select_split(
    records: Records,
    split: Split,
    run_splits: Mapping[str, Split],
    *,
    remedy: str = "choose another one with `split`",
) -> Records:
    """Return the images in a split. If there are none, the error ends with `remedy`.

    Images of the run keep the split that they had there, so training images are never used as test images. New images
    have their split in the data; if the data have only train images, new images count as the requested split.
    """
    has_splits = any(data_split != "train" for data_split in records.split)
    in_run = [run_splits.get(os.path.realpath(path)) for path in records.paths]
    splits = [old or (new if has_splits else split) for old, new in zip(in_run, records.split, strict=True)]
    rows = np.flatnonzero(np.array(splits, dtype=str) == split)
    if len(rows) == 0:
        counts = ", ".join(f"{other} {splits.count(other)}" for other in SPLITS)
        raise DataError(f"the {split} split is empty ({counts}); {remedy}")
    return dataclasses.replace(records.take(rows), split=(split,) * len(rows))


def count_trained_on(paths: Sequence[Path], run_splits: Mapping[str, Split], split: Split) -> int:
    """Return how many images in a split the run was trained on, judging by path or content.

    Warns about copies of training images under new paths, and about new images with the file name of a training image,
    unless the split is train.
    """
    resolved = [os.path.realpath(path) for path in paths]
    trained = [path for path, run_split in run_splits.items() if run_split == "train"]
    new = [path for path in resolved if path not in run_splits]
    copied = copies(new, trained)
    if split != "train":
        _warn(copied, new, len(paths), set(map(os.path.basename, trained)))
    return sum(path in copied or run_splits.get(path) == "train" for path in resolved)


def count_calibrated_on(paths: Sequence[Path], used: Sequence[str]) -> int:
    """Return how many images the calibration was fitted to, judging by path or content, and warn about them."""
    resolved, used_paths = [os.path.realpath(path) for path in paths], {os.path.realpath(path) for path in used}
    copied = copies([path for path in resolved if path not in used_paths], sorted(used_paths))
    count = sum(path in used_paths or path in copied for path in resolved)
    if count:
        was = "was" if count == 1 else "were"
        problem = f"{was} used to fit the probabilities and thresholds, which look better on them than on new images"
        warnings.warn(f"{count:,} of {counted(len(paths), 'image')} {problem}", stacklevel=2)
    return count


def copies(new: Iterable[str], old: Iterable[str]) -> dict[str, str]:
    """Map every new file that has the same content as an old file to the first such old file."""
    if not (new := list(new)):
        return {}
    ours, theirs = equal_files(new, old)
    first = {digest: path for path, digest in reversed(theirs.items())}
    return {path: first[digest] for path, digest in ours.items()}


def _warn(copied: Mapping[str, str], new: Sequence[str], images: int, trained: Collection[str]) -> None:
    if copied:
        count = sum(path in copied for path in new)
        are, them = ("is", "it") if count == 1 else ("are", "them")
        pair = " equals ".join(next(iter(copied.items())))
        problem = f"{are} identical to images that this run was trained on ({pair}), so the scores are too high"
        warnings.warn(f"{count:,} of {counted(images, 'image')} {problem}; remove {them}", stacklevel=2)
    others = [path for path in new if path not in copied]
    same_name = [path for path in others if os.path.basename(path) in trained]  # noqa: PTH119
    if same_name:
        have, they, them = ("has", "it shows", "it") if len(same_name) == 1 else ("have", "they show", "them")
        problem = f"{have} the same file name as an image that this run was trained on ({same_name[0]})"
        remedy = f"if {they} the same image, the scores are too high; remove {them}"
        share = f"{len(same_name):,} of {counted(len(others), 'new image')}"
        warnings.warn(f"{share} {problem}; {remedy}", stacklevel=2)
