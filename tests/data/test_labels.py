from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from probmcl.data.labels import ROWS_AT_ONCE, LabelStates, State, drawn

A, P, U, X = State.ABSENT, State.PRESENT, State.UNKNOWN, State.UNCERTAIN
Matrix = np.ndarray[Any, np.dtype[np.uint8]]
matrices = stn.arrays(
    np.uint8, stn.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.sampled_from([0, 1, 2, 3])
)


def chances(classes: int, *values: float) -> np.ndarray[Any, Any]:
    return np.array((*values, *[np.nan] * (classes - len(values)))[:classes], dtype=np.float32)


@given(matrices)
def test_a_matrix_comes_back_as_it_was(states: Matrix) -> None:
    held = LabelStates.from_states(states)
    assert held.shape == states.shape
    assert np.array_equal(held.dense(), states)
    rows = np.array([len(states) - 1, 0])
    assert np.array_equal(held.dense(rows), states[rows])
    assert np.array_equal(held.take(rows).dense(), states[rows])
    assert np.array_equal(held.counts(), [(states == state).sum(axis=0) for state in State])


@given(matrices, st.sampled_from([np.nan, 0.0, 0.4, 1.0]))
def test_labels_are_those_of_a_loop(states: Matrix, chance: float) -> None:
    held = LabelStates.from_states(states, chance=chances(states.shape[1], chance))
    labels, known = held.labels_and_known()
    targets, trained = held.targets_and_known()
    present = held.present().toarray()
    for place, state in np.ndenumerate(states):
        of_class = chance if place[1] == 0 else np.nan
        value = {A: 0.0, P: 1.0}.get(State(int(state)), of_class if state == X else np.nan)
        assert trained[place] == (not np.isnan(value))
        assert known[place] == (value in (0.0, 1.0))
        assert targets[place] == (0.0 if np.isnan(value) else np.float32(value))
        assert labels[place] == (1.0 if value == 1.0 else 0.0)
        assert present[place] == (value == 1.0)
    assert held.known_share() == pytest.approx(known.mean())
    assert np.array_equal(held.any_known(), known.any(axis=1))


@given(matrices, st.data())
def test_the_way_it_is_held_does_not_change_the_digest(states: Matrix, data: st.DataObject) -> None:
    held = LabelStates.from_states(states)
    other_usual = np.array(data.draw(st.lists(st.integers(0, 3), min_size=states.shape[1], max_size=states.shape[1])))
    rows, classes = np.nonzero(states != other_usual)
    usual = other_usual.astype(np.uint8)
    other = LabelStates.from_entries(rows, classes, states[rows, classes], states.shape, usual=usual)
    assert other.digest() == held.digest()
    changed = states.copy()
    changed[0, 0] = (changed[0, 0] + 1) % 4
    assert LabelStates.from_states(changed).digest() != held.digest()


def test_entries_may_come_in_any_order_and_twice_but_not_in_two_ways() -> None:
    rows, classes = np.array([1, 0, 1, 1]), np.array([2, 1, 0, 2])
    held = LabelStates.from_entries(rows, classes, np.array([P, P, X, P], dtype=np.uint8), (3, 3))
    assert held.dense().tolist() == [[A, P, A], [X, A, P], [A, A, A]]
    with pytest.raises(ValueError, match="two states in one image"):
        LabelStates.from_entries(rows, classes, np.array([P, P, X, A], dtype=np.uint8), (3, 3))


def test_what_is_not_known_is_unknown_whatever_stands_there() -> None:
    labels, known = np.array([[1.0, np.nan]]), np.array([[False, False]])
    assert LabelStates.from_labels(labels, known).dense().tolist() == [[U, U]]


@given(matrices, st.data())
def test_some_classes_in_any_order(states: Matrix, data: st.DataObject) -> None:
    some = np.array(data.draw(st.permutations(range(states.shape[1])))[: data.draw(st.integers(1, 6))])
    chance = np.linspace(0, 1, states.shape[1], dtype=np.float32)
    held = LabelStates.from_states(states, chance=chance).of_classes(some)
    assert np.array_equal(held.dense(), states[:, some])
    assert np.array_equal(held.chance, chance[some])


@given(matrices, matrices)
def test_two_are_joined_whatever_is_usual_in_each(one: Matrix, other: Matrix) -> None:
    classes = min(one.shape[1], other.shape[1])
    one, other = one[:, :classes], other[:, :classes]
    joined = LabelStates.joined([LabelStates.from_states(one), LabelStates.from_states(other)])
    assert np.array_equal(joined.dense(), np.concatenate([one, other]))


