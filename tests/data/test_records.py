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
from probmcl.data.records import SPLITS, LabelSpace, Origin, Paths, Records, Split

shapes = stn.array_shapes(min_dims=2, max_dims=2, max_side=6)
tables = stn.arrays(np.float64, shapes, elements=st.sampled_from([0.0, 1.0]))


def space(classes: int = 2) -> LabelSpace:
    names = tuple(f"class {k}" for k in range(classes))
    return LabelSpace(names, np.zeros(classes, dtype=int), np.zeros((classes, classes), dtype=int))


def three_images() -> Records:
    return Records(
        paths=Paths(["a.jpg", "b.jpg", "c.jpg"]),
        states=LabelStates.from_labels(np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])),
        split=("train", "test", "train"),
        group=None,
        label_space=space(),
    )


@given(st.data())
def test_counts_match_a_loop_over_images_and_pairs(data: st.DataObject) -> None:
    labels = data.draw(tables)
    known = data.draw(stn.arrays(bool, labels.shape))
    classes = labels.shape[1]
    counts, together = np.zeros(classes, dtype=int), np.zeros((classes, classes), dtype=int)
    for row, mask in zip(labels, known, strict=True):
        present = [k for k in range(classes) if mask[k] and row[k] == 1]
        for k in present:
            counts[k] += 1
            for other in present:
                together[k, other] += other != k
    counted = LabelSpace.from_labels([str(k) for k in range(classes)], labels, known)
    assert np.array_equal(counted.counts, counts)
    assert np.array_equal(counted.cooccurrence, together)


@given(tables)
def test_labels_are_known_by_default(labels: np.ndarray[Any, Any]) -> None:
    names = [str(k) for k in range(labels.shape[1])]
    all_known = LabelSpace.from_labels(names, labels, np.ones(labels.shape, dtype=bool))
    assert np.array_equal(LabelSpace.from_labels(names, labels).cooccurrence, all_known.cooccurrence)
    assert np.array_equal(LabelSpace.from_labels(names, labels).counts, labels.sum(axis=0))


def test_unknown_labels_are_not_counted() -> None:
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


def test_counts_without_images_are_zero() -> None:
    counted = LabelSpace.from_labels(["a", "b"], np.zeros((0, 2)))
    assert len(counted) == 2
    assert counted.counts.tolist() == [0, 0]


def test_repeated_class_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"bike, car$"):
        LabelSpace.from_labels(["car", "bike", "car", "bike", "dog"], np.zeros((1, 5)))


def test_counts_must_match_the_number_of_classes() -> None:
    with pytest.raises(ValueError, match="3 class names"):
        LabelSpace.from_labels(["a", "b", "c"], np.zeros((1, 2)))


def test_rows_of_a_split_are_in_order() -> None:
    records = three_images()
    assert len(records) == 3
    assert [records.rows(split).tolist() for split in SPLITS] == [[0, 2], [], [1]]


