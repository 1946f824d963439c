"""The figures of a report, drawn with matplotlib as SVG.

Figures are drawn in placeholder colors, which are replaced by CSS variables of the page. A strict Content-Security-
Policy blocks style attributes, so they become presentation attributes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal
from xml.sax.saxutils import quoteattr

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from msgspec import UnsetType
from numpy import ndarray

from probmcl.report.run_report import ReportContent
from probmcl.store.evaluation import RiskCoverage
from probmcl.store.report import (
    ClassScores,
    Curves,
    LabelPairs,
    LearningCurve,
    ReliabilityPoints,
    RunSummary,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, LINE, PANEL = "#010101", "#020202", "#030303", "#040404"
SERIES = tuple(f"#0{number}0a0b" for number in range(1, 7))
VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line", PANEL: "panel"} | {
    color: f"series-{number}" for number, color in enumerate(SERIES, start=1)
}
"""Placeholder colors, and the CSS variables that replace them."""

FONT = 11
FIGURE_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "probmcl",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.titlesize": FONT,
    "axes.labelsize": FONT,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LINE,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": FONT - 1,
    "ytick.labelsize": FONT - 1,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": FONT - 1,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "text.parse_math": False,
}

_ATTRIBUTE = re.compile(r' style="([^"]*)"')

WIDTH, HEIGHT = 420, 300
MAX_LINES = 30
"""Largest number of classes whose curves are all drawn."""

MAX_NAME, MAX_RUN_NAME = 16, 32
"""Longest name of a class and of a run, in characters."""

MANY_NAMES = 12
"""With more classes, the names next to a matrix are smaller."""

POSITIVE, NEGATIVE = (27, 98, 165), (200, 80, 20)
"""Colors of matrices, which are readable on light and dark backgrounds."""


def new_figure(width: int, height: int) -> tuple[Figure, Axes]:
    """Return a figure with one plot; the size is in pixels. Call it inside `figure_style`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
    return figure, figure.add_subplot()


def figure_style() -> Any:
    """Return a context in which figures have the style of the page."""
    import matplotlib

    return matplotlib.rc_context(FIGURE_STYLE)


def to_inline_svg(figure: Figure, key: str, description: str) -> Markup:
    """Return a figure as an SVG element of an HTML page; `key` makes its ids unique within the page."""
    text = io.StringIO()
    with warnings.catch_warnings(action="ignore"):  # glyphs that matplotlib's font lacks; the viewer's may have them
        metadata = {"Date": None, "Creator": None}
        figure.savefig(text, format="svg", metadata=metadata)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = _ATTRIBUTE.sub(lambda match: _attributes(match[1]), svg)
    svg = re.sub(r'\bid="', f'id="{key}-', svg)
    svg = svg.replace("url(#", f"url(#{key}-").replace('xlink:href="#', f'href="#{key}-')
    svg = svg.replace('xlink:href="data:', 'href="data:')
    for color, name in VARIABLES.items():
        svg = svg.replace(f'"{color}"', f'"var(--{name})"')
    width, height = re.findall(r'(?:width|height)="([\d.]+)pt"', svg)[:2]
    opening = f'<svg class="figure" role="img" aria-label={quoteattr(description)} viewBox="0 0 {width} {height}">'
    svg = opening + svg[svg.index(">") + 1 :]
    return Markup(re.sub(r"\n\s*", "\n", svg))


def _attributes(style: str) -> str:
    """Return the presentation attributes for the content of a style attribute.

    >>> _attributes("font: 10px 'DejaVu Sans'; text-anchor: middle")
    ' font-size="10px" text-anchor="middle"'
    """
    pairs = (part.split(":", 1) for part in style.split(";") if ":" in part)
    attributes = {name.strip(): value.strip() for name, value in pairs}
    if "font" in attributes:
        attributes = {"font-size": attributes.pop("font").split()[0]} | attributes
    known = {name: value for name, value in attributes.items() if not name.startswith(("image-", "mix-"))}
    return "".join(f' {name}="{value}"' for name, value in known.items())


def report_figures(content: ReportContent) -> dict[str, Markup]:
    """Return all figures by name; those without data are left out."""
    figures = {}
    with figure_style():
        if content.curves.macro:
            figures["precision_recall"] = draw_precision_recall(content.curves, content.classes)
        figures["reliability"] = draw_reliability(content.curves.reliability)
        figures["risk_coverage"] = draw_risk_coverage(content.curves.risk_coverage)
        if content.label_pairs.classes:
            figures |= _draw_label_pairs(content.label_pairs)
        for number, curve in enumerate(content.training.curves):
            figures[f"loss-{number}"] = draw_loss(curve, f"loss-{number}")
            if curve.statistics:
                figures[f"statistics-{number}"] = draw_statistics(curve, f"statistics-{number}")
        if content.runs:
            figures["runs"] = draw_runs(content.runs)
    return figures


