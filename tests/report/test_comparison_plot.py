import itertools
import math
import random
import xml.etree.ElementTree as ElementTree

import pytest

from helpers.rows import demo_comparison, made_best, made_comparison, made_frozen, made_row
from probmcl.experiments.rows import Comparison
from probmcl.report.comparison_plot import (
    COLORS,
    Axes,
    Box,
    Label,
    _axes,
    place_labels,
    score_ticks,
    time_ticks,
    to_svg,
)

SVG = "{http://www.w3.org/2000/svg}"
FRAME = Box(64.0, 64.0, 836.0, 424.0)
HEADS = ("own head", "re-probed")


def many(number: int, *, spread: float) -> Comparison:
    """Rows of two heads a method, spread over time and score, or all close together."""
    draw = random.Random(number)
    rows = [
        made_row(
            f"method_{at // 2}:preset",
            HEADS[at % 2],
            0.8 + spread * draw.uniform(-0.02, 0.02),
            seconds=600 * 10 ** (spread * draw.uniform(-0.7, 0.7)),
            best_head=at % 2 == 0,
        )
        for at in range(number)
    ]
    return made_comparison(made_frozen(), *rows)


def distance(box: Box, x: float, y: float) -> float:
    return math.hypot(max(box.left - x, 0, x - box.right), max(box.top - y, 0, y - box.bottom))


def parsed(comparison: Comparison) -> ElementTree.Element:
    return ElementTree.fromstring(to_svg(comparison))


def texts(comparison: Comparison) -> list[str]:
    return ["".join(element.itertext()) for element in parsed(comparison).iter(f"{SVG}text")]


def marks(comparison: Comparison) -> dict[str, ElementTree.Element]:
    """The shape of each row, by what a pointer over it shows."""
    return {group[0].text or "": group[1] for group in parsed(comparison).iter(f"{SVG}g")}


def place(shape: ElementTree.Element) -> tuple[float, float]:
    if shape.tag == f"{SVG}circle":
        return float(shape.attrib["cx"]), float(shape.attrib["cy"])
    half = float(shape.attrib["width"]) / 2
    return float(shape.attrib["x"]) + half, float(shape.attrib["y"]) + half


def placed(comparison: Comparison) -> tuple[list[Label], Axes]:
    frozen, rows = comparison.frozen, comparison.ordered[1:]
    axes = _axes(frozen, rows, FRAME._replace(bottom=max(424.0, 64.0 + 18 * len(rows))))
    return place_labels(rows, axes, frozen), axes


@pytest.mark.parametrize("spread", [1.0, 0.05, 0.0])
@pytest.mark.parametrize("number", [2, 11, 24])
def test_labels_overlap_neither_each_other_nor_a_mark_and_stay_inside(number: int, spread: float) -> None:
    comparison = many(number, spread=spread)
    labels, axes = placed(comparison)
    assert {label.row.title for label in labels} == {row.title for row in comparison.ordered[1:]}
    assert not [pair for pair in itertools.combinations(labels, 2) if pair[0].box.meets(pair[1].box)]
    points = [(axes.x(row.seconds), axes.y(row.mAP)) for row in comparison.ordered[1:]]
    assert not [label for label in labels for point in points if distance(label.box, *point) < 5]
    for label in labels:
        left, top, right, bottom = label.box
        assert axes.frame.left <= left < right <= axes.frame.right
        assert axes.frame.top <= top < bottom <= axes.frame.bottom


def test_a_label_with_room_stands_beside_its_mark() -> None:
    labels, axes = placed(many(2, spread=1.0))
    for row, box in labels:
        assert distance(box, axes.x(row.seconds), axes.y(row.mAP)) < 10


def test_boxes_that_only_touch_do_not_meet() -> None:
    box = Box(0.0, 0.0, 2.0, 2.0)
    assert box.meets(Box(1.0, 1.0, 3.0, 3.0))
    assert not box.meets(Box(2.0, 0.0, 4.0, 2.0))
    assert not box.meets(Box(0.0, 3.0, 2.0, 4.0))


def test_every_row_has_a_mark_and_a_label_and_the_probe_has_a_band() -> None:
    comparison = demo_comparison()
    shown = marks(comparison)
    assert len(shown) == len(comparison.rows) - 1
    assert "asl, own head: mAP 82.1 [80.9, 83.2], 10 min" in shown
    said = texts(comparison)
    for row in comparison.ordered[1:]:
        assert said.count(row.name) == sum(other.name == row.name for other in comparison.rows)
    assert "frozen probe, 40 s" in said
    assert "untuned" in " ".join(said)


def test_heads_of_a_method_share_a_color_and_differ_in_shape() -> None:
    shown = marks(demo_comparison())
    own, probed = (next(shape for said, shape in shown.items() if said.startswith(f"asl, {head}")) for head in HEADS)
    other = next(shape for said, shape in shown.items() if said.startswith("bce, own head"))
    assert (own.tag, probed.tag) == (f"{SVG}circle", f"{SVG}rect")
    assert own.attrib["fill"] == probed.attrib["stroke"] != other.attrib["fill"]


def test_better_is_higher_and_longer_is_further_right_by_its_logarithm() -> None:
    rows = [
        made_row(name, mAP=mAP, seconds=s) for name, mAP, s in (("a", 0.7, 10.0), ("b", 0.8, 100.0), ("c", 0.85, 1e3))
    ]
    (ax, ay), (bx, by), (cx, cy) = (
        place(shape) for _, shape in sorted(marks(made_comparison(made_frozen(), *rows)).items())
    )
    assert bx - ax == pytest.approx(cx - bx, abs=0.2)
    assert ax < bx
    assert ay - by == pytest.approx(2 * (by - cy), abs=0.3)
    assert cy < by


