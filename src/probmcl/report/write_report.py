"""Writing the report of a run or a comparison: one HTML page, and a JSON file with the same content."""

from collections.abc import Mapping
from pathlib import Path

from probmcl.errors import OptionError, RunError
from probmcl.experiments.results import Comparison
from probmcl.report import comparison_plot, comparison_tables
from probmcl.report.comparison_content import ComparisonContent
from probmcl.report.page import render_comparison, render_page, report_json
from probmcl.report.run_report import run_report
from probmcl.runtime.files import atomic_write
from probmcl.runtime.lock import locked
from probmcl.settings.declaration import keywords_of
from probmcl.settings.model_options import ReportOptions
from probmcl.store import files
from probmcl.store.report import Decision
from probmcl.store.run_folder import RunFolder, is_run


@keywords_of(ReportOptions)
def write_report(options: ReportOptions) -> tuple[Path, Decision]:
    """Write the report of a run, and return the path of the page and the verdict."""
    runs = options.runs
    page = Path(runs[0]) / files.REPORT if options.out is None else Path(options.out)
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
    html = render_page(report)
    twin = report_json(report.content)
    _write_files(page.parent, {page.name: _encoded(html), data.name: _encoded(twin)})
    return page, report.content.verdict.decision


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
    content = ComparisonContent.of(comparison)
    plot = comparison_plot.to_svg(comparison)
    tables = list(comparison_tables.comparison_tables(comparison).values())
    html = render_comparison(content, plot, tables)
    page = folder / files.REPORT
    atomic_write(page, _encoded(html))
    atomic_write(folder / files.REPORT_DATA, _encoded(report_json(content)))
    return page