def draw_precision_recall(curves: Curves, classes: Sequence[ClassScores]) -> Markup:
    """Draw the precision–recall curves: all classes if there are few, their mean, and all decisions together."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    lines = [row.precision_at_recall for row in classes if row.precision_at_recall]
    if len(lines) <= MAX_LINES:
        for line in lines:
            axes.plot(curves.recall, line, color=MUTED, linewidth=0.7, alpha=0.55)
    lower, upper = curves.quartiles
    band: dict[str, Any] = {"color": SERIES[0], "alpha": 0.18, "linewidth": 0}
    axes.fill_between(curves.recall, lower, upper, label="half of the classes", **band)
    axes.plot(curves.recall, curves.macro, color=SERIES[0], linewidth=2.2, label="mean over classes")
    axes.plot(curves.recall, curves.micro, color=SERIES[1], linewidth=1.8, dashes=(5, 2), label="all decisions")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="recall", ylabel="precision")
    axes.legend(loc="lower left")
    return to_inline_svg(figure, "pr", "Precision–recall curves on test images")


def draw_reliability(reliability: dict[Literal["before", "after"], ReliabilityPoints]) -> Markup:
    """Draw the reliability diagram, before and after calibration."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, dashes=(2, 3), label="perfect")
    before: dict[str, Any] = {"color": SERIES[1], "marker": "s", "dashes": (5, 2), "label": "before calibration"}
    after: dict[str, Any] = {"color": SERIES[0], "marker": "o", "dashes": (1, 0), "label": "after calibration"}
    styles = {"before": before, "after": after}
    if len(reliability) == 1:  # the run is not calibrated
        styles = {"before": after | {"label": "scores"}}
    for key, points in reliability.items():
        axes.plot(points.probability, points.frequency, markersize=4.5, linewidth=1.8, **styles[key])
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="fraction of positives")
    axes.legend(loc="upper left")
    return to_inline_svg(figure, "rel", "Reliability diagram of all labels on test images")


def draw_risk_coverage(curve: RiskCoverage) -> Markup:
    """Draw the fraction of wrong decisions among the most certain images."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    x, y = [], []
    for coverage, risk in zip(curve.coverage, curve.risk, strict=True):
        if risk is not None:
            x.append(100 * coverage)
            y.append(100 * risk)
    axes.plot(x, y, color=SERIES[0], marker="o", markersize=3.5, linewidth=1.8)
    axes.set(xlim=(0, 102), xlabel="most certain images kept (%)", ylabel="wrong decisions (%)")
    axes.set_ylim(bottom=0)
    return to_inline_svg(figure, "risk", "Risk–coverage curve on test images")


def _draw_label_pairs(pairs: LabelPairs) -> dict[str, Markup]:
    truth, predicted = np.array(pairs.truth), np.array(pairs.predicted)
    difference = predicted - truth
    off_diagonal = difference - np.diag(np.diag(difference))
    largest = max(np.abs(off_diagonal).max(), 1e-9)
    return {
        "truth": draw_matrix(truth, pairs.classes, "truth", "labels"),
        "predicted": draw_matrix(predicted, pairs.classes, "predicted", "predictions"),
        "difference": draw_matrix(difference, pairs.classes, "difference", "prediction − label", opaque=largest),
    }


def draw_matrix(
    values: Float[ndarray, "K K"], names: Sequence[str], key: str, title: str, opaque: float = 1.0
) -> Markup:
    """Draw a matrix; the opacity of a cell is its value, so it fits light and dark pages. `opaque` is the largest one.

    Negative values have another color.
    """
    side = 110 + max(11 * len(names), 150)
    figure, axes = new_figure(side, side + 20)
    pixels = np.zeros((*values.shape, 4))
    pixels[..., :3] = np.where(values[..., None] < 0, NEGATIVE, POSITIVE)
    pixels[..., 3] = 255 * np.abs(values) / opaque
    axes.imshow(np.clip(pixels, 0, 255).astype(np.uint8), interpolation="none")
    axes.grid(visible=False)
    short = [_shortened(name, MAX_NAME) for name in names]
    size = FONT - 2 if len(names) > MANY_NAMES else FONT - 1
    axes.set_xticks(range(len(names)), short, rotation=90, fontsize=size)
    axes.set_yticks(range(len(names)), short, fontsize=size)
    axes.set_title(title, loc="left")
    return to_inline_svg(figure, key, f"Co-occurrence of labels: {title}")


def _shortened(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def draw_loss(curve: LearningCurve, key: str) -> Markup:
    """Draw the loss of a training stage."""
    figure, axes = new_figure(300, 190)
    axes.plot(curve.step, _numbers(curve.loss), color=SERIES[0], linewidth=1.8)
    axes.set(xlabel="step", ylabel="loss")
    axes.set_title(curve.stage, loc="left")
    return to_inline_svg(figure, key, f"Loss of {curve.stage}")


def draw_statistics(curve: LearningCurve, key: str) -> Markup:
    """Draw the collapse statistics of a contrastive stage; the number of components is on its own axis."""
    figure, axes = new_figure(300, 230)
    others = [name for name in curve.statistics if name != "effective_components"]
    for name, color in zip(others, SERIES, strict=False):
        values = _numbers(getattr(curve, name))
        axes.plot(curve.step, values, color=color, linewidth=1.6, label=name.replace("_", " "))
    if not isinstance(curve.effective_components, UnsetType):
        right = axes.twinx()
        components = _numbers(curve.effective_components)
        right.plot(curve.step, components, color=INK, linewidth=1.2, dashes=(4, 2))
        right.set_ylabel("effective components (dashed)")
        right.grid(visible=False)
    axes.set(xlabel="step")
    axes.set_title(curve.stage, loc="left")
    figure.legend(loc="outside lower center", ncols=2, fontsize=FONT - 2)
    return to_inline_svg(figure, key, f"Collapse statistics of {curve.stage}")


def draw_runs(rows: Sequence[RunSummary]) -> Markup:
    """Draw the test mAP of several runs with their intervals."""
    figure, axes = new_figure(WIDTH, 70 + 28 * len(rows))
    for number, row in enumerate(rows):
        if row.mAP is not None:
            low, high = row.mAP_interval or (row.mAP, row.mAP)
            axes.plot([100 * low, 100 * high], [number, number], color=SERIES[0], linewidth=2)
            axes.plot(100 * row.mAP, number, color=SERIES[0], marker="o", markersize=7)
    names = [row.name if len(row.name) <= MAX_RUN_NAME else f"{row.name[:MAX_RUN_NAME]}…" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel="test mAP (%)")
    return to_inline_svg(figure, "runs", "Test mAP of the runs")


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]
