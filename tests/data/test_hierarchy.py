import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probmcl.data.hierarchy import below_parents, from_the_top, levels_of, parents_of

NAMES = ("C", "C.D", "E", "E.M", "E.M.S")
TREE = {"C.D": "C", "E.M": "E", "E.M.S": "E.M"}


def test_parents_and_levels_are_those_of_the_tree() -> None:
    parents = parents_of(NAMES, TREE)
    assert parents.tolist() == [-1, 0, -1, 2, 3]
    assert levels_of(parents).tolist() == [1, 2, 1, 2, 3]
    assert from_the_top(parents) == [(1, 0), (3, 2), (4, 3)]


def test_without_a_hierarchy_nobody_has_a_parent() -> None:
    assert parents_of(NAMES, None).tolist() == [-1] * 5
    assert parents_of(["a"], {"a": "no class"}).tolist() == [-1]


def test_a_circle_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="class 'a' is its own ancestor"):
        parents_of(["a", "b"], {"a": "b", "b": "a"})
    with pytest.raises(ValueError, match="own ancestor"):
        parents_of(["a"], {"a": "a"})


def test_a_grandchild_is_not_above_its_grandparent() -> None:
    scores = np.array([[0.2, 0.1, 0.4, 0.9, 0.8]])
    assert below_parents(scores, parents_of(NAMES, TREE)).tolist() == [[0.2, 0.1, 0.4, 0.4, 0.4]]
    assert scores[0, 3] == 0.9  # the user's own array is left alone


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """Parents in any order: a class's parent comes before it in a random permutation."""
    count = draw(st.integers(1, 8))
    order = draw(st.permutations(range(count)))
    parents = [-1] * count
    for place, k in enumerate(order):
        if place and draw(st.booleans()):
            parents[k] = order[draw(st.integers(0, place - 1))]
    return parents


@given(trees(), st.integers(0, 100))
def test_capped_scores_are_the_least_of_all_ancestors(tree: list[int], seed: int) -> None:
    scores = np.random.default_rng(seed).random((3, len(tree)))
    capped = below_parents(scores, np.array(tree))
    for row in range(3):
        for k in range(len(tree)):
            line = [k]
            while tree[line[-1]] >= 0:
                line.append(tree[line[-1]])
            assert capped[row, k] == min(scores[row, a] for a in line)
            assert levels_of(np.array(tree))[k] == len(line)
