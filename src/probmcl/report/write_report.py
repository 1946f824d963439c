"""Writing the report of a run or a comparison: one HTML page, and a JSON file with the same content."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from probmcl.console import Console
from probmcl.errors import OptionError, RunError
from probmcl.experiments.results import Comparison
from probmcl.report import comparison_plot, comparison_tables
from probmcl.report.comparison import verdict as comparison_verdict
from probmcl.report.page import comparison_content, render_comparison, render_page, report_json
from probmcl.report.run_report import run_report
from probmcl.report.verdict import Decision
from probmcl.runtime.files import atomic_write
from probmcl.runtime.lock import locked
from probmcl.store import files
from probmcl.store.run_folder import RunFolder, is_run
from probmcl.version import __version__


def write_report(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    *,
    images: bool = True,
    device: str = "auto",
    console: Console | None = None,
    notes: Console | None = None,
) -> tuple[Path, Decision]:
    """Write the report of a run, and return the path of the page and the verdict.

    Args:
        runs: run folders; the first is described in detail and compared with the others.
        out: the page (default: report.html in the first run); the JSON file has the same name with another suffix.
        images: whether the page contains photographs.
        device: device that computes features and heat maps.
        console: prints progress.
        notes: prints the folders that images are read from, before they are read (default: not printed).
    """
    page = Path(runs[0]) / files.REPORT if out is None else Path(out)
    data = page.with_suffix(".json")
    if page.suffix.lower() not in (".html", ".htm"):
        raise OptionError("out", str(page), "must be a file name that ends in .html")
    if data.exists() and not page.exists() and data.name != files.REPORT_DATA.name:
        raise OptionError("out", str(page), f"would replace {data}, which is not part of a report; use another name")
    for folder in runs:
        if (Path(folder) / files.COMPARISON).is_file():
            raise RunError(f"{folder} is a comparison, whose report is written with it; pass one of its runs")
    report = run_report(runs, images=images, device=device, console=console, notes=notes)
    _write_files(page.parent, {page.name: _encoded(render_page(report)), data.name: _encoded(report_json(report))})
    decision: Decision = report.content["verdict"]["decision"]
    return page, decision


def _write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files to a folder. If it holds a run, the manifest lists those that belong to the run."""
    rows = {row.name: row for row in (files.REPORT, files.REPORT_DATA)} if is_run(folder) else {}
    listed = {rows[name]: content for name, content in contents.items() if name in rows}
    if listed:
        with locked(folder):
            RunFolder(folder).update(listed)
    for name in contents.keys() - rows.keys():
        atomic_write(folder / name, contents[name])


def _encoded(text: str) -> bytes:
    r"""Return text as UTF-8; an undecodable byte of a file name becomes an escape, which JSON also has.

    >>> _encoded('"b\udcff.png"')
    b'"b\\udcff.png"'
    """
    return text.encode(errors="backslashreplace")


def write_comparison_report(comparison: Comparison, folder: Path) -> Path:
    """Write the report of a comparison to its folder, and return the path of the page."""
    verdict, page = comparison_verdict(comparison), folder / files.REPORT
    tables = list(comparison_tables.comparison_tables(comparison).values())
    html = render_comparison(comparison, verdict, comparison_plot.to_svg(comparison), tables)
    content = {"probmcl": __version__, **comparison_content(comparison, verdict)}
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    for file, part in ((files.REPORT, html), (files.REPORT_DATA, text)):
        atomic_write(folder / file, _encoded(part))
    return page
