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
ROW_HEIGHT = 18  # room for the label of a row, in points
AXIS_TEXT = 50  # height of the ticks and the title of the time axis, in points
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
HALF_CAP = 3  # half the width of the cap of an error bar, in points
NO_BREAK_SPACE = "\u00a0"
Point = Float[ndarray, "2"]
Box = Float[ndarray, "4"]  # left, bottom, right and top edge, in points
Boxes = Float[ndarray, "_ 4"]


def to_svg(comparison: Comparison) -> str:
    """Return the plot as SVG, with a tooltip for every mark. Equal comparisons produce identical text."""
    import matplotlib

    title = _printable(f"Test mAP against training time, {comparison.data}")
    metadata = {"Date": None, "Creator": None, "Title": title}  # a date would make equal plots differ
    options = {"svg.fonttype": "none", "svg.hashsalt": "probmcl"}  # the salt makes the ids of elements reproducible
    text = io.StringIO()
    # matplotlib warns about glyphs that its font lacks. The SVG contains text, and the viewer's font may have them.
    with matplotlib.rc_context(options), warnings.catch_warnings(action="ignore"):
        figure = draw_comparison(comparison)
        figure.savefig(text, format="svg", metadata=metadata)
    svg = text.getvalue()
    for number, row in enumerate(_rows_with_mark(comparison)):
        opening_tag = f'<g id="{_mark_id(number)}">'
        tooltip = escape(_printable(_tooltip(row)))
        svg = svg.replace(opening_tag, f"{opening_tag}\n<title>{tooltip}</title>")
    return svg


def _rows_with_mark(comparison: Comparison) -> tuple[Row, ...]:
    """Return all rows except the frozen probe, which comes first and is drawn as a line."""
    return comparison.ordered[1:]


def _mark_id(number: int) -> str:
    """Return the id of a mark in the SVG, from the number of its row."""
    return f"mark-{number}"


def _tooltip(row: Row) -> str:
    """Return the text that is shown when the pointer is on a mark."""
    note = ""
    if row.note:
        note = f"; {row.note}"
    return f"{row.title}: mAP {mean_and_interval(row)}, {duration(row.seconds)}{note}"


def draw_comparison(comparison: Comparison) -> Figure:
    """Draw test mAP against training time: a mark with an error bar per row, and a band for the frozen probe.

    The scales are set first, because the places of the labels depend on them.
    """
    frozen = comparison.frozen
    rows = _rows_with_mark(comparison)
    caption = _caption(comparison)
    bottom = BOTTOM + LINE * len(caption)
    height_of_labels = ROW_HEIGHT * len(rows)  # even if all marks are in one place
    height = max(HEIGHT - BOTTOM, TOP + height_of_labels) + bottom
    figure, axes = _figure_with_axes(height, bottom)
    _set_score_axis(axes, (frozen, *rows))
    _set_time_axis(axes, rows or (frozen,))
    _set_style(axes)
    _draw_title(axes, comparison.chance)
    _draw_frozen(axes, frozen)
    colors = _colors(rows)
    for number, row in enumerate(rows):
        _draw_row(axes, row, colors[row.name], _mark_id(number))
    _draw_labels(axes, comparison, colors)
    _draw_legend(axes)
    _draw_caption(figure, caption, top=(bottom - AXIS_TEXT) / height)
    return figure


def _draw_title(axes: Axes, chance: float | None) -> None:
    """Write the quantity of the vertical axis above it, with the level of chance."""
    title = "test mAP (%)"
    if chance is not None:
        title += f", chance {percent(chance)}"
    axes.set_title(title, fontsize=FONT, loc="left", pad=12)


def _draw_frozen(axes: Axes, frozen: Row) -> None:
    """Draw the frozen probe as a dashed line, and its interval as a band."""
    if frozen.interval is not None:
        low, high = frozen.interval
        axes.axhspan(100 * low, 100 * high, color="#777", alpha=0.16, linewidth=0, gid="band")
    axes.axhline(100 * frozen.mAP, color="#555", linewidth=1, dashes=(6, 4))


def _draw_caption(figure: Figure, lines: Sequence[str], top: float) -> None:
    """Write the caption below the plot; `top` is its upper edge as a fraction of the height of the figure."""
    style: dict[str, Any] = {"fontsize": FONT - 1, "color": "#555", "linespacing": 1.3, "va": "top"}
    figure.text(LEFT / WIDTH, top, "\n".join(lines), parse_math=False, **style)


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


