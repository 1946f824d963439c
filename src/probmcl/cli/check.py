"""`probmcl check`: what is in some data and what is wrong with it, before anything is trained."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from probmcl import intake
from probmcl.cli import options as flags

if TYPE_CHECKING:
    from rich.table import Table

    from probmcl.console import Console

EXIT = {"fine": 0, "warnings": 3, "blocked": 4}
SHOWN = 30
"""Classes in the table: all of so many, or the commonest and the rarest."""

OURS = '"verdict"'
"""What a check.json of an earlier check has in it: only such a file is written over."""


def check(
    data: Annotated[Path, Parameter(help="a table or a folder, as for train", group=flags.DATA)],
    /,
    *,
    images: flags.Images = None,
    format: flags.Format = None,  # noqa: A002  # the name of the flag
    path_column: flags.PathColumn = None,
    labels_column: flags.LabelsColumn = None,
    split_column: flags.SplitColumn = None,
    group: flags.GroupColumn = None,
    weight_column: flags.WeightColumn = None,
    rows: flags.Rows = None,
    blank: flags.Blank = None,
    minus_one: flags.MinusOne = None,
    none_label: flags.NoneLabel = None,
    ignore: flags.Ignore = None,
    hierarchy: flags.HierarchyFile = None,
    range: flags.Range = None,  # noqa: A002  # the name of the flag
    split_file: flags.SplitFile = None,
    folds: flags.Folds = None,
    fold: flags.Fold = None,
    seed: Annotated[int, Parameter(help="of the split that train would make", group=flags.DATA)] = 0,
    workers: flags.Workers = None,
    out: Annotated[Path, Parameter(help="where everything that was found is written", group=flags.WHERE)] = Path(
        "check.json"
    ),
) -> None:
    """Read every image and every label, change nothing, and tell what is there and what is wrong.

    Counts per class and split, sizes, files that cannot be read, images of one color, equal and nearly equal images,
    equal images with different labels, images or groups in two splits. The exit code is 0 where all is fine, 3 with
    warnings, and 4 where training would be refused.

    Example: probmcl check photos/labels.csv

    Example: probmcl check xrays.csv --images xrays/ --group "Patient ID" --out xrays-check.json
    """
    given = dict(locals())
    from probmcl.data.audit import check as look_through
    from probmcl.files import write_json
    from probmcl.runtime.workers import default_workers

    console = intake.display_of_the_first()
    refuse_other_file(out)
    at_once = default_workers() if workers is None else workers
    found = look_through(data, intake.reading_of(given), intake.rules_of(given, seed), at_once, console)
    show(found, console)
    write_json(out, found)
    console.print(f"everything that was found: {out}")
    sys.exit(EXIT[found["verdict"]])


def refuse_other_file(path: Path) -> None:
    """An error for a file that no check has written."""
    if path.exists() and (not path.is_file() or OURS not in path.read_text(encoding="utf-8", errors="replace")):
        raise FileExistsError(f"{path} exists and is no earlier check; choose another name with --out")


def show(found: Mapping[str, Any], console: Console) -> None:
    """Tell people what was found: what is there, then what is wrong with it."""
    if "images" in found:
        console.print(found["summary"])
        for line in _lines(found):
            console.print(line)
        console.rich.print(_table(found["per_class"]))
    for finding in found["findings"]:
        console.print(f"{finding['level']}: {finding['text']}")
    blocked = sum(finding["level"] == "blocked" for finding in found["findings"])
    warned = sum(finding["level"] == "warning" for finding in found["findings"])
    if found["verdict"] == "fine":
        console.print("fine: nothing stands against training")
    elif blocked:
        console.print("blocked: train would refuse this data; mend it, or say the flag that is named above")
    else:
        console.print(f"warnings: {warned}; train would go on")


def _lines(found: Mapping[str, Any]) -> list[str]:
    said = [found["levels"]] if found["levels"] else []
    sizes = found["sizes"]
    if sizes["width"]:
        sides = [f"{side['least']:,} to {side['most']:,}" for side in (sizes["width"], sizes["height"])]
        median = f"{sizes['width']['median']:,} × {sizes['height']['median']:,}"
        modes = ", ".join(f"{mode} {count:,}" for mode, count in sizes["modes"].items())
        said.append(f"sizes: {sides[0]} × {sides[1]} pixels, median {median}; {modes}")
    if found["together"]:
        pairs = [f"{' + '.join(pair['classes'])} {pair['images']:,}" for pair in found["together"][:5]]
        said.append(f"most often together: {', '.join(pairs)}")
    return said


def _table(per_class: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Table:
    """Positives of each class in each split, and what is not known of it."""
    from rich.table import Table

    shown = Table(title="images with each class", title_justify="left", title_style="bold")
    shown.add_column("class")
    columns = ("train", "val", "test", "unknown", "uncertain")
    for column in columns:
        shown.add_column(column, justify="right")
    for name in _chosen(per_class):
        if not name:
            shown.add_row("…", *[""] * len(columns))
            continue
        states = per_class[name]
        numbers = [*states["present"].values(), sum(states["unknown"].values()), sum(states["uncertain"].values())]
        shown.add_row(name, *(f"{number:,}" for number in numbers))
    return shown


def _chosen(per_class: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Sequence[str]:
    """All classes or, of many, the commonest and the rarest with a gap between them."""
    if len(per_class) <= SHOWN:
        return list(per_class)
    ranked = sorted(per_class, key=lambda name: -sum(per_class[name]["present"].values()))
    return [*ranked[: SHOWN // 2], "", *ranked[-SHOWN // 2 :]]
