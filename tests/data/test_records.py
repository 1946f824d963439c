import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from probmcl.data.labels import LabelStates
from probmcl.data.records import SPLITS, LabelSpace, Origin, Records, Split

shapes = stn.array_shapes(min_dims=2, max_dims=2, max_side=6)
tables = stn.arrays(np.float64, shapes, elements=st.sampled_from([0.0, 1.0]))


def space(classes: int = 2) -> LabelSpace:
    names = tuple(f"class {k}" for k in range(classes))
    return LabelSpace(names, np.zeros(classes, dtype=int), np.zeros((classes, classes), dtype=int))


def three_images() -> Records:
    return Records(
        paths=(Path("a.jpg"), Path("b.jpg"), Path("c.jpg")),
        states=LabelStates.from_labels(np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])),
        split=("train", "test", "train"),
        group=None,
        label_space=space(),
    )


@given(st.data())
def test_counts_are_those_of_a_loop_over_images_and_pairs(data: st.DataObject) -> None:
    labels = data.draw(tables)
    known = data.draw(stn.arrays(bool, labels.shape))
    classes = labels.shape[1]
    counts, together = np.zeros(classes, dtype=int), np.zeros((classes, classes), dtype=int)
    for row, seen in zip(labels, known, strict=True):
        present = [k for k in range(classes) if seen[k] and row[k] == 1]
        for k in present:
            counts[k] += 1
            for other in present:
                together[k, other] += other != k
    counted = LabelSpace.from_labels([str(k) for k in range(classes)], labels, known)
    assert np.array_equal(counted.counts, counts)
    assert np.array_equal(counted.cooccurrence, together)


@given(tables)
def test_labels_count_as_known_unless_said_otherwise(labels: np.ndarray[Any, Any]) -> None:
    names = [str(k) for k in range(labels.shape[1])]
    given_all = LabelSpace.from_labels(names, labels, np.ones(labels.shape, dtype=bool))
    assert np.array_equal(LabelSpace.from_labels(names, labels).cooccurrence, given_all.cooccurrence)
    assert np.array_equal(LabelSpace.from_labels(names, labels).counts, labels.sum(axis=0))


def test_a_label_that_is_not_known_changes_no_count() -> None:
    labels, known = np.array([[1.0, np.nan], [1.0, 1.0]]), np.array([[True, False], [True, True]])
    flipped = np.where(known, labels, 1.0)
    for table in (labels, flipped):
        counted = LabelSpace.from_labels(["a", "b"], table, known)
        assert counted.counts.tolist() == [2, 1]
        assert counted.cooccurrence.tolist() == [[0, 1], [1, 0]]


def test_the_hierarchy_is_kept() -> None:
    assert LabelSpace.from_labels(["cat", "animal"], np.zeros((1, 2)), hierarchy={"cat": "animal"}).hierarchy == {
        "cat": "animal"
    }


def test_no_image_at_all_gives_counts_of_zero() -> None:
    counted = LabelSpace.from_labels(["a", "b"], np.zeros((0, 2)))
    assert len(counted) == 2
    assert counted.counts.tolist() == [0, 0]


def test_repeated_class_names_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"given twice: bike, car$"):
        LabelSpace.from_labels(["car", "bike", "car", "bike", "dog"], np.zeros((1, 5)))


def test_counts_for_another_number_of_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="3 class names"):
        LabelSpace.from_labels(["a", "b", "c"], np.zeros((1, 2)))


def test_rows_of_a_split_keep_their_order() -> None:
    records = three_images()
    assert len(records) == 3
    assert [records.rows(split).tolist() for split in SPLITS] == [[0, 2], [], [1]]