def _set_score_axis(axes: Axes, rows: Sequence[Row]) -> None:
    """Set the limits of the vertical axis, so that it shows the scores of the rows and their intervals.

    Its range has a minimum, so that noise does not look like a large difference.
    """
    scores = []
    for row in rows:
        scores.append(100 * row.mAP)
        if row.interval is not None:
            scores.extend(100 * end for end in row.interval)
    lowest = min(scores)
    highest = max(scores)
    margin = max(0.08 * (highest - lowest), 0.5)
    axes.set_ylim(lowest - margin, highest + margin)


def _set_time_axis(axes: Axes, rows: Sequence[Row]) -> None:
    """Set the limits and the ticks of the horizontal axis, which is logarithmic and shows the times of the rows.

    Its range has a minimum, so that noise does not look like a large difference.
    """
    seconds = [_seconds(row) for row in rows]
    shortest = min(seconds)
    longest = max(seconds)
    middle = math.sqrt(shortest * longest)  # on a logarithmic scale
    reach = max(1.2 * math.sqrt(longest / shortest), 1.7)  # the factor from the middle to either end
    left = middle / reach
    right = middle * reach
    ticks = [time for time in TICKS if left <= time <= right]
    labels = [TICKS[time] for time in ticks]
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    axes.set_xticks(ticks, labels)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("training time (log scale)", fontsize=FONT)


def _set_style(axes: Axes) -> None:
    """Draw only a light grid, an axis on the left and one at the bottom."""
    axes.tick_params(length=0, pad=8, labelsize=FONT)
    axes.grid(color="#e4e4e4", linewidth=1)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _seconds(row: Row) -> float:
    """Return the training time of a row on the axis, which is logarithmic and has no zero."""
    return max(row.seconds, min(TICKS))


def _draw_row(axes: Axes, row: Row, color: str, mark_id: str) -> None:
    """Draw the mark of a row, and its interval as an error bar."""
    x = _seconds(row)
    y = 100 * row.mAP
    if row.interval is not None:
        low, high = row.interval
        below = y - 100 * low
        above = 100 * high - y
        lengths = [[below], [above]]
        axes.errorbar(x, y, lengths, fmt="none", ecolor=color, alpha=0.55, elinewidth=1, capsize=HALF_CAP)
    axes.plot(x, y, gid=mark_id, zorder=3, **_mark_style(row.head, color))


def _mark_style(head: str, color: str) -> dict[str, Any]:
    """Return the style of a mark: a filled disc for a method's own head, an open square for a probe."""
    style: dict[str, Any] = {"color": color, "linestyle": "none"}
    if head == "own head":
        return style | {"marker": "o", "markersize": 2 * MARK, "markeredgecolor": "white"}
    return style | {"marker": "s", "markersize": 2 * MARK - 1, "markerfacecolor": "white", "markeredgewidth": 2}


