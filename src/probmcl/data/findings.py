"""Findings about the data: unreadable images, statistics of images and labels, and problems with either."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.data.duplicates.hashing import Fingerprint, fingerprints
from probmcl.data.duplicates.search import Duplicates, NearPair
from probmcl.data.intensity import IntensityRange
from probmcl.data.labels import State
from probmcl.data.options import refuse_share
from probmcl.data.records import SPLITS, Records
from probmcl.errors import DataError

Level = Literal["blocked", "warning", "note"]
Kind = (
    Literal["data", "empty_split", "unreadable", "leak", "doubtful_leak", "reading", "imbalance", "nothing_known"]
    | Literal["nearly_constant", "conflicting_labels", "exact_duplicates", "near_duplicates"]
    | Literal["no_positive", "no_train_positive", "few_train_positives", "no_negative", "no_test_positive"]
)
Advance = Callable[[int], None]
PerClass = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Number of images by class, label state and split."""

MAX_IMBALANCE = 100.0  # between the positives of the most and least frequent classes; a larger ratio is a warning
MIN_TRAIN_POSITIVES = 10
COOCCURRENCES = 20  # number of class pairs in the report, most frequent first
LISTED = 10  # maximum number of unreadable images in a message


@dataclass(frozen=True)
class Finding:
    """A problem or a note to show to the user before training; training does not start if `level` is "blocked"."""

    level: Level
    kind: Kind
    text: str


def verdict(findings: Sequence[Finding]) -> Literal["fine", "warnings", "blocked"]:
    """Return the overall verdict, determined by the most serious finding.

    >>> verdict([Finding("note", "near_duplicates", "a"), Finding("warning", "imbalance", "b")])
    'warnings'
    """
    levels = {finding.level for finding in findings}
    return "blocked" if "blocked" in levels else "warnings" if "warning" in levels else "fine"


class BadImage(NamedTuple):
    """An image that cannot be used: its row in the records, its path, and the reason."""

    row: int
    path: Path
    reason: str


def find_bad_images(
    records: Records, *, intensity: IntensityRange | None = None, workers: int = 0, advance: Advance | None = None
) -> list[BadImage]:
    """Decode all images and return the missing and unreadable ones."""
    return bad_images(records, fingerprints(records.paths, intensity=intensity, workers=workers, advance=advance))


def bad_images(records: Records, fingerprints: Sequence[Fingerprint]) -> list[BadImage]:
    """Return the images that could not be decoded, according to their fingerprints.

    >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "train"], np.ones((2, 1)))
    >>> bad_images(records, [Fingerprint(None, (4, 3)), Fingerprint("the file is empty")])
    [BadImage(row=1, path=PosixPath('b.jpg'), reason='the file is empty')]
    """
    reasons = enumerate(fingerprint.reason for fingerprint in fingerprints)
    return [BadImage(row, records.paths[row], reason) for row, reason in reasons if reason is not None]


def without_bad(records: Records, bad: Sequence[BadImage], *, share: float | None = None) -> Records:
    """Return the records without bad images; raise `DataError` if `unreadable` returns a blocking finding.

    >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "train"], np.ones((2, 1)))
    >>> bad = [BadImage(1, Path("b.jpg"), "the file is empty")]
    >>> without_bad(records, bad, share=0.5).paths
    (PosixPath('a.jpg'),)
    >>> without_bad(records, bad)
    Traceback (most recent call last):
    ...
    probmcl.errors.DataError: 1 of 2 images cannot be used:
      b.jpg: the file is empty
    repair or remove them, or skip them with `skip_bad=0.5`
    """
    refuse_share(share)
    for finding in unreadable(records, bad, share):
        if finding.level == "blocked":
            raise DataError(finding.text)
    return records.take(usable_rows(records, bad)) if bad else records


def usable_rows(records: Records, bad: Sequence[BadImage]) -> Int[ndarray, "K"]:
    """Return the rows of the readable images."""
    return np.setdiff1d(np.arange(len(records)), [image.row for image in bad])


