"""Preparation of data for a run or a check: reading, the audit, the splits, and what blocks a run."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.audit.duplicates.search import REMEDY, Duplicates, Leaks, find_duplicates, find_leaks, leak_lines
from probmcl.audit.findings import BadImage, Finding, bad_images, damaged, findings, unusable, usable_rows
from probmcl.audit.result import DataAudit
from probmcl.audit.split_file import read_folds, read_splits
from probmcl.audit.statistics import AuditStatistics, RepeatedRows, UnreadableImage, statistics
from probmcl.console import Console
from probmcl.data.deep_images import find_intensity_range
from probmcl.data.image_files import Signature, sign, stamps
from probmcl.data.images import MISSING
from probmcl.data.pixels import IntensityRange, parse_range
from probmcl.data.records import SPLITS, Paths, Records, Split, describe
from probmcl.data.splitting import (
    MIN_TO_SPLIT,
    NOT_SPLIT,
    Sets,
    TooFewImagesError,
    folds,
    make_splits,
    taken_from_train,
    units_of,
    with_fold,
)
from probmcl.errors import DataError, OptionError, Question, Reading, RunWarning, counted
from probmcl.readers.options import DataChecks, DataSource, ReadOptions, SkippedImage
from probmcl.readers.read import read_recorded, read_source
from probmcl.readers.spreadsheet import load_spreadsheet
from probmcl.readers.table.entries import RepeatedRowsError
from probmcl.runtime.distributed import broadcast, is_main_process, world_size


class SplitRecords(NamedTuple):
    """Records with their splits, a note on how the splits were made ('' if the data define them), and the folds."""

    records: Records
    note: str
    fold_of: Int[ndarray, "N"] | None = None


def split_records(
    records: Records, checks: DataChecks, seed: int, together: Sets, left_out: Sequence[Path]
) -> SplitRecords:
    """Split records according to `checks.split_file` or `checks.folds`; without these options, call `make_splits`."""
    file = checks.split_file
    if checks.fold is not None:
        if file is not None:
            fold_of = read_folds(records, file, left_out=left_out)
        else:
            # `DataChecks` requires a number of folds if there is a test fold and no file.
            fold_of = folds(records, checks.folds or 0, seed=seed, together=together)
        result = with_fold(records, fold_of, checks.fold, seed=seed, together=together)
        note = f"test is fold {checks.fold} of {fold_of.max()}, val taken from the other folds with seed {seed}"
        return SplitRecords(result, note, fold_of)
    if file is None:
        result = make_splits(records, seed=seed, together=together)
        note = taken_from_train(records, result, seed)
        return SplitRecords(result, note)
    columns = load_spreadsheet(file, lambda names: "path" in names, most=0).columns
    if "fold" in columns and "split" not in columns:
        raise OptionError("split_file", file, "has folds; choose the test fold with `fold=K`")
    result = read_splits(records, file, left_out=left_out)
    return SplitRecords(result, f"splits from {file}")


@dataclass(frozen=True, eq=False)
class PreparedData:
    """Records that a run can train on, with what the audit has found out about them.

    Attributes:
        records: readable images with their splits.
        source: how the records can be read again; None if they were made in Python.
        intensity: the intensity range of 16-bit and float images; None if there are none.
        fold_of: the fold of each image, numbered from 1; None without folds.
        warnings: warnings to store with the run, such as leaks that were allowed.
        duplicates: the numbers of exact and near duplicates, whose copies may be in the same split.
        signatures: the signature of every image file, on rank 0; None if the files have not been read yet.
    """

    records: Records
    source: DataSource | None = None
    intensity: IntensityRange | None = None
    fold_of: Int[ndarray, "N"] | None = None
    warnings: tuple[RunWarning, ...] = ()
    duplicates: Mapping[str, int] | None = None
    signatures: Sequence[Signature] | None = None

    @classmethod
    def of(cls, records: Records, source: DataSource | None = None) -> "PreparedData":
        """Return records that need no audit, such as those made in Python; `source` tells how to read them again."""
        return cls(records, source)


def prepare_data(
    source: DataSource, checks: DataChecks = DataChecks(), *, seed: int = 0, workers: int = 0, console: Console
) -> PreparedData:
    """Read and audit the data, and raise `DataError` if there is a blocking finding.

    With several processes, rank 0 runs the audit and broadcasts its decision.
    """
    with console.working("reading the data"):
        records = read_source(source)
    audit = partial(_run_audit, records, checks, seed, workers, console)
    accepted = audit() if world_size() == 1 else _audit_once(records, audit)
    decision = accepted.decision
    console.print(describe(accepted.records))
    if decision.intensity is not None:
        console.print(str(decision.intensity))
    unlabeled = () if records.origin is None else records.origin.unlabeled
    used_source = replace(source, skipped=decision.skipped, leaks_allowed=decision.leaks, unlabeled=unlabeled)
    fold_of = None if decision.fold_of is None else np.array(decision.fold_of)
    return PreparedData(
        accepted.records,
        used_source.with_roots(records.paths.texts),
        intensity=decision.intensity,
        fold_of=fold_of,
        warnings=tuple(RunWarning("leak", text) for text in decision.leaks),
        duplicates=decision.duplicates,
        signatures=accepted.signatures,
    )


@dataclass(frozen=True)
class _Decision:
    """The decision of an audit that accepts the data. With several processes, rank 0 broadcasts it.

    Attributes:
        skipped: the images that cannot be used.
        split: the split of every readable image.
        note: how the splits were made; empty if the data define them.
        intensity: the intensity range of 16-bit and float images; None if there are none.
        fold_of: the fold of every readable image; None without folds.
        leaks: a warning for each kind of leak that was allowed.
        duplicates: the numbers of exact and near duplicates.
    """

    skipped: tuple[SkippedImage, ...]
    split: tuple[Split, ...]
    note: str
    intensity: IntensityRange | None
    fold_of: tuple[int, ...] | None
    leaks: tuple[str, ...]
    duplicates: dict[str, int]

    def apply(self, records: Records) -> Records:
        """Return the readable records with their splits: the same as those of the audit."""
        readable = records.without([image.path for image in self.skipped])
        return readable.with_split(np.array(self.split)).with_note(self.note)


class _Accepted(NamedTuple):
    """The readable records with their splits, the decision that led to them, and the signatures on rank 0."""

    records: Records
    decision: _Decision
    signatures: Sequence[Signature]


def _run_audit(records: Records, checks: DataChecks, seed: int, workers: int, console: Console) -> _Accepted:
    """Audit the records in this process, and raise `DataError` if there is a blocking finding.

    The result has a signature of every readable file, by which a resumed run notices a change: its stamp (size and
    modification time) and the digest of its content.
    """
    stamps_before = stamps(records.paths)  # a file that changes during the audit then differs from its signature
    audit = _audit(records, checks, seed, workers, console)
    _refuse_blocked(audit)
    _print_accepted(audit, console)
    decision = _decide(audit)
    usable: Iterable[int] = range(len(records))
    if audit.bad:
        usable = usable_rows(records, audit.bad).tolist()
    digests = (image.content for image in audit.duplicates.fingerprints)
    signatures = sign((stamps_before[row] for row in usable), digests)
    return _Accepted(audit.splits.records.with_note(decision.note), decision, signatures)


def _audit_once(records: Records, audit: Callable[[], _Accepted]) -> _Accepted:
    """Run the audit on rank 0. The other processes apply its decision to the records that they have read."""
    accepted: _Accepted | None = None
    failure: Exception | None = None
    message: dict[str, Any] = {}
    if is_main_process():
        try:
            accepted = audit()
            message = {"decision": msgspec.to_builtins(accepted.decision)}
        except (ValueError, OSError) as error:  # raised after the broadcast, which the other processes wait for
            failure = error
            message = {"error": str(error)}
    message = broadcast(message)
    if "error" in message:
        raise failure or DataError(message["error"])
    if accepted is not None:
        return accepted
    decision = msgspec.convert(message["decision"], _Decision)
    return _Accepted(decision.apply(records), decision, signatures=())


def audit_data(
    source: DataSource, checks: DataChecks = DataChecks(), *, seed: int = 0, workers: int = 0, console: Console
) -> DataAudit:
    """Audit the data like `prepare_data`, and return all findings instead of raising an error. No file is changed.

    Data that cannot be read, or that can be read in several ways, are reported as a single blocking finding; an invalid
    option raises an error. The statistics are those of the readable images.
    """
    data = str(source.data)
    try:
        with console.working("reading the data"):
            records = read_source(source)
        audit = _audit(records, checks, seed, workers, console)
    except Question as question:
        finding = Finding("blocked", "question", question.problem, readings=question.readings)
        return DataAudit(data, (finding,), AuditStatistics())
    except RepeatedRowsError as error:
        finding = Finding("blocked", "data", str(error))
        repeated = RepeatedRows(error.same, error.different)
        return DataAudit(data, (finding,), AuditStatistics(repeated_rows=repeated))
    except DataError as error:
        finding = Finding("blocked", "data", str(error))
        return DataAudit(data, (finding,), AuditStatistics())
    splits = audit.splits
    readable = splits.records.with_note(splits.note)
    content = _complete_statistics(audit, readable)
    # A note says how probmcl made the splits. It keeps copies together, so only copies in given splits are findings.
    splits_are_given = splits.note in ("", NOT_SPLIT) or checks.split_file is not None
    duplicates = audit.duplicates if splits_are_given else None
    return DataAudit(data, (*audit.findings, *findings(readable, content, duplicates)), content)


def _complete_statistics(audit: "_Audit", records: Records) -> AuditStatistics:
    """Return the statistics of the readable `records`, how they were read and split, and the images left out."""
    left_out = [UnreadableImage(audit.records.where(image.row), image.reason) for image in audit.bad]
    missing = [image.image for image in left_out if image.reason == MISSING]
    unreadable = [image for image in left_out if image.reason != MISSING]
    levels = None if audit.intensity is None else str(audit.intensity)
    return replace(
        statistics(records, audit.duplicates),
        understood=str(records.origin or ""),
        split=audit.splits.note or "as given",
        summary=describe(records),
        levels=levels,
        missing=missing,
        unreadable=unreadable,
    )


def read_again(
    source: DataSource,
    split_file: Path,
    console: Console,
    data: Path | str | None = None,
    images: Path | str | None = None,
) -> Records:
    """Read the data of an earlier run, with the splits that it saved.

    Args:
        source: the data of the run, and how it read them.
        split_file: the splits that the run saved.
        console: prints messages.
        data: where the data are now; None if they are where the run names them.
        images: the folder of the images, if it has changed.
    """
    if data is None:
        records = read_recorded(source.with_changes(images, ReadOptions()), console)
    else:
        moved = replace(DataSource.of(data, images, source.options), skipped=source.skipped)
        records = read_source(moved)
    return read_splits(records, split_file)


def refuse_empty_splits(records: Records) -> None:
    """Raise `DataError` if train, val or test is empty."""
    for split in SPLITS:
        if split not in records.split:
            remedy = f"each of {', '.join(SPLITS)} needs images"
            raise DataError(f"no image is in the {split} split ({counted(len(records), 'image')} in total); {remedy}")


def refuse_unscorable(records: Records) -> None:
    """Raise `DataError` if a split is empty, or if no class can be scored on val or test."""
    refuse_empty_splits(records)
    for split in ("val", "test"):
        labels, known = records.states.labels_and_known(records.rows(split))
        has_positive = ((labels == 1) & known).any(axis=0)
        has_negative = ((labels == 0) & known).any(axis=0)
        if not (has_positive & has_negative).any():
            images = counted(len(labels), f"{split} image")
            raise DataError(f"no class has both a positive and a negative in {images}; change the split")


class _Audit(NamedTuple):
    """The result of an audit. `records` has all images; `duplicates` and `splits` have only the readable ones."""

    records: Records
    intensity: IntensityRange | None
    duplicates: Duplicates
    bad: list[BadImage]
    splits: SplitRecords
    findings: list[Finding]


def _audit(records: Records, checks: DataChecks, seed: int, workers: int, console: Console) -> _Audit:
    """Decode every image, split the readable ones and look for leaks among them."""
    if seed < 0:
        raise OptionError("seed", seed, "must be at least 0")
    # `Path.exists` may raise an error, and a million Path objects would take 300 MB.
    existing = Paths(path for path in records.paths.texts if os.path.exists(path))  # noqa: PTH110
    intensity = find_intensity_range(existing, parse_range(checks.range), seed=seed, workers=workers)
    duplicates = find_duplicates(records.paths, intensity=intensity, workers=workers, console=console)
    bad = bad_images(records, duplicates.fingerprints)
    readable = records
    if bad:
        rows = usable_rows(records, bad)
        readable = records.take(rows)
        duplicates = duplicates.take(rows)
    with console.working("splitting the images"):
        left_out = [image.path for image in bad]
        splits, split_findings = _split(readable, checks, seed, duplicates.together(), left_out)
    problems = [
        *unusable(records, bad, checks.skip_bad),
        *damaged(readable, duplicates.fingerprints),
        *split_findings,
    ]
    if len(readable):
        leaks = find_leaks(splits.records.split, splits.records.group, duplicates.exact, duplicates.near)
        problems += _leak_findings(readable, leaks, checks.allow_leaks)
    return _Audit(records, intensity, duplicates, bad, splits, problems)


def _split(
    readable: Records, checks: DataChecks, seed: int, together: Sequence[Sequence[int]], left_out: Sequence[Path]
) -> tuple[SplitRecords, list[Finding]]:
    """Split the readable images; return a finding if there are too few of them, or if a split is empty.

    `together` are sets of rows that must be in one split, and `left_out` the images that cannot be read.
    """
    try:
        splits = split_records(readable, checks, seed, together, left_out)
    except TooFewImagesError as error:
        return SplitRecords(readable, NOT_SPLIT), [Finding("blocked", "too_few_images", str(error))]
    if not len(readable):  # the finding about unusable images says it already
        return splits, []
    return splits, _empty_split_findings(splits.records, together)


def _refuse_blocked(audit: _Audit) -> None:
    """Raise an error that lists all blocking findings, if there are any."""
    blocked = [finding.text for finding in audit.findings if finding.level == "blocked"]
    if blocked:
        raise DataError("\n".join(blocked))


def _print_accepted(audit: _Audit, console: Console) -> None:
    """Print the findings of an audit without blocking ones."""
    for finding in audit.findings:
        lines = finding.text.split("\n")
        if finding.level == "note":
            lines = [line for line in lines if not line.startswith(" ")]  # only `check` shows the examples of a note
        console.print("\n".join(f"  {line}" for line in lines))


def _decide(audit: _Audit) -> _Decision:
    """Return the decision of an audit without blocking findings, with the leaks that were allowed, as warnings."""
    splits = audit.splits
    fold_of = None if splits.fold_of is None else tuple(splits.fold_of.tolist())
    skipped = [SkippedImage(str(image.path), image.reason) for image in audit.bad]
    leaks = [f"allowed by `allow_leaks`:\n{found.text}" for found in audit.findings if found.kind == "leak"]
    exact_copies = sum(len(rows) - 1 for rows in audit.duplicates.exact)
    near_copies = sum(pair.confirmed for pair in audit.duplicates.near)
    return _Decision(
        skipped=tuple(skipped),
        split=splits.records.split,
        note=splits.note,
        intensity=audit.intensity,
        fold_of=fold_of,
        leaks=tuple(leaks),
        duplicates={"exact": exact_copies, "near": near_copies},
    )


def _empty_split_findings(records: Records, together: Sequence[Sequence[int]]) -> list[Finding]:
    """Return a finding if a split has no images; `together` are sets of rows that must be in one split."""
    empty = [split for split in SPLITS if split not in records.split]
    if not empty:
        return []
    counts = ", ".join(f"{split} {records.split.count(split):,}" for split in SPLITS)
    text = f"no image is in the {' or '.join(empty)} split ({counts}), but every split needs images"
    units = len(np.unique(units_of(records, together)))
    if units < len(SPLITS):
        text += f"; groups and duplicates are never divided, which leaves only {units} to distribute; add images"
        return [Finding("blocked", "empty_split", text)]
    text += f"; assign images to {' and '.join(empty)}"
    if len(records) >= MIN_TO_SPLIT:
        text += ', or let probmcl make the splits with `split_column=""`'
    return [Finding("blocked", "empty_split", text)]


def _leak_findings(records: Records, leaks: Leaks, allowed: bool) -> list[Finding]:
    """Return a finding about the certain leaks, if there are any, and one about the doubtful leaks.

    A leak is an image whose copy, or an image of the same group, is in another split. Certain leaks block training
    unless they are allowed. Doubtful leaks are images that may be copies; they are only a note.
    """
    findings = []
    # Each kind of leak, such as "identical files in train and test", with a text for each leak of this kind.
    certain_by_kind = leaks.described(records.where)  # `where` names the image of a row
    if certain_by_kind:
        text = "\n".join(leak_lines(certain_by_kind))
        items = tuple(chain.from_iterable(certain_by_kind.values()))
        if allowed:
            findings.append(Finding("warning", "leak", text, items))
        else:
            # The user can answer the finding with this option. A `Reading` is a meaning and the options that choose it.
            train_anyway = Reading("train despite the leaks", {"allow_leaks": "True"})
            findings.append(Finding("blocked", "leak", f"{text}\n{REMEDY}", items, readings=(train_anyway,)))
    doubtful_by_kind = leaks.described_doubtful(records.where)
    if doubtful_by_kind:
        text = "\n".join(leak_lines(doubtful_by_kind))
        items = tuple(chain.from_iterable(doubtful_by_kind.values()))
        findings.append(Finding("note", "doubtful_leak", text, items))
    return findings
