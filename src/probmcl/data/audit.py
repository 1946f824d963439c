"""Audit of the data before a run, used by `probmcl check` and `probmcl train`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.console import Console
from probmcl.data.duplicates.search import REMEDY, Duplicates, Leaks, find_duplicates, find_leaks
from probmcl.data.findings import BadImage, Finding, bad_images, findings, statistics, unreadable, usable_rows, verdict
from probmcl.data.formats.table.entries import RepeatedRowsError
from probmcl.data.intensity import IntensityRange, find_intensity_range, parse_range
from probmcl.data.options import DataChecks, DataSource, SkippedImage
from probmcl.data.read import read_source
from probmcl.data.records import SPLITS, Records, describe
from probmcl.data.split import SplitRecords, read_splits, split_records, units_of, with_split
from probmcl.errors import DataError, OptionError, RunWarning
from probmcl.runtime.distributed import broadcast, is_main_process


@dataclass(frozen=True)
class PreparedData:
    """Data that passed the audit: readable images with their splits, and the source to read them from again."""

    records: Records
    source: DataSource
    intensity: IntensityRange | None  # for 16-bit and float images; None if there are none
    fold_of: Int[ndarray, "N"] | None  # numbered from 1; None without folds
    warnings: list[RunWarning]  # about leaks that were allowed


def prepare_data(
    source: DataSource, checks: DataChecks = DataChecks(), *, seed: int = 0, workers: int = 0, console: Console
) -> PreparedData:
    """Read and audit the data, and raise `DataError` if there is a blocking finding.

    With several processes, rank 0 runs the audit and broadcasts the result.
    """
    records = read_source(source)
    result: dict[str, Any] = {}
    failure: Exception | None = None
    if is_main_process():
        try:
            result = _accept(_audit(records, checks, seed, workers, console), console)
        except (ValueError, OSError) as error:  # raised after the broadcast, which the other processes wait for
            failure, result = error, {"error": str(error)}
    result = broadcast(result)
    if "error" in result:
        raise failure or DataError(result["error"])
    skipped = tuple(SkippedImage(**image) for image in result["skipped"])
    source = replace(source, skipped=skipped, leaks_allowed=tuple(result["leaks"]))
    records = records.without([image.path for image in skipped])
    records = with_split(records, np.array(result["split"])).with_note(result["note"])
    intensity = result["intensity"] and IntensityRange(**result["intensity"])
    console.print(describe(records))
    if intensity:
        console.print(str(intensity))
    fold_of = None if result["fold_of"] is None else np.array(result["fold_of"])
    return PreparedData(records, source, intensity, fold_of, [RunWarning("leak", text) for text in result["leaks"]])


def check(
    source: DataSource, checks: DataChecks = DataChecks(), *, seed: int = 0, workers: int = 0, console: Console
) -> dict[str, Any]:
    """Audit the data like `prepare_data` and return a JSON report of all findings. No file is changed.

    Data that cannot be read are reported as a single blocking finding; an invalid option raises an error.
    """
    try:
        audit = _audit(read_source(source), checks, seed, workers, console)
    except DataError as error:
        rows = {}
        if isinstance(error, RepeatedRowsError):
            rows = {"duplicated_rows": error.same, "conflicting_rows": error.different}
        return rows | {"findings": [vars(Finding("blocked", "data", str(error)))], "verdict": "blocked"}
    records, intensity = audit.records, audit.intensity
    content = statistics(records, audit.duplicates)
    problems = [*audit.findings, *findings(records, content)]
    levels = None if intensity is None else str(intensity)
    origin, note = str(records.origin or ""), audit.splits.note or "as given"
    overview = {"understood": origin, "split": note, "summary": describe(records), "levels": levels}
    return overview | content | {"findings": [vars(finding) for finding in problems], "verdict": verdict(problems)}


def read_again(source: DataSource, split_file: Path) -> Records:
    """Read the data of an earlier run, with the splits that it saved."""
    return read_splits(read_source(source), split_file)


def refuse_empty_splits(records: Records) -> None:
    """Raise `DataError` if train, val or test is empty."""
    for split in SPLITS:
        if split not in records.split:
            remedy = f"each of {', '.join(SPLITS)} needs images"
            raise DataError(f"none of the {len(records)} images is in the {split} split; {remedy}")


def refuse_unscorable(records: Records) -> None:
    """Raise `DataError` if a split is empty, or if val or test has no known positive label."""
    refuse_empty_splits(records)
    for split in SPLITS[1:]:
        rows = records.rows(split)
        if not (records.known[rows] & (records.labels[rows] == 1)).any():
            raise DataError(f"none of the {len(rows)} {split} images has a known positive label; change the split")


class _Audit(NamedTuple):
    """The result of an audit. `records` has all images, `splits` only the readable ones."""

    records: Records
    intensity: IntensityRange | None
    duplicates: Duplicates
    bad: list[BadImage]
    splits: SplitRecords
    findings: list[Finding]


def _audit(records: Records, checks: DataChecks, seed: int, workers: int, console: Console) -> _Audit:
    """Decode every image, split the readable ones and look for leaks."""
    if seed < 0:
        raise OptionError("seed", seed, "must be at least 0")
    intensity = find_intensity_range(records.paths, parse_range(checks.range), seed=seed, workers=workers)
    duplicates = find_duplicates(records.paths, intensity=intensity, workers=workers, console=console)
    bad = bad_images(records, duplicates.fingerprints)
    rows = usable_rows(records, bad)
    together = [np.searchsorted(rows, same).tolist() for same in duplicates.together()]
    splits = split_records(records.take(rows), checks, seed, together, [image.path for image in bad])
    split = np.array(records.split, dtype="<U5")
    split[rows] = splits.records.split
    audited = with_split(records, split).with_note(splits.note)
    leaks = find_leaks(audited.split, audited.group, duplicates.exact, duplicates.near, rows.tolist())
    blocking = [
        *_empty_split_findings(splits.records, together),
        *unreadable(records, bad, checks.skip_bad),
        *_leak_findings(records, leaks, checks.allow_leaks),
    ]
    return _Audit(audited, intensity, duplicates, bad, splits, blocking)


def _accept(audit: _Audit, console: Console) -> dict[str, Any]:
    """Return the result of an audit as JSON, or raise an error that lists all blocking findings."""
    blocked = [finding.text for finding in audit.findings if finding.level == "blocked"]
    if blocked:
        raise DataError("\n".join(blocked))
    skipped = [{"path": str(image.path), "reason": image.reason} for image in audit.bad]
    for image in skipped:
        console.print(f"  skipped: {image['path']}: {image['reason']}")
    leaks = [finding for finding in audit.findings if finding.kind in ("leak", "doubtful_leak")]
    for line in (line for finding in leaks for line in finding.text.split("\n")):
        console.print(f"  {line}")
    readable, note, fold_of = audit.splits
    return {
        "skipped": skipped,
        "split": readable.split,
        "note": note,
        "intensity": audit.intensity and asdict(audit.intensity),
        "fold_of": None if fold_of is None else fold_of.tolist(),
        "leaks": [f"allowed by `allow_leaks`:\n{finding.text}" for finding in leaks if finding.kind == "leak"],
    }


def _empty_split_findings(records: Records, together: Sequence[Sequence[int]]) -> list[Finding]:
    empty = [split for split in SPLITS if split not in records.split]
    if not empty:
        return []
    units = len(np.unique(units_of(records, together)))
    counts = ", ".join(f"{split} {records.split.count(split):,}" for split in SPLITS)
    text = f"no image is in the {' or '.join(empty)} split ({counts}), but every split needs images"
    if units < len(SPLITS):
        text += f"; groups and duplicates are never divided, which leaves only {units} to distribute; add images"
    else:
        text += f"; assign images to {' and '.join(empty)}, or let probmcl make the splits with `split_column=''`"
    return [Finding("blocked", "empty_split", text)]


def _leak_findings(records: Records, leaks: Leaks, allowed: bool) -> list[Finding]:
    lines = leaks.lines([records.where(row) for row in range(len(records))])
    if not lines:
        return []
    if leaks.blocks and not allowed:
        return [Finding("blocked", "leak", "\n".join([*lines, REMEDY]))]
    return [Finding("warning", "leak" if leaks.blocks else "doubtful_leak", "\n".join(lines))]
