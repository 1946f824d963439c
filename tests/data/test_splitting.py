from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from probmcl.data.records import SPLITS, Records, Split
from probmcl.data.splitting import TooFewImagesError, connected_sets, folds, make_splits, with_fold
from probmcl.errors import DataError


def make(
    labels: ArrayLike,
    split: Sequence[Split] | None = None,
    group: Sequence[str] | None = None,
    known: NDArray[np.bool_] | None = None,
) -> Records:
    values = np.array(labels, dtype=np.float32)
    names = [f"class {k}" for k in range(values.shape[1])]
    paths = [Path(f"{i}.jpg") for i in range(len(values))]
    groups = None if group is None else tuple(group)
    return Records.from_labels(
        names, paths, split or ["train"] * len(values), values, known, group=groups, hierarchy={"class 0": "any"}
    )


def splits_of(**counts: int) -> list[Split]:
    """Return a list with `counts[split]` entries per split, in the order of the arguments."""
    return [split for name, count in counts.items() for split in SPLITS if split == name for _ in range(count)]


def sizes(records: Records) -> list[int]:
    return [len(records.rows(split)) for split in SPLITS]


def test_shares_are_relative_to_the_original_train_split() -> None:
    assert sizes(make_splits(make(np.ones((100, 1))))) == [70, 10, 20]
    assert sizes(make_splits(make(np.ones((100, 1))), val=0.25, test=0.5)) == [25, 25, 50]
    assert sizes(make_splits(make(np.ones((100, 1))), val=0.0, test=0.5)) == [50, 0, 50]


def test_existing_val_and_test_images_are_not_moved() -> None:
    result = make_splits(make(np.ones((80, 2)), splits_of(train=50, test=30)))
    assert sizes(result) == [45, 5, 30]
    assert result.split[50:] == ("test",) * 30
    result = make_splits(make(np.ones((80, 2)), splits_of(val=30, train=50)))
    assert sizes(result) == [40, 30, 10]
    assert result.split[:30] == ("val",) * 30


def test_complete_splits_are_unchanged() -> None:
    split: list[Split] = ["train", "val", "test", "train"]
    assert make_splits(make(np.ones((4, 1)), split)).split == tuple(split)
    assert make_splits(make(np.ones((2, 1)), splits_of(test=2))).split == ("test", "test")


def test_splits_depend_on_the_seed() -> None:
    records = make(np.ones((60, 1)))
    assert make_splits(records, seed=3).split == make_splits(records, seed=3).split
    assert make_splits(records, seed=3).split != make_splits(records, seed=4).split


def test_label_space_counts_the_new_train_split() -> None:
    labels = np.random.default_rng(0).random((50, 3)) < 0.4
    result = make_splits(make(labels))
    train = [labels[i] for i, split in enumerate(result.split) if split == "train"]
    assert result.label_space.counts.tolist() == [sum(bool(row[k]) for row in train) for k in range(3)]
    assert result.label_space.cooccurrence[0, 1] == sum(bool(row[0] and row[1]) for row in train)
    assert result.label_space.hierarchy == {"class 0": "any"}


def test_only_positive_of_a_class_stays_in_train() -> None:
    labels = np.zeros((30, 11))
    labels[:, 10] = 1
    labels[np.arange(10), np.arange(10)] = 1  # each of images 0 to 9 is the only positive of a class
    for seed in range(20):
        assert make_splits(make(labels), seed=seed).label_space.counts.all()


def test_unknown_positives_do_not_count_for_train() -> None:
    known = np.array([[True, True], [False, True], [False, True], [False, True]])
    for seed in range(20):
        assert make_splits(make(np.ones((4, 2)), known=known), seed=seed, val=0.1, test=0.2).split[0] == "train"


def test_a_filled_split_has_priority_over_a_class_in_train() -> None:
    assert sizes(make_splits(make(np.eye(5)), val=0.1, test=0.2)) == [3, 1, 1]