@given(st.lists(st.sampled_from(SPLITS)))
def test_every_image_is_in_exactly_one_split(split: list[Any]) -> None:
    count = len(split)
    labels = np.zeros((count, 2))
    paths = tuple(Path(f"{i}.jpg") for i in range(count))
    records = Records(paths, LabelStates.from_labels(labels), tuple(split), None, space())
    assert sorted(np.concatenate([records.rows(name) for name in SPLITS]).tolist()) == list(range(count))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("paths", (Path("a.jpg"),), "unequal length.*'paths': 1"),
        ("split", ("train", "test"), "unequal length.*'split': 2"),
        ("group", ("patient 1",), "unequal length.*'group': 1"),
        ("origin", Origin(Path("a.csv"), "", lines=(2, 3)), "unequal length.*'origin.lines': 2"),
        ("weight", np.ones(2), "unequal length.*'weight': 2"),
        ("columns", {"site": ("a", "b")}, "unequal length.*'site': 2"),
        ("label_space", space(3), "2 label columns for 3 class names"),
    ],
)
def test_records_that_do_not_fit_together_are_refused(field: str, value: object, message: str) -> None:
    changes: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=message):
        replace(three_images(), **changes)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1.0, 0.0], [0.0, -1.0], [1.0, 1.0]], "b.jpg: label 'class 1' is -1.0"),
        ([[1.0, 0.0], [0.0, 1.0], [np.nan, 1.0]], "c.jpg: label 'class 0' is nan"),
        ([[1.0, 0.0], [0.0, 1.0]], "unequal length.*'labels': 2"),
    ],
)
def test_labels_that_are_neither_0_nor_1_nor_unknown_are_refused(labels: list[list[float]], message: str) -> None:
    r = three_images()
    with pytest.raises(ValueError, match=message):
        Records.from_labels(r.label_space.names, r.paths, r.split, np.array(labels))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("split=('Train',)", "split 'Train' is none of train, val, test"),
        ("known=np.ones((1, 1), bool)", "shape (1, 1)"),
    ],
)
def test_types_and_shapes_are_checked_outside_of_tests_too(change: str, message: str) -> None:
    """In a process of its own, because here the shape checker would speak first."""
    code = f"""
import numpy as np
from pathlib import Path
from probmcl.data import Records
labels = np.zeros((1, 2))
whole = dict(known=labels == 0, split=("train",)) | dict({change})
Records.from_labels("ab", (Path("a.jpg"),), labels=labels, **whole)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert message in answer.stderr
    assert answer.returncode == 1


def test_any_value_may_stand_where_a_label_is_not_known() -> None:
    r = three_images()
    labels, known = r.labels.copy(), r.known.copy()
    labels[1, 0], known[1, 0] = -1.0, False
    made = Records.from_labels(r.label_space.names, r.paths, r.split, labels, known)
    assert not made.known[1, 0]
    assert np.array_equal(made.labels, r.labels)


def test_made_records_count_what_is_known_of_train() -> None:
    labels = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    known = np.array([[True, True], [True, False], [True, True]])
    split: list[Split] = ["train", "train", "test"]
    records = Records.from_labels(["a", "b"], three_images().paths, split, labels, known, hierarchy={"b": "a"})
    assert records.label_space.counts.tolist() == [2, 1]
    assert records.label_space.cooccurrence.tolist() == [[0, 1], [1, 0]]
    assert records.label_space.hierarchy == {"b": "a"}
    assert Records.from_labels(["a", "b"], three_images().paths, split, labels).known.all()


def test_some_rows_are_taken_in_the_order_given_with_all_that_belongs_to_them() -> None:
    origin = Origin(Path("photos/labels.csv"), "path column 'file'", lines=(2, 3, 7))
    records = replace(three_images(), group=("x", "y", "z"), origin=origin)
    some = records.take(np.array([2, 1]))
    assert some.paths == (Path("c.jpg"), Path("b.jpg"))
    assert some.labels.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert some.split == ("train", "test")
    assert some.group == ("z", "y")
    assert some.label_space.counts.tolist() == [1, 1]
    assert some.where(0) == "photos/labels.csv: row 7: c.jpg"
    assert str(some.origin) == "photos/labels.csv: path column 'file'"


def test_an_image_is_named_by_its_path_where_no_row_is_known() -> None:
    assert three_images().where(1) == "b.jpg"
    assert replace(three_images(), origin=Origin(Path("coco"), "MS-COCO")).where(1) == "b.jpg"


def test_images_are_left_out_by_path_and_the_rest_is_counted_anew() -> None:
    left = three_images().without({"a.jpg", "nowhere.jpg"})
    assert left.paths == (Path("b.jpg"), Path("c.jpg"))
    assert left.labels.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert left.split == ("test", "train")
    assert left.label_space.counts.tolist() == [1, 1]


def test_none_or_all_can_be_left_out() -> None:
    assert three_images().without([]).paths == three_images().paths
    assert len(three_images().without(["a.jpg", "b.jpg", "c.jpg"])) == 0
