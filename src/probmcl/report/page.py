"""The HTML page of a report: one file that needs no network and no other file."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from markupsafe import Markup

from probmcl.errors import counted
from probmcl.experiments.results import Comparison
from probmcl.report.figures import report_figures
from probmcl.report.run_report import SCHEMA, RunReport
from probmcl.tables import MISSING, Table, bracketed, duration, percent, points
from probmcl.version import __version__

TEMPLATE, STYLE, SCRIPT = "report.html.j2", "report.css", "report.js"
POLICY = (
    "default-src 'none'; img-src data:; style-src '{style}'; script-src '{script}'; base-uri 'none'; form-action 'none'"
)


def render_page(report: RunReport) -> str:
    """Return the page. The same report gives the same text."""
    content = report.content
    has_run = "classes" in content
    page: str = _template().render(
        content=content,
        report=report,
        photographs=counted(report.pictures, "photograph") if report.pictures else "no photographs",
        figures=report_figures(content) if has_run else {},
        classes=sorted(content["classes"], key=worst_first) if has_run else [],
        data=script_data(content) if has_run else "{}",
        **_page_parts(),
    )
    return page


def render_comparison(comparison: Comparison, verdict: str, plot: str, tables: Sequence[Table]) -> str:
    """Return the page of a comparison: its verdict, the plot and the tables."""
    content = comparison_content(comparison, verdict)
    page: str = _template().render(
        content=content,
        report=RunReport(content),
        photographs="no photographs",
        figures={},
        classes=[],
        data="{}",
        comparison={"verdict": verdict.split("\n"), "plot": _svg_image(plot), "tables": tables},
        **_page_parts(),
    )
    return page


def comparison_content(comparison: Comparison, verdict: str) -> dict[str, Any]:
    """Return the content of a comparison's report as plain data."""
    rows = [{key: value for key, value in vars(row).items() if key != "fingerprint"} for row in comparison.ordered]
    summary = {"protocol": comparison.protocol, "verdict": verdict, "rows": rows}
    return {"schema": SCHEMA, "name": comparison.data, "photographs": 0, "runs": None, "comparison": summary}


def _page_parts() -> dict[str, Any]:
    style, script = _read(STYLE), _read(SCRIPT)
    policy = POLICY.format(style=_hash(style), script=_hash(script))
    return {"style": Markup(style), "script": Markup(script), "policy": policy, "version": __version__}


def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": percent,
        "points": points,
        "duration": duration,
        "bracketed": bracketed,
        "signed_interval": lambda interval: bracketed(interval, points),
        "decimal": lambda value, digits=3: MISSING if value is None else f"{value:.{digits}f}".replace("-", "−"),
        "sparkline": sparkline,
        "counted": counted,
        "json": lambda value: json.dumps(value, indent=2, ensure_ascii=False, default=str),
    }
    return environment.from_string(_read(TEMPLATE))


def _read(name: str) -> str:
    return resources.files("probmcl.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash of a script or style in the form that a content security policy requires."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _svg_image(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def worst_first(row: Mapping[str, Any]) -> tuple[bool, float]:
    """Return a key that sorts classes by their average precision; classes without one come last."""
    return row["ap"] is None, row["ap"] or 0.0


def sparkline(values: Sequence[float], width: int = 60, height: int = 22) -> str:
    """Return the points of a small curve for an SVG polyline.

    >>> sparkline([1.0, 0.0], width=10, height=4)
    '0.0,0.0 10.0,4.0'
    """
    last = max(len(values) - 1, 1)
    return " ".join(f"{width * n / last:.1f},{height * (1 - value):.1f}" for n, value in enumerate(values))


def script_data(content: Mapping[str, Any]) -> Markup:
    """Return the data of the page's script as JSON that cannot end its script element."""
    classes = [
        {
            "name": row["name"],
            "positives": row["positives_by_probability"],
            "negatives": row["negatives_by_probability"],
        }
        for row in content["classes"]
    ]
    data = {"classes": classes, "images": content["headline"]["images"], "embedding": None}
    if content["embedding"] is not None:
        data["embedding"] = {key: content["embedding"][key] for key in ("labels", "wrong", "uncertainty")}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def report_json(report: RunReport) -> str:
    """Return the content as JSON, the twin of the page."""
    return json.dumps({"probmcl": __version__, **report.content}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
