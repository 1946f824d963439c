import math

import pytest
import torch
from torch import Tensor

from probmcl.losses import reconstruction
from probmcl.losses.reduction import Reduction

ROWS, CLASSES = 6, 4


def drawn() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-weights and log-kernels in float64, labels that are present and labels that are known; every kind of row."""
    generator = torch.Generator().manual_seed(0)
    log_weight, log_kernel = -3 * torch.rand(2, ROWS, CLASSES, generator=generator, dtype=torch.float64)
    present = torch.rand(ROWS, CLASSES, generator=generator) < 0.5
    known = torch.rand(ROWS, CLASSES, generator=generator) < 0.7
    present[0], known[1], present[2] = False, False, True
    return log_weight, log_kernel, present, known


def slow_rows(log_weight: Tensor, log_kernel: Tensor, present: Tensor, known: Tensor | None) -> list[float]:
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
    log_weight, log_kernel, present, known = drawn()
    chosen = known if some_unknown else None
    expected = sum(slow_rows(log_weight, log_kernel, present, chosen)) / (ROWS if reduction == "mean" else 1)
    measured = reconstruction(log_weight, log_kernel, present, chosen, reduction=reduction)
    assert measured.shape == ()
    assert measured.item() == pytest.approx(expected, rel=1e-12)
    assert expected > 0.1


def test_by_default_it_is_the_mean_over_all_rows() -> None:
    log_weight, log_kernel, present, _ = drawn()
    expected = sum(slow_rows(log_weight, log_kernel, present, None)) / ROWS
    assert reconstruction(log_weight, log_kernel, present).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("case", ["nothing present", "nothing known", "everything present"])
def test_where_nothing_can_be_told_the_loss_and_its_gradients_are_zero(case: str) -> None:
    log_weight, log_kernel, present, known = drawn()
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
    log_weight, log_kernel, present, known = drawn()
    loss = reconstruction(log_weight, log_kernel, present, known)
    assert torch.equal(reconstruction(log_weight, log_kernel, present ^ ~known, known), loss)
    moved = log_kernel.where(known, log_kernel + 5)
    assert torch.equal(reconstruction(log_weight, moved, present, known), loss)


def test_gradients() -> None:
    log_weight, log_kernel, present, known = drawn()
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
    log_weight, log_kernel, present, _ = drawn()
    assert reconstruction(log_weight.float(), log_kernel, present).dtype == torch.float32
    half = log_weight.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = reconstruction(half, log_kernel, present)
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, reconstruction(half.float(), log_kernel, present))
