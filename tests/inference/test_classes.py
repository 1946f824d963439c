import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy import ndarray

from probmcl.data.labels import LabelStates, State
from probmcl.errors import DataError
from probmcl.inference import classes
from probmcl.inference.classes import match, truth


def test_several_names_of_the_data_may_be_one_of_the_model() -> None:
    found = match(["cat", "dog"], ["kitten", "emu", "dog", "tabby"], {"kitten": "cat", "tabby": "cat"})
    assert found.common == ("cat", "dog")
    assert found.in_model == [0, 1]
    assert found.in_data == [[0, 3], [2]]
    assert (found.only_in_model, found.only_in_data) == ([], ["emu"])


def test_names_may_be_exchanged() -> None:
    assert match(["cat", "dog"], ["cat", "dog"], {"cat": "dog", "dog": "cat"}).in_data == [[1], [0]]


def test_a_renamed_class_is_joined_to_the_one_that_has_the_name_already() -> None:
    assert match(["dog"], ["dog", "puppy"], {"puppy": "dog"}).in_data == [[0, 1]]


def test_nothing_in_common_names_the_remedy() -> None:
    with pytest.raises(DataError, match=r"no class in common; --rename FILE says which.*'Redd': there are red"):
        match(["red"], ["Redd"])


def joined(states: list[int]) -> tuple[float, bool]:
    """Present if any is, absent if all are, else not known."""
    if State.PRESENT in states:
        return 1.0, True
    return 0.0, all(state == State.ABSENT for state in states)


@given(arrays(np.uint8, st.tuples(st.integers(1, 9), st.just(4)), elements=st.integers(0, 3)))
def test_joined_classes_are_what_a_loop_over_all_states_says(states: ndarray) -> None:
    sources = [[3, 1], [0]]
    labels, known = truth(LabelStates.from_states(states), sources)
    wanted = [[joined([int(row[k]) for k in places]) for places in sources] for row in states]
    assert labels.tolist() == [[label for label, _ in row] for row in wanted]
    assert known.tolist() == [[seen for _, seen in row] for row in wanted]


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    states = LabelStates.from_states(np.random.default_rng(0).integers(0, 4, (50, 6)).astype(np.uint8))
    whole = truth(states, [[5, 0], [1], [2, 3, 4]])
    monkeypatch.setattr(classes, "ROWS_AT_ONCE", 7)
    parts = truth(states, [[5, 0], [1], [2, 3, 4]])
    np.testing.assert_array_equal(parts[0], whole[0])
    np.testing.assert_array_equal(parts[1], whole[1])
