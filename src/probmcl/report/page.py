"""The HTML page of a report: one file that needs no network and no other file, and a JSON file with its content."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from probmcl.errors import OptionError, RunError, counted
from probmcl.experiments.results import Comparison
from probmcl.report import comparison_plot, comparison_tables
from probmcl.report.comparison_content import ComparisonContent
from probmcl.report.figures import report_figures
from probmcl.report.run_report import SECTIONS, ReportContent, RunReport, run_report
from probmcl.runtime.files import atomic_write
from probmcl.runtime.folders import locked
from probmcl.settings.declaration import keywords_of
from probmcl.settings.model_options import ReportOptions
from probmcl.store import files
from probmcl.store.report import ClassScores, Decision
from probmcl.store.run_folder import RunFolder, is_run
from probmcl.tables import MISSING, Table, bracketed, duration, percent, points
from probmcl.version import __version__

RUN_TEMPLATE, COMPARISON_TEMPLATE = "run.html.j2", "comparison.html.j2"
STYLE, SCRIPT = "report.css", "report.js"
POLICY = (
    "default-src 'none'; img-src data:; style-src '{style}'; script-src '{script}'; base-uri 'none'; form-action 'none'"
)


def render_page(report: RunReport) -> str:
    """Return the page about a run. The same report gives the same text."""
    content = report.content
    sections = [(section, getattr(content, name)) for name, section in SECTIONS.items()]
    links = [(section.anchor, section.title) for section, part in sections if section.is_shown(part)]
    photographs = "no photographs"
    if content.photographs:
        photographs = counted(content.photographs, "photograph")
    template = _template(RUN_TEMPLATE)
    figures = report_figures(content)
    classes = sorted(content.classes, key=worst_first)
    page: str = template.render(
        content=content,
        sections=sections,
        links=links,
        pictures=report.pictures,
        photographs=photographs,
        figures=figures,
        classes=classes,
        data=script_data(content),
        **_page_parts(),
    )
    return page


def render_comparison(content: ComparisonContent, plot: str, tables: Sequence[Table]) -> str:
    """Return the page of a comparison: its verdict, the plot and the tables. The plot is the text of an SVG file."""
    template = _template(COMPARISON_TEMPLATE)
    page: str = template.render(
        content=content,
        links=[("comparison", "Comparison")],
        photographs="no photographs",
        plot=_svg_image(plot),
        tables=tables,
        data="{}",
        **_page_parts(),
    )
    return page


def _page_parts() -> dict[str, Any]:
    """Return the variables of the template that all pages share.

    The Content-Security-Policy allows only this style and this script, by their hashes.
    """
    style = _read(STYLE)
    script = _read(SCRIPT)
    policy = POLICY.format(style=_hash(style), script=_hash(script))
    return {"style": Markup(style), "script": Markup(script), "policy": policy, "version": __version__}


def _template(name: str) -> Any:
    """Return a template of the package, which escapes every value that is not `Markup`."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("probmcl.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "points": points,
        "duration": duration,
        "bracketed": bracketed,
        "signed_interval": _signed_interval,
        "decimal": _decimal,
        "sparkline": sparkline,
        "counted": counted,
        "json": _indented_json,
    }
    return environment.get_template(name)


def _signed_interval(interval: Sequence[float] | None) -> str:
    return bracketed(interval, points)


def _decimal(value: float | None, digits: int = 3) -> str:
    """Return a number with decimals and a minus sign instead of a hyphen, or a dash for a missing number."""
    if value is None:
        return MISSING
    return f"{value:.{digits}f}".replace("-", "−")


def _indented_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def _read(name: str) -> str:
    """Return the text of a file of this package."""
    file = resources.files("probmcl.report").joinpath(name)
    return file.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash of a style or a script, as a Content-Security-Policy names it."""
    digest = hashlib.sha256(text.encode()).digest()
    encoded = base64.b64encode(digest).decode()
    return f"sha256-{encoded}"


def _svg_image(svg: str) -> str:
    """Return an SVG file as a data URI, the source of an image."""
    encoded = base64.b64encode(svg.encode()).decode()
    return f"data:image/svg+xml;base64,{encoded}"


def worst_first(row: ClassScores) -> tuple[bool, float]:
    """Return a key that sorts classes by their average precision; classes without one come last."""
    return row.ap is None, row.ap or 0.0


def sparkline(values: Sequence[float], width: int = 60, height: int = 22) -> str:
    """Return the points of a small curve for an SVG polyline. The values are between 0 and 1, and 1 is at the top.

    >>> sparkline([1.0, 0.0], width=10, height=4)
    '0.0,0.0 10.0,4.0'
    """
    last = max(len(values) - 1, 1)
    points_of_curve = []
    for number, value in enumerate(values):
        x = width * number / last
        y = height * (1 - value)  # in SVG, y grows downward
        points_of_curve.append(f"{x:.1f},{y:.1f}")
    return " ".join(points_of_curve)


def script_data(content: ReportContent) -> Markup:
    """Return the data of the page's script as JSON that cannot end its script element."""
    classes = []
    for row in content.classes:
        histograms = {"positives": row.positives_by_probability, "negatives": row.negatives_by_probability}
        classes.append({"name": row.name, **histograms})
    embedding = None
    if content.embedding is not None:
        map_ = content.embedding
        embedding = {"labels": map_.labels, "wrong": map_.wrong, "uncertainty": map_.uncertainty}
    data = {"classes": classes, "images": content.headline.images, "embedding": embedding}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character, escape in {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}.items():
        text = text.replace(character, escape)
    return Markup(text)


def report_json(content: ReportContent | ComparisonContent) -> str:
    """Return the content as JSON, the twin of the page."""
    text = json.dumps(content.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n"


@keywords_of(ReportOptions)
def write_report(options: ReportOptions) -> tuple[Path, Decision]:
    """Write the report of a run, and return the path of the page and the verdict."""
    runs = options.runs
    page = Path(runs[0]) / files.REPORT if options.out is None else Path(options.out)
    data = page.with_suffix(".json")
    _refuse_page(page, data)
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


def _refuse_page(page: Path, data: Path) -> None:
    """Refuse a page with a wrong suffix, and one whose JSON file `data` would replace a file of the user."""
    if page.suffix.lower() not in (".html", ".htm"):
        raise OptionError("out", str(page), "must be a file name that ends in .html")
    is_of_report = page.exists() or data.name == files.REPORT_DATA.name
    if data.exists() and not is_of_report:
        raise OptionError("out", str(page), f"would replace {data}, which is not part of a report; use another name")


def _write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files to a folder. If it holds a run, the manifest lists those that belong to the run."""
    files_of_run = {}
    if is_run(folder):
        files_of_run = {file.name: file for file in (files.REPORT, files.REPORT_DATA)}
    listed = {files_of_run[name]: content for name, content in contents.items() if name in files_of_run}
    if listed:
        with locked(folder):
            RunFolder(folder).update(listed)
    for name in contents.keys() - files_of_run.keys():
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
