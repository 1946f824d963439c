from itertools import pairwise

import pytest

from helpers.run_folders import POLICY
from probmcl.store.run_metadata import MAX_CLASSES, ClassLabels, refuse_cycles


@pytest.mark.parametrize(
    ("names", "counts", "hierarchy", "problem"),
    [
        ([], [], None, "0 names and 0 counts; expected one of each per class"),
        (["a", "a"], [1, 2], None, "2 names and 2 counts"),
        (["a"], [1, 2], None, "1 name and 2 counts"),
        (["a\0"], [1], None, "has characters that cannot be written"),
        (["a", "b"], [1, 2], {"a": "b", "b": "a"}, "class 'a' is its own ancestor"),
        ([str(k) for k in range(MAX_CLASSES + 1)], [], None, "100,001 classes; the limit is 100,000"),
    ],
    ids=["none", "repeated", "counts", "NUL", "cycle", "many"],
)
def test_invalid_classes_are_refused(
    names: list[str], counts: list[int], hierarchy: dict[str, str] | None, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        ClassLabels(names=tuple(names), counts=tuple(counts), hierarchy=hierarchy, policy=POLICY)


def test_long_and_shared_ancestries_are_no_cycles() -> None:
    names = [str(k) for k in range(10_000)]
    refuse_cycles(names, dict(pairwise(names)))
    refuse_cycles(["a", "b", "c"], {"a": "c", "b": "c", "c": "not a class", "not a class": "a"})


def test_class_below_a_cycle_is_named() -> None:
    with pytest.raises(ValueError, match="class 'below' is its own ancestor"):
        refuse_cycles(["root", "below", "a"], {"below": "a", "a": "a"})
