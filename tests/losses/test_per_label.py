import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probmcl.losses import contrastive, per_label_contrastive
from probmcl.losses.per_label import Average, present

AVERAGES: list[Average] = ["labels", "images"]


def random_pairs(rows: int, columns: int | None = None, classes: int = 4, seed: int = 0) -> tuple[Tensor, ...]:
    """Return random similarities and the labels and masks of rows and columns, which are the same for a square."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.rand(rows, columns or rows, generator=generator, dtype=torch.float64)
    labels = (torch.rand(rows, classes, generator=generator) < 0.5).double()
    known = torch.rand(rows, classes, generator=generator) < 0.7
    if columns is None:
        return similarity, labels, labels, known, known
    others = (torch.rand(columns, classes, generator=generator) < 0.5).double()
    return similarity, labels, others, known, torch.rand(columns, classes, generator=generator) < 0.7


def reference_loss(
    similarity: Tensor, a: Tensor, b: Tensor, known_a: Tensor, known_b: Tensor, self_column: list[int], average: str
) -> float:
    """Compute the loss in loops over anchors and their labels, at a temperature of 0.2."""
    row_losses: list[list[float]] = []
    for i in range(len(a)):
        label_losses = []
        for k in range(a.shape[1]):
            if not (known_a[i, k] and a[i, k] == 1):
                continue
            contrasted = [j for j in range(len(b)) if j != self_column[i] and known_b[j, k]]
            positives = [j for j in contrasted if b[j, k] == 1]
            denominator = sum(math.exp(similarity[i, j].item() / 0.2) for j in contrasted)
            logs = [math.log(math.exp(similarity[i, j].item() / 0.2) / denominator) for j in positives]
            label_losses.append(-sum(logs) / len(logs) if logs else 0.0)
        row_losses.append(label_losses)
    if average == "labels":
        losses = [x for row in row_losses for x in row]
        return sum(losses) / max(1, len(losses))
    return sum(sum(row) / len(row) for row in row_losses if row) / len(row_losses)


@given(rows=st.integers(1, 6), seed=st.integers(0, 999), average=st.sampled_from(AVERAGES))
@settings(max_examples=60)
def test_matches_loops(rows: int, seed: int, average: Average) -> None:
    similarity, a, b, known_a, known_b = random_pairs(rows, seed=seed)
    all_known = torch.ones_like(known_a)
    for masks in (None, (known_a, known_b)):
        expected = reference_loss(similarity, a, b, *(masks or (all_known, all_known)), list(range(rows)), average)
        measured = per_label_contrastive(
            similarity,
            a,
            b,
            temperature=0.2,
            known_a=masks and masks[0],
            known_b=masks and masks[1],
            average=average,
        )
        assert measured.shape == ()
        assert measured.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("average", AVERAGES)
def test_anchors_against_other_columns(average: Average) -> None:
    similarity, a, b, known_a, known_b = random_pairs(3, 7)
    self_column = [6, 2, 0]
    measured = per_label_contrastive(
        similarity,
        a,
        b,
        temperature=0.2,
        known_a=known_a,
        known_b=known_b,
        self_column=torch.tensor(self_column),
        average=average,
    )
    assert measured.item() == pytest.approx(reference_loss(similarity, a, b, known_a, known_b, self_column, average))


def test_by_hand() -> None:
    """Anchor 0 has label 0 (positive 1) and label 1 (positives 1 and 2)."""
    similarity = torch.tensor([[9.0, 2.0, 1.0, 0.0]]).repeat(4, 1)
    labels = torch.tensor([[1.0, 1, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]])
    log_denominator = math.log(math.exp(2) + math.exp(1) + 1)
    first = log_denominator - 2, (log_denominator - 2 + log_denominator - 1) / 2
    self_column = torch.tensor([0])
    measured = per_label_contrastive(similarity[:1], labels[:1], labels, temperature=1.0, self_column=self_column)
    assert measured.item() == pytest.approx(sum(first) / 2, rel=1e-6)


def test_one_label_per_image_gives_the_supervised_contrastive_loss() -> None:
    similarity = random_pairs(6)[0]
    labels = torch.eye(3, dtype=torch.float64)[[0, 0, 0, 1, 1, 2]]
    expected = contrastive(similarity, labels @ labels.T, threshold=0.5, temperature=0.2)
    for average in AVERAGES:
        measured = per_label_contrastive(similarity, labels, labels, temperature=0.2, average=average)
        torch.testing.assert_close(measured, expected)


def test_averages_differ_for_different_numbers_of_labels() -> None:
    similarity, a, b, _, _ = random_pairs(6)
    by_labels, by_images = (per_label_contrastive(similarity, a, b, temperature=0.2, average=x) for x in AVERAGES)
    assert len(set(a.sum(1).tolist())) > 1
    assert by_labels != by_images


def test_column_with_unknown_label_is_not_a_negative() -> None:
    labels = torch.tensor([[1.0], [1.0], [0.0]])
    known = torch.tensor([[True], [True], [False]])
    similarity = torch.tensor([[0.0, 1.0, 5.0], [1.0, 0.0, 5.0], [5.0, 5.0, 0.0]])
    assert per_label_contrastive(similarity, labels, labels, temperature=1.0, known_a=known, known_b=known) == 0
    assert per_label_contrastive(similarity, labels, labels, temperature=1.0) > 1


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("value", [0.0, 1.0, math.nan])
def test_unknown_labels_are_ignored(average: Average, value: float) -> None:
    similarity, a, b, known, _ = random_pairs(6)
    similarity.requires_grad_()

    def loss_and_gradient(labels: Tensor) -> list[Tensor]:
        loss = per_label_contrastive(
            similarity, labels, labels, temperature=0.2, known_a=known, known_b=known, average=average
        )
        return [loss.detach(), *torch.autograd.grad(loss, similarity)]

    for measured, expected in zip(loss_and_gradient(a.where(known, value)), loss_and_gradient(b), strict=True):
        assert torch.equal(measured, expected)


@pytest.mark.parametrize("average", AVERAGES)
def test_rows_without_labels_have_no_gradient(average: Average) -> None:
    similarity, a, b, _, _ = random_pairs(5)
    a = a.clone()
    a[2] = 0
    similarity.requires_grad_()
    loss = per_label_contrastive(similarity, a, b, temperature=0.2, average=average)
    (gradient,) = torch.autograd.grad(loss, similarity)
    assert (gradient[2] == 0).all()
    assert (gradient[1] != 0).any()


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("rows", [1, 4])
def test_loss_and_gradient_without_labels_are_zero(average: Average, rows: int) -> None:
    similarity = torch.rand(rows, rows, requires_grad=True)
    no_labels = torch.zeros(rows, 3)
    loss = per_label_contrastive(similarity, no_labels, no_labels, temperature=0.01, average=average)
    (gradient,) = torch.autograd.grad(loss, similarity)
    assert loss == 0
    assert (gradient == 0).all()


def test_single_row_has_loss_and_gradient_zero() -> None:
    similarity = torch.rand(1, 1, requires_grad=True)
    loss = per_label_contrastive(similarity, torch.ones(1, 2), torch.ones(1, 2), temperature=0.1)
    (gradient,) = torch.autograd.grad(loss, similarity)
    assert loss == 0
    assert gradient == 0


def test_half_precision_and_autocast_compute_in_float32() -> None:
    similarity, a, b, _, _ = (x.float() if x.is_floating_point() else x for x in random_pairs(6))
    similarity = similarity.bfloat16().float()
    expected = per_label_contrastive(similarity, a, b, temperature=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        measured = per_label_contrastive(similarity.bfloat16(), a.bfloat16(), b.bfloat16(), temperature=0.1)
    assert torch.equal(measured, expected)


@pytest.mark.parametrize("average", AVERAGES)
def test_gradients(average: Average) -> None:
    similarity, a, b, known_a, known_b = random_pairs(4)

    def loss(x: Tensor) -> Tensor:
        return per_label_contrastive(x, a, b, temperature=0.3, known_a=known_a, known_b=known_b, average=average)

    assert torch.autograd.gradcheck(loss, similarity.requires_grad_())


def test_invalid_settings_are_an_error() -> None:
    with pytest.raises(ValueError, match="temperature"):
        per_label_contrastive(torch.rand(2, 2), torch.ones(2, 1), torch.ones(2, 1), temperature=0.0)
    with pytest.raises(ValueError, match=r"average.*'rows'"):
        inspect.unwrap(per_label_contrastive)(
            torch.rand(2, 2), torch.ones(2, 1), torch.ones(2, 1), temperature=0.1, average="rows"
        )


def test_present_labels_are_known_and_positive() -> None:
    labels = torch.tensor([[1.0, 0.0, math.nan]])
    assert present(labels, None).tolist() == [[True, False, False]]
    assert present(labels, torch.tensor([[False, True, False]])).tolist() == [[False, False, False]]