def test_the_bar_is_the_interval() -> None:
    frozen, row = made_frozen(0.7, interval=None), made_best(mAP=0.8, interval=(0.75, 0.9))
    shape = next(iter(marks(made_comparison(frozen, row)).values()))
    bars = [
        path.attrib["d"]
        for path in parsed(made_comparison(frozen, row)).iter(f"{SVG}path")
        if "h6M" in path.attrib["d"]
    ]
    assert len(bars) == 1
    low, high = (float(number) for number in bars[0].split("M")[1].split(" ")[1].split("V"))
    y = place(shape)[1]
    assert (y - high) / (low - y) == pytest.approx(2, abs=0.02)


def test_the_band_is_the_probes_interval() -> None:
    comparison = made_comparison(made_frozen(0.7, interval=(0.68, 0.72)), made_best(mAP=0.8, interval=None))
    axes = _axes(comparison.frozen, comparison.ordered[1:], FRAME)
    band = next(rect for rect in parsed(comparison).iter(f"{SVG}rect") if "fill-opacity" in rect.attrib)
    assert float(band.attrib["y"]) == pytest.approx(axes.y(0.72), abs=0.1)
    assert float(band.attrib["height"]) == pytest.approx(axes.y(0.68) - axes.y(0.72), abs=0.1)


@pytest.mark.parametrize(("seconds", "side"), [((600.0, 6000.0, 6000.0), "left"), ((60.0, 60.0, 600.0), "right")])
def test_the_name_of_the_probe_stands_at_the_emptier_end_of_its_line(seconds: tuple[float, ...], side: str) -> None:
    # At the crowded end one mark is above the line and one below it; at the other end one far above.
    rows = [
        made_row(name, mAP=mAP, seconds=s, interval=None)
        for name, mAP, s in zip(
            "abc", (0.792, 0.788, 0.9) if side == "right" else (0.9, 0.792, 0.788), seconds, strict=True
        )
    ]
    comparison = made_comparison(made_frozen(0.79, interval=None), *rows)
    (said,) = (text for text in parsed(comparison).iter(f"{SVG}text") if text.text == "frozen probe, 40 s")
    x = float(said.attrib["x"])
    assert FRAME.left <= x <= FRAME.right - 100
    assert (x < 300) == (side == "left")


def test_without_intervals_there_are_neither_bars_nor_a_band() -> None:
    svg = to_svg(made_comparison(made_frozen(interval=None), made_best(interval=None)))
    assert "fill-opacity" not in svg
    assert "h6M" not in svg


def test_the_best_on_validation_is_bold_and_not_the_best_on_test() -> None:
    comparison = made_comparison(
        made_frozen(), made_best("a", mAP=0.8, validation=0.9), made_row("b", mAP=0.9, validation=0.8)
    )
    bold = [element.text for element in parsed(comparison).iter(f"{SVG}text") if element.get("font-weight") == "bold"]
    assert bold == ["a"]


def test_names_are_escaped_and_long_ones_shortened_but_whole_for_a_pointer() -> None:
    name = 'a<b>&"c"\x1b' + "x" * 50
    comparison = made_comparison(made_frozen(), made_best(name))
    shown = name.replace("\x1b", "?")
    assert any(said.startswith(f"{shown}, own head") for said in marks(comparison))
    assert f"{shown[:39]}…" in texts(comparison)


@pytest.mark.parametrize("comparison", [made_comparison(made_frozen()), made_comparison(made_frozen(seconds=0.0))])
def test_a_probe_alone_is_a_picture_too(comparison: Comparison) -> None:
    assert marks(comparison) == {}
    assert "nan" not in to_svg(comparison)


def test_no_time_at_all_is_where_the_axis_begins() -> None:
    shape = next(iter(marks(made_comparison(made_frozen(), made_best(seconds=0.0))).values()))
    assert all(math.isfinite(number) for number in place(shape))


def test_more_rows_make_the_picture_higher() -> None:
    heights = [float(parsed(many(number, spread=1.0)).attrib["height"]) for number in (2, 12, 40)]
    assert heights[0] == heights[1] < heights[2]


@pytest.mark.parametrize("factor", [1.7**2, 10.0, 1e3, 1e5])
@pytest.mark.parametrize("shortest", [0.1, 1.3, 31.0, 121.0, 1900.0, 7300.0, 36_100.0, 90_000.0])
def test_the_time_axis_always_has_a_tick(shortest: float, factor: float) -> None:
    assert time_ticks(shortest, shortest * factor)


@pytest.mark.parametrize(("lowest", "highest"), [(0.0, 1.0), (0.79, 0.8), (0.761, 0.829), (0.5, 0.5123)])
def test_there_are_four_to_eleven_round_ticks(lowest: float, highest: float) -> None:
    ticks = score_ticks(lowest, highest)
    assert 4 <= len(ticks) <= 11
    assert lowest <= ticks[0] < ticks[-1] <= highest


def luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("color", COLORS)
def test_a_label_is_readable_on_white(color: str) -> None:
    assert 1.05 / (luminance(color) + 0.05) >= 4.5


def test_a_note_is_part_of_what_a_pointer_over_the_mark_shows() -> None:
    found = list(marks(made_comparison(made_frozen(), made_best("pla", note="mind this"), made_row("bce"))))
    assert [said.endswith("; mind this") for said in found] == [said.startswith("pla") for said in found]
    assert sum(said.startswith("pla") for said in found) == 1
