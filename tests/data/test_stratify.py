from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array

from probmcl.data.stratify import stratify

SHARES = ([0.8, 0.2], [0.7, 0.2, 0.1], [0.2] * 5, [0.1, 0.9])


def assigned(
    counts: ArrayLike,
    shares: Sequence[float],
    *,
    sizes: ArrayLike | None = None,
    seed: int = 0,
    keep: int | None = 0,
    stay: Sequence[int] = (),
) -> NDArray[np.int64]:
    matrix = np.array(counts)
    images = np.ones(len(matrix), dtype=np.int64) if sizes is None else np.array(sizes)
    return stratify(csr_array(matrix), images, shares, seed=seed, keep=keep, stay=stay)


def mean_deviation(counts: NDArray[np.int64], part: NDArray[np.int64], shares: Sequence[float]) -> float:
    """Return the mean over classes and parts of |share of the positives − target share|."""
    total = counts.sum(axis=0)
    own = np.array([counts[part == k].sum(axis=0) for k in range(len(shares))])
    return float(np.abs(own[:, total > 0] / total[total > 0] - np.array(shares)[:, None]).mean())


def random_labels(images: int, classes: int, seed: int) -> NDArray[np.int64]:
    """Return random labels; classes are ordered from frequent to rare."""
    rng = np.random.default_rng(seed)
    return (rng.random((images, classes)) < np.geomspace(0.6, 0.01, classes)).astype(np.int64)


