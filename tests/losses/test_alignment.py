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
    """Return random log-probabilities of the classes and the end token."""
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(images, steps, classes + 1, generator=generator, dtype=torch.float64)).log_softmax(2)


def kept_labels(scores: Tensor, labels: list[int], alignment: Alignment) -> dict[int, int]:
    """Return the labels that predicted label alignment keeps at their predicted step, by step."""
    kept: dict[int, int] = {}
    for step in range(min(len(labels), len(scores))) if alignment == "predicted" else ():
        token = int(scores[step].argmax())
        if token in labels and token not in kept.values():
            kept[step] = token
    return kept


def cost(scores: Tensor, order: tuple[int, ...]) -> float:
    return -sum(float(scores[step, label]) for step, label in enumerate(order))


def best_order(scores: Tensor, labels: list[int], alignment: Alignment) -> tuple[int, ...]:
    """Return the cheapest allowed order by trying all permutations of as many labels as fit."""
    fixed = kept_labels(scores, labels, alignment)
    orders = itertools.permutations(labels, min(len(labels), len(scores)))
    allowed = [order for order in orders if all(order[step] == label for step, label in fixed.items())]
    return min(allowed, key=lambda order: cost(scores, order))


def expected_targets(scores: Tensor, labels: list[int], alignment: Alignment) -> list[int]:
    order = [*best_order(scores, labels, alignment), scores.shape[1] - 1][: len(scores)]
    return order + [IGNORED] * (len(scores) - len(order))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 6),
    rows=st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=3),
    alignment=st.sampled_from(["predicted", "minimal"]),
)
def test_targets_match_brute_force(seed: int, steps: int, rows: list[set[int]], alignment: Alignment) -> None:
    scores = steps_of(len(rows), steps, 5, seed)
    labels = torch.tensor([[float(k in row) for k in range(5)] for row in rows])
    targets = aligned_targets(scores, labels, alignment=alignment)
    expected = [
        expected_targets(image_scores, sorted(row), alignment) for image_scores, row in zip(scores, rows, strict=True)
    ]
    assert targets.tolist() == expected


def test_predicted_labels_keep_their_step_at_a_higher_cost() -> None:
    # The first label is predicted at the first step, and the second is nearly impossible at the second step.
    scores = torch.tensor([[[0.5, 0.49, 0.01], [0.98, 0.01, 0.01], [0.2, 0.2, 0.6]]]).log()
    labels = torch.ones(1, 2)
    assert aligned_targets(scores, labels).tolist() == [[0, 1, 2]]
    assert aligned_targets(scores, labels, alignment="minimal").tolist() == [[1, 0, 2]]


def test_label_predicted_twice_keeps_the_first_step() -> None:
    scores = torch.tensor([[[0.6, 0.2, 0.2], [0.9, 0.05, 0.05], [0.1, 0.1, 0.8]]]).log()
    assert aligned_targets(scores, torch.ones(1, 2)).tolist() == [[0, 1, 2]]


def test_label_predicted_too_late_is_moved_forward() -> None:
    scores = torch.tensor([[[0.1, 0.8, 0.1], [0.9, 0.05, 0.05], [0.3, 0.3, 0.4]]]).log()
    assert aligned_targets(scores, torch.tensor([[1.0, 0.0]])).tolist() == [[0, 2, IGNORED]]


@pytest.mark.parametrize("alignment", ["predicted", "minimal"])
def test_more_labels_than_steps(alignment: Alignment) -> None:
    scores = torch.tensor([[[0.1, 0.5, 0.2, 0.2], [0.1, 0.2, 0.3, 0.4]]]).log()
    assert aligned_targets(scores, torch.ones(1, 3), alignment=alignment).tolist() == [[1, 2]]


def test_images_without_labels_and_without_known_labels() -> None:
    scores, labels = steps_of(2, 3, 4), torch.zeros(2, 4)
    known = torch.tensor([[True, False, False, False], [False] * 4])
    assert aligned_targets(scores, labels, known).tolist() == [[4, IGNORED, IGNORED], [IGNORED] * 3]
    assert aligned_targets(scores, labels).tolist() == [[4, IGNORED, IGNORED]] * 2


@pytest.mark.parametrize("hidden", [0.0, 1.0, float("nan")])
def test_unknown_label_is_not_a_target(hidden: float) -> None:
    scores = steps_of(1, 4, 3)
    known = torch.tensor([[True, False, True]])
    targets = aligned_targets(scores, torch.tensor([[1.0, hidden, 0.0]]), known)
    assert targets.tolist() == [[0, 3, IGNORED, IGNORED]]


def test_infinite_costs_are_avoided() -> None:
    # The decoder predicts no label twice, so only one of the two orders has a finite cost.
    scores = torch.tensor([[[0.4, 0.35, 0.25], [0.0, 0.3, 0.7], [0.0, 0.0, 1.0]]]).log()
    for alignment in ("predicted", "minimal"):
        assert aligned_targets(scores, torch.ones(1, 2), alignment=alignment).tolist() == [[0, 1, 2]]


def test_nan_scores_give_a_nan_loss() -> None:
    scores = torch.full((1, 3, 3), torch.nan)
    targets = aligned_targets(scores, torch.ones(1, 2))
    assert sorted(targets[0].tolist()) == [0, 1, 2]
    assert sequence_cross_entropy(scores, targets).isnan()


def test_targets_have_no_gradient_and_accept_half_precision() -> None:
    scores = steps_of(3, 4, 3).float().requires_grad_()
    labels = torch.tensor([[1.0, 0.0, 1.0]] * 3)
    assert not aligned_targets(scores, labels).requires_grad
    assert aligned_targets(scores.bfloat16(), labels).shape == (3, 4)


def test_unknown_alignment_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"alignment.*'best'"):
        inspect.unwrap(aligned_targets)(steps_of(1, 3, 2), torch.ones(1, 2), alignment="best")


def reference_terms(scores: Tensor, targets: Tensor) -> list[float]:
    return [
        -float(scores[row, step, target])
        for row, sequence in enumerate(targets.tolist())
        for step, target in enumerate(sequence)
        if target != IGNORED
    ]


def test_loss_is_computed_over_steps_with_a_target() -> None:
    scores = steps_of(4, 5, 3)
    targets = aligned_targets(scores, torch.tensor([[1.0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]]).double())
    terms = reference_terms(scores, targets)
    assert len(terms) == 2 + 3 + 4 + 1
    torch.testing.assert_close(sequence_cross_entropy(scores, targets).item(), np.mean(terms))
    torch.testing.assert_close(sequence_cross_entropy(scores, targets, reduction="sum").item(), np.sum(terms))


def test_no_loss_and_gradient_without_targets() -> None:
    raw = torch.zeros(1, 2, 3, requires_grad=True)
    scores = raw.masked_fill(torch.tensor([[[True, False, False], [True, True, False]]]), -torch.inf).log_softmax(2)
    loss = sequence_cross_entropy(scores, torch.full((1, 2), IGNORED))
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, raw)
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_gradient_of_the_loss() -> None:
    raw = torch.randn(2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets = torch.tensor([[0, 2, 3, IGNORED], [3, IGNORED, IGNORED, IGNORED]])
    assert torch.autograd.gradcheck(lambda x: sequence_cross_entropy(x.log_softmax(2), targets), raw)
