import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probmcl.losses import kernel_contrastive
from probmcl.losses.reduction import Reduction
from probmcl.overlap import jaccard

CLASSES = 4


def drawn(rows: int, columns: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Similarities (rows, columns, classes) in float64, and labels of rows and columns."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.rand(rows, columns or rows, CLASSES, generator=generator, dtype=torch.float64)
    present = torch.rand(rows, CLASSES, generator=generator) < 0.5
    return similarity, present, torch.rand(columns or rows, CLASSES, generator=generator) < 0.5


def of_present(similarity: Tensor, present: Tensor) -> Tensor:
    anchor, label = present.nonzero(as_tuple=True)
    return similarity[anchor, :, label]


def overlaps(present: Tensor, columns: Tensor) -> Tensor:
    return jaccard(present.double(), columns.double())


def slow_rows(
    similarity: Tensor,
    present: Tensor,
    columns: Tensor,
    temperature: float,
    offset: float = 0.0,
    own: list[int] | None = None,
) -> list[float]:
    """The published formula, one anchor, one partner and one label after the other."""
    losses = []
    for i in range(len(present)):
        others = [j for j in range(len(columns)) if j != (own[i] if own else i)]
        total, partners = 0.0, 0
        for j in others:
            shared = [k for k in range(CLASSES) if present[i, k] and columns[j, k]]
            partners += bool(shared)
            for k in shared:
                either = sum(bool(present[i, c] or columns[j, c]) for c in range(CLASSES))
                numerator = math.exp(similarity[i, j, k].item() / temperature)
                denominator = sum(math.exp(similarity[i, other, k].item() / temperature) for other in others)
                total += math.log(len(shared) / either * numerator / denominator + offset)
        losses.append(-total / partners if partners else 0.0)
    return losses


@given(
    rows=st.integers(1, 6),
    seed=st.integers(0, 999),
    temperature=st.floats(0.05, 2),
    offset=st.sampled_from([0.0, 1e-7, 0.1]),
)
def test_it_is_the_published_formula(rows: int, seed: int, temperature: float, offset: float) -> None:
    similarity, present, _ = drawn(rows, seed=seed)
    expected = slow_rows(similarity, present, present, temperature, offset)
    reductions: list[Reduction] = ["sum", "mean"]
    for reduction in reductions:
        measured = kernel_contrastive(
            of_present(similarity, present),
            overlaps(present, present),
            present,
            temperature=temperature,
            share_offset=offset,
            reduction=reduction,
        )
        assert measured.shape == ()
        total = sum(expected) / (rows if reduction == "mean" else 1)
        assert measured.item() == pytest.approx(total, rel=1e-9, abs=1e-12)


def test_by_default_it_is_the_mean_at_the_published_temperature() -> None:
    similarity, present, _ = drawn(5)
    present[2] = False  # a row without partners counts, too
    measured = kernel_contrastive(of_present(similarity, present), overlaps(present, present), present)
    assert measured.item() == pytest.approx(sum(slow_rows(similarity, present, present, 0.17)) / 5, rel=1e-10)


def test_columns_may_be_more_than_the_rows() -> None:
    similarity, present, columns = drawn(3, 7)
    own = [2, 3, 4]
    columns[own] = present
    measured = kernel_contrastive(
        of_present(similarity, present),
        overlaps(present, columns),
        present,
        columns,
        self_column=torch.tensor(own),
        reduction="sum",
    )
    assert measured.item() == pytest.approx(sum(slow_rows(similarity, present, columns, 0.17, own=own)), rel=1e-10)


@pytest.mark.parametrize("offset", [0.0, 1e-7])
def test_the_overlap_pulls_nowhere_unless_there_is_an_offset(offset: float) -> None:
    similarity, present, _ = drawn(6)
    chosen = of_present(similarity, present).requires_grad_()
    gradients = []
    for factor in (1.0, 0.5):
        loss = kernel_contrastive(chosen, factor * overlaps(present, present), present, share_offset=offset)
        gradients.append(torch.autograd.grad(loss, chosen)[0])
    if offset == 0:
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-14)
    else:
        assert (gradients[0] - gradients[1]).abs().max() > 1e-9


@pytest.mark.parametrize("case", ["no labels", "no partner", "one row", "no rows"])
def test_without_partners_the_loss_and_its_gradients_are_zero(case: str) -> None:
    present = {
        "no labels": torch.zeros(3, CLASSES),
        "no partner": torch.eye(4)[:3],
        "one row": torch.ones(1, CLASSES),
        "no rows": torch.zeros(0, CLASSES),
    }[case].bool()
    similarity = of_present(drawn(len(present))[0], present).requires_grad_()
    loss = kernel_contrastive(similarity, overlaps(present, present), present, reduction="sum")
    assert loss.item() == 0
    assert (torch.autograd.grad(loss, similarity)[0] == 0).all()


@pytest.mark.parametrize("offset", [0.0, 1e-3])
def test_gradients(offset: float) -> None:
    similarity, present, _ = drawn(4)
    chosen = of_present(similarity, present).requires_grad_()
    shared = overlaps(present, present)
    assert torch.autograd.gradcheck(lambda s: kernel_contrastive(s, shared, present, share_offset=offset), chosen)


def test_a_tiny_temperature_stays_finite() -> None:
    similarity, present, _ = drawn(5)
    chosen = of_present(similarity, present).float().requires_grad_()
    loss = kernel_contrastive(chosen, overlaps(present, present).float(), present, temperature=1e-4)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, chosen)[0].isfinite().all()


def test_autocast_around_the_call_changes_nothing() -> None:
    similarity, present, _ = drawn(5)
    given_ = (of_present(similarity, present).float(), overlaps(present, present).float(), present)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = kernel_contrastive(*given_)
    assert torch.equal(inside, kernel_contrastive(*given_))


def test_a_temperature_of_zero_is_an_error() -> None:
    similarity, present, _ = drawn(2)
    with pytest.raises(ValueError, match="temperature"):
        kernel_contrastive(of_present(similarity, present), overlaps(present, present), present, temperature=0.0)
