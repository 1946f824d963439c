import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from probmcl.overlap import cosine, jaccard

OVERLAPS: dict[str, Callable[..., Tensor]] = {
    "jaccard": jaccard,
    "cosine": cosine,
    "literal": lambda *a, **known: cosine(*a, literal=True, **known),
}
NAMES = list(OVERLAPS)
label_sets = st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=6)


class Batch(NamedTuple):
    labels: Tensor
    known: Tensor


@st.composite
def batches(draw: st.DrawFn, classes: int = 4) -> Batch:
    shape = (draw(st.integers(1, 6)), classes)
    labels = draw(arrays(np.float32, shape, elements=st.sampled_from([0.0, 1.0])))
    return Batch(torch.from_numpy(labels), torch.from_numpy(draw(arrays(np.bool_, shape))))


def one_hot(sets: list[set[int]]) -> Tensor:
    return torch.tensor([[float(c in s) for c in range(6)] for s in sets])


def reference_overlap(name: str, p: Batch, q: Batch, i: int, j: int) -> float:
    """Compute the overlap of one pair of images from Python sets, over the labels known for both."""
    classes = range(p.labels.shape[1])
    known = {c for c in classes if p.known[i, c] and q.known[j, c]}
    y, other = {c for c in known if p.labels[i, c] == 1}, {c for c in known if q.labels[j, c] == 1}
    if not y | other:
        return float(len(known) == len(classes))
    if name == "jaccard":
        return float(Fraction(len(y & other), len(y | other)))
    if not y or not other:
        return 0.0
    norms = len(y) * len(other)
    return len(y & other) / (norms if name == "literal" else math.sqrt(norms))


@given(label_sets)
def test_jaccard_matches_python_sets_exactly(sets: list[set[int]]) -> None:
    expected = [[len(p & q) / len(p | q) if p | q else 1.0 for q in sets] for p in sets]
    assert torch.equal(jaccard(one_hot(sets)), torch.tensor(expected))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_pairs_are_compared_over_labels_known_for_both(name: str, data: st.DataObject) -> None:
    p, q = data.draw(batches()), data.draw(batches())
    actual = OVERLAPS[name](p.labels, q.labels, known_a=p.known, known_b=q.known)
    expected = [[reference_overlap(name, p, q, i, j) for j in range(len(q.labels))] for i in range(len(p.labels))]
    assert actual.shape == (len(p.labels), len(q.labels))
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=2e-7, atol=0)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_unknown_labels_are_ignored(name: str, data: st.DataObject) -> None:
    p = data.draw(batches())
    other = data.draw(st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf]))
    changed = p.labels.where(p.known, torch.tensor(other))
    assert torch.equal(
        OVERLAPS[name](p.labels, known_a=p.known),
        OVERLAPS[name](changed, known_a=p.known),
    )


@pytest.mark.parametrize("name", NAMES)
@given(p=batches())
def test_full_mask_equals_no_mask(name: str, p: Batch) -> None:
    all_known = torch.ones_like(p.known)
    assert torch.equal(OVERLAPS[name](p.labels, known_a=all_known), OVERLAPS[name](p.labels))
    assert torch.equal(OVERLAPS[name](p.labels, p.labels, known_b=all_known), OVERLAPS[name](p.labels))


@pytest.mark.parametrize("name", NAMES)
@given(p=batches())
def test_overlap_is_symmetric_and_between_zero_and_one(name: str, p: Batch) -> None:
    actual = OVERLAPS[name](p.labels, known_a=p.known)
    assert torch.equal(actual, actual.T)
    assert 0 <= actual.min() <= actual.max() <= 1


@pytest.mark.parametrize("name", ["jaccard", "cosine"])
@given(sets=label_sets)
def test_self_overlap_is_exactly_one(name: str, sets: list[set[int]]) -> None:
    assert torch.equal(OVERLAPS[name](one_hot(sets)).diagonal(), torch.ones(len(sets)))


@pytest.mark.parametrize("name", NAMES)
@given(p=batches(), data=st.data())
def test_order_of_images_and_classes_does_not_matter(name: str, p: Batch, data: st.DataObject) -> None:
    rows = data.draw(st.permutations(range(len(p.labels))))
    classes = data.draw(st.permutations(range(p.labels.shape[1])))
    shuffled = OVERLAPS[name](p.labels[rows][:, classes], known_a=p.known[rows][:, classes])
    assert torch.equal(shuffled, OVERLAPS[name](p.labels, known_a=p.known)[rows][:, rows])


