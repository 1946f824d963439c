"""matplotlib figures as SVG for a page: they follow light and dark mode and need no inline style.

Figures are drawn in placeholder colors, which are replaced by CSS variables of the page. A strict Content-Security-
Policy blocks style attributes, so they become presentation attributes.
"""

from __future__ import annotations

import io
import re
import warnings
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from markupsafe import Markup

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
