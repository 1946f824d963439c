"""A comparison as a picture: how good against how long it trained. SVG as text, without a plotting library."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from probmcl.experiments.rows import Comparison, Row
from probmcl.report.comparison_tables import SECTIONS, mean_and_interval, notes
from probmcl.tables import duration

WIDTH, HEIGHT = 860.0, 488.0
"""Of the picture without the lines below; the height is the least one."""

LEFT, RIGHT, TOP, BOTTOM = 64.0, 24.0, 64.0, 64.0
"""Margins around the frame."""

LINE = 16.0
"""Height of a line below."""

FONT = 12.0
MARK = 5.0
"""Half of the width of a mark."""

LONGEST = 40
"""Characters of a label; the whole name is what a pointer over the mark shows."""

COLORS = ("#1b62a5", "#b3400b", "#1d7a3a", "#8a2aa5", "#8a6100", "#b0184d", "#0b7285", "#5b4bc4", "#5c6b00", "#7a4a2b")
"""Of the methods, in turn; as text each is readable on white."""

_UNITS = {
    1.0: (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30),
    60.0: (1, 2, 5, 10, 20, 30),
    3600.0: (1, 2, 5, 10),
    86_400.0: (1, 2, 5, 10, 20, 50, 100),
}
TIMES = tuple(unit * count for unit, counts in _UNITS.items() for count in counts)
"""Where the time axis may have a tick."""


class Box(NamedTuple):
    """A rectangle that something takes up."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether the two share a point inside."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


class Axes(NamedTuple):
    """From seconds and fractions to places in the picture; time on a logarithmic scale."""

    shortest: float
    longest: float
    lowest: float
    highest: float
    frame: Box

    def x(self, seconds: float) -> float:
        """Where a training time is."""
        share = math.log(seconds / self.shortest) / math.log(self.longest / self.shortest)
        return self.frame.left + share * (self.frame.right - self.frame.left)

    def y(self, fraction: float) -> float:
        """Where a score is."""
        share = (fraction - self.lowest) / (self.highest - self.lowest)
        return self.frame.bottom - share * (self.frame.bottom - self.frame.top)


class Label(NamedTuple):
    """A name and where it stands: at the end of its box that is nearer to its mark."""

    row: Row
    box: Box


def to_svg(comparison: Comparison) -> str:
    """Test mAP with its interval against seconds of training: a mark for each row, a band for the frozen probe."""
    frozen, rows = comparison.frozen, comparison.ordered[1:]
    bottom = max(HEIGHT - BOTTOM, TOP + 18 * len(rows))
    below = _below(comparison)
    height = bottom + BOTTOM + LINE * len(below)
    axes = _axes(frozen, rows, Box(LEFT, TOP, WIDTH - RIGHT, bottom))
    names = list(dict.fromkeys(row.name for row in rows))
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}
    best = comparison.methods[0] if comparison.methods else None
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" '
        f'height="{height:g}" role="img" font-family="sans-serif" font-size="{FONT:g}" fill="#222">',
        f"<title>{_text(f'Test mAP against training time, {comparison.data}')}</title>",
        f'<rect width="{WIDTH:g}" height="{height:g}" fill="#fff"/>',
        *_grid(axes),
        *_band(frozen, rows, axes),
        *_legend(),
        *(part for row in rows for part in _bar(row, axes, colors[row.name])),
        *(part for row in rows for part in _mark(row, axes, colors[row.name])),
        *(part for label in place_labels(rows, axes, frozen) for part in _label(label, axes, colors, best)),
        *_lines(below, bottom + 60),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(frozen: Row, rows: Sequence[Row], frame: Box) -> Axes:
    """Room for every mark and interval, and some more; a narrow range is widened so that noise does not look large."""
    scores = [score for row in (frozen, *rows) for score in (row.mAP, *(row.interval or ()))]
    margin = max(0.08 * (max(scores) - min(scores)), 0.005)
    seconds = [_shown_seconds(row) for row in rows] or [_shown_seconds(frozen)]
    middle = math.sqrt(min(seconds) * max(seconds))
    reach = max(1.2 * math.sqrt(max(seconds) / min(seconds)), 1.7)
    return Axes(middle / reach, middle * reach, min(scores) - margin, max(scores) + margin, frame)


def _shown_seconds(row: Row) -> float:
    """What a logarithm can show: less than a tenth of a second is where the axis begins."""
    return max(row.seconds, TIMES[0])


def _grid(axes: Axes) -> Iterator[str]:
    left, top, right, bottom = axes.frame
    for score in score_ticks(axes.lowest, axes.highest):
        y = axes.y(score)
        yield f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="#e4e4e4"/>'
        yield f'<text x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{100 * score:g}</text>'
    for time in time_ticks(axes.shortest, axes.longest):
        x = axes.x(time)
        yield f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="#e4e4e4"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{_tick(time)}</text>'
    yield f'<path d="M{left:.1f} {top:.1f}V{bottom:.1f}H{right:.1f}" fill="none" stroke="#222"/>'
    center = (left + right) / 2
    yield f'<text x="{center:.1f}" y="{bottom + 38:.1f}" text-anchor="middle">training time, logarithmic</text>'
    yield f'<text x="{left:.1f}" y="{top - 12:.1f}" text-anchor="start">test mAP, %</text>'


