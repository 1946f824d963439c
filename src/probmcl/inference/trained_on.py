"""Images that a model was trained on, found again under other names: a score on them says nothing."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b, file_digest
from pathlib import Path

from probmcl.data import Split

PIECE = 4096
"""Bytes at the start, in the middle and at the end of a file, by which most files of one size differ."""


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
    """Of every new file that equals an old one byte by byte, that old one.

    Only files of one size are opened, and only those of them read whole that also agree in a few pieces, so that
    uncompressed images, which all have one size, cost little. A file that is not there, or empty, equals none.
    """
    ours, theirs = dict.fromkeys(new), dict.fromkeys(old)  # each file once, in order
    if not ours:
        return {}
    mine: dict[str, bytes] = {}
    others: dict[str, bytes] = {}
    for key in (_size, _pieces, _digest):
        mine, others = ({place: key(place) for place in places} for places in (ours, theirs))
        shared = set(mine.values()) & set(others.values()) - {b""}
        ours, theirs = ({place: None for place, value in keys.items() if value in shared} for keys in (mine, others))
    first = {others[place]: place for place in reversed(theirs)}
    return {place: first[mine[place]] for place in ours}


def _size(place: str) -> bytes:
    """As bytes, and none of them for what is no file or has nothing in it."""
    try:
        found = os.stat(place)  # noqa: PTH116  # resolved already
    except (OSError, ValueError):
        return b""
    return str(found.st_size).encode() if stat.S_ISREG(found.st_mode) and found.st_size else b""


def _pieces(place: str) -> bytes:
    """The size, and a digest of a little of what is in it."""
    try:
        with Path(place).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            digest = blake2b(str(size).encode(), digest_size=16)
            for start in (0, size // 2, max(0, size - PIECE)):
                file.seek(start)
                digest.update(file.read(PIECE))
    except OSError:
        return b""
    return digest.digest()


def _digest(place: str) -> bytes:
    """Of everything in it, read in parts: a slide has gigabytes."""
    try:
        with Path(place).open("rb") as file:
            return file_digest(file, lambda: blake2b(digest_size=16)).digest()
    except OSError:
        return b""


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
