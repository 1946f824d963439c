"""`probmcl check`: report the content and the problems of data, before anything is trained."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from probmcl.cli import command_console
from probmcl.cli.options import COMPUTE, DATA, Checks, Read, Workers
from probmcl.console import Console
from probmcl.data.options import DataChecks, ReadOptions
from probmcl.tables import Column, Table, to_rich

EXIT = {"fine": 0, "warnings": 3, "blocked": 4}
SHOWN = 30  # classes in the table; of more than that, the most and the least frequent are shown
OURS = '"verdict"'  # in the file of an earlier check; no other file is overwritten


def check(
    data: Annotated[Path, Parameter(group=DATA)],
    /,
    *,
    images: Annotated[Path | None, Parameter(group=DATA)] = None,
    read: Read = ReadOptions(),
    checks: Checks = DataChecks(),
    seed: Annotated[int, Parameter(group=DATA)] = 0,
    workers: Workers = None,
    out: Annotated[Path, Parameter(group=COMPUTE)] = Path("check.json"),
) -> None:
    """Read every image and every label, change nothing, and report content and problems.

    Counts per class and split, sizes, unreadable files, images of one color, equal and nearly equal images, equal
    images with different labels, images or groups in two splits. The exit code is 0 without problems, 3 with warnings,
    and 4 if train would refuse the data.

    Example: probmcl check photos/labels.csv

    Example: probmcl check xrays.csv --images xrays/ --group "Patient ID" --out xrays-check.json

    Args:
        data: a table or a folder, as for train
        images: folder that image paths are relative to (default: the table's folder)
        read: how the data are read
        checks: what is required of them
        seed: random seed of the split that train would make
        workers: processes that decode images (default: one per core)
        out: JSON file for the complete report
    """
    from probmcl import api
    from probmcl.files import write_json

    if out.exists() and (not out.is_file() or OURS not in out.read_text(encoding="utf-8", errors="replace")):
        raise FileExistsError(f"{out} exists and is not an earlier check; choose another name with --out")
    console = command_console()
    report = api.check(data, images=images, read=read, checks=checks, seed=seed, workers=workers, console=console)
    show(report, console)
    write_json(out, report)
    console.print(f"complete report: {out}")
    sys.exit(EXIT[report["verdict"]])


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print a report: the content of the data, then their problems."""
    if "images" in report:
        for line in (report["summary"], *_lines(report)):
            console.print(line)
        console.rich.print(to_rich(_table(report["per_class"])))
    for finding in report["findings"]:
        console.print(f"{finding['level']}: {finding['text']}")
    warnings = sum(finding["level"] == "warning" for finding in report["findings"])
    closing = {
        "fine": "OK: no problems found",
        "warnings": f"warnings: {warnings}; train accepts these data",
        "blocked": "blocked: train would refuse these data; repair them, or use the option that is named above",
    }
    console.print(closing[report["verdict"]])


def _lines(report: Mapping[str, Any]) -> list[str]:
    lines = [report["levels"]] if report["levels"] else []
    width, height, modes = (report["sizes"][key] for key in ("width", "height", "modes"))
    if width:
        extremes = " × ".join(f"{side['least']:,} to {side['most']:,}" for side in (width, height))
        counts = ", ".join(f"{mode} {count:,}" for mode, count in modes.items())
        lines.append(f"sizes: {extremes} pixels, median {width['median']:,} × {height['median']:,}; {counts}")
    if report["together"]:
        pairs = [f"{' + '.join(pair['classes'])} {pair['images']:,}" for pair in report["together"][:5]]
        lines.append(f"most often together: {', '.join(pairs)}")
    return lines


def _table(per_class: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Table:
    """Return a table of the positives of each class in each split, and of its unknown labels."""
    from probmcl.data.records import SPLITS

    columns = [Column.of_names("class"), *map(Column, (*SPLITS, "unknown", "uncertain"))]
    rows = [[name, *_counts(per_class[name])] if name else ["…", *[""] * 5] for name in _chosen(per_class)]
    return Table("images with each class", columns, rows, framed=True)


def _counts(states: Mapping[str, Mapping[str, int]]) -> list[str]:
    counts = [*states["present"].values(), sum(states["unknown"].values()), sum(states["uncertain"].values())]
    return [f"{count:,}" for count in counts]


def _chosen(per_class: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Sequence[str]:
    """Return all classes or, of many, the most and the least frequent with a gap between them."""
    if len(per_class) <= SHOWN:
        return list(per_class)
    ranked = sorted(per_class, key=lambda name: -sum(per_class[name]["present"].values()))
    return [*ranked[: SHOWN // 2], "", *ranked[-SHOWN // 2 :]]