def _draw_legend(axes: Axes) -> None:
    """Explain the marks and the bold label in one line above the plot."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=head, **_mark_style(head, "#444")) for head in ("own head", "re-probed")]
    without_mark = Line2D([], [], label="bold: best on validation", linestyle="none")
    handles.append(without_mark)
    position: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.12, 1.0), "handletextpad": 0.2}
    axes.legend(handles=handles, ncols=3, frameon=False, borderaxespad=0.4, fontsize=FONT, **position)


def _draw_labels(axes: Axes, comparison: Comparison, colors: dict[str, str]) -> None:
    """Label every row near its mark, and the frozen probe at the less crowded end of its line.

    All positions are in points, and a box is (left, bottom, right, top). If there is room, a label of a row overlaps
    no mark, no earlier label, no error bar, and not the line of the frozen probe.
    """
    rows = _rows_with_mark(comparison)
    mark_positions = np.reshape([_place(axes, row, row.mAP) for row in rows], (-1, 2))  # x and y of each row
    mark_boxes = np.hstack([mark_positions - MARK - 1, mark_positions + MARK + 1])
    error_bar_boxes = _error_bars(axes, rows)

    frozen = comparison.frozen
    _, y_of_frozen = _place(axes, frozen, frozen.mAP)
    frozen_label_box = _label_frozen(axes, frozen, y_of_frozen, np.vstack([mark_boxes, error_bar_boxes]))

    frame = np.array(axes.bbox.extents)
    left, _, right, _ = frame
    frozen_line_box = (left, y_of_frozen - 1, right, y_of_frozen + 1)
    # A label on a mark or on another label is illegible, so it costs more than a label on a thin line.
    thin_lines = np.vstack([frozen_line_box, error_bar_boxes])
    marks_and_labels = np.vstack([mark_boxes, frozen_label_box])
    best = comparison.methods[:1]
    from_left_to_right = np.lexsort((mark_positions[:, 1], mark_positions[:, 0]))  # the last key, x, is sorted by first
    for number in from_left_to_right:
        row = rows[number]
        mark = mark_positions[number]
        weight = "bold" if row in best else "normal"
        text = _label_text(row)
        label_box = place_label(mark, _text_size(text, weight), frame, marks_and_labels, thin_lines)
        _write_label(axes, text, label_box, {"color": colors[row.name], "fontweight": weight}, mark=mark)
        marks_and_labels = np.vstack([marks_and_labels, label_box])  # later labels avoid this one


def _place(axes: Axes, row: Row, score: float) -> tuple[float, float]:
    """Return where a score of a row is in the figure, in points."""
    x, y = axes.transData.transform((_seconds(row), 100 * score))
    return x, y


def _error_bars(axes: Axes, rows: Sequence[Row]) -> Boxes:
    """Return a box around the error bar of each row that has one, in points: left, bottom, right and top."""
    boxes = []
    for row in rows:
        if row.interval is not None:
            low, high = row.interval
            x, bottom = _place(axes, row, low)
            _, top = _place(axes, row, high)
            boxes.append((x - HALF_CAP, bottom, x + HALF_CAP, top))
    return np.reshape(boxes, (-1, 4))


def _label_frozen(axes: Axes, frozen: Row, line: float, obstacles: Boxes) -> Box:
    """Label the line of the frozen probe, above or below one of its ends, and return the box of the label.

    `line` is the height of the line in the figure. The place that overlaps the fewest obstacles is chosen.
    """
    text = f"{frozen.name}, {duration(frozen.seconds)}"
    width, height = _text_size(text, "normal")
    left_edge, _, right_edge, _ = axes.bbox.extents
    left = left_edge + 4
    right = right_edge - 4 - width
    above = line + 2
    below = line - 2 - height
    corners = [(left, above), (left, below), (right, above), (right, below)]
    boxes = np.hstack([corners, np.add(corners, (width, height))])
    least_crowded = _overlaps(boxes, obstacles).argmin()
    box: Box = boxes[least_crowded]
    _write_label(axes, text, box, {"color": "#444"})
    return box


def _label_text(row: Row) -> str:
    """Return the name of a row, which is truncated if it is long."""
    name = row.name
    if len(name) > MAX_LABEL:
        name = name[: MAX_LABEL - 1] + "…"
    return _printable(name)


def _write_label(axes: Axes, text: str, box: Box, style: dict[str, Any], mark: Point | None = None) -> None:
    """Write a label into its box. If it has a mark that is far away, connect them with a line.

    The text is aligned with the side of the box that is closer to the mark.
    """
    left, bottom, right, top = box
    y = (bottom + top) / 2
    is_left_of_mark = mark is not None and left + right < 2 * mark[0]
    if is_left_of_mark:
        x = right - 2
        align = "right"
    else:
        x = left + 2
        align = "left"
    end_of_line = (x, y)
    if mark is not None:
        end_of_line = (mark[0], mark[1])
    options: dict[str, Any] = {
        "xycoords": "figure pixels",
        "textcoords": "figure pixels",
        "fontsize": FONT,
        "va": "center_baseline",
    }
    length = math.hypot(x - end_of_line[0], y - end_of_line[1])
    if length > 4 * MARK:
        start = (float(is_left_of_mark), 0.5)  # the middle of a side of the text, as fractions of its width and height
        line = {"arrowstyle": "-", "color": style["color"], "alpha": 0.5, "shrinkA": 0, "shrinkB": 0, "relpos": start}
        options["arrowprops"] = line
    axes.annotate(text, end_of_line, (x, y), ha=align, parse_math=False, **style, **options)


def _text_size(text: str, weight: str) -> tuple[float, float]:
    """Return the width and height of a label. Wide characters count as a W because the font may lack them."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    measured = "".join(map(_measured_character, text))
    font = FontProperties(size=FONT, weight=weight)
    width, _, _ = text_to_path.get_text_width_height_descent(measured, font, False)
    return width + 4, FONT + 4.0  # with a margin of 2 points on each side


def _measured_character(character: str) -> str:
    """Return a W for a character that is as wide as two letters, as in Chinese, and any other character unchanged."""
    if unicodedata.east_asian_width(character) in "WF":  # wide, full width
        return "W"
    return character