def test_children_imply_parents_and_absent_parents_imply_children() -> None:
    parents = np.array([-1, 0, 1])
    states = np.array([[A, A, P], [A, U, X], [U, U, A], [P, A, U], [U, P, U]], dtype=np.uint8)
    implied = LabelStates.from_states(states).with_parents(parents)
    assert implied.dense().tolist() == [[P, P, P], [A, A, A], [U, U, A], [P, A, A], [P, P, U]]
    assert np.array_equal(implied.with_parents(parents).dense(), implied.dense())


@pytest.mark.parametrize(("chance", "expected"), [(1.0, [P, X]), (0.0, [A, X]), (0.5, [A, A]), (np.nan, [A, A])])
def test_what_is_mapped_implies_as_what_is_said(chance: float, expected: list[int]) -> None:
    """An uncertain child of an absent parent: certain by its chance, or settled by the parent."""
    held = LabelStates.from_states(np.array([[A, X]], dtype=np.uint8), chance=chances(2, np.nan, chance))
    assert held.with_parents(np.array([-1, 0])).dense().tolist() == [expected]


def test_contradictions_are_found_and_settled() -> None:
    states = np.array([[A, P], [P, P], [A, A], [U, P], [A, X]], dtype=np.uint8)
    held = LabelStates.from_states(states, chance=chances(2, np.nan, 1.0))
    assert held.contradicted(np.array([-1, 0])).tolist() == [0, 4]
    assert held.with_parents(np.array([-1, 0])).contradicted(np.array([-1, 0])).tolist() == []
    assert held.contradicted(np.array([-1, -1])).tolist() == []


@given(matrices)
def test_settled_counts_are_those_of_labels(states: Matrix) -> None:
    held = LabelStates.from_states(states, chance=chances(states.shape[1], 1.0, 0.0, 0.5))
    labels, known = held.labels_and_known()
    counts = held.settled_counts()
    assert np.array_equal(counts[P], ((labels == 1) & known).sum(axis=0))
    assert np.array_equal(counts[A], ((labels == 0) & known).sum(axis=0))
    assert np.array_equal(counts.sum(axis=0), np.full(states.shape[1], len(states)))


def test_implication_goes_through_all_blocks_of_images() -> None:
    states = np.zeros((ROWS_AT_ONCE + 3, 2), dtype=np.uint8)
    states[[0, ROWS_AT_ONCE, ROWS_AT_ONCE + 2], 1] = P
    implied = LabelStates.from_states(states).with_parents(np.array([-1, 0]))
    assert np.flatnonzero(implied.dense()[:, 0] == P).tolist() == [0, ROWS_AT_ONCE, ROWS_AT_ONCE + 2]
    assert implied.dense(np.array([1])).tolist() == [[A, A]]


def test_a_chance_outside_of_0_and_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"chance 1\.5"):
        LabelStates.from_states(np.zeros((1, 1), dtype=np.uint8), chance=np.array([1.5], dtype=np.float32))


def test_draws_have_the_chance_and_follow_the_seed() -> None:
    targets = np.tile(np.array([0.0, 1.0, 0.3], dtype=np.float32), (4000, 1))
    found = drawn(targets, 1, 2)
    assert np.array_equal(found, drawn(targets, 1, 2))
    assert not np.array_equal(found, drawn(targets, 1, 3))
    assert found.dtype == np.float32
    assert set(found[:, 2]) == {0.0, 1.0}
    assert found.mean(axis=0) == pytest.approx([0.0, 1.0, 0.3], abs=0.03)  # four deviations
    assert drawn(targets[:, :2], 1) is not None
    assert np.array_equal(drawn(targets[:, :2], 1), targets[:, :2])


def test_a_million_images_of_ten_thousand_classes_are_small() -> None:
    images, classes, each = 20_000, 10_000, 8
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(images), each)
    entries = (rows, rng.integers(0, classes, len(rows)))
    unique = np.unique(np.stack(entries), axis=1)
    states = rng.integers(1, 4, size=(unique.shape[1],), dtype=np.uint8)
    held = LabelStates.from_entries(unique[0], unique[1], states, (images, classes))
    assert sum(array.nbytes for array in vars(held).values()) * 1_000_000 / images < 100e6
