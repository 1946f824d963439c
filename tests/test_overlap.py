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
KINDS = list(OVERLAPS)
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


def slow_overlap(kind: str, p: Batch, q: Batch, i: int, j: int) -> float:
    """One pair of images, by sets, over the labels known to both."""
    classes = range(p.labels.shape[1])
    both = {c for c in classes if p.known[i, c] and q.known[j, c]}
    y, other = {c for c in both if p.labels[i, c] == 1}, {c for c in both if q.labels[j, c] == 1}
    if not y | other:
        return float(len(both) == len(classes))
    if kind == "jaccard":
        return float(Fraction(len(y & other), len(y | other)))
    if not y or not other:
        return 0.0
    norms = len(y) * len(other)
    return len(y & other) / (norms if kind == "literal" else math.sqrt(norms))


@given(label_sets)
def test_jaccard_is_exactly_the_ratio_of_the_sets(sets: list[set[int]]) -> None:
    expected = [[len(p & q) / len(p | q) if p | q else 1.0 for q in sets] for p in sets]
    assert torch.equal(jaccard(one_hot(sets)), torch.tensor(expected))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_each_pair_is_compared_over_the_labels_known_to_both(kind: str, data: st.DataObject) -> None:
    p, q = data.draw(batches()), data.draw(batches())
    measured = OVERLAPS[kind](p.labels, q.labels, known_a=p.known, known_b=q.known)
    expected = [[slow_overlap(kind, p, q, i, j) for j in range(len(q.labels))] for i in range(len(p.labels))]
    assert measured.shape == (len(p.labels), len(q.labels))
    torch.testing.assert_close(measured, torch.tensor(expected), rtol=2e-7, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_label_that_is_not_known_changes_nothing(kind: str, data: st.DataObject) -> None:
    p = data.draw(batches())
    other = data.draw(st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf]))
    changed = p.labels.where(p.known, torch.tensor(other))
    assert torch.equal(
        OVERLAPS[kind](p.labels, known_a=p.known),
        OVERLAPS[kind](changed, known_a=p.known),
    )


@pytest.mark.parametrize("kind", KINDS)
@given(p=batches())
def test_all_known_is_the_same_as_no_mask(kind: str, p: Batch) -> None:
    everything = torch.ones_like(p.known)
    assert torch.equal(OVERLAPS[kind](p.labels, known_a=everything), OVERLAPS[kind](p.labels))
    assert torch.equal(OVERLAPS[kind](p.labels, p.labels, known_b=everything), OVERLAPS[kind](p.labels))


@pytest.mark.parametrize("kind", KINDS)
@given(p=batches())
def test_overlap_is_symmetric_and_between_zero_and_one(kind: str, p: Batch) -> None:
    measured = OVERLAPS[kind](p.labels, known_a=p.known)
    assert torch.equal(measured, measured.T)
    assert 0 <= measured.min() <= measured.max() <= 1


@pytest.mark.parametrize("kind", ["jaccard", "cosine"])
@given(sets=label_sets)
def test_an_image_overlaps_exactly_by_one_with_itself(kind: str, sets: list[set[int]]) -> None:
    assert torch.equal(OVERLAPS[kind](one_hot(sets)).diagonal(), torch.ones(len(sets)))


@pytest.mark.parametrize("kind", KINDS)
@given(p=batches(), data=st.data())
def test_the_order_of_images_and_of_classes_does_not_matter(kind: str, p: Batch, data: st.DataObject) -> None:
    rows = data.draw(st.permutations(range(len(p.labels))))
    classes = data.draw(st.permutations(range(p.labels.shape[1])))
    shuffled = OVERLAPS[kind](p.labels[rows][:, classes], known_a=p.known[rows][:, classes])
    assert torch.equal(shuffled, OVERLAPS[kind](p.labels, known_a=p.known)[rows][:, rows])


def test_the_printed_cosine_of_two_equal_sets_is_one_over_their_size() -> None:
    labels = torch.tensor([[1.0, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    assert torch.equal(cosine(labels, literal=True).diagonal(), torch.tensor([1, 1 / 2, 1 / 5, 1]))


@given(label_sets)
def test_a_cosine_that_is_a_fraction_is_that_fraction_exactly(sets: list[set[int]]) -> None:
    measured = cosine(one_hot(sets))
    for i, p in enumerate(sets):
        for j, q in enumerate(sets):
            root = math.isqrt(len(p) * len(q))
            if root and root**2 == len(p) * len(q):
                assert measured[i, j] == torch.tensor(len(p & q) / root)


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


@pytest.mark.parametrize("kind", KINDS)
class TestEmpty:
    def test_two_empty_sets_are_alike_where_every_label_is_known(self, kind: str) -> None:
        assert torch.equal(OVERLAPS[kind](torch.zeros(2, 3)), torch.ones(2, 2))

    def test_two_empty_sets_are_not_alike_where_one_label_is_unknown(self, kind: str) -> None:
        known = torch.tensor([[True, True, True], [True, True, False]])
        assert torch.equal(OVERLAPS[kind](torch.zeros(2, 3), known_a=known), torch.tensor([[1.0, 0], [0, 0]]))

    def test_an_empty_set_shares_nothing_with_another(self, kind: str) -> None:
        measured = OVERLAPS[kind](torch.tensor([[0.0, 0, 0], [1, 0, 1]]))
        assert measured[0, 1] == measured[1, 0] == 0

    def test_a_row_of_which_nothing_is_known_overlaps_with_none_not_even_itself(self, kind: str) -> None:
        labels, known = torch.ones(3, 4), torch.ones(3, 4, dtype=torch.bool)
        labels[1], known[1] = math.nan, False
        measured = OVERLAPS[kind](labels, known_a=known)
        assert measured[1].sum() == measured[:, 1].sum() == 0
        assert measured[0, 2] == OVERLAPS[kind](torch.ones(1, 4))

    def test_one_image_with_one_class(self, kind: str) -> None:
        for label in (0.0, 1.0):
            assert torch.equal(OVERLAPS[kind](torch.full((1, 1), label)), torch.ones(1, 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ten_thousand_labels_are_counted_exactly_in_any_precision(kind: str, dtype: torch.dtype) -> None:
    labels = torch.zeros(2, 10_000)
    labels[0, :6001], labels[1, 2:9001] = 1, 1  # 5999 shared of 9001; neither number exists in bfloat16
    measured = OVERLAPS[kind](labels.to(dtype))
    shared, a, b = 5999, 6001, 8999
    expected = {"jaccard": shared / 9001, "cosine": shared / math.sqrt(a * b), "literal": shared / (a * b)}[kind]
    assert measured.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert measured[0, 1].item() == pytest.approx(expected, rel=2e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_around_the_call_changes_nothing(kind: str) -> None:
    labels = (torch.rand(5, 3000, generator=torch.Generator().manual_seed(0)) < 0.4).float()
    known = labels.roll(1, 1) < 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = OVERLAPS[kind](labels, known_a=known)
    assert torch.equal(inside, OVERLAPS[kind](labels, known_a=known))


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_for_a_second_side_that_is_not_given_is_an_error(kind: str) -> None:
    known = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="known_b belongs to b"):
        OVERLAPS[kind](torch.ones(2, 3), known_b=known)
