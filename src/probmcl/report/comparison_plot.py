"""The plot of a comparison: test mAP against training time."""

from __future__ import annotations

import io
import itertools
import math
import textwrap
import unicodedata
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from probmcl.experiments.results import Comparison, Row
from probmcl.report.comparison_tables import SECTIONS, mean_and_interval, notes
from probmcl.tables import duration, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 860, 488  # size of the figure without its caption, in points; many rows make it taller
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 64, 64  # margins, in points
FONT, LINE, MARK = 12, 16, 5  # font size, height of a caption line, and half the width of a mark, in points
MAX_LABEL = 40  # characters of a label before it is truncated; the tooltip has the full name
# Colors that methods cycle through. Each has enough contrast for text on a white background.
COLORS = ("#1b62a5", "#b3400b", "#1d7a3a", "#8a2aa5", "#8a6100", "#b0184d", "#0b7285", "#5b4bc4", "#5c6b00", "#7a4a2b")
# Possible ticks of the time axis: seconds, and the label.
TICKS: dict[float, str] = {
    **{count: f"{count:g} s" for count in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30)},
    **{60 * count: f"{count:g} min" for count in (1, 2, 5, 10, 20, 30)},
    **{3600 * count: f"{count:g} h" for count in (1, 2, 5, 10)},
    **{86_400 * count: f"{count:g} d" for count in (1, 2, 5, 10, 20, 50, 100)},
}
GRID_X, GRID_Y = 8, 4  # distances of the places that are tried for a label, in points
LINE_COST, LABEL_COST = 30, 10_000  # cost of overlapping a line or a label, as a distance from the mark in points
Point = Float[ndarray, "2"]
Box = Float[ndarray, "4"]  # left, bottom, right and top edge, in points
Boxes = Float[ndarray, "_ 4"]


def to_svg(comparison: Comparison) -> str:
    """Return the plot as SVG, with a tooltip for every mark. Equal comparisons produce identical text."""
    import matplotlib

    text = io.StringIO()
    options = {"svg.fonttype": "none", "svg.hashsalt": "probmcl"}
    title = _printable(f"Test mAP against training time, {comparison.data}")
    # matplotlib warns about glyphs that its font lacks. The SVG contains text, and the viewer's font may have them.
    with matplotlib.rc_context(options), warnings.catch_warnings(action="ignore"):
        metadata = {"Date": None, "Creator": None, "Title": title}
        draw_comparison(comparison).savefig(text, format="svg", metadata=metadata)
    svg = text.getvalue()
    for number, row in enumerate(comparison.ordered[1:]):
        group = f'<g id="mark-{number}">'
        tooltip = escape(_printable(_tooltip(row)))
        svg = svg.replace(group, f"{group}\n<title>{tooltip}</title>")
    return svg


def _tooltip(row: Row) -> str:
    note = f"; {row.note}" if row.note else ""
    return f"{row.title}: mAP {mean_and_interval(row)}, {duration(row.seconds)}{note}"


def draw_comparison(comparison: Comparison) -> Figure:
    """Draw test mAP against training time: a mark with an error bar per row, and a band for the frozen probe."""
    frozen, rows = comparison.frozen, comparison.ordered[1:]
    caption = _caption(comparison)
    bottom = BOTTOM + LINE * len(caption)
    height = max(HEIGHT - BOTTOM, TOP + 18 * len(rows)) + bottom
    figure, axes = _figure_with_axes(height, bottom)
    _set_scales(axes, frozen, rows)
    chance = "" if comparison.chance is None else f", chance {percent(comparison.chance)}"
    axes.set_title(f"test mAP (%){chance}", fontsize=FONT, loc="left", pad=12)
    if frozen.interval is not None:
        low, high = frozen.interval
        axes.axhspan(100 * low, 100 * high, color="#777", alpha=0.16, linewidth=0, gid="band")
    axes.axhline(100 * frozen.mAP, color="#555", linewidth=1, dashes=(6, 4))
    colors = _colors(rows)
    for number, row in enumerate(rows):
        _draw_row(axes, row, colors[row.name], f"mark-{number}")
    _draw_labels(axes, comparison, colors)
    _draw_legend(axes)
    style: dict[str, Any] = {"fontsize": FONT - 1, "color": "#555", "linespacing": 1.3, "va": "top"}
    figure.text(LEFT / WIDTH, (bottom - 50) / height, "\n".join(caption), parse_math=False, **style)
    return figure


