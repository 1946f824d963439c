"""`probmcl cost`: what each method costs before anybody trains it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter

from probmcl.cli import options as flags
from probmcl.errors import suggestion

if TYPE_CHECKING:
    from probmcl.console import Console
    from probmcl.cost import Row
    from probmcl.cost.paper import Beside
    from probmcl.tables import Table

CLASSES = "80"
"""As many as MS-COCO has."""

FORMATS = (".csv", ".json", ".md")

Item = TypeVar("Item")


def cost(
    *methods: Annotated[
        str, Parameter(help="all (default), or some: csra probmcl:paper; see methods", group=flags.WHAT)
    ],
    preset: Annotated[str | None, Parameter(help="of the methods named without one", group=flags.WHAT)] = None,
    encoders: Annotated[
        str | None, Parameter(help="any timm models: resnet101,tresnet_l; by default a run's", group=flags.WHAT)
    ] = None,
    image_sizes: Annotated[
        str | None, Parameter(help="sides of the square input: 224,448; by default each encoder's", group=flags.WHAT)
    ] = None,
    classes: Annotated[str | None, Parameter(help="how many: 9,80; 80 by default", group=flags.WHAT)] = None,
    paper: Annotated[
        bool, Parameter(help="the paper's Table 3 beside ours, and nothing else", negative="", group=flags.WHAT)
    ] = False,
    measure: Annotated[
        bool, Parameter(help="also time a step and a prediction, and a step's memory", negative="", group=flags.HOW)
    ] = False,
    batch_size: Annotated[
        int | None, Parameter(help="images at once where it is measured; 8 by default", group=flags.HOW)
    ] = None,
    device: flags.Device = None,
    out: Annotated[
        Path | str | None, Parameter(help="also into a new file: .csv, .json or .md", group=flags.WHERE)
    ] = None,
) -> None:
    """Show what methods cost: parameters in training and of what predicts, and multiply-adds (GMAC) by two counters.

    Only shapes are followed: nothing is trained or fetched, and any encoder takes seconds. With --measure, a step and
    a prediction run on random images on this device.

    Example: probmcl cost csra ml_gcn probmcl:paper --encoders resnet101 --image-sizes 448 --classes 9,80

    Example: probmcl cost bce probmcl --measure --batch-size 16 --out costs.csv

    Example: probmcl cost --paper
    """
    given: dict[str, Any] = {"METHODS": methods, "--preset": preset, "--encoders": encoders}
    given |= {"--image-sizes": image_sizes, "--classes": classes}
    given |= {"--measure": measure, "--batch-size": batch_size, "--device": device}
    _refuse(given, paper=paper)
    file = _new_file(out)
    from probmcl.console import Console

    console = Console()
    if paper:
        _show_paper(console, file)
        return
    rows = _rows(console, methods, preset, encoders, image_sizes, classes or CLASSES, _measuring(given))
    from probmcl.report.cost_tables import cost_tables, record

    if all(row.problem for row in rows):
        raise ValueError(rows[0].problem)
    shown = cost_tables(rows)
    _show(console, shown)
    console.print("GMAC training: the forward pass of a step, for each image with all its views; see docs/costs.md")
    _write(console, file, shown, [record(row) for row in rows])


def _rows(
    console: Console,
    methods: Sequence[str],
    preset: str | None,
    encoders: str | None,
    image_sizes: str | None,
    classes: str,
    measuring: Any,
) -> list[Row]:
    from probmcl.cost import choices, survey
    from probmcl.encoders import describe_encoder
    from probmcl.runtime.device import find_device
    from probmcl.settings import CPU_ENCODER, GPU_ENCODER

    chosen = choices([part for word in methods for part in _listed(word, "METHODS")] or ["all"], preset)
    usual = CPU_ENCODER if find_device("auto") == "cpu" else GPU_ENCODER
    names = _listed(encoders, "--encoders") if encoders is not None else [usual]
    for name in names:
        describe_encoder(name)  # which refuses what is not there
    sizes = _numbers(image_sizes, "--image-sizes", example="224,448") if image_sizes is not None else [None]
    counts = _numbers(classes, "--classes", example="9,80")
    total = len(chosen) * len(names) * len(sizes) * len(counts)
    doing = "counting" if measuring is None else "measuring"
    return _watched(console, doing, survey(chosen, names, sizes, counts, measuring), total)


def _show_paper(console: Console, file: Path | None) -> None:
    from probmcl.cost.paper import networks, table_3
    from probmcl.report.cost_tables import paper_record, paper_table

    found: list[Beside] = _watched(console, "counting", table_3(), networks())
    shown = [paper_table(found)]
    _show(console, shown)
    _write(console, file, shown, [paper_record(one) for one in found])


def _watched(console: Console, name: str, items: Iterable[Item], total: int) -> list[Item]:
    found = []
    with console.progress(name, total) as bar:
        for item in items:
            found.append(item)
            bar.advance()
    return found


def _show(console: Console, shown: Sequence[Table]) -> None:
    from probmcl.tables import to_rich

    for table in shown:
        console.rich.print(to_rich(table), "")


def _write(console: Console, file: Path | None, shown: Sequence[Table], records: Sequence[dict[str, Any]]) -> None:
    import json

    from probmcl.files import write_text
    from probmcl.tables import to_csv, to_markdown

    if file is None:
        return
    texts = {
        ".csv": lambda: to_csv(records),
        ".json": lambda: json.dumps(records, indent=2, ensure_ascii=False) + "\n",
        ".md": lambda: "\n".join(map(to_markdown, shown)),
    }
    write_text(file, texts[file.suffix.lower()]())
    console.print(f"written to {file}")


def _refuse(given: dict[str, Any], *, paper: bool) -> None:
    """An error for flags that have no meaning together."""
    beside = [name for name, value in given.items() if value not in (None, False, ())]
    if paper and beside:
        raise ValueError(f"--paper has its own methods, encoders and sizes; leave out {', '.join(beside)}")
    alone = [name for name in ("--batch-size", "--device") if given[name] is not None]
    if alone and not given["--measure"]:
        raise ValueError(f"{' and '.join(alone)}: only a measurement needs it; add --measure")


def _measuring(given: dict[str, Any]) -> Any:
    from probmcl.cost import Measuring
    from probmcl.runtime.device import find_device

    if not given["--measure"]:
        return None
    device = find_device(given["--device"] or "auto")
    return Measuring(device) if given["--batch-size"] is None else Measuring(device, given["--batch-size"])


def _new_file(out: Path | str | None) -> Path | None:
    if out is None:
        return None
    file = Path(out)
    if file.suffix.lower() not in FORMATS:
        raise ValueError(f"--out {out}: what is written goes by its ending; {suggestion(file.suffix, FORMATS)}")
    if file.exists():
        raise ValueError(f"--out {out}: there is such a file already; give another name")
    return file


def _listed(said: str, flag: str) -> list[str]:
    """The parts of a list, each once."""
    found = [part.strip() for part in said.split(",") if part.strip()]
    if not found:
        raise ValueError(f"{flag} {said!r} names nothing; give a list, parted by commas")
    return list(dict.fromkeys(found))


def _numbers(said: str, flag: str, *, example: str) -> list[int]:
    """The whole numbers of a list, each once."""
    found = _listed(said, flag)
    wrong = [word for word in found if not word.isdecimal() or int(word) < 1]
    if wrong:
        raise ValueError(f"{flag} {said}: {wrong[0]!r} is no whole number from 1 on; say it as in {flag} {example}")
    return list(dict.fromkeys(map(int, found)))