def in_groups(labels: NDArray[np.int64], groups: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positives and sizes of random groups; the first groups are much larger than the last."""
    rng = np.random.default_rng(seed)
    group = np.concatenate([np.arange(groups), (groups * rng.random(len(labels) - groups) ** 3).astype(int)])
    counts = np.zeros((groups, labels.shape[1]), dtype=np.int64)
    np.add.at(counts, group, labels)
    return counts, np.bincount(group)


@pytest.mark.parametrize("shares", SHARES)
def test_classes_and_sizes_match_the_shares_up_to_rounding(shares: list[float]) -> None:
    labels = random_labels(4000, 12, seed=1)
    part = assigned(labels, shares, keep=None)
    for positives in [np.ones(4000, dtype=np.int64), *labels.T]:
        own = np.array([positives[part == k].sum() for k in range(len(shares))])
        assert np.abs(own - positives.sum() * np.array(shares)).max() < 1.5


def test_divisible_counts_are_split_exactly() -> None:
    labels = np.repeat([[1, 0, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]], [5, 10, 20, 5], axis=0)
    part = assigned(labels, [0.6, 0.2, 0.2])
    for parts, number in zip(np.split(part, [5, 15, 35]), (5, 10, 20, 5), strict=True):
        assert np.bincount(parts).tolist() == [3 * number // 5, number // 5, number // 5]


def test_groups_of_unequal_size_are_balanced() -> None:
    labels = random_labels(3000, 8, seed=2)
    counts, sizes = in_groups(labels, 400, seed=3)
    assert sizes.max() > 50
    for seed in range(4):
        part = assigned(counts, [0.2] * 5, sizes=sizes, seed=seed, keep=None)
        assert np.abs(np.bincount(part, weights=sizes) - 600).max() < 6
        assert mean_deviation(counts, part, [0.2] * 5) < 0.007
    drawn = np.random.default_rng(0).integers(0, 5, 400)
    assert mean_deviation(counts, drawn, [0.2] * 5) > 0.04


def test_sizes_are_balanced_for_images_with_many_labels() -> None:
    labels = (np.random.default_rng(0).random((500, 20)) < 0.6).astype(np.int64)
    for seed in range(6):
        assert np.abs(np.bincount(assigned(labels, [0.2] * 5, seed=seed, keep=None)) - 100).max() <= 1


def test_frequent_classes_match_the_shares() -> None:
    labels = random_labels(20_000, 30, seed=0)
    for seed in range(4):
        part = assigned(labels, [0.8, 0.2], seed=seed, keep=None)
        assert np.abs(labels[part == 1].sum(axis=0) - 0.2 * labels.sum(axis=0)).max() < 0.6


def test_units_without_labels_balance_the_sizes() -> None:
    labels = np.zeros((50, 2), dtype=np.int64)
    labels[:5] = 1
    part = assigned(labels, [0.5, 0.3, 0.2])
    assert np.bincount(part).tolist() == [25, 15, 10]


def test_result_depends_on_the_seed() -> None:
    labels = random_labels(200, 5, seed=0)
    assert (assigned(labels, [0.8, 0.2], seed=1) == assigned(labels, [0.8, 0.2], seed=1)).all()
    parts = {tuple(assigned(labels, [0.8, 0.2], seed=seed).tolist()) for seed in range(10)}
    assert len(parts) == 10


def test_result_depends_on_the_seed_for_distinct_units() -> None:
    counts = np.array([[int(bit) for bit in f"{number:06b}"] for number in range(64)])
    assert len({tuple(assigned(counts, [0.5, 0.5], seed=seed).tolist()) for seed in range(10)}) == 10


def test_every_image_can_be_in_every_part() -> None:
    labels = random_labels(40, 3, seed=0)
    parts = np.array([assigned(labels, [0.25] * 4, seed=seed, keep=None) for seed in range(100)])
    assert all(set(column) == {0, 1, 2, 3} for column in parts.T.tolist())


def test_result_is_independent_of_the_sparse_storage() -> None:
    labels = random_labels(100, 6, seed=0)
    rows, columns = np.nonzero(labels)
    mixed = np.random.default_rng(0).permutation(len(rows))
    entries = (np.ones(len(rows), dtype=np.int64)[mixed], (rows[mixed], columns[mixed]))
    with_zero = (np.append(entries[0], 0), (np.append(entries[1][0], 0), np.append(entries[1][1], 5)))
    ones = np.ones(100, dtype=np.int64)
    expected = assigned(labels, [0.6, 0.4], seed=4)
    shuffled, with_a_zero = (csr_array(coo_array(stored, shape=(100, 6))) for stored in (entries, with_zero))
    for stored in (shuffled, with_a_zero, csr_array(labels.astype(bool))):
        assert (stratify(stored, ones, [0.6, 0.4], seed=4) == expected).all()


def test_duplicate_sparse_entries_are_summed() -> None:
    labels = random_labels(100, 6, seed=0)
    plain = csr_array(2 * labels)
    backwards = np.concatenate([np.repeat(np.flatnonzero(row)[::-1], 2) for row in labels])
    pieces = csr_array((np.ones(2 * plain.nnz, dtype=np.int64), backwards, 2 * plain.indptr), plain.shape)
    sizes = np.full(100, 2)
    expected = stratify(plain, sizes, [0.6, 0.4], seed=4)
    assert (stratify(pieces, sizes, [0.6, 0.4], seed=4) == expected).all()


def test_keep_gets_the_only_unit_of_a_class() -> None:
    for seed in range(20):
        assert (assigned(np.eye(6, 4), [0.1, 0.9], seed=seed, keep=0)[:4] == 0).all()
        assert (assigned(np.eye(6, 4), [0.9, 0.1], seed=seed, keep=1)[:4] == 1).all()
    assert (assigned(np.eye(6, 4), [0.1, 0.9], keep=None)[:4] == 1).any()


def test_empty_part_is_filled_without_removing_a_class() -> None:
    assert assigned([[1], [0]], [0.99, 0.01], sizes=[1, 5]).tolist() == [0, 1]
    assert assigned([[1], [0]], [0.99, 0.01], sizes=[1, 5], keep=None).tolist() == [1, 0]


def test_stay_units_are_fixed_in_the_first_part() -> None:
    labels = np.ones((20, 1), dtype=np.int64)
    part = assigned(labels, [0.5, 0.5], stay=range(8))
    assert (part[:8] == 0).all()
    assert np.bincount(part).tolist() == [10, 10]
    assert np.bincount(assigned(labels, [0.5, 0.5], stay=range(15))).tolist() == [15, 5]


def test_last_parts_are_empty_if_there_are_too_few_units() -> None:
    assert sorted(assigned(np.ones((2, 1)), [0.2, 0.2, 0.6]).tolist()) == [0, 1]
    assert sorted(assigned(np.ones((4, 1)), [0.2, 0.2, 0.6], stay=[0, 1, 2]).tolist()) == [0, 0, 0, 1]
    assert assigned(np.ones((1, 1)), [0.2, 0.8]).tolist() == [0]
    assert assigned(np.ones((0, 3)), [0.2, 0.8]).tolist() == []
    assert np.bincount(assigned(np.ones((10, 0)), [0.2, 0.8])).tolist() == [2, 8]


def test_invalid_shares_and_sizes_are_an_error() -> None:
    for shares in ([0.5, 0.4], [1.2, -0.2], []):
        with pytest.raises(ValueError, match=r"shares="):
            assigned(np.ones((4, 1)), shares)
    with pytest.raises(ValueError, match=r"4 units, but 3 sizes"):
        assigned(np.ones((4, 1)), [0.5, 0.5], sizes=[1, 1, 1])
    with pytest.raises(ValueError, match=r"at least 1"):
        assigned(np.ones((4, 1)), [0.5, 0.5], sizes=[1, 1, 0, 1])


@st.composite
def units(draw: st.DrawFn) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    number, classes = draw(st.integers(1, 30)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    sizes = rng.integers(1, draw(st.integers(1, 6)) + 1, number)
    counts = rng.binomial(sizes[:, None], draw(st.floats(0.02, 0.9)), (number, classes))
    return counts, sizes


@given(units(), st.sampled_from(SHARES), st.integers(0, 3))
def test_no_part_is_empty_and_keep_has_every_class(
    of: tuple[NDArray[np.int64], NDArray[np.int64]], shares: list[float], seed: int
) -> None:
    counts, sizes = of
    part = assigned(counts, shares, sizes=sizes, seed=seed)
    assert part.shape == sizes.shape
    assert set(part.tolist()) == set(range(min(len(sizes), len(shares))))
    if len(sizes) >= counts.shape[1] + len(shares) - 1:  # a unit for each class and for each other part
        assert (counts[part == 0].any(axis=0) == counts.any(axis=0)).all()


@given(units(), st.integers(0, 3))
def test_keep_has_every_class_if_a_unit_can_be_spared(
    of: tuple[NDArray[np.int64], NDArray[np.int64]], seed: int
) -> None:
    counts, sizes = of
    part = assigned(counts, [0.5, 0.5], sizes=sizes, seed=seed)
    spared = [(np.delete(counts, unit, axis=0).any(axis=0) == counts.any(axis=0)).all() for unit in range(len(sizes))]
    if any(spared):
        assert (counts[part == 0].any(axis=0) == counts.any(axis=0)).all()


@settings(max_examples=40)
@given(st.integers(30, 300), st.integers(1, 20), st.sampled_from(SHARES), st.integers(0, 100))
def test_result_is_closer_to_the_shares_than_random_parts(
    images: int, classes: int, shares: list[float], seed: int
) -> None:
    labels = random_labels(images, classes, seed)
    part = assigned(labels, shares, seed=seed, keep=None)
    ends = np.round(np.cumsum(shares)[:-1] * images).astype(int)
    parts = np.searchsorted(ends, np.arange(images), side="right")
    drawn = [mean_deviation(labels, np.random.default_rng(k).permutation(parts), shares) for k in range(9)]
    assert mean_deviation(labels, part, shares) <= np.median(drawn) + 1e-9
    assert np.abs(np.bincount(part, minlength=len(shares)) - np.array(shares) * images).max() < 3