def _figure_with_axes(height: int, bottom: int) -> tuple[Figure, Axes]:
    """Return a figure of this height, with axes that leave room for a caption at the bottom; sizes are in points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)  # one pixel is one point
    inner_width = (WIDTH - LEFT - RIGHT) / WIDTH
    inner_height = (height - bottom - TOP) / height
    axes = figure.add_axes((LEFT / WIDTH, bottom / height, inner_width, inner_height))
    return figure, axes


def _colors(rows: Sequence[Row]) -> dict[str, str]:
    """Return the color of each method, which both of its heads have."""
    names = dict.fromkeys(row.name for row in rows)
    return dict(zip(names, itertools.cycle(COLORS), strict=False))


def _set_scales(axes: Axes, frozen: Row, rows: Sequence[Row]) -> None:
    """Set axis limits with a margin, and with a minimum range so that noise does not look like a large difference."""
    scores = []
    for row in (frozen, *rows):
        scores += [100 * score for score in (row.mAP, *(row.interval or ()))]
    lowest, highest = min(scores), max(scores)
    margin = max(0.08 * (highest - lowest), 0.5)
    axes.set_ylim(lowest - margin, highest + margin)

    seconds = [_seconds(row) for row in rows or [frozen]]
    shortest, longest = min(seconds), max(seconds)
    middle = math.sqrt(shortest * longest)
    reach = max(1.2 * math.sqrt(longest / shortest), 1.7)  # the axis is from middle / reach to middle · reach
    ticks = [time for time in TICKS if middle / reach <= time <= middle * reach]
    axes.set_xscale("log")
    axes.set_xlim(middle / reach, middle * reach)
    axes.set_xticks(ticks, [TICKS[time] for time in ticks])
    axes.set_xticks([], minor=True)
    axes.tick_params(length=0, pad=8, labelsize=FONT)
    axes.grid(color="#e4e4e4", linewidth=1)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("training time (log scale)", fontsize=FONT)


def _seconds(row: Row) -> float:
    return max(row.seconds, min(TICKS))  # a logarithmic axis has no zero


def _draw_row(axes: Axes, row: Row, color: str, gid: str) -> None:
    x, y = _seconds(row), 100 * row.mAP
    if row.interval is not None:
        low, high = row.interval
        lengths = [[y - 100 * low], [100 * high - y]]
        axes.errorbar(x, y, lengths, fmt="none", ecolor=color, alpha=0.55, elinewidth=1, capsize=3)
    axes.plot(x, y, gid=gid, zorder=3, **_mark(row.head, color))


def _mark(head: str, color: str) -> dict[str, Any]:
    """Return the style of a mark: a filled disc for a method's own head, an open square for a probe."""
    style: dict[str, Any] = {"color": color, "linestyle": "none"}
    if head == "own head":
        return style | {"marker": "o", "markersize": 2 * MARK, "markeredgecolor": "white"}
    return style | {"marker": "s", "markersize": 2 * MARK - 1, "markerfacecolor": "white", "markeredgewidth": 2}


def _draw_legend(axes: Axes) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=head, **_mark(head, "#444")) for head in ("own head", "re-probed")]
    handles.append(Line2D([], [], label="bold: best on validation", linestyle="none"))
    position: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.12, 1.0), "handletextpad": 0.2}
    axes.legend(handles=handles, ncols=3, frameon=False, borderaxespad=0.4, fontsize=FONT, **position)


def _draw_labels(axes: Axes, comparison: Comparison, colors: dict[str, str]) -> None:
    """Label every row near its mark, and the frozen probe at the less crowded end of its line."""
    frozen, rows = comparison.frozen, comparison.ordered[1:]
    frame = np.array(axes.bbox.extents)
    places = axes.transData.transform([(_seconds(row), 100 * row.mAP) for row in (frozen, *rows)])
    line, points = places[0, 1], places[1:]
    marks = np.hstack([points - MARK - 1, points + MARK + 1])
    error_bars = _error_bars(axes, rows)
    box = _label_frozen(axes, frozen, line, np.vstack([marks, error_bars]))

    taken = np.vstack([marks, box])
    lines = np.vstack([(frame[0], line - 1, frame[2], line + 1), error_bars])
    for number in np.lexsort(points.T[::-1]):  # from left to right
        row, point = rows[number], points[number]
        weight = "bold" if row in comparison.methods[:1] else "normal"
        name = _label_text(row)
        box = place_label(point, _text_size(name, weight), frame, taken, lines)
        taken = np.vstack([taken, box])
        _write(axes, name, box, point, {"color": colors[row.name], "fontweight": weight})


def _error_bars(axes: Axes, rows: Sequence[Row]) -> Boxes:
    """Return a box around the error bar of each row that has one."""
    boxes = []
    for row in rows:
        if row.interval is not None:
            ends = [(_seconds(row), 100 * end) for end in row.interval]
            (x, low), (_, high) = axes.transData.transform(ends)
            boxes.append((x - 3, low, x + 3, high))
    return np.reshape(boxes, (-1, 4))


def _label_frozen(axes: Axes, frozen: Row, line: float, obstacles: Boxes) -> Box:
    """Label the line of the frozen probe, above or below one of its ends, and return the box of the label."""
    left, _, right, _ = axes.bbox.extents
    name = f"{frozen.name}, {duration(frozen.seconds)}"
    width, height = _text_size(name, "normal")
    above, below = line + 2, line - 2 - height
    corners = [(x, y) for x in (left + 4, right - 4 - width) for y in (above, below)]
    boxes = np.hstack([corners, np.add(corners, (width, height))])
    box: Box = boxes[_overlaps(boxes, obstacles).argmin()]
    _write(axes, name, box, None, {"color": "#444"})
    return box