def score_ticks(lowest: float, highest: float) -> list[float]:
    """Round percentages between two fractions: four to nine of them.

    >>> score_ticks(0.752, 0.846)
    [0.76, 0.78, 0.8, 0.82, 0.84]
    """
    power = 10.0 ** math.floor(math.log10((highest - lowest) / 4))
    step = max(power * factor for factor in (1, 2, 5) if 4 * power * factor <= highest - lowest)
    first, last = math.ceil(lowest / step), math.floor(highest / step)
    return [round(number * step, 10) for number in range(first, last + 1)]


def time_ticks(shortest: float, longest: float) -> list[float]:
    """Round times between two.

    >>> time_ticks(100.0, 2000.0)
    [120.0, 300.0, 600.0, 1200.0, 1800.0]
    """
    return [time for time in TIMES if shortest <= time <= longest]


def _tick(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def _band(frozen: Row, rows: Sequence[Row], axes: Axes) -> Iterator[str]:
    left, _, right, _ = axes.frame
    if frozen.interval is not None:
        low, high = map(axes.y, frozen.interval)
        size = f'width="{right - left:.1f}" height="{low - high:.1f}"'
        yield f'<rect x="{left:.1f}" y="{high:.1f}" {size} fill="#777" fill-opacity="0.16"/>'
    y, box = axes.y(frozen.mAP), _band_label(frozen, rows, axes)
    yield f'<path d="M{left:.1f} {y:.1f}H{right:.1f}" stroke="#555" stroke-dasharray="6 4"/>'
    yield f'<text x="{box.left:.1f}" y="{box.bottom - 4:.1f}" fill="#444">{_text(_of_the_probe(frozen))}</text>'


def _of_the_probe(frozen: Row) -> str:
    return f"{frozen.name}, {duration(frozen.seconds)}"


def _band_label(frozen: Row, rows: Sequence[Row], axes: Axes) -> Box:
    """At either end of the line, above or below it, where least is in the way."""
    width, y = text_width(_of_the_probe(frozen)), axes.y(frozen.mAP)
    places = [
        Box(left, top, left + width, top + FONT + 4)
        for left in (axes.frame.left + 6, axes.frame.right - 6 - width)
        for top in (y - FONT - 6, y + 2)
    ]
    return min(places, key=lambda box: sum(map(box.meets, [*_marks(rows, axes), *_bars(rows, axes)])))


def _legend() -> Iterator[str]:
    x, y = LEFT + 110, TOP - 16
    for head in ("own head", "re-probed"):
        yield _shape(head, x, y, "#444")
        yield f'<text x="{x + 10:.1f}" y="{y + 4:.1f}">{head}</text>'
        x += 10 + text_width(head) + 24
    yield f'<text x="{x:.1f}" y="{y + 4:.1f}"><tspan font-weight="bold">bold</tspan>: the best on validation</text>'


def _bar(row: Row, axes: Axes, color: str) -> Iterator[str]:
    if row.interval is not None:
        x, (low, high) = axes.x(_shown_seconds(row)), map(axes.y, row.interval)
        ends = f"M{x - 3:.1f} {high:.1f}h6M{x - 3:.1f} {low:.1f}h6"
        yield f'<path d="M{x:.1f} {low:.1f}V{high:.1f}{ends}" stroke="{color}" stroke-opacity="0.55"/>'


def _mark(row: Row, axes: Axes, color: str) -> Iterator[str]:
    said = f"{row.title}: mAP {mean_and_interval(row)}, {duration(row.seconds)}" + (row.note and f"; {row.note}")
    yield f"<g><title>{_text(said)}</title>"
    yield _shape(row.head, axes.x(_shown_seconds(row)), axes.y(row.mAP), color)
    yield "</g>"


def _shape(head: str, x: float, y: float, color: str) -> str:
    """A disc where the method predicts by itself, an open square where a probe does."""
    if head == "own head":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{MARK}" fill="{color}" stroke="#fff"/>'
    size = 2 * MARK - 1
    corner = f'x="{x - size / 2:.1f}" y="{y - size / 2:.1f}"'
    return f'<rect {corner} width="{size}" height="{size}" fill="#fff" stroke="{color}" stroke-width="2"/>'


def _label(label: Label, axes: Axes, colors: dict[str, str], best: Row | None) -> Iterator[str]:
    row, box = label
    color = colors[row.name]
    x, y = axes.x(_shown_seconds(row)), axes.y(row.mAP)
    end, edge = ("end", box.right - 2) if (box.left + box.right) / 2 < x else ("start", box.left + 2)
    if math.hypot(edge - x, (box.top + box.bottom) / 2 - y) > 4 * MARK:
        line = f"M{x:.1f} {y:.1f}L{edge:.1f} {(box.top + box.bottom) / 2:.1f}"
        yield f'<path d="{line}" stroke="{color}" stroke-opacity="0.5"/>'
    weight = ' font-weight="bold"' if row is best else ""
    place = f'x="{edge:.1f}" y="{box.bottom - 4:.1f}" text-anchor="{end}"'
    yield f'<text {place} fill="{color}"{weight}>{_text(_short(row.name))}</text>'


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def text_width(text: str) -> float:
    """An upper estimate for a line of text in any common font, bold or not: a file of text knows no font."""
    return FONT * sum(map(_em, text))


def _em(sign: str) -> float:
    if unicodedata.east_asian_width(sign) in "WF":
        return 1.05
    return 0.42 if sign in "iljtfr.,:;'|()[] " else 1.1 if sign in "mwMW@%…—" else 0.85 if sign.isupper() else 0.7


def place_labels(rows: Sequence[Row], axes: Axes, frozen: Row) -> list[Label]:
    """A place for every label: near its mark, over no other label and no mark, and if possible over no line."""
    marks, probe = _marks(rows, axes), axes.y(frozen.mAP)
    lines = [*_bars(rows, axes), Box(axes.frame.left, probe - 1, axes.frame.right, probe + 1)]
    taken, labels = [*marks, _band_label(frozen, rows, axes)], []
    for row, mark in sorted(zip(rows, marks, strict=True), key=lambda pair: pair[1]):
        box = _free_place(row, mark, taken, lines, axes.frame)
        taken.append(box)
        labels.append(Label(row, box))
    return labels


def _marks(rows: Sequence[Row], axes: Axes) -> list[Box]:
    around, places = MARK + 1, [(axes.x(_shown_seconds(row)), axes.y(row.mAP)) for row in rows]
    return [Box(x - around, y - around, x + around, y + around) for x, y in places]


def _bars(rows: Sequence[Row], axes: Axes) -> list[Box]:
    found = [(axes.x(_shown_seconds(row)), row.interval) for row in rows if row.interval is not None]
    return [Box(x - 3, axes.y(high), x + 3, axes.y(low)) for x, (low, high) in found]


def _free_place(row: Row, mark: Box, taken: Sequence[Box], lines: Sequence[Box], frame: Box) -> Box:
    width, height = text_width(_short(row.name)) + 4, FONT + 4
    left, top = _places(mark, width, height, frame)
    right, bottom = left + width, top + height

    def met(boxes: Sequence[Box]) -> Float64[ndarray, " P"]:
        """How many of the boxes a label at each place would meet."""
        inside = [(left < b.right) & (b.left < right) & (top < b.bottom) & (b.top < bottom) for b in boxes]
        return np.sum(inside, axis=0, dtype=float) if inside else np.zeros(len(left))

    x, y = (mark.left + mark.right) / 2, (mark.top + mark.bottom) / 2
    across, down = (
        np.maximum(0, low - at) + np.maximum(0, at - high) for at, low, high in ((x, left, right), (y, top, bottom))
    )
    best = int(np.argmin(np.hypot(across, down) + 30 * met(lines) + 10_000 * met(taken)))
    return Box(*(float(side[best]) for side in (left, top, right, bottom)))


def _places(mark: Box, width: float, height: float, frame: Box) -> Float64[ndarray, "2 P"]:
    """Corners inside the frame: right and left of the mark, above and below it, then a grid over everything."""
    x, y = (mark.left + mark.right) / 2, (mark.top + mark.bottom) / 2
    beside = [(mark.right + 1, y - height / 2), (mark.left - 1 - width, y - height / 2)]
    beside += [(x - width / 2, mark.top - height - 1), (x - width / 2, mark.bottom + 1)]
    grid = np.meshgrid(np.arange(frame.left, frame.right - width, 8), np.arange(frame.top, frame.bottom - height, 4))
    left, top = np.concatenate([np.array(beside).T, np.reshape(grid, (2, -1))], axis=1)
    inside = (left >= frame.left) & (left + width <= frame.right) & (top >= frame.top) & (top + height <= frame.bottom)
    return np.stack([left, top])[:, inside]


def _below(comparison: Comparison) -> list[str]:
    """The conditions, and what has to be said beside an mAP, in lines."""
    width = int((WIDTH - LEFT - RIGHT) / (0.6 * FONT))
    noted = [line for note in notes(SECTIONS["quality"], comparison) for line in textwrap.wrap(note, width)]
    return _wrapped(comparison.protocol, width) + noted


def _lines(lines: Sequence[str], top: float) -> Iterator[str]:
    for number, line in enumerate(lines):
        y = top + LINE * number
        yield f'<text x="{LEFT}" y="{y:.1f}" fill="#555" font-size="{FONT - 1:g}">{_text(line)}</text>'


def _wrapped(text: str, width: int) -> list[str]:
    """Lines that end where a part of the text does."""
    joined = text.replace(" ", "\u00a0").replace("\u00a0·\u00a0", "\u00a0· ")
    return [line.replace("\u00a0", " ") for line in textwrap.wrap(joined, width)]


def _text(text: str) -> str:
    """Text that means itself; signs that no XML file may hold become question marks."""
    return escape("".join(sign if sign.isprintable() else "?" for sign in text))
