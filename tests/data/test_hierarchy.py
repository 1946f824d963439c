from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probmcl.data.hierarchy import cap_at_parents, child_parent_pairs, levels_of, parents_of

NAMES = ("C", "C.D", "E", "E.M", "E.M.S")
TREE = {"C.D": "C", "E.M": "E", "E.M.S": "E.M"}


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