def test_train_keeps_the_last_image() -> None:
    assert sizes(make_splits(make(np.ones((1, 1))), val=0.1, test=0.2)) == [1, 0, 0]
    assert sizes(make_splits(make(np.ones((2, 1))), val=0.1, test=0.2)) == [1, 0, 1]


def test_group_with_a_test_image_is_not_moved_to_val() -> None:
    split = splits_of(test=1, train=29)
    group = ["a"] * 10 + [f"b{i}" for i in range(20)]
    for seed in range(20):
        result = make_splits(make(np.ones((30, 1)), split, group), seed=seed)
        assert sizes(result) == [24, 5, 1]
        assert "val" not in result.split[:10]


@pytest.mark.parametrize(("images", "expected"), [(20, [10, 5, 5]), (49, [39, 5, 5]), (50, [35, 5, 10])])
def test_small_datasets_hold_out_five_images_per_split(images: int, expected: list[int]) -> None:
    for seed in range(5):
        assert sizes(make_splits(make(np.ones((images, 1))), seed=seed)) == expected


def test_the_images_in_train_decide_if_one_split_is_missing() -> None:
    assert sizes(make_splits(make(np.ones((60, 1)), splits_of(train=40, test=20)))) == [35, 5, 20]
    assert sizes(make_splits(make(np.ones((60, 1)), splits_of(train=40, val=20)))) == [35, 20, 5]
    assert sizes(make_splits(make(np.ones((90, 1)), splits_of(train=60, val=30)))) == [48, 30, 12]


def test_small_splits_are_stratified() -> None:
    labels = np.repeat(np.eye(3), [20, 12, 8], axis=0)  # five of 40 images: 2.5, 1.5 and 1 of each class
    for seed in range(5):
        result = make_splits(make(labels), seed=seed)
        assert sizes(result) == [30, 5, 5]
        for split in SPLITS[1:]:
            assert (np.abs(labels[result.rows(split)].sum(axis=0) - [2.5, 1.5, 1]) <= 0.5).all()


def test_small_splits_do_not_divide_groups() -> None:
    group = [f"g{i // 4}" for i in range(40)]
    for seed in range(5):
        result = make_splits(make(np.ones((40, 1)), group=group), seed=seed)
        assert all(len({*result.split[start : start + 4]}) == 1 for start in range(0, 40, 4))
        assert sizes(result) == [32, 4, 4]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            splits_of(train=19),
            'train has 19 images, .* val and test .* 20 or more; add images, .*`split_file="FILE.csv"`',
        ),
        (splits_of(train=19, test=30), "train has 19 images, .* taking val from it"),
        (splits_of(train=1, val=30), "train has 1 image, .* taking test from it"),
    ],
)
def test_too_few_images_are_not_split(split: list[Split], message: str) -> None:
    with pytest.raises(TooFewImagesError, match=message):
        make_splits(make(np.ones((len(split), 1)), split))


def test_explicit_shares_are_used_for_few_images() -> None:
    assert sizes(make_splits(make(np.ones((10, 1))), val=0.1, test=0.2)) == [7, 1, 2]
    assert sizes(make_splits(make(np.ones((40, 1))), val=0.1, test=0.2)) == [28, 4, 8]
    assert sizes(make_splits(make(np.ones((40, 1))), test=0.2)) == [27, 5, 8]


def test_val_of_a_fold_follows_the_same_rule() -> None:
    fold_of = np.repeat([1, 2, 3], 10)
    assert sizes(with_fold(make(np.ones((30, 1))), fold_of, 1)) == [15, 5, 10]
    assert sizes(with_fold(make(np.ones((90, 1))), fold_of.repeat(3), 1)) == [54, 6, 30]
    with pytest.raises(TooFewImagesError, match="train has 18 images"):
        with_fold(make(np.ones((27, 1))), np.repeat([1, 2, 3], 9), 1)


