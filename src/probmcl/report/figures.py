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

STYLE_ATTRIBUTE = re.compile(r' style="(?P<style>[^"]*)"')
WITHOUT_ATTRIBUTE = ("image-", "mix-")
"""Prefixes of style properties that have no presentation attribute."""

SIZE_IN_POINTS = re.compile(r'(?:width|height)="([\d.]+)pt"')
UNWANTED = re.compile(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", re.DOTALL)
"""Metadata, comments, and style elements, which the Content-Security-Policy of the page blocks."""

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
    document = _svg_document(figure)
    svg = document[document.index("<svg") :]  # a page has no XML declaration inside
    svg = UNWANTED.sub("", svg)  # metadata, comments and style elements
    # The Content-Security-Policy of the page blocks style attributes, so their properties become attributes.
    svg = STYLE_ATTRIBUTE.sub(lambda match: _attributes(match["style"]), svg)
    svg = _with_unique_ids(svg, key)
    for color, variable in VARIABLES.items():  # variables of the page, which differ between light and dark mode
        svg = svg.replace(f'"{color}"', f'"var(--{variable})"')
    svg = _with_opening_tag(svg, description)
    without_indentation = re.sub(r"\n\s*", "\n", svg)
    return Markup(without_indentation)


def _svg_document(figure: Figure) -> str:
    """Return a figure as an SVG file, as matplotlib writes it; the same figure gives the same text."""
    text = io.StringIO()
    with warnings.catch_warnings(action="ignore"):  # glyphs that matplotlib's font lacks; the viewer's may have them
        metadata = {"Date": None, "Creator": None}
        figure.savefig(text, format="svg", metadata=metadata)
    return text.getvalue()


def _with_unique_ids(svg: str, key: str) -> str:
    """Return SVG whose ids, and the references to them, begin with a key. References use the modern `href`."""
    svg = re.sub(r'\bid="', f'id="{key}-', svg)
    svg = svg.replace("url(#", f"url(#{key}-")
    svg = svg.replace('xlink:href="#', f'href="#{key}-')
    return svg.replace('xlink:href="data:', 'href="data:')


def _with_opening_tag(svg: str, description: str) -> str:
    """Return SVG whose first tag has a description for screen readers, and no size, so that the page can scale it."""
    width, height = SIZE_IN_POINTS.findall(svg)[:2]
    label = quoteattr(description)
    opening_tag = f'<svg class="figure" role="img" aria-label={label} viewBox="0 0 {width} {height}">'
    end_of_tag = svg.index(">") + 1
    return opening_tag + svg[end_of_tag:]


def _attributes(style: str) -> str:
    """Return the presentation attributes for the content of a style attribute.

    >>> _attributes("font: 10px 'DejaVu Sans'; text-anchor: middle")
    ' font-size="10px" text-anchor="middle"'
    """
    properties = {}
    for declaration in style.split(";"):
        name, colon, value = declaration.partition(":")
        if colon:
            properties[name.strip()] = value.strip()
    attributes = {}
    if "font" in properties:  # the family is that of the page
        size, *_ = properties.pop("font").split()
        attributes["font-size"] = size
    others = {name: value for name, value in properties.items() if not name.startswith(WITHOUT_ATTRIBUTE)}
    attributes.update(others)
    return "".join(f' {name}="{value}"' for name, value in attributes.items())


def report_figures(content: ReportContent) -> dict[str, Markup]:
    """Return all figures by name; those without data are left out."""
    figures = {}
    curves = content.curves
    with figure_style():
        if curves.macro:
            figures["precision_recall"] = draw_precision_recall(curves, content.classes)
        figures["reliability"] = draw_reliability(curves.reliability)
        figures["risk_coverage"] = draw_risk_coverage(curves.risk_coverage)
        if content.label_pairs.classes:
            matrices = _draw_label_pairs(content.label_pairs)
            figures.update(matrices)
        for number, curve in enumerate(content.training.curves):
            key = f"loss-{number}"
            figures[key] = draw_loss(curve, key)
            if curve.statistics:
                key = f"statistics-{number}"
                figures[key] = draw_statistics(curve, key)
        if content.runs:
            figures["runs"] = draw_runs(content.runs)
    return figures


def draw_precision_recall(curves: Curves, classes: Sequence[ClassScores]) -> Markup:
    """Draw the precision–recall curves: all classes if there are few, their mean, and all decisions together."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    class_curves = [row.precision_at_recall for row in classes if row.precision_at_recall]
    if len(class_curves) <= MAX_LINES:
        for precision in class_curves:
            axes.plot(curves.recall, precision, color=MUTED, linewidth=0.7, alpha=0.55)
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
    is_calibrated = "after" in reliability
    if not is_calibrated:
        styles["before"] = after | {"label": "scores"}
    for key, points in reliability.items():
        axes.plot(points.probability, points.frequency, markersize=4.5, linewidth=1.8, **styles[key])
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="predicted probability", ylabel="fraction of positives")
    axes.legend(loc="upper left")
    return to_inline_svg(figure, "rel", "Reliability diagram of all labels on test images")


def draw_risk_coverage(curve: RiskCoverage) -> Markup:
    """Draw the fraction of wrong decisions among the most certain images."""
    figure, axes = new_figure(WIDTH, HEIGHT)
    coverages = []
    risks = []
    for coverage, risk in zip(curve.coverage, curve.risk, strict=True):
        if risk is not None:
            coverages.append(100 * coverage)
            risks.append(100 * risk)
    axes.plot(coverages, risks, color=SERIES[0], marker="o", markersize=3.5, linewidth=1.8)
    axes.set(xlim=(0, 102), xlabel="most certain images kept (%)", ylabel="wrong decisions (%)")
    axes.set_ylim(bottom=0)
    return to_inline_svg(figure, "risk", "Risk–coverage curve on test images")


def _draw_label_pairs(pairs: LabelPairs) -> dict[str, Markup]:
    """Draw how often labels occur together in the data and in the predictions, and the difference of both."""
    names = pairs.classes
    truth = np.array(pairs.truth)
    predicted = np.array(pairs.predicted)
    difference = predicted - truth
    diagonal = np.diag(np.diag(difference))  # pairs of a label with itself
    largest = max(np.abs(difference - diagonal).max(), 1e-9)
    return {
        "truth": draw_matrix(truth, names, "truth", "labels"),
        "predicted": draw_matrix(predicted, names, "predicted", "predictions"),
        "difference": draw_matrix(difference, names, "difference", "prediction − label", opaque=largest),
    }


def draw_matrix(
    values: Float[ndarray, "K K"], names: Sequence[str], key: str, title: str, opaque: float = 1.0
) -> Markup:
    """Draw a matrix; the opacity of a cell is its value, so it fits light and dark pages.

    Values of `opaque` or more have no transparency. Negative values have another color.
    """
    side_of_cells = max(11 * len(names), 150)
    side = 110 + side_of_cells  # with room for the names
    figure, axes = new_figure(side, side + 20)
    pixels = np.zeros((*values.shape, 4))  # red, green, blue and opacity
    pixels[..., :3] = np.where(values[..., None] < 0, NEGATIVE, POSITIVE)
    pixels[..., 3] = 255 * np.abs(values) / opaque
    axes.imshow(np.clip(pixels, 0, 255).astype(np.uint8), interpolation="none")
    axes.grid(visible=False)
    positions = range(len(names))
    short_names = [_shortened(name, MAX_NAME) for name in names]
    size = FONT - 2 if len(names) > MANY_NAMES else FONT - 1
    axes.set_xticks(positions, short_names, rotation=90, fontsize=size)
    axes.set_yticks(positions, short_names, fontsize=size)
    axes.set_title(title, loc="left")
    return to_inline_svg(figure, key, f"Co-occurrence of labels: {title}")


def _shortened(name: str, length: int) -> str:
    """Return a name with at most this many characters; the last one is "…" if the name is cut."""
    if len(name) <= length:
        return name
    return f"{name[: length - 1]}…"


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
        label = name.replace("_", " ")
        axes.plot(curve.step, values, color=color, linewidth=1.6, label=label)
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
    names = [_run_label(row.name) for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel="test mAP (%)")  # the first run is at the top
    return to_inline_svg(figure, "runs", "Test mAP of the runs")


def _run_label(name: str) -> str:
    """Return the name of a run; of a long name, only the beginning."""
    if len(name) <= MAX_RUN_NAME:
        return name
    return f"{name[:MAX_RUN_NAME]}…"


def _numbers(values: Sequence[float | None]) -> list[float]:
    """Return the values with NaN for None, where a line has a gap."""
    return [np.nan if value is None else value for value in values]
