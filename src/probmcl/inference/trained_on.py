"""Images that a model was trained on, found again under other names: a score on them says nothing."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from probmcl.data import Split
from probmcl.data.image_files import equal_files


def trained_on(paths: Sequence[Path], had: Mapping[str, Split], split: Split) -> int:
    """How many images of a split the run was trained on, by their path or byte by byte.

    `had` has the split of every image of the run, as `read_split` gives it. Whoever asks for another split than train
    is warned of copies of training images under new paths, and of new images that have the file name of one.
    """
    places = [os.path.realpath(path) for path in paths]
    trained = [place for place, past in had.items() if past == "train"]
    new = [place for place in places if place not in had]
    found = copies(new, trained)
    if split != "train":
        _warn_of_copies(found, new, len(paths))
        _warn_of_names([place for place in new if place not in found], trained)
    return sum(place in found or had.get(place) == "train" for place in places)


def copies(new: Iterable[str], old: Iterable[str]) -> dict[str, str]:
    """Return, for every new file with the bytes of an old one, the first such old file."""
    new = list(new)
    if not new:
        return {}
    ours, theirs = equal_files(new, old)
    first = {digest: path for path, digest in reversed(theirs.items())}
    return {path: first[digest] for path, digest in ours.items()}


def _warn_of_copies(found: Mapping[str, str], new: Sequence[str], images: int) -> None:
    if found:
        count = sum(place in found for place in new)
        copy, original = next(iter(found.items()))
        warnings.warn(
            f"{count:,} of {images:,} images are byte by byte images that this run was trained on ({copy} is "
            f"{original}); their scores are too good: leave them out",
            stacklevel=2,
        )


def _warn_of_names(new: Sequence[str], trained: Sequence[str]) -> None:
    """Training images that are no longer where they were cannot be compared, nor those that were saved anew."""
    names = set(map(os.path.basename, trained))
    alike = [place for place in new if os.path.basename(place) in names]  # noqa: PTH119  # no paths
    if alike:
        warnings.warn(
            f"{len(alike):,} of {len(new):,} images that are new to this run have the file name of one it was trained "
            f"on ({alike[0]}); if they are the same, moved or saved anew, this score is too good: leave them out",
            stacklevel=2,
        )
