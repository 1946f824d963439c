"""Data on its way into a run: every image is looked at once, and what would spoil the run is found before it starts.

What cannot be read is left out or refused, a given split that leaks is refused, and one that is made here cannot leak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.console import Console
from probmcl.data.check import bad_images, refuse_share, without_bad
from probmcl.data.duplicates.hashing import Fingerprint, fingerprints
from probmcl.data.duplicates.leaks import REMEDY, NearPair, clusters, exact_duplicates, leaks, near_duplicates
from probmcl.data.formats.table.image_columns import RepeatedRowsError
from probmcl.data.formats.table.sheet import names_of_columns
from probmcl.data.intensity import IntensityRange, find_intensity_range, parse_range
from probmcl.data.read import describe, read
from probmcl.data.records import SPLITS, Records
from probmcl.data.split import folds, given_folds, given_split, make_splits, with_fold, with_split
from probmcl.data.survey import Finding, survey
from probmcl.errors import DataError, OptionError
from probmcl.runtime.distributed import broadcast, is_main_process


@dataclass(frozen=True)
class DataChecks:
    """What is asked of data.

    Attributes:
        skip_bad: the share of images that may be left out because they cannot be read; None for an error.
        allow_leaks: whether a given split may have the same image or group in two of its parts.
        range: how gray levels of 16-bit and float images are found: `auto`, `full` or `LOW,HIGH`.
        split_file: a file that says the split or the fold of every image; None leaves that to the data.
        folds: how many folds the images are divided into; None where there are none.
        fold: which fold is test, from 1 on.
        seed: of the split that is made where none is given, and of the sample that gray levels come from.
    """

    skip_bad: float | None = None
    allow_leaks: bool = False
    range: str = "auto"
    split_file: str | None = None
    folds: int | None = None
    fold: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_share(self.skip_bad)
        parse_range(self.range)
        if self.seed < 0:
            raise DataError(f"--seed {self.seed}: give 0 or more")
        if self.split_file is not None and not Path(self.split_file).is_file():
            raise DataError(f"--split-file {self.split_file}: there is no such file")
        if self.folds is not None and self.folds < 2:
            raise DataError(f"--folds {self.folds}: give 2 or more")
        if self.folds is not None and (self.fold is None or not 1 <= self.fold <= self.folds):
            raise DataError(f"--folds {self.folds} wants --fold 1 to {self.folds}, the one that is test in this run")
        if self.folds is not None and self.split_file is not None:
            raise DataError("--folds makes folds and --split-file gives them; say one of both")
        if self.fold is not None and self.folds is None and self.split_file is None:
            raise DataError(
                f"--fold {self.fold}: of which folds? --folds K makes them, --split-file folds.csv has them"
            )


@dataclass(frozen=True)
class PreparedData:
    """What a run may work with.

    Attributes:
        records: images that can be read, each in its split.
        source: how to read them again.
        levels: the gray levels of 16-bit and float images; None where there are none.
        fold_of: the fold of every image, from 1 on; None where there are none.
        alarms: what was allowed although it is wrong.
    """

    records: Records
    source: dict[str, Any]
    intensity: IntensityRange | None
    fold_of: Int[ndarray, "N"] | None
    alarms: list[str]


class ImageAudit(NamedTuple):
    """What all images look like: gray levels, a fingerprint of each, and the rows of those that are alike."""

    intensity: IntensityRange | None
    fingerprints: list[Fingerprint]
    exact: list[tuple[int, ...]]
    near: list[NearPair]

    def together(self) -> list[tuple[int, ...]]:
        """Rows of images that must not be divided: equal files and confirmed near duplicates."""
        return clusters(len(self.fingerprints), [*self.exact, *(pair for pair in self.near if pair.confirmed)])


def audit_images(records: Records, rules: DataChecks, workers: int, console: Console) -> ImageAudit:
    """Decode every image once, then compare those that might be the same."""
    intensity = find_intensity_range(records.paths, parse_range(rules.range), seed=rules.seed, workers=workers)
    with console.progress("reading every image once", len(records)) as bar:
        found = fingerprints(
            records.paths, intensity=intensity, workers=workers, advance=lambda n: bar.advance(n, steps=n)
        )
    with console.progress("looking for duplicates", len(records)) as bar:
        near = near_duplicates(
            records.paths, found, intensity=intensity, workers=workers, advance=lambda n: bar.advance(steps=n)
        )
    return ImageAudit(intensity, found, exact_duplicates(found), near)


def prepare_data(
    data: Path, reading: Mapping[str, Any], rules: DataChecks, workers: int, console: Console
) -> PreparedData:
    """Read data, look at every image, and see to it that nothing bad, leaking or undivided goes on.

    Under several processes the first one looks, and all of them get what it found.
    """
    whole = read(data.resolve(), **reading, carved=False, missing="keep")
    verdict: dict[str, Any] = {}
    if is_main_process():
        try:
            verdict = _verdict(whole, rules, workers, console)
        except (ValueError, OSError) as error:  # in all processes: one that waits for a broadcast would wait for ever
            verdict = {"error": str(error)}
    verdict = broadcast(verdict)
    if "error" in verdict:
        raise DataError(verdict["error"])
    records = with_split(whole.without([entry["path"] for entry in verdict["skipped"]]), np.array(verdict["split"]))
    if verdict["made"] and records.origin is not None:
        understood = f"{records.origin.understood}; {verdict['made']}"
        records = replace(records, origin=replace(records.origin, understood=understood))
    intensity = None if verdict["levels"] is None else IntensityRange(**verdict["levels"])
    console.print(describe(records))
    if intensity is not None:
        console.print(str(intensity))
    source = {"data": str(data.resolve()), **reading}
    source |= {"skipped": verdict["skipped"], "leaks_allowed": verdict["alarms"]}
    fold_of = None if verdict["fold_of"] is None else np.array(verdict["fold_of"])
    return PreparedData(records, source, intensity, fold_of, verdict["alarms"])


def check(data: Path, reading: Mapping[str, Any], rules: DataChecks, workers: int, console: Console) -> dict[str, Any]:
    """Look at data as `admit` does and tell everything that was found instead of going on; nothing is changed.

    What cannot even be read as a table is one finding, which blocks. A flag that is wrong says nothing of the data, and
    is an error here too.
    """
    try:
        whole = read(data.resolve(), **reading, carved=False, missing="keep")
        look = audit_images(whole, rules, workers, console)
        left = np.array([row for row, seen in enumerate(look.fingerprints) if seen.reason is None], dtype=np.int64)
        bad = bad_images(whole, look.fingerprints)
        kept = _without(look, [image.row for image in bad])
        divided, made, _ = _with_split(whole.take(left), rules, kept, [image.path for image in bad])
        empty = _empty_splits(divided, kept)
    except OptionError:
        raise
    except DataError as error:
        return _blocked(data, error)
    # Images that cannot be read stay in the counts, in the split that they were given.
    split = np.array(whole.split, dtype="<U5")
    split[left] = divided.split
    records = with_split(whole, split)
    found = survey(
        records, look.fingerprints, look.exact, look.near, leaks(records.split, records.group, look.exact, look.near)
    )
    about = {"data": str(data), "understood": str(records.origin or ""), "split": made or "as given"}
    if empty:
        found["findings"].insert(0, vars(Finding("blocked", empty)))
        found["verdict"] = "blocked"
    intensity = {"levels": None if look.intensity is None else str(look.intensity)}
    return about | {"summary": describe(records)} | intensity | found


def _blocked(data: Path, error: DataError) -> dict[str, Any]:
    """What is told of data that cannot be read."""
    found = {"data": str(data), "findings": [vars(Finding("blocked", str(error)))], "verdict": "blocked"}
    if not isinstance(error, RepeatedRowsError):
        return found
    return found | {"duplicated_rows": error.same, "conflicting_rows": error.different}


def read_again(source: Mapping[str, Any], split_file: Path) -> Records:
    """The same records, from what `admit` said of them and the split that was written down."""
    reading = {key: value for key, value in source.items() if key not in ("data", "skipped", "leaks_allowed")}
    records = read(source["data"], **reading, carved=False, missing="keep")
    return given_split(records.without([entry["path"] for entry in source["skipped"]]), split_file)


def _verdict(whole: Records, rules: DataChecks, workers: int, console: Console) -> dict[str, Any]:
    """What the first process finds, as JSON carries it."""
    look = audit_images(whole, rules, workers, console)
    bad = bad_images(whole, look.fingerprints)
    records = without_bad(whole, bad, share=rules.skip_bad)
    for image in bad:
        console.print(f"  skipped: {image.path}: {image.reason}")
    left = _without(look, [image.row for image in bad])
    divided, made, fold_of = _with_split(records, rules, left, [image.path for image in bad])
    empty = _empty_splits(divided, left)
    if empty:
        raise DataError(empty)
    alarms = _refuse_leaks(divided, left, rules, console)
    return {
        "skipped": [{"path": str(image.path), "reason": image.reason} for image in bad],
        "split": list(divided.split),
        "made": made,
        "levels": None if look.intensity is None else vars(look.intensity),
        "fold_of": None if fold_of is None else fold_of.tolist(),
        "alarms": alarms,
    }


def _without(look: ImageAudit, bad: list[int]) -> ImageAudit:
    """The look without some images: rows are those of the images that are left."""
    kept = np.setdiff1d(np.arange(len(look.fingerprints)), bad)
    place = {int(row): number for number, row in enumerate(kept)}
    near = [replace(pair, one=place[pair.one], other=place[pair.other]) for pair in look.near]
    exact = [tuple(place[row] for row in rows) for rows in look.exact]
    return ImageAudit(look.intensity, [look.fingerprints[row] for row in kept], exact, near)


def _with_split(
    records: Records, rules: DataChecks, look: ImageAudit, left_out: Sequence[Path]
) -> tuple[Records, str, Int[ndarray, "N"] | None]:
    """The records in their splits, what is said of those that were made here, and the folds they come from."""
    file, together = rules.split_file and Path(rules.split_file), look.together()
    if rules.fold is not None:
        fold_of = (
            given_folds(records, file, left_out=left_out)
            if file
            else folds(records, rules.folds or 0, seed=rules.seed, together=together)
        )
        made = f"fold {rules.fold} of {fold_of.max()} is test, val taken from the others with seed {rules.seed}"
        divided = with_fold(records, fold_of, rules.fold, seed=rules.seed, together=together)
        return divided, made, fold_of
    if file:
        columns = names_of_columns(file, lambda names: "path" in names)
        if "fold" in columns and "split" not in columns:
            raise OptionError(f"--split-file {file} holds folds; --fold K says which of them is test")
        return given_split(records, file, left_out=left_out), f"split of {file}", None
    carved = make_splits(records, seed=rules.seed, together=together)
    taken = [split for split in SPLITS if len(carved.rows(split)) > len(records.rows(split))]
    return carved, f"{' and '.join(taken)} taken from train with seed {rules.seed}" if taken else "", None


def _empty_splits(records: Records, look: ImageAudit) -> str:
    """What is wrong where a split has no image, and why; nothing where each has some."""
    empty = [split for split in SPLITS if not len(records.rows(split))]
    if not empty:
        return ""
    members: dict[str, list[int]] = {}
    for row, group in enumerate(records.group or ()):
        members.setdefault(group, []).append(row)
    joined = clusters(len(records), [*look.together(), *(tuple(rows) for rows in members.values())])
    units = len(records) - sum(len(rows) - 1 for rows in joined)
    counts = ", ".join(f"{split} {len(records.rows(split)):,}" for split in SPLITS)
    said = f"no image belongs to the {' or '.join(empty)} split ({counts}); a run needs some in each of them"
    if units < len(SPLITS):
        return f"{said}, and groups and copies join the images into {units} that cannot be divided; add others"
    return f"{said}; give {' and '.join(empty)} some, or leave the split to probmcl with --split-column ''"


def _refuse_leaks(records: Records, look: ImageAudit, rules: DataChecks, console: Console) -> list[str]:
    """An error for a split that leaks, unless that is allowed: then what has to be remembered of it."""
    found = leaks(records.split, records.group, look.exact, look.near)
    lines = found.lines([records.where(row) for row in range(len(records))])
    if found.blocks and not rules.allow_leaks:
        raise DataError("\n".join([*lines, REMEDY]))
    for line in lines:
        console.print(f"  {line}")
    return ["\n".join(["allowed by --allow-leaks:", *lines])] if found.blocks else []
