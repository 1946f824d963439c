"""The audit of data before a run: everything that `check` reports and `train` refuses."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.console import Console
from probmcl.data.duplicates.search import REMEDY, Duplicates, Leaks, find_duplicates, leaks
from probmcl.data.findings import BadImage, Finding, bad_images, findings, statistics, unreadable, usable_rows, verdict
from probmcl.data.formats.table.image_columns import RepeatedRowsError
from probmcl.data.intensity import IntensityRange, find_intensity_range, parse_range
from probmcl.data.options import DataChecks, DataSource, SkippedImage
from probmcl.data.read import read_source
from probmcl.data.records import SPLITS, Records, describe
from probmcl.data.split import SplitRecords, divide, given_split, units_of, with_split
from probmcl.errors import DataError, OptionError, RunWarning
from probmcl.runtime.distributed import broadcast, is_main_process


@dataclass(frozen=True)
class PreparedData:
    """Data that a run can start with: readable images in their splits, and how to read them again."""

    records: Records
    source: DataSource
    intensity: IntensityRange | None  # of 16-bit and float images; None if there are none
    fold_of: Int[ndarray, "N"] | None  # from 1; None without folds
    warnings: list[RunWarning]  # about leaks that were allowed


def prepare_data(
    source: DataSource, checks: DataChecks = DataChecks(), *, seed: int = 0, workers: int = 0, console: Console
) -> PreparedData:
    """Read and audit data; every finding that `check` reports as blocked is an error.

    With several processes rank 0 does the audit and sends its result to the others.
    """
    records = read_source(source)
    result: dict[str, Any] = {}
    failure: Exception | None = None
    if is_main_process():
        try:
            result = _accepted(_audit(records, checks, seed, workers, console), console)
        except (ValueError, OSError) as error:  # raised below: the other processes wait for the broadcast
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
    """Audit data as `prepare_data` does and report everything found, as JSON; no file is changed.

    Data that cannot be read are one blocked finding. A wrong option says nothing about the data, and is an error.
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
    every = [*audit.findings, *findings(records, content)]
    levels = None if intensity is None else str(intensity)
    origin, note = str(records.origin or ""), audit.splits.note or "as given"
    about = {"understood": origin, "split": note, "summary": describe(records), "levels": levels}
    return about | content | {"findings": [vars(finding) for finding in every], "verdict": verdict(every)}


def read_again(source: DataSource, split_file: Path) -> Records:
    """Read the images of a run again, in the splits that it wrote to a file."""
    return given_split(read_source(source), split_file)


def refuse_empty_splits(records: Records) -> None:
    """Refuse records without an image in one of the splits."""
    for split in SPLITS:
        if split not in records.split:
            needed = f"a run needs some in each of {', '.join(SPLITS)}"
            raise DataError(f"of {len(records)} images no image belongs to the {split} split; {needed}")


def refuse_unscorable(records: Records) -> None:
    """Refuse records that a comparison cannot score: each split needs images, val and test a positive label."""
    refuse_empty_splits(records)
    for split in SPLITS[1:]:
        rows = records.rows(split)
        if not (records.known[rows] & (records.labels[rows] == 1)).any():
            raise DataError(f"none of the {len(rows)} {split} images is known to have a label: nothing can be scored")


class _Audit(NamedTuple):
    """The result of an audit: `records` are all images, `splits` the readable ones in their splits."""

    records: Records
    intensity: IntensityRange | None
    duplicates: Duplicates
    bad: list[BadImage]
    splits: SplitRecords
    findings: list[Finding]


def _audit(records: Records, checks: DataChecks, seed: int, workers: int, console: Console) -> _Audit:
    """Decode every image, split the readable ones, and look for leaks."""
    if seed < 0:
        raise OptionError("seed", seed, "must be at least 0")
    intensity = find_intensity_range(records.paths, parse_range(checks.range), seed=seed, workers=workers)
    duplicates = find_duplicates(records.paths, intensity=intensity, workers=workers, console=console)
    bad = bad_images(records, duplicates.fingerprints)
    rows = usable_rows(records, bad)
    together = [np.searchsorted(rows, same).tolist() for same in duplicates.together()]
    splits = divide(records.take(rows), checks, seed, together, [image.path for image in bad])
    split = np.array(records.split, dtype="<U5")
    split[rows] = splits.records.split
    audited = with_split(records, split).with_note(splits.note)
    leaking = leaks(audited.split, audited.group, duplicates.exact, duplicates.near, rows.tolist())
    blocking = [
        *_empty_splits(splits.records, together),
        *unreadable(records, bad, checks.skip_bad),
        *_leaking(records, leaking, checks.allow_leaks),
    ]
    return _Audit(audited, intensity, duplicates, bad, splits, blocking)


def _accepted(audit: _Audit, console: Console) -> dict[str, Any]:
    """Return the result of an audit as JSON, or raise an error with all blocked findings."""
    blocked = [finding.text for finding in audit.findings if finding.level == "blocked"]
    if blocked:
        raise DataError("\n".join(blocked))
    skipped = [{"path": str(image.path), "reason": image.reason} for image in audit.bad]
    for image in skipped:
        console.print(f"  skipped: {image['path']}: {image['reason']}")
    leaking = [finding for finding in audit.findings if finding.kind in ("leak", "doubtful_leak")]
    for line in (line for finding in leaking for line in finding.text.split("\n")):
        console.print(f"  {line}")
    readable, note, fold_of = audit.splits
    return {
        "skipped": skipped,
        "split": readable.split,
        "note": note,
        "intensity": audit.intensity and asdict(audit.intensity),
        "fold_of": None if fold_of is None else fold_of.tolist(),
        "leaks": [f"allowed by `allow_leaks`:\n{finding.text}" for finding in leaking if finding.kind == "leak"],
    }


def _empty_splits(records: Records, together: Sequence[Sequence[int]]) -> list[Finding]:
    empty = [split for split in SPLITS if split not in records.split]
    if not empty:
        return []
    units = len(np.unique(units_of(records, together)))
    counts = ", ".join(f"{split} {records.split.count(split):,}" for split in SPLITS)
    text = f"no image belongs to the {' or '.join(empty)} split ({counts}); a run needs some in each of them"
    if units < len(SPLITS):
        text += f", and groups and copies join the images into {units} that cannot be divided; add others"
    else:
        text += f"; give {' and '.join(empty)} some, or leave the split to probmcl with `split_column=''`"
    return [Finding("blocked", "empty_split", text)]


def _leaking(records: Records, leaking: Leaks, allowed: bool) -> list[Finding]:
    lines = leaking.lines([records.where(row) for row in range(len(records))])
    if not lines:
        return []
    if leaking.blocks and not allowed:
        return [Finding("blocked", "leak", "\n".join([*lines, REMEDY]))]
    return [Finding("warning", "leak" if leaking.blocks else "doubtful_leak", "\n".join(lines))]
