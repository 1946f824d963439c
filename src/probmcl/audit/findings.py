"""Findings about the data: missing and unreadable images, and problems with images and labels."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.audit.duplicates.hashing import Fingerprint
from probmcl.audit.duplicates.search import Duplicates
from probmcl.audit.statistics import AuditStatistics, LabelCounts, PerClass, SplitCounts
from probmcl.data.images import MISSING
from probmcl.data.records import SPLITS, Records
from probmcl.errors import LISTED, DataError, Reading, counted, listed
from probmcl.readers.options import refuse_share

Level = Literal["blocked", "warning", "note"]
Kind = (
    Literal[
        "question", "data", "empty_split", "too_few_images", "missing", "unreadable", "leak", "doubtful_leak", "reading"
    ]
    | Literal["damaged", "nearly_constant", "conflicting_labels", "exact_duplicates", "near_duplicates", "imbalance"]
    | Literal["no_positive", "no_train_positive", "few_train_positives", "no_test_positive", "nothing_known"]
    | Literal["no_negative", "no_train_negative", "few_train_negatives", "no_test_negative"]
)

MAX_IMBALANCE = 100.0  # between the positives of the most and least frequent classes; a larger ratio is a warning
MIN_TRAIN_LABELS = 10  # positives and known negatives per class


@dataclass(frozen=True)
class Finding:
    """A problem or a note to show to the user before training.

    Attributes:
        level: training does not start if this is "blocked".
        kind: name of the problem for scripts.
        text: the problem and its remedy, with the first entries of a long list.
        items: the complete list.
        readings: options that let training start: the readings of ambiguous data, or one way to accept a problem.
    """

    level: Level
    kind: Kind
    text: str
    items: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()


def audit_verdict(findings: Sequence[Finding]) -> Literal["fine", "warnings", "blocked"]:
    """Return the overall verdict, determined by the most serious finding.

    >>> audit_verdict([Finding("note", "near_duplicates", "a"), Finding("warning", "imbalance", "b")])
    'warnings'
    """
    levels = {finding.level for finding in findings}
    if "blocked" in levels:
        return "blocked"
    if "warning" in levels:
        return "warnings"
    return "fine"


class BadImage(NamedTuple):
    """An image that cannot be used: its row in the records, its path, and the reason."""

    row: int
    path: Path
    reason: str


def bad_images(records: Records, fingerprints: Sequence[Fingerprint]) -> list[BadImage]:
    """Return the images that could not be decoded, according to their fingerprints.

    >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "train"], np.ones((2, 1)))
    >>> bad_images(records, [Fingerprint(None, (4, 3)), Fingerprint("the file is empty")])
    [BadImage(row=1, path=PosixPath('b.jpg'), reason='the file is empty')]
    """
    return [
        BadImage(row, records.paths[row], image.reason)
        for row, image in enumerate(fingerprints)
        if image.reason is not None
    ]


def without_bad(records: Records, bad: Sequence[BadImage], *, share: float | None = None) -> Records:
    """Return the records without bad images; raise `DataError` if `skip_bad=share` does not allow that.

    >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "train"], np.ones((2, 1)))
    >>> bad = [BadImage(1, Path("b.jpg"), "the file is empty")]
    >>> without_bad(records, bad, share=0.5).paths
    (PosixPath('a.jpg'),)
    >>> without_bad(records, bad)
    Traceback (most recent call last):
    ...
    probmcl.errors.DataError: 1 of 2 images cannot be used:
      b.jpg: the file is empty
    repair or remove it, or skip the unreadable image with `skip_bad=0.5`
    """
    refuse_share(share)
    skipping = _skipping(records, bad, share)
    if skipping.blocked:
        title = f"{len(bad):,} of {counted(len(records), 'image')} cannot be used{skipping.note}:"
        remedy = f"repair or remove {_them(bad)}{skipping.remedy}"
        raise DataError("\n".join([title, *listed(_described(records, bad)), remedy]))
    if not bad:
        return records
    return records.take(usable_rows(records, bad))


def usable_rows(records: Records, bad: Sequence[BadImage]) -> Int[ndarray, "K"]:
    """Return the rows of the readable images."""
    return np.setdiff1d(np.arange(len(records)), [image.row for image in bad])


def unusable(records: Records, bad: Sequence[BadImage], share: float | None) -> list[Finding]:
    """Return a finding about the missing images and one about the unreadable images, if there are any.

    They block training if `share` is None, if a larger share of the images is bad, or if a split would become empty.
    """
    missing = _described(records, [image for image in bad if image.reason == MISSING])
    unreadable = _described(records, [image for image in bad if image.reason != MISSING])
    images = counted(len(records), "image")
    skipping = _skipping(records, bad, share)
    findings = []
    if missing:
        found = len(records) - len(missing)
        title = f"{found:,} of {images} found, {len(missing):,} missing"
        action = "add the file" if len(missing) == 1 else "add the files"
        findings.append(_unusable_finding("missing", title, missing, action, skipping))
    if unreadable:
        title = f"{len(unreadable):,} of {images} cannot be read"
        action = f"repair or remove {_them(unreadable)}"
        findings.append(_unusable_finding("unreadable", title, unreadable, action, skipping))
    return findings


def _unusable_finding(kind: Kind, title: str, items: Sequence[str], action: str, skipping: "_Skipping") -> Finding:
    """Return a finding about bad images: a warning if they are skipped; otherwise it blocks training."""
    lines = [f"{title}{skipping.note}:", *listed(items)]
    if not skipping.blocked:
        return Finding("warning", kind, "\n".join(lines), tuple(items), skipping.readings)
    lines.append(f"{action}{skipping.remedy}")
    return Finding("blocked", kind, "\n".join(lines), tuple(items), skipping.readings)


def damaged(records: Records, fingerprints: Sequence[Fingerprint]) -> list[Finding]:
    """Return a warning about the images that can be decoded although their files are damaged, if there are any.

    >>> records = Records.from_labels(["cat"], [Path("a.jpg"), Path("b.jpg")], ["train", "train"], np.ones((2, 1)))
    >>> damage = "Corrupt JPEG data: premature end of data segment"
    >>> print(damaged(records, [Fingerprint(None), Fingerprint(None, damage=damage)])[0].text)
    1 of 2 images is damaged, so a part of it is gray or wrong:
      b.jpg: Corrupt JPEG data: premature end of data segment
    look at it, and replace or remove it
    """
    items = [
        f"{records.where(row)}: {image.damage}" for row, image in enumerate(fingerprints) if image.damage is not None
    ]
    if not items:
        return []
    if len(items) == 1:
        effect = "is damaged, so a part of it is gray or wrong"
    else:
        effect = "are damaged, so parts of them are gray or wrong"
    title = f"{len(items):,} of {counted(len(records), 'image')} {effect}:"
    remedy = f"look at {_them(items)}, and replace or remove {_them(items)}"
    text = "\n".join([title, *listed(items), remedy])
    return [Finding("warning", "damaged", text, tuple(items))]


def _described(records: Records, bad: Sequence[BadImage]) -> list[str]:
    """Return a line for each bad image: its row in the data, and why it cannot be used."""
    return [f"{records.where(image.row)}: {image.reason}" for image in bad]


class _Skipping(NamedTuple):
    """Whether training skips the bad images or is blocked by them.

    Attributes:
        blocked: true if they block training.
        note: the end of a finding's title, about the option `skip_bad`; it may be empty.
        remedy: the end of a finding's remedy; empty if only repairing or removing the images helps.
        readings: the option that skips the images, if there is one.
    """

    blocked: bool
    note: str
    remedy: str = ""
    readings: tuple[Reading, ...] = ()


def _skipping(records: Records, bad: Sequence[BadImage], share: float | None) -> _Skipping:
    """Decide whether to skip the bad images, given the share that `skip_bad` allows; None allows no bad image.

    Bad images cannot be used. They are skipped if there are not too many, and if no split becomes empty.
    """
    bad_share = len(bad) / max(len(records), 1)
    is_allowed = not bad or (share is not None and bad_share <= share)
    usable_splits = {records.split[row] for row in usable_rows(records, bad)}
    emptied = [split for split in SPLITS if split in records.split and split not in usable_splits]
    if is_allowed and not emptied:
        return _Skipping(blocked=False, note=" (skipped)")
    note = ""
    if not is_allowed and share is not None:
        note = f", more than `skip_bad={share:g}` allows"
    if not usable_splits:  # no image is left, so nothing can be skipped
        return _Skipping(blocked=True, note=note)
    if emptied:
        remedy = f"; without {_them(bad)} the {emptied[0]} split would be empty"
        return _Skipping(blocked=True, note=note, remedy=remedy)
    skip = _skip_option(bad, bad_share)
    remedy = f", or {skip.meaning} with `skip_bad={skip.options['skip_bad']}`"
    return _Skipping(blocked=True, note=note, remedy=remedy, readings=(skip,))


def _skip_option(bad: Sequence[BadImage], bad_share: float) -> Reading:
    """Return a `Reading` for the user to choose: what skipping the bad images means, and the option that does it.

    `bad_share` is their share of all images. The value of `skip_bad` is the largest share that may be skipped, so it is
    this share rounded up to a short number.
    """
    counts = Counter("missing" if image.reason == MISSING else "unreadable" for image in bad)
    if len(bad) == 1:
        [kind] = counts
        images = f"{kind} image"
    else:
        kinds = [f"{count:,} {kind}" for kind, count in sorted(counts.items())]
        images = " and ".join(kinds) + " images"
    allowed_share = _rounded_up_share(bad_share)
    return Reading(meaning=f"skip the {images}", options={"skip_bad": f"{allowed_share:g}"})


def _them(items: Sequence[object]) -> str:
    """Return the pronoun for the items in a message."""
    return "it" if len(items) == 1 else "them"


def _rounded_up_share(share: float) -> float:
    """Round up to one significant digit; above 0.9, to 0.99, 0.999 and so on."""
    digits = [digit / 10**n for n in (6, 5, 4, 3, 2, 1) for digit in range(1, 10)]  # 0.000001 to 0.9
    nines = [(10**n - 1) / 10**n for n in (2, 3, 4, 5, 6)]  # 0.99 to 0.999999
    for rounded in (*digits, *nines):
        if share <= rounded:
            return rounded
    return nines[-1]


def findings(records: Records, content: AuditStatistics, given: Duplicates | None = None) -> Iterator[Finding]:
    """Yield the warnings and notes that follow from `content`, the result of `statistics`.

    `given` are the duplicates if the user assigned the splits; splits made by probmcl keep copies together.
    """
    yield from _image_findings(content)
    if given is not None:
        yield from _copies(records.split, given)
    if records.origin is not None:
        for text in records.origin.warnings:
            yield Finding("warning", "reading", text)
    yield from _class_findings(content.per_class)
    imbalance = content.imbalance
    if imbalance is not None and imbalance.ratio > MAX_IMBALANCE:
        most = f"{imbalance.most_positives:,} positives of {imbalance.most!r}"
        least = f"{imbalance.least_positives:,} of {imbalance.least!r}"
        yield Finding("warning", "imbalance", f"imbalance: {most}, {least}")
    unknown = int((~records.states.any_known()).sum())
    if unknown:
        yield Finding("warning", "nothing_known", f"images without a known label: {unknown:,}")


def _first_names(names: Sequence[str]) -> str:
    """Return the first names of a list, for a message."""
    shown = ", ".join(names[:LISTED])
    if len(names) > LISTED:
        shown += ", …"
    return shown


def _image_findings(content: AuditStatistics) -> Iterator[Finding]:
    """Yield the warnings about nearly constant images, and about identical images with different labels."""
    constant = content.nearly_constant
    if constant:
        text = f"images of nearly uniform color: {len(constant):,}, for example {constant[0]}"
        yield Finding("warning", "nearly_constant", text, tuple(constant))
    conflicts = content.conflicting_labels
    if conflicts:
        items = [f"{' and '.join(conflict.images)} ({_first_names(conflict.classes)})" for conflict in conflicts]
        text = f"identical images with different labels: {len(conflicts):,}, for example {items[0]}"
        yield Finding("warning", "conflicting_labels", text, tuple(items))


def _copies(split: Sequence[str], duplicates: Duplicates) -> Iterator[Finding]:
    """Yield the number of copies within a split. Copies in different splits are leaks."""
    exact = 0
    for rows in duplicates.exact:
        splits = {split[row] for row in rows}
        exact += len(rows) - len(splits)  # one file of each split is the original
    near = sum(pair.confirmed and split[pair.one] == split[pair.other] for pair in duplicates.near)
    if exact:
        text = f"files with the same content as another file in their split: {exact:,}"
        yield Finding("note", "exact_duplicates", text)
    if near:
        yield Finding("note", "near_duplicates", f"pairs of near-duplicate images within a split: {near:,}")


def _class_findings(per_class: PerClass) -> Iterator[Finding]:
    """Yield a warning for each problem with the labels of a class, with the names of all classes that have it."""
    for problem in CLASS_PROBLEMS:
        names = [name for name, counts in per_class.items() if problem.applies(counts)]
        if names:
            text = f"classes {problem.text}: {len(names):,} ({_first_names(names)})"
            yield Finding("warning", problem.kind, text, tuple(names))


class ClassProblem(NamedTuple):
    """A problem with the labels of a class: its kind, its description, and whether a class has it."""

    kind: Kind
    text: str
    applies: Callable[[LabelCounts], bool]


def _has_few_in_train(counts: SplitCounts) -> bool:
    """Return whether there are labels of one state in train, but too few to learn from."""
    return 0 < counts.train < MIN_TRAIN_LABELS


def _is_only_outside_train(counts: SplitCounts) -> bool:
    """Return whether val or test has labels of one state, but train has none."""
    return counts.train == 0 and counts.total > 0


def _has_no_known_negative(counts: LabelCounts) -> bool:
    """Return whether a class has positives, but no known negative in any split."""
    return counts.absent.total == 0 and counts.present.total > 0


def _has_no_positive_to_test(counts: LabelCounts) -> bool:
    """Return whether a class has positives in train, but none in test."""
    return counts.present.train > 0 and counts.present.test == 0


def _has_no_negative_to_test(counts: LabelCounts) -> bool:
    """Return whether all known labels of a class in test are positive, although it has negatives in train."""
    return counts.absent.train > 0 and counts.present.test > 0 and counts.absent.test == 0


CLASS_PROBLEMS = (
    ClassProblem("no_positive", "without positives", lambda counts: counts.present.total == 0),
    ClassProblem(
        "no_train_positive", "without positives in train", lambda counts: _is_only_outside_train(counts.present)
    ),
    ClassProblem(
        "few_train_positives",
        f"with fewer than {MIN_TRAIN_LABELS} positives in train",
        lambda counts: _has_few_in_train(counts.present),
    ),
    ClassProblem("no_test_positive", "without positives in test (they cannot be scored)", _has_no_positive_to_test),
    ClassProblem("no_negative", "without known negatives (they cannot be learned)", _has_no_known_negative),
    ClassProblem(
        "no_train_negative",
        "without known negatives in train (they cannot be learned)",
        lambda counts: _is_only_outside_train(counts.absent),
    ),
    ClassProblem(
        "few_train_negatives",
        f"with fewer than {MIN_TRAIN_LABELS} known negatives in train",
        lambda counts: _has_few_in_train(counts.absent),
    ),
    ClassProblem(
        "no_test_negative",
        "without known negatives in test (every ranking gets the best score)",
        _has_no_negative_to_test,
    ),
)
"""Problems with the labels of a class, in the order in which they are reported."""
