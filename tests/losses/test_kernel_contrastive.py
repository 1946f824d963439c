import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probmcl.losses import kernel_contrastive, reconstruction
from probmcl.losses.binary import Reduction
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


ROWS, CLASSES = 6, 4


def drawn_kernels() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-weights and log-kernels in float64, labels that are present and labels that are known; every kind of row."""
    generator = torch.Generator().manual_seed(0)
    log_weight, log_kernel = -3 * torch.rand(2, ROWS, CLASSES, generator=generator, dtype=torch.float64)
    present = torch.rand(ROWS, CLASSES, generator=generator) < 0.5
    known = torch.rand(ROWS, CLASSES, generator=generator) < 0.7
    present[0], known[1], present[2] = False, False, True
    return log_weight, log_kernel, present, known


def slow_reconstruction(log_weight: Tensor, log_kernel: Tensor, present: Tensor, known: Tensor | None) -> list[float]:
    """The published formula, one image after the other; 0 where no label is present."""
    losses = []
    for i in range(ROWS):
        of_present, of_all = 0.0, 0.0
        for k in range(CLASSES):
            if known is not None and not known[i, k]:
                continue
            part = math.exp(log_weight[i, k].item()) * math.exp(log_kernel[i, k].item())
            of_all += part
            of_present += part if present[i, k] else 0.0
        losses.append(-math.log(of_present / of_all) if of_present > 0 else 0.0)
    return losses


@pytest.mark.parametrize("some_unknown", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_it_is_minus_the_logarithm_of_the_share_of_present_labels(reduction: Reduction, some_unknown: bool) -> None:
    log_weight, log_kernel, present, known = drawn_kernels()
    chosen = known if some_unknown else None
    expected = sum(slow_reconstruction(log_weight, log_kernel, present, chosen)) / (ROWS if reduction == "mean" else 1)
    measured = reconstruction(log_weight, log_kernel, present, chosen, reduction=reduction)
    assert measured.shape == ()
    assert measured.item() == pytest.approx(expected, rel=1e-12)
    assert expected > 0.1


def test_by_default_it_is_the_mean_over_all_rows() -> None:
    log_weight, log_kernel, present, _ = drawn_kernels()
    expected = sum(slow_reconstruction(log_weight, log_kernel, present, None)) / ROWS
    assert reconstruction(log_weight, log_kernel, present).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("case", ["nothing present", "nothing known", "everything present"])
def test_where_nothing_can_be_told_the_loss_and_its_gradients_are_zero(case: str) -> None:
    log_weight, log_kernel, present, known = drawn_kernels()
    if case == "nothing known":
        known = torch.zeros_like(known)
    else:
        present, known = torch.full_like(present, case == "everything present"), torch.ones_like(known)
    inputs = [log_weight.requires_grad_(), log_kernel.requires_grad_()]
    loss = reconstruction(log_weight, log_kernel, present, known)
    assert loss.item() == 0
    for gradient in torch.autograd.grad(loss, inputs):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_a_label_that_is_not_known_takes_no_part() -> None:
    log_weight, log_kernel, present, known = drawn_kernels()
    loss = reconstruction(log_weight, log_kernel, present, known)
    assert torch.equal(reconstruction(log_weight, log_kernel, present ^ ~known, known), loss)
    moved = log_kernel.where(known, log_kernel + 5)
    assert torch.equal(reconstruction(log_weight, moved, present, known), loss)


def test_gradients_of_the_reconstruction() -> None:
    log_weight, log_kernel, present, known = drawn_kernels()
    inputs = (log_weight.requires_grad_(), log_kernel.requires_grad_())
    assert torch.autograd.gradcheck(lambda w, g: reconstruction(w, g, present, known), inputs)
    assert torch.autograd.gradcheck(
        lambda w, g: reconstruction(w, g, present, kernel_floor=0.2, ratio_floor=0.3), inputs
    )


def test_kernels_that_no_float_can_hold_are_compared_all_the_same() -> None:
    log_kernel = torch.tensor([[-5000.0, -5001.0]], requires_grad=True)
    present = torch.tensor([[False, True]])
    loss = reconstruction(torch.zeros(1, 2), log_kernel, present)
    assert loss.item() == pytest.approx(1 + math.log(1 + math.exp(-1)), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, log_kernel)
    assert gradient[0, 1].item() == pytest.approx(1 / (1 + math.exp(-1)) * -1, rel=1e-5)


def test_with_the_published_floor_such_kernels_are_all_alike_and_pull_nowhere() -> None:
    log_kernel = torch.tensor([[-5000.0, -5001.0]], requires_grad=True)
    loss = reconstruction(torch.zeros(1, 2), log_kernel, torch.tensor([[False, True]]), kernel_floor=1.17549e-38)
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6)
    assert (torch.autograd.grad(loss, log_kernel)[0] == 0).all()


def test_a_share_below_the_floor_costs_no_more_than_the_floor() -> None:
    log_weight = torch.tensor([[0.0, -50.0]], requires_grad=True)
    present = torch.tensor([[False, True]])
    assert reconstruction(log_weight, torch.zeros(1, 2), present).item() == pytest.approx(50, rel=1e-6)
    loss = reconstruction(log_weight, torch.zeros(1, 2), present, ratio_floor=1e-7)
    assert loss.item() == pytest.approx(-math.log(1e-7), rel=1e-6)
    assert (torch.autograd.grad(loss, log_weight)[0] == 0).all()


def test_it_has_the_precision_of_the_weights_and_no_less_than_float32() -> None:
    log_weight, log_kernel, present, _ = drawn_kernels()
    assert reconstruction(log_weight.float(), log_kernel, present).dtype == torch.float32
    half = log_weight.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = reconstruction(half, log_kernel, present)
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, reconstruction(half.float(), log_kernel, present))
