import itertools
import math
import random
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from helpers.rows import demo_comparison, made_best, made_comparison, made_frozen, made_row
from probmcl.experiments.results import Comparison
from probmcl.report.comparison_plot import COLORS, TICKS, draw_comparison, place_label, to_svg

pytestmark = pytest.mark.slow  # it draws with matplotlib

SVG = "{http://www.w3.org/2000/svg}"
HEADS = ("own head", "re-probed")


def many(number: int, *, spread: float) -> Comparison:
    """Make a comparison of `number` rows, two heads per method; a small `spread` puts all marks close together."""
    draws = random.Random(number)
    rows = [
        made_row(
            f"method_{index // 2}:preset",
            HEADS[index % 2],
            0.8 + spread * draws.uniform(-0.02, 0.02),
            seconds=600 * 10 ** (spread * draws.uniform(-0.7, 0.7)),
            best_head=index % 2 == 0,
        )
        for index in range(number)
    ]
    return made_comparison(made_frozen(), *rows)


def axes_of(comparison: Comparison) -> Axes:
    return draw_comparison(comparison).axes[0]


def labels(axes: Axes) -> list[Text]:
    """Return the labels of all rows except the frozen probe."""
    return [text for text in axes.texts if not text.get_text().startswith("frozen probe")]


def box(label: Text) -> Bbox:
    """Return the box of a label without the line to its mark."""
    assert isinstance(label, Annotation)
    return super(Annotation, label).get_window_extent()


def marks(axes: Axes) -> list[Line2D]:
    return [line for line in axes.lines if (line.get_gid() or "").startswith("mark")]


def points(comparison: Comparison, axes: Axes) -> list[tuple[float, float]]:
    rows = comparison.ordered[1:]
    return [tuple(axes.transData.transform((row.seconds, 100 * row.mAP))) for row in rows]


def distance(inner: Bbox, x: float, y: float) -> float:
    return math.hypot(max(inner.x0 - x, 0, x - inner.x1), max(inner.y0 - y, 0, y - inner.y1))


def tooltips(comparison: Comparison) -> list[str]:
    groups = ElementTree.fromstring(to_svg(comparison)).iter(f"{SVG}g")
    return [group[0].text or "" for group in groups if group.get("id", "").startswith("mark")]


def texts(comparison: Comparison) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(to_svg(comparison)).iter(f"{SVG}text")]


