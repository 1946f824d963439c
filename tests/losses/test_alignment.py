import inspect
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probmcl.losses import aligned_targets, sequence_cross_entropy
from probmcl.losses.alignment import IGNORED, Alignment


def steps_of(images: int, steps: int, classes: int, seed: int = 0) -> Tensor:
    """Log-probabilities of the classes and the end."""
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(images, steps, classes + 1, generator=generator, dtype=torch.float64)).log_softmax(2)


def stays(scores: Tensor, labels: list[int], alignment: Alignment) -> dict[int, int]:
    """Labels that predicted label alignment leaves where they were said, by step."""
    found: dict[int, int] = {}
    for step in range(min(len(labels), len(scores))) if alignment == "predicted" else ():
        said = int(scores[step].argmax())
        if said in labels and said not in found.values():
            found[step] = said
    return found


def cost(scores: Tensor, order: tuple[int, ...]) -> float:
    return -sum(float(scores[step, label]) for step, label in enumerate(order))


def best_order(scores: Tensor, labels: list[int], alignment: Alignment) -> tuple[int, ...]:
    """By trying every order of as many labels as there are steps for."""
    fixed = stays(scores, labels, alignment)
    orders = itertools.permutations(labels, min(len(labels), len(scores)))
    allowed = [order for order in orders if all(order[step] == label for step, label in fixed.items())]
    return min(allowed, key=lambda order: cost(scores, order))


def expected(scores: Tensor, labels: list[int], alignment: Alignment) -> list[int]:
    order = [*best_order(scores, labels, alignment), scores.shape[1] - 1][: len(scores)]
    return order + [IGNORED] * (len(scores) - len(order))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 6),
    rows=st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=3),
    alignment=st.sampled_from(["predicted", "minimal"]),
)
def test_the_order_is_the_best_of_all_that_are_allowed(
    seed: int, steps: int, rows: list[set[int]], alignment: Alignment
) -> None:
    scores = steps_of(len(rows), steps, 5, seed)
    labels = torch.tensor([[float(k in row) for k in range(5)] for row in rows])
    found = aligned_targets(scores, labels, alignment=alignment)
    wanted = [expected(of_one, sorted(row), alignment) for of_one, row in zip(scores, rows, strict=True)]
    assert found.tolist() == wanted


def test_predicted_labels_stay_although_another_order_would_cost_less() -> None:
    # The first label is said at the first step; the second one would be nearly impossible at the second.
    scores = torch.tensor([[[0.5, 0.49, 0.01], [0.98, 0.01, 0.01], [0.2, 0.2, 0.6]]]).log()
    labels = torch.ones(1, 2)
    assert aligned_targets(scores, labels).tolist() == [[0, 1, 2]]
    assert aligned_targets(scores, labels, alignment="minimal").tolist() == [[1, 0, 2]]


def test_a_label_that_is_said_twice_stays_where_it_was_said_first() -> None:
    scores = torch.tensor([[[0.6, 0.2, 0.2], [0.9, 0.05, 0.05], [0.1, 0.1, 0.8]]]).log()
    assert aligned_targets(scores, torch.ones(1, 2)).tolist() == [[0, 1, 2]]


def test_a_label_that_is_said_after_its_sequence_should_have_ended_is_brought_forward() -> None:
    scores = torch.tensor([[[0.1, 0.8, 0.1], [0.9, 0.05, 0.05], [0.3, 0.3, 0.4]]]).log()
    assert aligned_targets(scores, torch.tensor([[1.0, 0.0]])).tolist() == [[0, 2, IGNORED]]


@pytest.mark.parametrize("alignment", ["predicted", "minimal"])
def test_more_labels_than_steps_leave_out_those_that_fit_least_and_the_end(alignment: Alignment) -> None:
    scores = torch.tensor([[[0.1, 0.5, 0.2, 0.2], [0.1, 0.2, 0.3, 0.4]]]).log()
    assert aligned_targets(scores, torch.ones(1, 3), alignment=alignment).tolist() == [[1, 2]]


