"""Signatures of image files, which tell whether an image has changed since a run started."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probmcl.console import Console
from probmcl.data.image_files import file_digest
from probmcl.data.records import Paths
from probmcl.errors import LISTED, RunError, RunWarning, counted, listing
from probmcl.runtime.files import DAMAGED
from probmcl.store.files import IMAGES
from probmcl.store.images import ImageRow
from probmcl.store.run_folder import RunFolder

MISSING = (-1, -1)  # size and modification time of a file that does not exist


class Signature(NamedTuple):
    """The size, modification time and digest of a file.

    A file is read again only if its size or modification time differs; then the digest decides.
    """

    size: int
    mtime_ns: int
    digest: str


def stamps(paths: Paths) -> list[tuple[int, int]]:
    """Return the size and modification time of each file."""
    return [_stamp(path) for path in paths.texts]


def sign(stamp_of: Iterable[tuple[int, int]], digests: Iterable[bytes]) -> list[Signature]:
    """Return signatures. The stamps must be older than the digests, so that a change in between is noticed later."""
    return [Signature(*stamp, digest.hex()) for stamp, digest in zip(stamp_of, digests, strict=True)]


def read_all(paths: Paths, console: Console) -> list[Signature]:
    """Return the signatures of files that no audit has read."""
    stamp_of = stamps(paths)
    return sign(stamp_of, _digests(paths, "reading the content of all images", console))


def write_signatures(folder: Path, paths: Paths, signatures: Sequence[Signature]) -> None:
    """Write the signature of every image to the folder of a run or a comparison."""
    RunFolder(folder).write_rows(IMAGES, signature_rows(paths, signatures))


def signature_rows(paths: Paths, signatures: Sequence[Signature]) -> Iterator[ImageRow]:
    """Yield the rows of the file with the signature of every image."""
    for path, signature in zip(paths.texts, signatures, strict=True):
        yield ImageRow(path, *signature)


def read_signatures(folder: Path, paths: Paths) -> list[Signature]:
    """Return the stored signature of every image."""
    run = RunFolder(folder)
    if not run.has(IMAGES):
        raise RunError(f"{folder} has no {IMAGES}, without which changed images are not detected; start a new run")
    rows = run.read_rows(IMAGES)
    if [row.path for row in rows] != list(paths.texts):
        raise RunError(f"{folder / IMAGES}: its paths are not those of the run; {DAMAGED}")
    return [Signature(row.size, row.mtime_ns, row.digest) for row in rows]


class Changes(NamedTuple):
    """The images whose content has changed, and the current signatures of all images."""

    changed: list[str]
    signatures: list[Signature]

    def warning(self) -> RunWarning:
        """Return the warning to store with a run that is resumed with the changed images."""
        number = f"{len(self.changed):,} of {counted(len(self.signatures), 'image')}"
        problem = f"{number} changed while the run was interrupted: {listing(self.changed, LISTED)}"
        consequence = "results from before use the old files, and the new ones were not searched for leaks"
        return RunWarning("data_changed", f"{problem}; {consequence}")


def accepted_changes(folder: Path, paths: Paths, console: Console, *, accept: bool) -> Changes | None:
    """Compare the images with those that a run started with; None if every file is as it was.

    A file that was only touched or copied is not a change. Changed images raise `RunError` unless they are accepted.
    The caller writes the new signatures, after everything else that a change requires.
    """
    stored = read_signatures(folder, paths)
    changes = find_changes(paths, stored, console)
    if changes.changed and not accept:
        number = len(changes.changed)
        have = f"{number:,} of {counted(len(paths), 'image')} {'has' if number == 1 else 'have'}"
        remedy = "restore the old files, start a new run, or use the new files with `accept_data_change=True`"
        files = listing(changes.changed, LISTED)
        raise RunError(f"{folder}: {have} changed since the run started: {files}; {remedy}")
    return None if changes.signatures == stored else changes


def find_changes(paths: Paths, stored: Sequence[Signature], console: Console) -> Changes:
    """Compare files with their stored signatures. Only files with another size or modification time are read."""
    current = stamps(paths)
    rows = np.array([row for row, stamp in enumerate(current) if stamp != stored[row][:2]], dtype=int)
    signatures = list(stored)
    digests = _digests(paths.take(rows), "comparing images with those of the run", console)
    for row, digest in zip(rows, digests, strict=True):
        size, mtime_ns = current[row]
        signatures[row] = Signature(size, mtime_ns, digest.hex())
    changed = [paths.texts[row] for row in rows if signatures[row].digest != stored[row].digest]
    return Changes(changed, signatures)


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 (three times as fast as Path.stat)
    except (OSError, ValueError):
        return MISSING
    return status.st_size, status.st_mtime_ns


def _digests(paths: Sequence[Path], title: str, console: Console) -> list[bytes]:
    if not paths:
        return []
    digests = []
    with console.progress(title, len(paths)) as bar:
        for path in paths:
            digests.append(file_digest(path))
            bar.advance(1)
    return digests
