"""Every image is decoded once before training starts, so that a broken one is named then, and not in mid-epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probmcl.data.duplicates.hashing import Fingerprint, fingerprints
from probmcl.data.intensity import IntensityRange
from probmcl.data.records import SPLITS, Records
from probmcl.errors import DataError

LISTED = 10


class BadImage(NamedTuple):
    """An image that cannot be used: its row in the records, its path, and why."""

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

    `workers` processes share the work; 0 does it in this one. `advance` is told how many images more are done.
    """
    return bad_images(records, fingerprints(records.paths, intensity=intensity, workers=workers, advance=advance))


def bad_images(records: Records, found: Sequence[Fingerprint]) -> list[BadImage]:
    """Those that gave no image when their fingerprints were taken.

    >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "train"], np.ones((2, 1)))
    >>> bad_images(records, [Fingerprint(None, (4, 3)), Fingerprint("the file is empty")])
    [BadImage(row=1, path=PosixPath('b.jpg'), reason='the file is empty')]
    """
    reasons = enumerate(taken.reason for taken in found)
    return [BadImage(row, records.paths[row], reason) for row, reason in reasons if reason is not None]


def refuse_empty_splits(records: Records) -> None:
    """A run needs images in every split."""
    for split in SPLITS:
        if len(records.rows(split)) == 0:
            raise ValueError(
                f"of {len(records)} images no image belongs to the {split} split; a run needs some in each of "
                f"{', '.join(SPLITS)}"
            )


def refuse_unscorable(records: Records) -> None:
    """A comparison needs images in every split, and in those that choose and judge a label that one of them has."""
    refuse_empty_splits(records)
    for split in SPLITS[1:]:
        rows = records.rows(split)
        if not (records.known[rows] & (records.labels[rows] == 1)).any():
            raise ValueError(f"none of the {len(rows)} {split} images is known to have a label: nothing can be scored")


def refuse_share(share: float | None) -> None:
    """Refuse a share of images that is none: a percentage, not a number, or all of them.

    >>> refuse_share(5.0)
    Traceback (most recent call last):
    ...
    probmcl.data.records.DataError: --skip-bad 5: give a share between 0 and 1, as 0.05 for 5 %
    """
    if share is not None and not 0 <= share < 1:  # not a number is not between either
        raise DataError(f"--skip-bad {share:g}: give a share between 0 and 1, as 0.05 for 5 %")


def without_bad(records: Records, bad: Sequence[BadImage], *, share: float | None = None) -> Records:
    """Leave bad images out, or refuse to: where no share is given, and where more than that share are bad.

    The label space counts what is left of train. A split that would lose its last image is an error too.

    >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "train"], np.ones((2, 1)))
    >>> bad = [BadImage(1, Path("b.jpg"), "the file is empty")]
    >>> without_bad(records, bad, share=0.5).paths
    (PosixPath('a.jpg'),)
    >>> without_bad(records, bad)
    Traceback (most recent call last):
    ...
    probmcl.data.records.DataError: 1 of 2 images cannot be used:
      b.jpg: the file is empty
    mend or remove them; --skip-bad 0.5 goes on without them
    """
    refuse_share(share)
    if not bad:
        return records
    if share is None or len(bad) / len(records) > share:
        raise DataError(_what_is_bad(records, bad, share))
    kept = records.take(np.setdiff1d(np.arange(len(records)), [image.row for image in bad]))
    for split in SPLITS:
        if len(records.rows(split)) and not len(kept.rows(split)):
            raise DataError(
                f"{_listing(records, bad)}\nwithout them {split} has no image left; mend some, or add others"
            )
    return kept


def _what_is_bad(records: Records, bad: Sequence[BadImage], share: float | None) -> str:
    beyond = "" if share is None else f", more than --skip-bad {share:g} allows"
    skip = f"; --skip-bad {_enough(len(bad) / len(records)):g} goes on without them" if len(bad) < len(records) else ""
    return f"{_listing(records, bad, beyond)}\nmend or remove them{skip}"


def _listing(records: Records, bad: Sequence[BadImage], beyond: str = "") -> str:
    lines = [f"{len(bad):,} of {len(records):,} images cannot be used{beyond}:"]
    lines += [f"  {records.where(image.row)}: {image.reason}" for image in bad[:LISTED]]
    if len(bad) > LISTED:
        lines.append(f"  and {len(bad) - LISTED:,} more")
    return "\n".join(lines)


def _enough(share: float) -> float:
    """The smallest share of one digit that lets so many pass; above nine tenths, of some nines.

    >>> _enough(0.5), _enough(0.0123), _enough(1 / 8000), _enough(0.95)
    (0.5, 0.02, 0.0002, 0.99)
    """
    digits = [digit / 10**n for n in (6, 5, 4, 3, 2, 1) for digit in range(1, 10)]
    nines = [(10**n - 1) / 10**n for n in (2, 3, 4, 5, 6)]
    return next((enough for enough in (*digits, *nines) if share <= enough), nines[-1])
