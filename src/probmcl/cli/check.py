"""`probmcl check`: report data statistics and problems before training."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from probmcl import api
from probmcl.cli.options import (
    Given,
    Layout,
    command_console,
    command_line,
    option_words,
    own_command_of,
    reading_lines,
    spell_options,
    without_option,
)
from probmcl.console import Console
from probmcl.errors import counted
from probmcl.settings.declaration import Option
from probmcl.settings.options import COMPUTE, CheckOptions
from probmcl.tables import Column, Table, to_rich

if TYPE_CHECKING:
    from probmcl.audit.findings import Finding
    from probmcl.audit.result import DataAudit
    from probmcl.audit.statistics import AuditStatistics, LabelCounts, PerClass, SideLengths

EXIT = {"fine": 0, "warnings": 3, "blocked": 4}
SHOWN = 30  # number of classes in the table; if there are more, only the most and least frequent are shown
REPORT_KEY = '"verdict"'  # identifies the report of an earlier check, the only file that is overwritten


@dataclass(frozen=True, kw_only=True)
class CheckCommand:
    """What only the command has."""

    out: Annotated[Path, Option("JSON file for the complete report", COMPUTE)] = Path("check.json")


LAYOUT = Layout(types={"data": Path, "images": Path | None}, follows={"out": "workers"})


@own_command_of(CheckCommand, CheckOptions, LAYOUT)
def command(own: CheckCommand, given: Given) -> None:
    """Check images and labels for problems before training. No image or label is changed.

    It finds missing, unreadable, single-color and duplicate images, duplicates with different labels, images or groups
    in more than one split, and classes with few positives or negatives. The last line is a command that trains on the
    data, if options suffice. The exit code is 0 if there are no problems, 3 if there are warnings, and 4 if train would
    refuse the data.

    Example: probmcl check photos/labels.csv

    Example: probmcl check xrays.csv --images xrays/ --group "Patient ID"
    """
    _refuse_other_file(own.out)
    console = command_console()
    with console.working():
        audit = api.check(**given, console=console)
    show(audit, console)
    audit.to_json(own.out)
    console.print(f"complete report: {own.out}")
    for line in next_steps(audit.findings, ["train", *without_option(sys.argv[2:], "--out")]):
        console.print_line(line)  # a wrapped command cannot be copied
    sys.exit(EXIT[audit.verdict])


def _refuse_other_file(out: Path) -> None:
    """Raise an error if a file would be replaced that is not the report of an earlier check."""
    if not out.exists():
        return
    is_report = out.is_file() and REPORT_KEY in out.read_text(encoding="utf-8", errors="replace")
    if not is_report:
        raise FileExistsError(f"{out} exists and is not the report of an earlier check; choose another file with --out")


def show(audit: "DataAudit", console: Console) -> None:
    """Print the statistics of an audit, then its findings."""
    if audit.summary:
        console.print(audit.summary)
        for line in _lines(audit.statistics):
            console.print(line)
        console.rich.print(to_rich(_table(audit.statistics.per_class)))
    for finding in audit.findings:
        console.print(f"{finding.level}: {finding.text}")


def next_steps(findings: Sequence["Finding"], words: Sequence[str]) -> list[str]:
    """Return lines with the verdict and, if options suffice, the command that trains on these data.

    `words` are the command without the options that accept a problem or choose a reading.
    """
    blocked = [finding for finding in findings if finding.level == "blocked"]
    if not blocked:
        warnings = sum(finding.level == "warning" for finding in findings)
        verdict = "OK: no problems found"
        if warnings:
            verdict = f"{counted(warnings, 'warning')}; train accepts these data"
        return [f"{verdict}; next:", f"  {command_line(words, {})}"]
    first = blocked[0]
    if first.kind == "question":  # no other problem can be found before the data are read
        return ["blocked: choose one of these readings:", *reading_lines(first.readings, words)]
    return _decision_lines(blocked, words)


def _decision_lines(blocked: Sequence["Finding"], words: Sequence[str]) -> list[str]:
    """Return lines with the options that accept each problem, or its text if the data have to be fixed.

    If options suffice for all problems, the last line is the command `words` with these options.
    """
    options: dict[str, str] = {}
    decisions: list[str] = []
    for finding in blocked:
        for reading in finding.readings:
            options |= reading.options
            decisions.append(f"  {reading.meaning}: {shlex.join(option_words(reading.options))}")
        if not finding.readings:
            problem = finding.text.splitlines()[0].rstrip(":")
            decisions.append(f"  fix: {spell_options(problem)}")
    if not options:
        problems = "problem" if len(blocked) == 1 else "problems"
        return [f"blocked: train refuses these data; fix the {problems} above"]
    distinct_decisions = dict.fromkeys(decisions)
    lines = ["blocked: train refuses these data; decide:", *distinct_decisions]
    options_suffice = all(finding.readings for finding in blocked)
    if options_suffice:
        lines += ["the resulting command:", f"  {command_line(words, options)}"]
    return lines


def _lines(statistics: "AuditStatistics") -> list[str]:
    """Return lines on the gray levels, the sizes of the images and the most frequent pairs of classes."""
    lines = [statistics.levels] if statistics.levels else []
    width, height = statistics.sizes.width, statistics.sizes.height
    if width is not None and height is not None:
        modes = ", ".join(f"{count:,} {mode}" for mode, count in statistics.sizes.modes.items())
        ranges = f"width {_range(width)}, height {_range(height)}"
        median = f"{width.median:,} × {height.median:,}"
        lines.append(f"image sizes: {ranges} pixels, median {median}; modes: {modes}")
    if statistics.together:
        pairs = [f"{' + '.join(pair.classes)} ({pair.images:,})" for pair in statistics.together[:5]]
        lines.append(f"most frequent pairs of classes: {', '.join(pairs)}")
    return lines


def _range(side: "SideLengths") -> str:
    """Return the lengths of one side of the images: the only one, or the least and the most."""
    if side.least == side.most:
        return f"{side.least:,}"
    return f"{side.least:,} to {side.most:,}"


def _table(per_class: "PerClass") -> Table:
    """Return a table with the number of positives per class and split, and of unknown and uncertain labels."""
    headers = ("train", "val", "test", "unknown", "uncertain")
    columns = [Column.of_names("class"), *map(Column, headers)]
    rows = []
    for name in _shown_classes(per_class):
        if name:
            rows.append([name, *_cells(per_class[name])])
        else:
            rows.append(["…", *[""] * len(headers)])
    return Table("images per class", columns, rows, framed=True)


def _cells(counts: "LabelCounts") -> list[str]:
    """Return the numbers of a class in the order of the columns of `_table`."""
    present = counts.present
    numbers = (present.train, present.val, present.test, counts.unknown.total, counts.uncertain.total)
    return [f"{number:,}" for number in numbers]


def _shown_classes(per_class: "PerClass") -> Sequence[str]:
    """Return all classes or, if there are many, the most and least frequent, separated by an empty name."""
    if len(per_class) <= SHOWN:
        return list(per_class)
    by_frequency = sorted(per_class, key=lambda name: -per_class[name].present.total)
    half = SHOWN // 2
    return [*by_frequency[:half], "", *by_frequency[-half:]]