def unreadable(records: Records, bad: Sequence[BadImage], share: float | None) -> list[Finding]:
    """Return a finding that lists the bad images, or nothing if there are none.

    It blocks training if `share` is None, if a larger share of the images is bad, or if a split would become empty.
    """
    if not bad:
        return []
    lines = [f"  {records.where(image.row)}: {image.reason}" for image in bad[:LISTED]]
    lines += [f"  and {len(bad) - LISTED:,} more"] if len(bad) > LISTED else []
    usable = {records.split[row] for row in usable_rows(records, bad)}
    lost = [split for split in SPLITS if split in records.split and split not in usable]
    bad_share, excess, remedy = len(bad) / len(records), "", []
    if share is None or bad_share > share:
        excess = "" if share is None else f", more than `skip_bad={share:g}` allows"
        skip = f", or skip them with `skip_bad={_round_up(bad_share):g}`" if bad_share < 1 else ""
        remedy = [f"repair or remove them{skip}"]
    elif lost:
        remedy = [f"without them the {lost[0]} split would be empty; repair some of them or add other images"]
    title = f"{len(bad):,} of {len(records):,} images cannot be used{excess}:"
    return [Finding("blocked" if remedy else "warning", "unreadable", "\n".join([title, *lines, *remedy]))]


def _round_up(share: float) -> float:
    """Round up to one significant digit; above 0.9, to 0.99, 0.999 and so on."""
    digits = [digit / 10**n for n in (6, 5, 4, 3, 2, 1) for digit in range(1, 10)]
    nines = [(10**n - 1) / 10**n for n in (2, 3, 4, 5, 6)]
    return next((rounded for rounded in (*digits, *nines) if share <= rounded), nines[-1])


def statistics(records: Records, duplicates: Duplicates) -> dict[str, Any]:
    """Return the counts, sizes, unreadable images and duplicates, ready for JSON."""
    per_class, present, where = _per_class(records), records.states.present(), records.where
    bad = bad_images(records, duplicates.fingerprints)
    conflicts = [_conflict(records, rows) for rows in duplicates.exact]
    return {
        "images": len(records),
        "classes": len(records.label_space),
        "splits": {split: len(records.rows(split)) for split in SPLITS},
        "groups": None if records.group is None else len(set(records.group)),
        "per_class": per_class,
        "images_without_labels": int((np.diff(present.indptr) == 0).sum()),
        "labels_per_image": present.nnz / max(len(records), 1),
        "not_known": 1 - records.states.known_share(),
        "imbalance": _imbalance(per_class),
        "together": _cooccurrences(records),
        "sizes": _sizes([image for image in duplicates.fingerprints if image.reason is None]),
        "unreadable": [{"image": where(image.row), "reason": image.reason} for image in bad],
        "nearly_constant": [where(row) for row, image in enumerate(duplicates.fingerprints) if image.nearly_constant],
        "exact_duplicates": [[where(row) for row in rows] for rows in duplicates.exact],
        "conflicting_labels": [conflict for conflict in conflicts if conflict["classes"]],
        "near_duplicates": [_pair(records, pair) for pair in duplicates.near],
    }


def _per_class(records: Records) -> PerClass:
    by_split = {split: records.states.take(records.rows(split)).settled_counts() for split in SPLITS}
    return {
        name: {
            state.name.lower(): {split: int(counts[state, k]) for split, counts in by_split.items()} for state in State
        }
        for k, name in enumerate(records.label_space.names)
    }


def _totals(per_class: PerClass, state: str) -> dict[str, int]:
    return {name: sum(counts[state].values()) for name, counts in per_class.items()}


def _imbalance(per_class: PerClass) -> dict[str, Any] | None:
    """Return the most and the least frequent of the classes with at least one positive."""
    positives = {name: count for name, count in _totals(per_class, "present").items() if count}
    if not positives:
        return None
    most, least = max(positives, key=positives.__getitem__), min(positives, key=positives.__getitem__)
    ratio = positives[most] / positives[least]
    return {"most": [most, positives[most]], "least": [least, positives[least]], "ratio": ratio}


def _cooccurrences(records: Records) -> list[dict[str, Any]]:
    """Return the class pairs that co-occur most often; `share` is relative to the images of the rarer class."""
    from scipy.sparse import triu

    present, names = records.states.present().astype(np.int64), records.label_space.names
    counts = present.sum(axis=0)
    pairs = triu(present.T @ present, k=1).tocoo()
    order = np.argsort(-pairs.data, kind="stable")[:COOCCURRENCES]
    return [
        {"classes": [names[a], names[b]], "images": int(images), "share": float(images / min(counts[a], counts[b]))}
        for a, b, images in zip(pairs.row[order], pairs.col[order], pairs.data[order], strict=True)
    ]


