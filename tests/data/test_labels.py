"""Label states, stored sparsely, and class hierarchies."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from probmcl.data.labels import (
    ROWS_AT_ONCE,
    LabelStates,
    State,
    cap_at_parents,
    child_parent_pairs,
    levels_of,
    parents_of,
    sample_labels,
)

NAMES = ("C", "C.D", "E", "E.M", "E.M.S")
TREE = {"C.D": "C", "E.M": "E", "E.M.S": "E.M"}

A, P, U, X = State.ABSENT, State.PRESENT, State.UNKNOWN, State.UNCERTAIN
Matrix = np.ndarray[Any, np.dtype[np.uint8]]
matrices = stn.arrays(
    np.uint8, stn.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.sampled_from([0, 1, 2, 3])
)


def test_parents_and_levels_match_the_tree() -> None:
    parents = parents_of(NAMES, TREE)
    assert parents.tolist() == [-1, 0, -1, 2, 3]
    assert levels_of(parents).tolist() == [1, 2, 1, 2, 3]
    assert child_parent_pairs(parents) == [(1, 0), (3, 2), (4, 3)]


def test_classes_have_no_parents_without_a_hierarchy() -> None:
    assert parents_of(NAMES, None).tolist() == [-1] * 5
    assert parents_of(["a"], {"a": "no class"}).tolist() == [-1]


def test_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="class 'a' is its own ancestor"):
        parents_of(["a", "b"], {"a": "b", "b": "a"})
    with pytest.raises(ValueError, match="own ancestor"):
        parents_of(["a"], {"a": "a"})


def test_long_chain_takes_few_operations() -> None:
    names = [str(number) for number in range(50_000)]
    parents = parents_of(names, dict(pairwise(names)))
    assert parents.tolist() == [*range(1, 50_000), -1]
    assert levels_of(parents).tolist() == [*range(50_000, 0, -1)]
    with pytest.raises(ValueError, match="'0' is its own ancestor"):
        parents_of(names, {**dict(pairwise(names)), names[-1]: names[30_000]})


def test_score_is_capped_at_all_ancestors() -> None:
    scores = np.array([[0.2, 0.1, 0.4, 0.9, 0.8]])
    assert cap_at_parents(scores, parents_of(NAMES, TREE)).tolist() == [[0.2, 0.1, 0.4, 0.4, 0.4]]
    assert scores[0, 3] == 0.9  # the input is not modified


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """Random trees. A parent may come before or after its children."""
    count = draw(st.integers(1, 8))
    order = draw(st.permutations(range(count)))
    parents = [-1] * count
    for position, k in enumerate(order):
        if position and draw(st.booleans()):
            parents[k] = order[draw(st.integers(0, position - 1))]
    return parents


@given(trees(), st.integers(0, 100))
def test_capped_score_is_the_minimum_over_ancestors(tree: list[int], seed: int) -> None:
    scores = np.random.default_rng(seed).random((3, len(tree)))
    capped = cap_at_parents(scores, np.array(tree))
    for row in range(3):
        for k in range(len(tree)):
            lineage = [k]
            while tree[lineage[-1]] >= 0:
                lineage.append(tree[lineage[-1]])
            assert capped[row, k] == min(scores[row, a] for a in lineage)
            assert levels_of(np.array(tree))[k] == len(lineage)


def chances(classes: int, *values: float) -> np.ndarray[Any, Any]:
    return np.array((*values, *[np.nan] * (classes - len(values)))[:classes], dtype=np.float32)


@given(matrices)
def test_dense_matrix_round_trips(states: Matrix) -> None:
    stored = LabelStates.from_states(states)
    assert stored.shape == states.shape
    assert np.array_equal(stored.dense(), states)
    rows = np.array([len(states) - 1, 0])
    assert np.array_equal(stored.dense(rows), states[rows])
    assert np.array_equal(stored.take(rows).dense(), states[rows])
    assert np.array_equal(stored.counts(), [(states == state).sum(axis=0) for state in State])


@given(matrices, st.sampled_from([np.nan, 0.0, 0.4, 1.0]))
def test_labels_match_a_loop_over_entries(states: Matrix, chance: float) -> None:
    stored = LabelStates.from_states(states, chance=chances(states.shape[1], chance))
    labels, known = stored.labels_and_known()
    targets, trained = stored.targets_and_known()
    present = stored.present().toarray()
    for index, state in np.ndenumerate(states):
        of_class = chance if index[1] == 0 else np.nan
        value = {A: 0.0, P: 1.0}.get(State(int(state)), of_class if state == X else np.nan)
        assert trained[index] == (not np.isnan(value))
        assert known[index] == (value in (0.0, 1.0))
        assert targets[index] == (0.0 if np.isnan(value) else np.float32(value))
        assert labels[index] == (1.0 if value == 1.0 else 0.0)
        assert present[index] == (value == 1.0)
    assert stored.known_share() == pytest.approx(known.mean())
    assert np.array_equal(stored.any_known(), known.any(axis=1))


@given(matrices, st.data())
def test_digest_does_not_depend_on_default_states(states: Matrix, data: st.DataObject) -> None:
    stored = LabelStates.from_states(states)
    other_usual = np.array(data.draw(st.lists(st.integers(0, 3), min_size=states.shape[1], max_size=states.shape[1])))
    rows, classes = np.nonzero(states != other_usual)
    default = other_usual.astype(np.uint8)
    other = LabelStates.from_entries(rows, classes, states[rows, classes], states.shape, default=default)
    assert other.digest() == stored.digest()
    changed = states.copy()
    changed[0, 0] = (changed[0, 0] + 1) % 4
    assert LabelStates.from_states(changed).digest() != stored.digest()


def test_entries_may_be_unordered_and_repeated_but_not_conflicting() -> None:
    rows, classes = np.array([1, 0, 1, 1]), np.array([2, 1, 0, 2])
    stored = LabelStates.from_entries(rows, classes, np.array([P, P, X, P], dtype=np.uint8), (3, 3))
    assert stored.dense().tolist() == [[A, P, A], [X, A, P], [A, A, A]]
    with pytest.raises(ValueError, match="two different states"):
        LabelStates.from_entries(rows, classes, np.array([P, P, X, A], dtype=np.uint8), (3, 3))


def test_values_of_unknown_labels_are_ignored() -> None:
    labels, known = np.array([[1.0, np.nan]]), np.array([[False, False]])
    assert LabelStates.from_labels(labels, known).dense().tolist() == [[U, U]]


@given(matrices, st.data())
def test_classes_are_selected_in_any_order(states: Matrix, data: st.DataObject) -> None:
    some = np.array(data.draw(st.permutations(range(states.shape[1])))[: data.draw(st.integers(1, 6))])
    chance = np.linspace(0, 1, states.shape[1], dtype=np.float32)
    stored = LabelStates.from_states(states, chance=chance).select_classes(some)
    assert np.array_equal(stored.dense(), states[:, some])
    assert np.array_equal(stored.chance, chance[some])


@given(matrices, matrices)
def test_states_with_different_defaults_are_concatenated(one: Matrix, other: Matrix) -> None:
    classes = min(one.shape[1], other.shape[1])
    one, other = one[:, :classes], other[:, :classes]
    joined = LabelStates.concatenate([LabelStates.from_states(one), LabelStates.from_states(other)])
    assert np.array_equal(joined.dense(), np.concatenate([one, other]))


def test_hierarchy_implies_present_parents_and_absent_children() -> None:
    parents = np.array([-1, 0, 1])
    states = np.array([[A, A, P], [A, U, X], [U, U, A], [P, A, U], [U, P, U]], dtype=np.uint8)
    implied = LabelStates.from_states(states).with_parents(parents)
    assert implied.dense().tolist() == [[P, P, P], [A, A, A], [U, U, A], [P, A, A], [P, P, U]]
    assert np.array_equal(implied.with_parents(parents).dense(), implied.dense())


@pytest.mark.parametrize(("chance", "expected"), [(1.0, [P, X]), (0.0, [A, X]), (0.5, [A, A]), (np.nan, [A, A])])
def test_hierarchy_applies_to_uncertain_labels_with_a_chance(chance: float, expected: list[int]) -> None:
    """The parent is absent and the child uncertain: a chance of 0 or 1 decides, otherwise the parent."""
    stored = LabelStates.from_states(np.array([[A, X]], dtype=np.uint8), chance=chances(2, np.nan, chance))
    assert stored.with_parents(np.array([-1, 0])).dense().tolist() == [expected]


def test_contradictions_are_found_and_resolved() -> None:
    states = np.array([[A, P], [P, P], [A, A], [U, P], [A, X]], dtype=np.uint8)
    stored = LabelStates.from_states(states, chance=chances(2, np.nan, 1.0))
    assert stored.contradicted(np.array([-1, 0])).tolist() == [0, 4]
    assert stored.with_parents(np.array([-1, 0])).contradicted(np.array([-1, 0])).tolist() == []
    assert stored.contradicted(np.array([-1, -1])).tolist() == []


@given(matrices)
def test_settled_counts_match_labels(states: Matrix) -> None:
    stored = LabelStates.from_states(states, chance=chances(states.shape[1], 1.0, 0.0, 0.5))
    labels, known = stored.labels_and_known()
    counts = stored.settled_counts()
    assert np.array_equal(counts[P], ((labels == 1) & known).sum(axis=0))
    assert np.array_equal(counts[A], ((labels == 0) & known).sum(axis=0))
    assert np.array_equal(counts.sum(axis=0), np.full(states.shape[1], len(states)))


def test_hierarchy_applies_to_all_blocks() -> None:
    states = np.zeros((ROWS_AT_ONCE + 3, 2), dtype=np.uint8)
    states[[0, ROWS_AT_ONCE, ROWS_AT_ONCE + 2], 1] = P
    implied = LabelStates.from_states(states).with_parents(np.array([-1, 0]))
    assert np.flatnonzero(implied.dense()[:, 0] == P).tolist() == [0, ROWS_AT_ONCE, ROWS_AT_ONCE + 2]
    assert implied.dense(np.array([1])).tolist() == [[A, A]]


def test_chance_outside_of_0_and_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"chance 1\.5"):
        LabelStates.from_states(np.zeros((1, 1), dtype=np.uint8), chance=np.array([1.5], dtype=np.float32))


def test_sampled_labels_follow_chance_and_seed() -> None:
    targets = np.tile(np.array([0.0, 1.0, 0.3], dtype=np.float32), (4000, 1))
    samples = sample_labels(targets, 1, 2)
    assert np.array_equal(samples, sample_labels(targets, 1, 2))
    assert not np.array_equal(samples, sample_labels(targets, 1, 3))
    assert samples.dtype == np.float32
    assert set(samples[:, 2]) == {0.0, 1.0}
    assert samples.mean(axis=0) == pytest.approx([0.0, 1.0, 0.3], abs=0.03)  # four standard deviations
    assert sample_labels(targets[:, :2], 1) is not None
    assert np.array_equal(sample_labels(targets[:, :2], 1), targets[:, :2])


def test_a_million_images_with_ten_thousand_classes_take_less_than_100_mb() -> None:
    images, classes, each = 20_000, 10_000, 8
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(images), each)
    entries = (rows, rng.integers(0, classes, len(rows)))
    unique = np.unique(np.stack(entries), axis=1)
    states = rng.integers(1, 4, size=(unique.shape[1],), dtype=np.uint8)
    stored = LabelStates.from_entries(unique[0], unique[1], states, (images, classes))
    assert sum(array.nbytes for array in vars(stored).values()) * 1_000_000 / images < 100e6
