import inspect
import math

import pytest
import torch

from probmcl.losses.reduction import Reduction, reduce_known, reduce_rows

LOSS = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
KNOWN = torch.tensor([[True, False, True], [False, False, True]])


def test_rows_are_summed_or_averaged() -> None:
    rows = torch.tensor([1.0, 2.0, 6.0])
    assert reduce_rows(rows, "sum") == 9
    assert reduce_rows(rows, "mean") == 3


def test_without_a_mask_all_entries_count() -> None:
    assert reduce_known(LOSS, None, "sum") == 63
    assert reduce_known(LOSS, None, "mean") == 63 / 6


def test_with_a_mask_the_known_entries_count_and_no_others() -> None:
    assert reduce_known(LOSS, KNOWN, "sum") == 37
    assert reduce_known(LOSS, KNOWN, "mean").item() == pytest.approx(37 / 3)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("rubbish", [math.nan, math.inf, -1e30])
def test_what_is_unknown_changes_neither_value_nor_gradient(reduction: Reduction, rubbish: float) -> None:
    loss = LOSS.where(KNOWN, rubbish).requires_grad_()
    value = reduce_known(loss, KNOWN, reduction)
    assert torch.equal(value, reduce_known(LOSS, KNOWN, reduction))
    (gradient,) = torch.autograd.grad(value, loss)
    torch.testing.assert_close(gradient, KNOWN.float() / (1 if reduction == "sum" else 3))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_where_nothing_is_known_the_loss_is_zero_and_so_is_its_gradient(reduction: Reduction) -> None:
    loss = LOSS.clone().requires_grad_()
    value = reduce_known(loss, torch.zeros_like(KNOWN), reduction)
    assert value == 0
    assert torch.equal(torch.autograd.grad(value, loss)[0], torch.zeros(2, 3))


@pytest.mark.parametrize("known", [None, KNOWN], ids=["all", "some"])
def test_another_reduction_is_an_error(known: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match="reduction='none'; there are 'mean' and 'sum'"):
        inspect.unwrap(reduce_known)(LOSS, known, "none")
    with pytest.raises(ValueError, match="reduction='none'; there are 'mean' and 'sum'"):
        inspect.unwrap(reduce_rows)(LOSS[0], "none")