def _sizes(readable: Sequence[Fingerprint]) -> dict[str, Any]:
    sizes = dict(zip(("width", "height"), zip(*(image.size for image in readable), strict=True), strict=False))
    ranges = {side: {"least": min(x), "median": int(np.median(x)), "most": max(x)} for side, x in sizes.items()}
    modes = Counter(image.mode for image in readable)
    return {"width": None, "height": None, **ranges, "modes": dict(modes.most_common())}


def _conflict(records: Records, rows: Sequence[int]) -> dict[str, Any]:
    """Return the classes that are positive for some of these identical images and negative for others."""
    labels, known = records.states.labels_and_known(np.array(rows))
    differ = ((labels == 1) & known).any(axis=0) & ((labels == 0) & known).any(axis=0)
    names = records.label_space.names
    return {"images": [records.where(row) for row in rows], "classes": [names[k] for k in np.flatnonzero(differ)]}


def _pair(records: Records, pair: NearPair) -> dict[str, Any]:
    rows = (pair.one, pair.other)
    scores = {"distance": pair.distance, "correlation": pair.correlation, "confirmed": pair.confirmed}
    return {"images": [records.where(row) for row in rows], "splits": [records.split[row] for row in rows], **scores}


def findings(records: Records, content: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the warnings and notes that follow from `content`, the result of `statistics`."""
    yield from _image_findings(content)
    for text in records.origin.warnings if records.origin else ():
        yield Finding("warning", "reading", text)
    for kind, problem, applies in _class_problems(content["per_class"]):
        names = [name for name in content["per_class"] if applies(name)]
        if names:
            listed = f"{len(names):,} ({', '.join(names[:8])}{', …' if len(names) > 8 else ''})"
            yield Finding("warning", kind, f"classes {problem}: {listed}")
    if content["imbalance"] and content["imbalance"]["ratio"] > MAX_IMBALANCE:
        (most, more), (least, fewer) = content["imbalance"]["most"], content["imbalance"]["least"]
        yield Finding("warning", "imbalance", f"imbalance: {more:,} positives of {most!r}, {fewer:,} of {least!r}")
    unknown = int((~records.states.any_known()).sum())
    if unknown:
        yield Finding("warning", "nothing_known", f"images without a known label: {unknown:,}")


def _image_findings(content: Mapping[str, Any]) -> Iterator[Finding]:
    constant, conflicts = content["nearly_constant"], content["conflicting_labels"]
    if constant:
        text = f"images of nearly uniform color: {len(constant):,}, for example {constant[0]}"
        yield Finding("warning", "nearly_constant", text)
    if conflicts:
        pair, classes = " and ".join(conflicts[0]["images"][:2]), ", ".join(conflicts[0]["classes"])
        text = f"identical images with different labels: {len(conflicts):,}, for example {pair} ({classes})"
        yield Finding("warning", "conflicting_labels", text)
    copies = sum(len(rows) - 1 for rows in content["exact_duplicates"])
    if copies:
        yield Finding("note", "exact_duplicates", f"files with the same content as another file: {copies:,}")
    within = sum(pair["confirmed"] and len(set(pair["splits"])) == 1 for pair in content["near_duplicates"])
    if within:
        yield Finding("note", "near_duplicates", f"pairs of near-duplicate images within a split: {within:,}")


def _class_problems(per_class: PerClass) -> list[tuple[Kind, str, Callable[[str], bool]]]:
    positives, negatives = _totals(per_class, "present"), _totals(per_class, "absent")
    train, test = ({name: x["present"][split] for name, x in per_class.items()} for split in ("train", "test"))
    few = MIN_TRAIN_POSITIVES
    unlearnable, unscorable = "known negatives (they cannot be learned)", "positives in test (they cannot be scored)"
    return [
        ("no_positive", "without positives", lambda n: not positives[n]),
        ("no_train_positive", "without positives in train", lambda n: not train[n] and positives[n] > 0),
        ("few_train_positives", f"with fewer than {few} positives in train", lambda n: 0 < train[n] < few),
        ("no_negative", f"without {unlearnable}", lambda n: not negatives[n] and positives[n] > 0),
        ("no_test_positive", f"without {unscorable}", lambda n: train[n] > 0 and not test[n]),
    ]
