"""The measures of benchmarks/localization.py."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import localization
from localization import Located, Scores, class_means, contains, inside, locate, summarize
from probmcl.demo.digits import NAMES, write_digits

LEFT_HALF = np.array([[0.0, 0.0, 0.5, 1.0]])


def peak(row: int, column: int, rest: float = 0.0) -> np.ndarray:
    heat = np.full((4, 4), rest, np.float32)
    heat[row, column] = 1.0
    return heat


def test_pixels_inside_the_union_of_boxes() -> None:
    boxes = np.array([[0.0, 0.0, 0.5, 0.25], [0.25, 0.0, 0.5, 1.0]])
    expected = [[1, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]
    assert inside(boxes, 4).astype(int).tolist() == expected


def test_pointing_uses_the_center_of_the_largest_entry() -> None:
    """The entry in a corner is constant up to the border, so its first pixel would be outside of most boxes."""
    box = np.array([[0.1, 0.1, 0.2, 0.2]])
    assert locate(peak(0, 0), box, 160, 0.0).pointing == 1
    assert locate(peak(0, 1), box, 160, 0.0).pointing == 0
    assert locate(peak(0, 1), box, 160, 0.2).pointing == 1
    assert contains(np.array([[0.4, 0.1, 0.6, 0.2], LEFT_HALF[0]]), 0.3, 0.9, 0.0)


def test_energy_is_the_share_of_the_map_in_the_boxes() -> None:
    assert locate(np.ones((4, 4), np.float32), LEFT_HALF, 160, 0.0).energy == pytest.approx(0.5)
    assert locate(peak(2, 0), LEFT_HALF, 160, 0.0).energy == pytest.approx(1.0)
    assert locate(peak(2, 3), LEFT_HALF, 160, 0.0).energy == pytest.approx(0.0)
    assert locate(np.zeros((4, 4), np.float32), LEFT_HALF, 160, 0.0) == Located(0.0, 0.0, True)


def test_means_are_over_classes_and_weighted_by_the_resample() -> None:
    values = np.array([[1.0, np.nan, np.nan], [0.0, 0.5, np.nan], [0.0, np.nan, np.nan]])
    mean, drawn = summarize(values, np.array([[1.0, 1.0, 1.0], [2.0, 1.0, 0.0]]))
    assert mean == pytest.approx((1 / 3 + 0.5) / 2)
    assert drawn.tolist() == pytest.approx([(1 / 3 + 0.5) / 2, (2 / 3 + 0.5) / 2])
    assert np.isnan(class_means(values, np.ones((1, 3)))[0, 2])


def test_small_objects_are_scored_separately() -> None:
    scores = Scores(images=1, classes=2)
    scores.add(0, 0, Located(1.0, 0.3, False), small=True)
    scores.add(0, 1, Located(0.0, 0.0, True), small=False)
    assert scores.values["pointing"].tolist() == [[1.0, 0.0]]
    assert scores.values["energy, small"][0, 0] == 0.3
    assert np.isnan(scores.values["energy, small"][0, 1])
    assert scores.zeros == 1


def test_difficult_objects_are_left_out(tmp_path: Path) -> None:
    rows = ["filename,label,difficult,xmin,ymin,xmax,ymax", "a.jpg,cat,0,10,5,20,10", "a.jpg,cat,1,0,0,1,1"]
    rows += ["a.jpg,dog,1,0,0,1,1", "b.jpg,cat,0,0,0,1,1"]
    (tmp_path / "boxes.csv").write_text("\n".join(rows))
    boxes = localization.read_boxes(tmp_path / "boxes.csv", {"a.jpg": (40, 20)})
    assert {name: {label: x.tolist() for label, x in labels.items()} for name, labels in boxes.items()} == {
        "a.jpg": {"cat": [[0.25, 0.25, 0.5, 0.5]]}
    }


def test_boxes_of_digit_scenes_contain_the_digits(tmp_path: Path) -> None:
    records = write_digits(tmp_path / "digits", train=1, test=3, val=0, size=96, seed=5)
    paths = [path for path, split in zip(records.paths, records.split, strict=True) if split == "test"]
    boxes = localization.scene_boxes(paths, seed=5, size=96)
    for path, labels in zip(paths, records.labels[1:], strict=True):
        assert {NAMES.index(name) for name in boxes[path.name]} == set(np.flatnonzero(labels).tolist())
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L"))
        for rows in boxes[path.name].values():
            assert pixels[inside(rows, 96)].std() > 20  # ink on a dark canvas