def place_label(point: Point, size: tuple[float, float], frame: Box, taken: Boxes, lines: Boxes) -> Box:
    """Return the nearest box inside the frame for a label that, if possible, overlaps no box in `taken` or `lines`.

    The cost of a box is its distance from the point, plus a penalty for each overlap. The cheapest box is chosen.

    >>> mark, no_lines = np.array([[43.0, 43.0, 57.0, 57.0]]), np.zeros((0, 4))
    >>> place_label(np.array([50.0, 50.0]), (30.0, 10.0), np.array([0.0, 0.0, 200.0, 100.0]), mark, no_lines)
    array([57., 45., 87., 55.])
    """
    boxes = _boxes_inside(point, size, frame)
    left, bottom, right, top = boxes.T
    x, y = point
    horizontal = np.maximum(left - x, 0) + np.maximum(x - right, 0)  # 0 if the box is above or below the point
    vertical = np.maximum(bottom - y, 0) + np.maximum(y - top, 0)
    distance = np.hypot(horizontal, vertical)
    penalty = LINE_COST * _overlaps(boxes, lines) + LABEL_COST * _overlaps(boxes, taken)
    cost = distance + penalty
    cheapest: Box = boxes[cost.argmin()]
    return cheapest


def _boxes_inside(point: Point, size: tuple[float, float], frame: Box) -> Boxes:
    """Return the places that are tried for a label: next to its mark and on a grid, as far as they are in the frame."""
    low = np.vstack([_corners_next_to(point, size), _corners_on_grid(size, frame)])  # lower left corners
    high = low + size
    is_inside = (low >= frame[:2]).all(axis=1) & (high <= frame[2:]).all(axis=1)
    return np.hstack([low[is_inside], high[is_inside]])


def _corners_next_to(point: Point, size: tuple[float, float]) -> Float[ndarray, "4 2"]:
    """Return the lower left corners of boxes on the right, on the left, above and below a mark."""
    x, y = point
    width, height = size
    gap = MARK + 2
    bottom_of_centered = y - height / 2
    left_of_centered = x - width / 2
    on_the_right = (x + gap, bottom_of_centered)
    on_the_left = (x - gap - width, bottom_of_centered)
    above = (left_of_centered, y + gap)
    below = (left_of_centered, y - gap - height)
    return np.array([on_the_right, on_the_left, above, below])


def _corners_on_grid(size: tuple[float, float], frame: Box) -> Float[ndarray, "_ 2"]:
    """Return the lower left corners of boxes all over the frame."""
    left, bottom, right, top = frame
    width, height = size
    lefts = np.arange(left, right - width, GRID_X)
    bottoms = np.arange(bottom, top - height, GRID_Y)
    grid = np.meshgrid(lefts, bottoms)
    return np.reshape(grid, (2, -1)).T


def _overlaps(boxes: Boxes, others: Boxes) -> Int[ndarray, " B"]:
    """Return the number of other boxes that each of B boxes overlaps."""
    low = boxes[:, None, :2]  # (B, 1, 2), left and bottom edge
    high = boxes[:, None, 2:]
    other_low = others[:, :2]
    other_high = others[:, 2:]
    overlaps_along_axis = (low < other_high) & (other_low < high)  # (B, number of others, 2)
    overlaps = overlaps_along_axis.all(axis=2)
    count: Int[ndarray, " B"] = overlaps.sum(axis=1)
    return count


def _caption(comparison: Comparison) -> list[str]:
    """Return the lines of the caption: the conditions, with line breaks only between them, then the notes on mAP."""
    width_of_character = 0.6 * FONT  # about the mean of the font
    width = int((WIDTH - LEFT - RIGHT) / width_of_character)  # in characters
    unbreakable = comparison.protocol.replace(" ", NO_BREAK_SPACE)  # `wrap` breaks lines at other spaces only
    breakable_after_dots = unbreakable.replace(f"{NO_BREAK_SPACE}·{NO_BREAK_SPACE}", f"{NO_BREAK_SPACE}· ")
    lines = [line.replace(NO_BREAK_SPACE, " ") for line in textwrap.wrap(breakable_after_dots, width)]
    for note in notes(SECTIONS["quality"], comparison):
        lines.extend(textwrap.wrap(note, width))
    return [_printable(line) for line in lines]


def _printable(text: str) -> str:
    """Return text with a question mark for each control character and the like, which XML does not allow."""
    return "".join(character if character.isprintable() else "?" for character in text)
