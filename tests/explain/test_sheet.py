from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from probmcl.explain import Explanation, Explanations
from probmcl.explain.sheet import COLUMNS, MAX_LABELS, draw_sheet, write_sheets

LABELS = tuple(f"label {k}" for k in range(COLUMNS + 1))
CAPTIONS = {label: f"${label}_{{" for label in LABELS}  # not valid as a formula


def explanation(path: Path, labels: tuple[str, ...], peak: tuple[int, int] = (0, 0)) -> Explanation:
    heat = np.zeros((5, 5), np.float32)
    heat[peak] = 7.0
    return Explanation(path, dict.fromkeys(labels, heat), dict.fromkeys(LABELS, 0.5), labels[:1])


def drawn(tmp_path: Path, runs: dict[str, Explanation]) -> np.ndarray:
    sheet = draw_sheet(Image.new("RGB", (64, 48), (90, 90, 90)), runs, CAPTIONS)
    (tmp_path / "sheet.png").write_bytes(sheet)
    with Image.open(tmp_path / "sheet.png") as image:
        return np.asarray(image.convert("RGB")).astype(int)


def test_heat_is_drawn_where_the_map_is_large(tmp_path: Path) -> None:
    sheets = [
        drawn(tmp_path, {"run": explanation(Path("a.png"), LABELS[:1], peak)}) for peak in ((0, 0), (0, 4), (4, 0))
    ]
    left, right, below = ((sheet.max(2) - sheet.min(2)) > 40 for sheet in sheets)  # colored pixels
    rows, columns = ([np.flatnonzero(sheet.any(axis)).mean() for sheet in (left, right, below)] for axis in (1, 0))
    assert columns[0] < columns[1]
    assert rows[0] < rows[2]


def test_a_map_of_zeros_is_drawn_without_warnings(tmp_path: Path) -> None:
    zeros = {LABELS[0]: np.zeros((5, 5), np.float32)}
    sheet = drawn(tmp_path, {"run": replace(explanation(Path("a.png"), LABELS[:1]), maps=zeros)})
    assert ((sheet.max(2) - sheet.min(2)) < 40).all()


def test_size_grows_with_labels_and_runs(tmp_path: Path) -> None:
    one, wrapped = (drawn(tmp_path, {"run": explanation(Path("a.png"), LABELS[:count])}) for count in (1, COLUMNS + 1))
    none = drawn(tmp_path, {"run": explanation(Path("a.png"), ())})
    two = drawn(tmp_path, {run: explanation(Path("a.png"), LABELS[:1]) for run in ("one", "two")})
    assert none.shape[1] < one.shape[1] < wrapped.shape[1]
    assert one.shape[0] * 1.8 < wrapped.shape[0]
    assert two.shape[0] > one.shape[0] * 1.8


def test_files_have_different_names_and_unreadable_images_are_returned(tmp_path: Path) -> None:
    paths = [tmp_path / "x" / "a.png", tmp_path / "y" / "A.png", tmp_path / "a-2.png", tmp_path / "gone.png"]
    for path in paths[:3]:
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (9, 300)).save(path)
    images = [*(explanation(path, LABELS[:1]) for path in paths), Explanation(Path("b.png"), {}, {}, error="empty")]
    advanced: list[int] = []
    errors = write_sheets(
        tmp_path / "out", {"run": Explanations(LABELS, tuple(images))}, CAPTIONS, lambda: advanced.append(1)
    )
    assert errors == {paths[3]: "does not exist", Path("b.png"): "empty"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["A-2.png", "a-2-2.png", "a.png"]
    assert len(advanced) == len(images)


def test_of_many_labels_the_most_probable_are_drawn(tmp_path: Path) -> None:
    labels = tuple(f"label {k}" for k in range(MAX_LABELS + 300))
    one = replace(
        explanation(Path("猫.png"), labels), probabilities={label: float(k) for k, label in enumerate(labels)}
    )
    other = replace(one, probabilities={label: 500.0 if k == 0 else 0.0 for k, label in enumerate(labels)})
    captions = {label: label for label in ("label 0", *labels[-MAX_LABELS + 1 :])}  # no other label is drawn
    assert draw_sheet(Image.new("RGB", (9, 9)), {"one": one, "other 猫": other}, captions)


@pytest.mark.parametrize("size", [(1, 500), (500, 1)])
def test_extreme_shapes_are_drawn(size: tuple[int, int]) -> None:
    assert draw_sheet(Image.new("RGB", size), {"run": explanation(Path("a.png"), LABELS[:1])}, CAPTIONS)