def test_invalid_shares_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"val=0.5 and test=0.5"):
        make_splits(make(np.ones((4, 1))), val=0.5, test=0.5)
    with pytest.raises(ValueError, match=r"val=-0.1"):
        make_splits(make(np.ones((4, 1))), val=-0.1)


@settings(max_examples=60)
@given(st.integers(3, 40), st.integers(1, 12), st.integers(0, 5))
def test_groups_are_not_divided_and_train_is_not_empty(images: int, groups: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    group = [f"g{i}" for i in rng.integers(0, groups, images)]
    labels = (rng.random((images, 4)) < 0.3).astype(np.float32)
    result = make_splits(make(labels, group=group), seed=seed, val=0.1, test=0.2)
    for name in set(group):
        assert len({split for split, of in zip(result.split, group, strict=True) if of == name}) == 1
    counts = sizes(result)
    assert counts[0] > 0
    assert sum(counts) == images
    assert (min(counts) > 0) == (len(set(group)) >= 3)


def test_splits_are_stratified_by_class() -> None:
    labels = np.random.default_rng(0).random((1000, 6)) < np.geomspace(0.5, 0.02, 6)
    result = make_splits(make(labels), val=0.1, test=0.3)
    for split, share in {"train": 0.6, "val": 0.1, "test": 0.3}.items():
        own = labels[[own == split for own in result.split]]
        assert np.abs(own.sum(axis=0) - share * labels.sum(axis=0)).max() < 2
        assert abs(len(own) - share * 1000) < 2


def test_together_is_combined_with_groups() -> None:
    group = ["a", "a", "b", "b", *(f"own {i}" for i in range(16))]
    for seed in range(20):
        split = make_splits(
            make(np.ones((20, 1)), group=group), seed=seed, together=[(1, 2), (10, 11, 12), (12, 13)]
        ).split
        assert len(set(split[:4])) == 1
        assert len(set(split[10:14])) == 1


def test_train_copy_of_a_test_image_stays_in_train() -> None:
    split = splits_of(train=19, test=1)
    for seed in range(20):
        result = make_splits(make(np.ones((20, 1)), split), seed=seed, val=0.5, together=[(0, 19), (1, 0)])
        assert result.split[:2] == ("train", "train")
        assert sizes(result) == [9, 10, 1] or sizes(result) == [10, 9, 1]


def test_together_with_an_invalid_row_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"together: row 4 .* 4 images"):
        make_splits(make(np.ones((4, 1))), together=[(0, 4)])


def test_folds_have_equal_size_and_are_stratified() -> None:
    labels = np.random.default_rng(1).random((500, 5)) < np.geomspace(0.5, 0.04, 5)
    fold_of = folds(make(labels, splits_of(train=300, val=100, test=100)), 4, seed=2)
    assert set(fold_of.tolist()) == {1, 2, 3, 4}
    for fold in range(1, 5):
        assert abs(int((fold_of == fold).sum()) - 125) <= 1
        assert np.abs(labels[fold_of == fold].sum(axis=0) - labels.sum(axis=0) / 4).max() < 2


def test_number_of_folds_is_limited_by_the_groups() -> None:
    group = ["a", "a", "b", "b", "c", "c"]
    assert sorted(set(folds(make(np.ones((6, 1)), group=group), 3).tolist())) == [1, 2, 3]
    with pytest.raises(DataError, match=r"6 images in 3 units .* into 4 folds; choose 2 to 3"):
        folds(make(np.ones((6, 1)), group=group), 4)
    with pytest.raises(DataError, match=r"into 1 fold;"):
        folds(make(np.ones((6, 1))), 1)
    with pytest.raises(DataError, match=r"2 images in 1 unit.* into 2 folds"):
        folds(make(np.ones((2, 1))), 2, together=[(0, 1)])


