"""Writing the report of a run or a comparison: one HTML page, and a JSON file with the same content."""

import json
from collections.abc import Mapping
from pathlib import Path

from probmcl.errors import OptionError, RunError
from probmcl.experiments.results import Comparison
from probmcl.report import comparison_plot, comparison_tables
from probmcl.report.comparison import verdict as comparison_verdict
from probmcl.report.page import comparison_content, render_comparison, render_page, report_json
from probmcl.report.run_report import run_report
from probmcl.report.verdict import Decision
from probmcl.runtime.files import atomic_write
from probmcl.runtime.lock import locked
from probmcl.settings.declaration import keywords_of
from probmcl.settings.model_options import ReportOptions
from probmcl.store import files
from probmcl.store.run_folder import RunFolder, is_run
from probmcl.version import __version__


@keywords_of(ReportOptions)
def write_report(options: ReportOptions) -> tuple[Path, Decision]:
    """Write the report of a run, and return the path of the page and the verdict."""
    runs, out = options.runs, options.out
    page = Path(runs[0]) / files.REPORT if out is None else Path(out)
    data = page.with_suffix(".json")
    if page.suffix.lower() not in (".html", ".htm"):
        raise OptionError("out", str(page), "must be a file name that ends in .html")
    if data.exists() and not page.exists() and data.name != files.REPORT_DATA.name:
        raise OptionError("out", str(page), f"would replace {data}, which is not part of a report; use another name")
    for folder in runs:
        if (Path(folder) / files.COMPARISON).is_file():
            raise RunError(f"{folder} is a comparison, whose report is written with it; pass one of its runs")
    report = run_report(
        runs, images=options.images, device=options.device, console=options.console, notes=options.notes
    )
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
