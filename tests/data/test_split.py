from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from probmcl.data.records import SPLITS, LabelSpace, Records, Split
from probmcl.data.split import carve


def make(labels: ArrayLike, split: Sequence[Split] | None = None, group: Sequence[str] | None = None) -> Records:
    values = np.array(labels, dtype=np.float32)
    split = tuple(split or ["train"] * len(values))
    names = [f"class {k}" for k in range(values.shape[1])]
    space = LabelSpace.from_labels(names, values[np.array(split) == "train"], hierarchy={"class 0": "any"})
    paths = tuple(Path(f"{i}.jpg") for i in range(len(values)))
    return Records(paths, values, np.ones(values.shape, dtype=bool), split, tuple(group) if group else None, space)


def spread(**counts: int) -> list[Split]:
    """So many images of each split, in the order given."""
    return [split for name, count in counts.items() for split in SPLITS if split == name for _ in range(count)]


def sizes(records: Records) -> list[int]:
    return [len(records.rows(split)) for split in SPLITS]


def test_shares_are_of_the_train_images_as_given() -> None:
    assert sizes(carve(make(np.ones((100, 1))))) == [70, 10, 20]
    assert sizes(carve(make(np.ones((100, 1))), val=0.25, test=0.5)) == [25, 25, 50]
    assert sizes(carve(make(np.ones((100, 1))), val=0.0, test=0.5)) == [50, 0, 50]


def test_what_was_given_is_never_moved() -> None:
    carved = carve(make(np.ones((80, 2)), spread(train=50, test=30)))
    assert sizes(carved) == [45, 5, 30]
    assert carved.split[50:] == ("test",) * 30
    carved = carve(make(np.ones((80, 2)), spread(val=30, train=50)))
    assert sizes(carved) == [40, 30, 10]
    assert carved.split[:30] == ("val",) * 30


def test_complete_splits_stay_as_they_are() -> None:
    split: list[Split] = ["train", "val", "test", "train"]
    assert carve(make(np.ones((4, 1)), split)).split == tuple(split)
    assert carve(make(np.ones((2, 1)), spread(test=2))).split == ("test", "test")


def test_the_seed_decides() -> None:
    records = make(np.ones((60, 1)))
    assert carve(records, seed=3).split == carve(records, seed=3).split
    assert carve(records, seed=3).split != carve(records, seed=4).split


def test_the_label_space_counts_the_new_train() -> None:
    labels = np.random.default_rng(0).random((50, 3)) < 0.4
    carved = carve(make(labels))
    train = [labels[i] for i, split in enumerate(carved.split) if split == "train"]
    assert carved.label_space.counts.tolist() == [sum(bool(row[k]) for row in train) for k in range(3)]
    assert carved.label_space.cooccurrence[0, 1] == sum(bool(row[0] and row[1]) for row in train)
    assert carved.label_space.hierarchy == {"class 0": "any"}


def test_the_only_positive_of_a_class_stays_in_train() -> None:
    labels = np.zeros((30, 11))
    labels[:, 10] = 1
    labels[np.arange(10), np.arange(10)] = 1  # images 0 to 9 hold a class each that no other image has
    for seed in range(20):
        assert carve(make(labels), seed=seed).label_space.counts.all()


def test_a_positive_that_is_not_known_does_not_keep_a_class_in_train() -> None:
    labels = np.array([[1, 1], [1, 1], [1, 1], [1, 1]])
    records = make(labels)
    records.known[1:, 0] = False
    for seed in range(20):
        assert carve(records, seed=seed).split[0] == "train"


def test_a_class_is_given_up_before_a_split_stays_empty() -> None:
    assert sizes(carve(make(np.eye(5)))) == [3, 1, 1]


def test_too_few_images_leave_train_the_last_one() -> None:
    assert sizes(carve(make(np.ones((1, 1))))) == [1, 0, 0]
    assert sizes(carve(make(np.ones((2, 1))))) == [1, 0, 1]


def test_a_group_that_is_in_test_already_gives_nothing_to_val() -> None:
    split = spread(test=1, train=19)
    group = ["a"] * 10 + [f"b{i}" for i in range(10)]
    for seed in range(20):
        carved = carve(make(np.ones((20, 1)), split, group), seed=seed)
        assert sizes(carved) == [17, 2, 1]
        assert "val" not in carved.split[:10]


def test_shares_that_leave_no_train_are_refused() -> None:
    with pytest.raises(ValueError, match=r"val 0.5 and test 0.5"):
        carve(make(np.ones((4, 1))), val=0.5, test=0.5)
    with pytest.raises(ValueError, match=r"val -0.1"):
        carve(make(np.ones((4, 1))), val=-0.1)


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 40), st.integers(1, 12), st.integers(0, 5))
def test_groups_stay_together_and_train_keeps_an_image(images: int, groups: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    group = [f"g{i}" for i in rng.integers(0, groups, images)]
    labels = (rng.random((images, 4)) < 0.3).astype(np.float32)
    carved = carve(make(labels, group=group), seed=seed)
    for name in set(group):
        assert len({split for split, of in zip(carved.split, group, strict=True) if of == name}) == 1
    counts = sizes(carved)
    assert counts[0] > 0
    assert sum(counts) == images
    assert (min(counts) > 0) == (len(set(group)) >= 3)
