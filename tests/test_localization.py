"""The measures of benchmarks/localization.py."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import localization
from localization import Located, Scores, class_means, contains, inside, locate, summarize
from probmcl.demo.digits import NAMES, write_digits

LEFT_HALF = [0.0, 0.0, 0.5, 1.0]
SMALL_BOX = [0.1, 0.1, 0.2, 0.2]


def peak(row: int, column: int) -> np.ndarray:
    """Return a map of zeros with a single one."""
    heat = np.zeros((4, 4), np.float32)
    heat[row, column] = 1.0
    return heat


def test_union_of_boxes() -> None:
    boxes = np.array([[0.0, 0.0, 0.5, 0.25], [0.25, 0.0, 0.5, 1.0]])
    expected = [[1, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]
    assert inside(boxes, 4).astype(int).tolist() == expected
    assert contains(np.array([[0.4, 0.1, 0.6, 0.2], LEFT_HALF]), 0.3, 0.9, 0.0)


@pytest.mark.parametrize(
    ("heat", "box", "tolerance", "expected"),
    [
        # An entry in a corner is constant up to the border, so its first pixel would be outside of most boxes.
        pytest.param(peak(0, 0), SMALL_BOX, 0.0, {"pointing": 1}, id="center of the largest entry in the box"),
        pytest.param(peak(0, 1), SMALL_BOX, 0.0, {"pointing": 0}, id="outside"),
        pytest.param(peak(0, 1), SMALL_BOX, 0.2, {"pointing": 1}, id="within the tolerance"),
        pytest.param(np.ones((4, 4), np.float32), LEFT_HALF, 0.0, {"energy": 0.5}, id="half of the map in the box"),
        pytest.param(peak(2, 0), LEFT_HALF, 0.0, {"pointing": 1, "energy": 1}, id="all of the map in the box"),
        pytest.param(peak(2, 3), LEFT_HALF, 0.0, {"pointing": 0, "energy": 0}, id="nothing of the map in the box"),
        pytest.param(
            np.zeros((4, 4), np.float32), LEFT_HALF, 0.0, {"pointing": 0, "energy": 0, "zero": True}, id="zeros"
        ),
    ],
)
def test_score_of_a_map(heat: np.ndarray, box: list[float], tolerance: float, expected: dict[str, float]) -> None:
    located = locate(heat, np.array([box]), 160, tolerance)._asdict()
    assert {name: located[name] for name in expected} == pytest.approx(expected)
    assert located["zero"] == (not heat.any())


def test_means_are_over_classes_and_weighted_by_the_resample() -> None:
    values = np.array([[1.0, np.nan, np.nan], [0.0, 0.5, np.nan], [0.0, np.nan, np.nan]])
    mean, drawn = summarize(values, np.array([[1.0, 1.0, 1.0], [2.0, 1.0, 0.0]]))
    assert mean == pytest.approx((1 / 3 + 0.5) / 2)
    assert drawn.tolist() == pytest.approx([(1 / 3 + 0.5) / 2, (2 / 3 + 0.5) / 2])
    assert np.isnan(class_means(values, np.ones((1, 3)))[0, 2])


def test_small_objects_are_scored_separately() -> None:
    scores = Scores(images=1, classes=2)
    scores.add(0, 0, Located(pointing=1.0, energy=0.3, zero=False), small=True)
    scores.add(0, 1, Located(pointing=0.0, energy=0.0, zero=True), small=False)
    assert scores.values["pointing"].tolist() == [[1.0, 0.0]]
    assert scores.values["energy, small"][0, 0] == 0.3
    assert np.isnan(scores.values["energy, small"][0, 1])
    assert scores.zeros == 1


def test_difficult_objects_are_left_out(tmp_path: Path) -> None:
    rows = [
        "filename,label,difficult,xmin,ymin,xmax,ymax",
        "a.jpg,cat,0,10,5,20,10",
        "a.jpg,cat,1,0,0,1,1",
        "a.jpg,dog,1,0,0,1,1",
        "b.jpg,cat,0,0,0,1,1",  # an image that is not asked for
    ]
    table = tmp_path / "boxes.csv"
    table.write_text("\n".join(rows))
    boxes = localization.read_boxes(table, {"a.jpg": (40, 20)})
    assert list(boxes) == ["a.jpg"]
    assert list(boxes["a.jpg"]) == ["cat"]
    assert boxes["a.jpg"]["cat"].tolist() == [[0.25, 0.25, 0.5, 0.5]]


def test_boxes_of_digit_scenes_contain_the_digits(tmp_path: Path) -> None:
    records = write_digits(tmp_path / "digits", train=1, test=3, val=0, size=96, seed=5)
    test = records.take(records.rows("test"))
    boxes = localization.scene_boxes(test.paths, seed=5, size=96)
    for path, labels in zip(test.paths, test.labels, strict=True):
        boxes_of_digits = boxes[path.name]
        digits = {NAMES.index(name) for name in boxes_of_digits}
        assert digits == set(np.flatnonzero(labels).tolist())
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L"))
        for boxes_of_digit in boxes_of_digits.values():
            assert pixels[inside(boxes_of_digit, 96)].std() > 20  # ink on a dark canvas
