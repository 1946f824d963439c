"""Unreadable images: found before training starts, and refused or skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probmcl.data.duplicates.hashing import Fingerprint, fingerprints
from probmcl.data.intensity import IntensityRange
from probmcl.data.options import refuse_share
from probmcl.data.records import SPLITS, Records
from probmcl.errors import DataError

LISTED = 10


class BadImage(NamedTuple):
    """An image that cannot be used: its row in the records, its path, and the reason."""

    row: int
    path: Path
    reason: str


def find_bad_images(
    records: Records,
    *,
    intensity: IntensityRange | None = None,
    workers: int = 0,
    advance: Callable[[int], None] | None = None,
) -> list[BadImage]:
    """Decode the images of all splits and return those that are missing, truncated or unreadable.

    The other arguments are those of `fingerprints`.
    """
    return bad_images(records, fingerprints(records.paths, intensity=intensity, workers=workers, advance=advance))


def bad_images(records: Records, found: Sequence[Fingerprint]) -> list[BadImage]:
    """Return the images that could not be decoded when their fingerprints were computed.

    >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "train"], np.ones((2, 1)))
    >>> bad_images(records, [Fingerprint(None, (4, 3)), Fingerprint("the file is empty")])
    [BadImage(row=1, path=PosixPath('b.jpg'), reason='the file is empty')]
    """
    reasons = enumerate(fingerprint.reason for fingerprint in found)
    return [BadImage(row, records.paths[row], reason) for row, reason in reasons if reason is not None]


def without_bad(records: Records, bad: Sequence[BadImage], *, share: float | None = None) -> Records:
    """Return the records without bad images, unless `refusal` has a reason against it.

    The label space counts the remaining train images.

    >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "train"], np.ones((2, 1)))
    >>> bad = [BadImage(1, Path("b.jpg"), "the file is empty")]
    >>> without_bad(records, bad, share=0.5).paths
    (PosixPath('a.jpg'),)
    >>> without_bad(records, bad)
    Traceback (most recent call last):
    ...
    probmcl.errors.DataError: 1 of 2 images cannot be used:
      b.jpg: the file is empty
    repair or remove them; `skip_bad=0.5` goes on without them
    """
    refuse_share(share)
    if not bad:
        return records
    problem = refusal(records, bad, share)
    if problem:
        raise DataError(problem)
    return records.take(usable_rows(records, bad))


def usable_rows(records: Records, bad: Sequence[BadImage]) -> np.ndarray:
    """Return the rows that are not bad."""
    return np.setdiff1d(np.arange(len(records)), [image.row for image in bad])


def refusal(records: Records, bad: Sequence[BadImage], share: float | None) -> str:
    """Return why bad images cannot be skipped, or an empty text if they can.

    They cannot if `share` is None, if a larger share of all images is bad, or if a split would lose its last image.
    """
    if share is None or len(bad) / len(records) > share:
        beyond = "" if share is None else f", more than `skip_bad={share:g}` allows"
        enough = _round_up(len(bad) / len(records))
        skip = f"; `skip_bad={enough:g}` goes on without them" if len(bad) < len(records) else ""
        return f"{listing(records, bad, beyond)}\nrepair or remove them{skip}"
    usable = {records.split[row] for row in usable_rows(records, bad)}
    for split in SPLITS:
        if len(records.rows(split)) and split not in usable:
            return f"{listing(records, bad)}\nwithout them {split} has no image left; repair some, or add others"
    return ""


def listing(records: Records, bad: Sequence[BadImage], beyond: str = "") -> str:
    """Return the number of bad images, and the first ten with their rows and reasons, as lines of text."""
    lines = [f"{len(bad):,} of {len(records):,} images cannot be used{beyond}:"]
    lines += [f"  {records.where(image.row)}: {image.reason}" for image in bad[:LISTED]]
    if len(bad) > LISTED:
        lines.append(f"  and {len(bad) - LISTED:,} more")
    return "\n".join(lines)


def _round_up(share: float) -> float:
    """Return the smallest share of one digit that is large enough; above nine tenths, of some nines.

    >>> _round_up(0.5), _round_up(0.0123), _round_up(1 / 8000), _round_up(0.95)
    (0.5, 0.02, 0.0002, 0.99)
    """
    digits = [digit / 10**n for n in (6, 5, 4, 3, 2, 1) for digit in range(1, 10)]
    nines = [(10**n - 1) / 10**n for n in (2, 3, 4, 5, 6)]
    return next((enough for enough in (*digits, *nines) if share <= enough), nines[-1])