def test_with_fold_takes_test_from_one_fold_and_val_from_the_others() -> None:
    labels = np.random.default_rng(0).random((100, 3)) < 0.4
    records = make(labels, splits_of(test=50, train=50), [f"g{i // 2}" for i in range(100)])
    fold_of = folds(records, 5)
    tested = []
    for fold in range(1, 6):
        run = with_fold(records, fold_of, fold, val=0.25)
        assert run.rows("test").tolist() == np.flatnonzero(fold_of == fold).tolist()
        assert sizes(run) == [60, 20, 20]
        assert all(run.split[i] == run.split[i + 1] for i in range(0, 100, 2))
        assert run.label_space.counts.tolist() == labels[run.rows("train")].sum(axis=0).tolist()
        tested += run.rows("test").tolist()
    assert sorted(tested) == list(range(100))


def test_with_fold_keeps_copies_together() -> None:
    records = make(np.ones((40, 1)))
    copies = [(i, i + 1) for i in range(0, 40, 2)]
    fold_of = folds(records, 4, together=copies)
    run = with_fold(records, fold_of, 1, val=0.4, together=copies)
    assert all(run.split[i] == run.split[j] for i, j in copies)
    assert sizes(run) == [18, 12, 10]


def test_with_fold_rejects_a_missing_fold() -> None:
    with pytest.raises(ValueError, match=r"fold 0 .* 1 to 2"):
        with_fold(make(np.ones((4, 1))), np.array([1, 1, 2, 2]), 0)


@settings(max_examples=60)
@given(st.integers(4, 40), st.integers(2, 5), st.integers(0, 100), st.data())
def test_folds_do_not_divide_connected_images(images: int, k: int, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    group = [f"g{i}" for i in rng.integers(0, images, images)]
    pairs = data.draw(st.lists(st.tuples(st.integers(0, images - 1), st.integers(0, images - 1)), max_size=5))
    records = make((rng.random((images, 4)) < 0.3).astype(np.float32), group=group)
    unit = unit_names(group, pairs)
    if len(set(unit)) < k:
        with pytest.raises(DataError, match=rf"into {k} folds"):
            folds(records, k, seed=seed, together=pairs)
        return
    fold_of = folds(records, k, seed=seed, together=pairs)
    assert set(fold_of.tolist()) == set(range(1, k + 1))
    assert len(set(zip(unit, fold_of.tolist(), strict=True))) == len(set(unit))
    assert (fold_of == folds(records, k, seed=seed, together=pairs)).all()


def unit_names(group: Sequence[str], pairs: Sequence[tuple[int, int]]) -> list[str]:
    """Return equal names for connected images, by renaming until nothing changes."""
    names = list(group)
    for _ in names:
        for i, j in pairs:
            names = [names[i] if name == names[j] else name for name in names]
    return names


def test_splits_are_stratified_by_known_images() -> None:
    labels = np.random.default_rng(0).random((200, 3)) < 0.3
    known = np.ones(labels.shape, dtype=bool)
    known[::2] = False
    names, paths = ["a", "b", "c"], [Path(f"{i}.jpg") for i in range(200)]
    for seed in range(5):
        records = Records.from_labels(names, paths, ["train"] * 200, labels.astype(np.float32), known)
        result = make_splits(records, seed=seed)
        for split in ("val", "test"):
            rows = result.rows(split)
            assert abs(result.known[rows].any(axis=1).mean() - 0.5) < 0.06


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11), st.integers(0, 11)), max_size=8))
def test_connected_sets_match_transitive_closure(count: int, joined: list[tuple[int, int, int]]) -> None:
    sets = [tuple(row % count for row in rows) for rows in joined]
    reached = np.eye(count, dtype=bool)
    for rows in sets:
        reached[np.ix_(rows, rows)] = True
    for _ in range(count):
        reached = reached @ reached
    number = connected_sets(count, sets)
    assert np.array_equal(number[:, None] == number, reached)