@given(st.lists(st.sampled_from(SPLITS)))
def test_every_image_is_in_exactly_one_split(split: list[Any]) -> None:
    count = len(split)
    labels = np.zeros((count, 2))
    paths = tuple(Path(f"{i}.jpg") for i in range(count))
    records = Records(Paths(paths), LabelStates.from_labels(labels), tuple(split), None, space())
    assert sorted(np.concatenate([records.rows(name) for name in SPLITS]).tolist()) == list(range(count))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("paths", Paths(["a.jpg"]), "different lengths.*'paths': 1"),
        ("split", ("train", "test"), "different lengths.*'split': 2"),
        ("group", ("patient 1",), "different lengths.*'group': 1"),
        ("origin", Origin(Path("a.csv"), "", lines=(2, 3)), "different lengths.*'origin.lines': 2"),
        ("weight", np.ones(2), "different lengths.*'weight': 2"),
        ("columns", {"site": ("a", "b")}, "different lengths.*'site': 2"),
        ("label_space", space(3), "2 label columns, but 3 class names"),
    ],
)
def test_fields_of_different_lengths_are_refused(field: str, value: object, message: str) -> None:
    changes: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=message):
        replace(three_images(), **changes)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1.0, 0.0], [0.0, -1.0], [1.0, 1.0]], "b.jpg: label 'class 1' is -1.0"),
        ([[1.0, 0.0], [0.0, 1.0], [np.nan, 1.0]], "c.jpg: label 'class 0' is nan"),
        ([[1.0, 0.0], [0.0, 1.0]], "different lengths.*'labels': 2"),
    ],
)
def test_known_labels_other_than_0_and_1_are_refused(labels: list[list[float]], message: str) -> None:
    r = three_images()
    with pytest.raises(ValueError, match=message):
        Records.from_labels(r.label_space.names, r.paths, r.split, np.array(labels))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("split=('Train',)", "split 'Train' must be one of train, val, test"),
        ("known=np.ones((1, 1), bool)", "shape (1, 1)"),
    ],
)
def test_shapes_are_checked_without_the_type_checker(change: str, message: str) -> None:
    """Runs in a subprocess, because in the tests the type checker would raise first."""
    code = f"""
import numpy as np
from pathlib import Path
from probmcl.data import Records
labels = np.zeros((1, 2))
arguments = dict(known=labels == 0, split=("train",)) | dict({change})
Records.from_labels("ab", (Path("a.jpg"),), labels=labels, **arguments)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert message in result.stderr
    assert result.returncode == 1


def test_unknown_labels_may_have_any_value() -> None:
    r = three_images()
    labels, known = r.labels.copy(), r.known.copy()
    labels[1, 0], known[1, 0] = -1.0, False
    records = Records.from_labels(r.label_space.names, r.paths, r.split, labels, known)
    assert not records.known[1, 0]
    assert np.array_equal(records.labels, r.labels)


def test_label_space_counts_known_labels_of_train() -> None:
    labels = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    known = np.array([[True, True], [True, False], [True, True]])
    split: list[Split] = ["train", "train", "test"]
    records = Records.from_labels(["a", "b"], three_images().paths, split, labels, known, hierarchy={"b": "a"})
    assert records.label_space.counts.tolist() == [2, 1]
    assert records.label_space.cooccurrence.tolist() == [[0, 1], [1, 0]]
    assert records.label_space.hierarchy == {"b": "a"}
    assert Records.from_labels(["a", "b"], three_images().paths, split, labels).known.all()


def test_take_returns_all_fields_of_the_given_rows() -> None:
    origin = Origin(Path("photos/labels.csv"), "path column 'file'", lines=(2, 3, 7))
    records = replace(three_images(), group=("x", "y", "z"), origin=origin)
    some = records.take(np.array([2, 1]))
    assert some.paths == (Path("c.jpg"), Path("b.jpg"))
    assert some.labels.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert some.split == ("train", "test")
    assert some.group == ("z", "y")
    assert some.label_space.counts.tolist() == [1, 1]
    assert some.where(0) == "photos/labels.csv, row 7: c.jpg"
    assert str(some.origin) == "photos/labels.csv: path column 'file'"


@given(st.data())
def test_take_gives_the_records_that_a_reader_would_have_built(data: st.DataObject) -> None:
    """The labels that a hierarchy implies are already there, so they are not added again."""
    names, hierarchy = ["animal", "dog", "puppy"], {"dog": "animal", "puppy": "dog"}
    states = data.draw(stn.arrays(np.uint8, (5, 3), elements=st.sampled_from([0, 1, 2, 3])))
    split = data.draw(st.lists(st.sampled_from(SPLITS), min_size=5, max_size=5))
    rows = np.array(data.draw(st.lists(st.integers(0, 4), unique=True)), dtype=np.int64)
    chance = np.array(data.draw(st.lists(st.sampled_from([np.nan, 0.0, 0.4, 1.0]), min_size=3, max_size=3)))

    def built(rows: np.ndarray[Any, Any]) -> Records:
        paths = [Path(f"{row}.jpg") for row in rows]
        chosen = LabelStates.from_states(states, chance=chance).take(rows)
        return Records.from_labels(names, paths, [split[row] for row in rows], chosen, hierarchy=hierarchy)

    taken, expected = built(np.arange(5)).take(rows), built(rows)
    assert (taken.paths, taken.split) == (expected.paths, expected.split)
    assert taken.states.dense().tolist() == expected.states.dense().tolist()
    assert taken.label_space.counts.tolist() == expected.label_space.counts.tolist()
    assert taken.label_space.cooccurrence.tolist() == expected.label_space.cooccurrence.tolist()


def test_images_share_the_text_of_their_split() -> None:
    records = three_images().with_split(np.array(["val", "test", "val"]))
    assert records.split == ("val", "test", "val")
    assert records.split[0] is records.split[2]


def test_image_without_a_row_is_reported_by_path() -> None:
    assert three_images().where(1) == "b.jpg"
    assert replace(three_images(), origin=Origin(Path("coco"), "MS-COCO")).where(1) == "b.jpg"


def test_without_drops_images_and_recounts_labels() -> None:
    left = three_images().without({"a.jpg", "nowhere.jpg"})
    assert left.paths == (Path("b.jpg"), Path("c.jpg"))
    assert left.labels.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert left.split == ("test", "train")
    assert left.label_space.counts.tolist() == [1, 1]


def test_without_drops_no_or_all_images() -> None:
    assert three_images().without([]).paths == three_images().paths
    assert len(three_images().without(["a.jpg", "b.jpg", "c.jpg"])) == 0