@pytest.mark.parametrize("spread", [1.0, 0.05, 0.0])
@pytest.mark.parametrize("number", [2, 11, 24])
def test_labels_stay_inside_and_overlap_nothing(number: int, spread: float) -> None:
    comparison = many(number, spread=spread)
    axes = axes_of(comparison)
    boxes = [box(label) for label in axes.texts]
    assert len(boxes) == 1 + number
    assert not [pair for pair in itertools.combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert not [b for b in boxes[1:] for point in points(comparison, axes) if distance(b, *point) < 5]
    assert all(axes.bbox.x0 <= b.x0 < b.x1 <= axes.bbox.x1 for b in boxes)
    assert all(axes.bbox.y0 <= b.y0 < b.y1 <= axes.bbox.y1 for b in boxes)


def test_label_is_next_to_its_mark_if_there_is_room() -> None:
    comparison = many(2, spread=1.0)
    axes = axes_of(comparison)
    nearest = [min(distance(box(label), *point) for label in labels(axes)) for point in points(comparison, axes)]
    assert max(nearest) < 10


def test_label_may_touch_a_taken_box_but_not_overlap_it() -> None:
    frame, nothing, size = np.array([0.0, 0.0, 200.0, 100.0]), np.zeros((0, 4)), (30.0, 10.0)
    point = np.array([50.0, 50.0])
    free = place_label(point, size, frame, nothing, nothing)
    touching = np.array([[free[2], free[1], free[2] + 10, free[3]]])
    assert np.array_equal(place_label(point, size, frame, touching, nothing), free)
    assert not np.array_equal(place_label(point, size, frame, touching - [1, 0, 1, 0], nothing), free)


def test_every_row_has_a_mark_and_a_label_and_the_probe_has_a_band() -> None:
    comparison = demo_comparison()
    tips, written = tooltips(comparison), texts(comparison)
    assert len(tips) == len(comparison.rows) - 1
    assert "asl, own head: mAP 82.1 [80.9, 83.2], 10 min" in tips
    for row in comparison.ordered[1:]:
        assert written.count(row.name) == sum(other.name == row.name for other in comparison.rows)
    assert "frozen probe, 40 s" in written
    assert "untuned" in " ".join(written)
    assert 'id="band"' in to_svg(comparison)


def test_heads_of_a_method_share_a_color_and_differ_in_shape() -> None:
    comparison = demo_comparison()
    by_title = dict(zip([row.title for row in comparison.ordered[1:]], marks(axes_of(comparison)), strict=True))
    own, probed, other = by_title["asl, own head"], by_title["asl, re-probed"], by_title["bce, own head"]
    assert (own.get_marker(), probed.get_marker()) == ("o", "s")
    assert own.get_markerfacecolor() == probed.get_markeredgecolor() != other.get_markerfacecolor()
    assert probed.get_markerfacecolor() == "white"


def test_score_axis_is_linear_and_time_axis_is_logarithmic() -> None:
    rows = [
        made_row(name, mAP=mAP, seconds=s) for name, mAP, s in (("a", 0.7, 10.0), ("b", 0.8, 100.0), ("c", 0.85, 1e3))
    ]
    axes = axes_of(made_comparison(made_frozen(), *rows))
    (cx, cy), (bx, by), (ax, ay) = axes.transData.transform(
        [np.concatenate([line.get_xdata(), line.get_ydata()]) for line in marks(axes)]
    )
    assert bx - ax == pytest.approx(cx - bx)
    assert ax < bx
    assert by - ay == pytest.approx(2 * (cy - by))
    assert cy > by


def test_error_bar_is_the_interval() -> None:
    axes = axes_of(made_comparison(made_frozen(0.7, interval=None), made_best(mAP=0.8, interval=(0.75, 0.9))))
    ((bar,),) = (container[2] for container in axes.containers)
    assert bar.get_segments()[0][:, 1] == pytest.approx([75, 90])


def test_band_is_the_interval_of_the_probe() -> None:
    comparison = made_comparison(made_frozen(0.7, interval=(0.68, 0.72)), made_best(mAP=0.8, interval=None))
    axes = axes_of(comparison)
    (band,) = axes.patches
    assert band.get_extents().transformed(axes.transData.inverted()).intervaly == pytest.approx([68, 72])


@pytest.mark.parametrize(("seconds", "side"), [((600.0, 6000.0, 6000.0), "left"), ((60.0, 60.0, 600.0), "right")])
def test_probe_is_labeled_at_the_less_crowded_end_of_its_line(seconds: tuple[float, ...], side: str) -> None:
    # The crowded end has one mark above the line and one below it; the other end has one mark far above the line.
    scores = (0.792, 0.788, 0.9) if side == "right" else (0.9, 0.792, 0.788)
    rows = [made_row(name, mAP=m, seconds=s, interval=None) for name, m, s in zip("abc", scores, seconds, strict=True)]
    axes = axes_of(made_comparison(made_frozen(0.79, interval=None), *rows))
    (name,) = (text for text in axes.texts if text.get_text() == "frozen probe, 40 s")
    middle = (axes.bbox.x0 + axes.bbox.x1) / 2
    assert (box(name).x1 < middle) == (side == "left")
    assert (box(name).x0 > middle) == (side == "right")


def test_no_bars_and_no_band_without_intervals() -> None:
    axes = axes_of(made_comparison(made_frozen(interval=None), made_best(interval=None)))
    assert not axes.containers
    assert not axes.patches


def test_best_on_validation_is_bold() -> None:
    comparison = made_comparison(
        made_frozen(), made_best("a", mAP=0.8, validation=0.9), made_row("b", mAP=0.9, validation=0.8)
    )
    assert [label.get_text() for label in axes_of(comparison).texts if label.get_fontweight() == "bold"] == ["a"]


def test_names_are_escaped_and_truncated_except_in_the_tooltip() -> None:
    name = 'a<b>&"$c$"\x1b猫' + "x" * 50
    comparison = made_comparison(made_frozen(), made_best(name))
    printable = name.replace("\x1b", "?")
    assert [text.startswith(f"{printable}, own head") for text in tooltips(comparison)] == [True]
    assert f"{printable[:39]}…" in texts(comparison)


@pytest.mark.parametrize("comparison", [made_comparison(made_frozen()), made_comparison(made_frozen(seconds=0.0))])
def test_probe_without_methods_can_be_plotted(comparison: Comparison) -> None:
    assert tooltips(comparison) == []
    assert "nan" not in to_svg(comparison)


def test_zero_time_is_drawn_at_a_tenth_of_a_second() -> None:
    (mark,) = marks(axes_of(made_comparison(made_frozen(), made_best(seconds=0.0))))
    assert mark.get_xdata() == [0.1]


def test_many_rows_make_the_plot_taller() -> None:
    heights = [draw_comparison(many(number, spread=1.0)).get_figheight() for number in (2, 12, 40)]
    assert heights[0] == heights[1] < heights[2]


@pytest.mark.parametrize("factor", [1.7**2, 10.0, 1e3, 1e5])
@pytest.mark.parametrize("shortest", [0.1, 1.3, 31.0, 121.0, 1900.0, 7300.0, 36_100.0, 90_000.0])
def test_time_axis_always_has_a_tick(shortest: float, factor: float) -> None:
    assert any(shortest <= tick <= shortest * factor for tick in TICKS)


def test_time_ticks_have_units() -> None:
    axes = axes_of(made_comparison(made_frozen(), made_row("a", seconds=100.0), made_row("b", seconds=2000.0)))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2 min", "5 min", "10 min", "20 min", "30 min"]


@pytest.mark.parametrize(("lowest", "highest"), [(0.01, 0.99), (0.79, 0.8), (0.761, 0.829), (0.5, 0.5123)])
def test_there_are_four_to_twelve_score_ticks(lowest: float, highest: float) -> None:
    rows = [made_row("a", mAP=lowest, interval=None), made_row("b", mAP=highest, interval=None)]
    axes = axes_of(made_comparison(made_frozen(lowest, interval=None), *rows))
    low, high = axes.get_ylim()
    assert 4 <= sum(low <= tick <= high for tick in axes.get_yticks()) <= 12


def luminance(color: str) -> float:
    channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("color", COLORS)
def test_colors_are_readable_on_white(color: str) -> None:
    assert 1.05 / (luminance(color) + 0.05) >= 4.5


def test_note_is_part_of_the_tooltip() -> None:
    tips = tooltips(made_comparison(made_frozen(), made_best("pla", note="a note"), made_row("bce")))
    assert [text.endswith("; a note") for text in tips] == [text.startswith("pla") for text in tips]
    assert sum(text.startswith("pla") for text in tips) == 1


def test_svg_is_reproducible_and_has_no_date() -> None:
    svg = to_svg(demo_comparison())
    assert svg == to_svg(demo_comparison())
    assert "<dc:date>" not in svg