def test_literal_cosine_of_equal_sets_is_one_over_their_size() -> None:
    labels = torch.tensor([[1.0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    assert torch.equal(cosine(labels, literal=True).diagonal(), torch.tensor([1, 1 / 2, 1 / 5, 1]))


@given(label_sets)
def test_rational_cosines_are_exact(sets: list[set[int]]) -> None:
    actual = cosine(one_hot(sets))
    for i, p in enumerate(sets):
        for j, q in enumerate(sets):
            root = math.isqrt(len(p) * len(q))
            if root and root**2 == len(p) * len(q):
                assert actual[i, j] == torch.tensor(len(p & q) / root)


def test_cosine_by_hand() -> None:
    labels = torch.tensor([[1.0, 1, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1], [0, 1, 0, 0]])
    root = math.sqrt
    expected = [
        [1, 1 / root(6), 2 / root(8), 1 / root(2)],
        [1 / root(6), 1, 3 / root(12), 1 / root(3)],
        [2 / root(8), 3 / root(12), 1, 1 / 2],
        [1 / root(2), 1 / root(3), 1 / 2, 1],
    ]
    torch.testing.assert_close(cosine(labels), torch.tensor(expected))


@pytest.mark.parametrize("name", NAMES)
class TestEmpty:
    def test_empty_sets_overlap_fully_if_all_labels_are_known(self, name: str) -> None:
        assert torch.equal(OVERLAPS[name](torch.zeros(2, 3)), torch.ones(2, 2))

    def test_empty_sets_do_not_overlap_if_a_label_is_unknown(self, name: str) -> None:
        known = torch.tensor([[True, True, True], [True, True, False]])
        assert torch.equal(OVERLAPS[name](torch.zeros(2, 3), known_a=known), torch.tensor([[1.0, 0], [0, 0]]))

    def test_empty_set_does_not_overlap_with_nonempty_set(self, name: str) -> None:
        actual = OVERLAPS[name](torch.tensor([[0.0, 0, 0], [1, 0, 1]]))
        assert actual[0, 1] == actual[1, 0] == 0

    def test_row_without_known_labels_overlaps_with_no_row(self, name: str) -> None:
        labels, known = torch.ones(3, 4), torch.ones(3, 4, dtype=torch.bool)
        labels[1], known[1] = math.nan, False
        actual = OVERLAPS[name](labels, known_a=known)
        assert actual[1].sum() == actual[:, 1].sum() == 0
        assert actual[0, 2] == OVERLAPS[name](torch.ones(1, 4))

    def test_one_image_with_one_class(self, name: str) -> None:
        for label in (0.0, 1.0):
            assert torch.equal(OVERLAPS[name](torch.full((1, 1), label)), torch.ones(1, 1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ten_thousand_labels_are_counted_exactly(name: str, dtype: torch.dtype) -> None:
    labels = torch.zeros(2, 10_000)
    labels[0, :6001], labels[1, 2:9001] = 1, 1  # intersection 5999, union 9001; bfloat16 represents neither exactly
    actual = OVERLAPS[name](labels.to(dtype))
    intersection, a, b = 5999, 6001, 8999
    expected = {
        "jaccard": intersection / 9001,
        "cosine": intersection / math.sqrt(a * b),
        "literal": intersection / (a * b),
    }[name]
    assert actual.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert actual[0, 1].item() == pytest.approx(expected, rel=2e-7)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_does_not_change_the_result(name: str) -> None:
    labels = (torch.rand(5, 3000, generator=torch.Generator().manual_seed(0)) < 0.4).float()
    known = labels.roll(1, 1) < 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast_result = OVERLAPS[name](labels, known_a=known)
    assert torch.equal(autocast_result, OVERLAPS[name](labels, known_a=known))


@pytest.mark.parametrize("name", NAMES)
def test_known_b_without_b_is_an_error(name: str) -> None:
    known = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="known_b"):
        OVERLAPS[name](torch.ones(2, 3), known_b=known)