def _label_text(row: Row) -> str:
    name = row.name if len(row.name) <= MAX_LABEL else row.name[: MAX_LABEL - 1] + "…"
    return _printable(name)


def _write(axes: Axes, text: str, box: Box, mark: Point | None, style: dict[str, Any]) -> None:
    """Write a label into its box, and connect it to its mark with a line if the mark is far away."""
    left, bottom, right, top = box
    middle = (bottom + top) / 2
    ends_at_mark = mark is not None and left + right < 2 * mark[0]
    x, align = (right - 2, "right") if ends_at_mark else (left + 2, "left")
    target = (x, middle) if mark is None else (mark[0], mark[1])
    style = style | {
        "xycoords": "figure pixels",
        "textcoords": "figure pixels",
        "fontsize": FONT,
        "va": "center_baseline",
    }
    if math.hypot(x - target[0], middle - target[1]) > 4 * MARK:
        leader = {"arrowstyle": "-", "color": style["color"], "alpha": 0.5, "shrinkA": 0, "shrinkB": 0}
        style = style | {"arrowprops": leader | {"relpos": (float(ends_at_mark), 0.5)}}
    axes.annotate(text, target, (x, middle), ha=align, parse_math=False, **style)


def _text_size(text: str, weight: str) -> tuple[float, float]:
    """Return the width and height of a label. Wide characters count as a W because the font may lack them."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    narrow = ["W" if unicodedata.east_asian_width(character) in "WF" else character for character in text]
    font = FontProperties(size=FONT, weight=weight)
    width, _, _ = text_to_path.get_text_width_height_descent("".join(narrow), font, False)
    return width + 4, FONT + 4.0


def place_label(point: Point, size: tuple[float, float], frame: Box, taken: Boxes, lines: Boxes) -> Box:
    """Return the nearest box inside the frame for a label that, if possible, overlaps no box in `taken` or `lines`.

    >>> mark, no_lines = np.array([[43.0, 43.0, 57.0, 57.0]]), np.zeros((0, 4))
    >>> place_label(np.array([50.0, 50.0]), (30.0, 10.0), np.array([0.0, 0.0, 200.0, 100.0]), mark, no_lines)
    array([57., 45., 87., 55.])
    """
    low = np.vstack([_corners_next_to(point, size), _corners_on_grid(size, frame)])
    is_inside = (low >= frame[:2]).all(axis=1) & (low + size <= frame[2:]).all(axis=1)
    low = low[is_inside]
    boxes = np.hstack([low, low + size])
    distance = np.maximum(low - point, 0) + np.maximum(point - boxes[:, 2:], 0)
    overlap = LINE_COST * _overlaps(boxes, lines) + LABEL_COST * _overlaps(boxes, taken)
    cost = np.hypot(*distance.T) + overlap
    best: Box = boxes[cost.argmin()]
    return best


def _corners_next_to(point: Point, size: tuple[float, float]) -> Float[ndarray, "4 2"]:
    """Return the lower left corners of boxes on the right, on the left, above and below a mark."""
    (x, y), (width, height) = point, size
    away = MARK + 2
    right, left = (x + away, y - height / 2), (x - away - width, y - height / 2)
    above, below = (x - width / 2, y + away), (x - width / 2, y - away - height)
    return np.array([right, left, above, below])


def _corners_on_grid(size: tuple[float, float], frame: Box) -> Float[ndarray, "_ 2"]:
    """Return the lower left corners of boxes all over the frame."""
    left, bottom, right, top = frame
    width, height = size
    grid = np.meshgrid(np.arange(left, right - width, GRID_X), np.arange(bottom, top - height, GRID_Y))
    return np.reshape(grid, (2, -1)).T


def _overlaps(boxes: Boxes, others: Boxes) -> Int[ndarray, " B"]:
    starts_before_end = boxes[:, None, :2] < others[:, 2:]
    ends_after_start = others[:, :2] < boxes[:, None, 2:]
    count: Int[ndarray, " B"] = (starts_before_end & ends_after_start).all(axis=2).sum(axis=1)
    return count


def _caption(comparison: Comparison) -> list[str]:
    """Return the lines of the caption: the conditions, with line breaks only between them, then the notes on mAP."""
    width = int((WIDTH - LEFT - RIGHT) / (0.6 * FONT))  # in characters
    unbreakable = comparison.protocol.replace(" ", "\u00a0")
    conditions = unbreakable.replace("\u00a0·\u00a0", "\u00a0· ")
    lines = [line.replace("\u00a0", " ") for line in textwrap.wrap(conditions, width)]
    for note in notes(SECTIONS["quality"], comparison):
        lines += textwrap.wrap(note, width)
    return [_printable(line) for line in lines]


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