def test_without_labels_there_is_the_end_and_where_nothing_is_known_there_is_nothing() -> None:
    scores, labels = steps_of(2, 3, 4), torch.zeros(2, 4)
    known = torch.tensor([[True, False, False, False], [False] * 4])
    assert aligned_targets(scores, labels, known).tolist() == [[4, IGNORED, IGNORED], [IGNORED] * 3]
    assert aligned_targets(scores, labels).tolist() == [[4, IGNORED, IGNORED]] * 2


@pytest.mark.parametrize("hidden", [0.0, 1.0, float("nan")])
def test_a_label_that_is_not_known_is_no_target(hidden: float) -> None:
    scores = steps_of(1, 4, 3)
    known = torch.tensor([[True, False, True]])
    found = aligned_targets(scores, torch.tensor([[1.0, hidden, 0.0]]), known)
    assert found.tolist() == [[0, 3, IGNORED, IGNORED]]


def test_answers_that_a_decoder_has_ruled_out_are_no_obstacle() -> None:
    # Said at the first step, the first label cannot be said again: only one of the two orders is possible.
    scores = torch.tensor([[[0.4, 0.35, 0.25], [0.0, 0.3, 0.7], [0.0, 0.0, 1.0]]]).log()
    for alignment in ("predicted", "minimal"):
        assert aligned_targets(scores, torch.ones(1, 2), alignment=alignment).tolist() == [[0, 1, 2]]


def test_what_is_no_number_is_left_for_the_loss_to_show() -> None:
    scores = torch.full((1, 3, 3), torch.nan)
    targets = aligned_targets(scores, torch.ones(1, 2))
    assert sorted(targets[0].tolist()) == [0, 1, 2]
    assert sequence_cross_entropy(scores, targets).isnan()


def test_targets_need_no_gradient_and_take_half_precision() -> None:
    scores = steps_of(3, 4, 3).float().requires_grad_()
    labels = torch.tensor([[1.0, 0.0, 1.0]] * 3)
    assert not aligned_targets(scores, labels).requires_grad
    assert aligned_targets(scores.bfloat16(), labels).shape == (3, 4)


def test_another_alignment_is_refused() -> None:
    with pytest.raises(ValueError, match="alignment='best'; there are 'predicted' and 'minimal'"):
        inspect.unwrap(aligned_targets)(steps_of(1, 3, 2), torch.ones(1, 2), alignment="best")


# The loss.


def slow_cross_entropy(scores: Tensor, targets: Tensor) -> list[float]:
    return [
        -float(scores[row, step, target])
        for row, sequence in enumerate(targets.tolist())
        for step, target in enumerate(sequence)
        if target != IGNORED
    ]


def test_the_loss_is_that_of_the_steps_with_a_target() -> None:
    scores = steps_of(4, 5, 3)
    targets = aligned_targets(scores, torch.tensor([[1.0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]]).double())
    terms = slow_cross_entropy(scores, targets)
    assert len(terms) == 2 + 3 + 4 + 1
    torch.testing.assert_close(sequence_cross_entropy(scores, targets).item(), np.mean(terms))
    torch.testing.assert_close(sequence_cross_entropy(scores, targets, reduction="sum").item(), np.sum(terms))


def test_no_target_is_no_loss_and_no_gradient_even_of_what_is_impossible() -> None:
    raw = torch.zeros(1, 2, 3, requires_grad=True)
    scores = raw.masked_fill(torch.tensor([[[True, False, False], [True, True, False]]]), -torch.inf).log_softmax(2)
    loss = sequence_cross_entropy(scores, torch.full((1, 2), IGNORED))
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, raw)
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_the_gradient_is_right() -> None:
    raw = torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.tensor([[0, 2, 3, IGNORED], [3, IGNORED, IGNORED, IGNORED]])
    assert torch.autograd.gradcheck(lambda x: sequence_cross_entropy(x.log_softmax(2), targets), raw)
