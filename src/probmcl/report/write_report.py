"""Writing the report of a run or a comparison: one HTML page, and a JSON file with the same content."""

import json
from collections.abc import Sequence
from pathlib import Path

from probmcl import __version__, run_folder
from probmcl.console import Console
from probmcl.errors import OptionError, RunError
from probmcl.experiments.results import Comparison
from probmcl.files import atomic_write, write_text
from probmcl.report import comparison_plot, comparison_tables
from probmcl.report.comparison import verdict as comparison_verdict
from probmcl.report.page import comparison_content, render_comparison, render_page, report_json
from probmcl.report.run_report import run_report
from probmcl.report.verdict import Decision
from probmcl.run_folder import RunFolder
from probmcl.runtime.lock import locked


def write_report(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    *,
    images: bool = True,
    device: str = "auto",
    console: Console | None = None,
) -> tuple[Path, Decision]:
    """Write the report of a run, and return the path of the page and the verdict.

    Args:
        runs: run folders; the first is described in detail and compared with the others.
        out: the page (default: report.html in the first run); the JSON file has the same name with another suffix.
        images: whether the page contains photographs.
        device: device that computes features and heat maps.
        console: prints progress.
    """
    page = Path(runs[0]) / run_folder.REPORT if out is None else Path(out)
    if page.suffix.lower() not in (".html", ".htm"):
        raise OptionError("out", str(page), "must be a file name that ends in .html")
    for folder in runs:
        if (Path(folder) / run_folder.COMPARISON).is_file():
            raise RunError(f"{folder} is a comparison, whose report is written with it; pass one of its runs")
    report = run_report(runs, images=images, device=device, console=console)
    contents = {page.name: render_page(report).encode(), page.with_suffix(".json").name: report_json(report).encode()}
    if out is None:
        with locked(Path(runs[0])):
            RunFolder(Path(runs[0])).update(contents)
    else:
        for name, content in contents.items():
            atomic_write(page.with_name(name), content)
    decision: Decision = report.content["verdict"]["decision"]
    return page, decision


def write_comparison_report(comparison: Comparison, folder: Path) -> Path:
    """Write the report of a comparison to its folder, and return the path of the page."""
    verdict, page = comparison_verdict(comparison), folder / run_folder.REPORT
    tables = list(comparison_tables.comparison_tables(comparison).values())
    write_text(page, render_comparison(comparison, verdict, comparison_plot.to_svg(comparison), tables))
    content = {"probmcl": __version__, **comparison_content(comparison, verdict)}
    write_text(
        folder / run_folder.REPORT_DATA, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )
    return page
