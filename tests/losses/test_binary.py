import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probmcl.losses import binary_cross_entropy
from probmcl.losses.reduction import Reduction


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(4, 5, generator=generator, dtype=torch.float64)
    labels, known = torch.rand(2, 4, 5, generator=generator, dtype=torch.float64)
    return logits, (labels < 0.4).double(), known < 0.7


def slow_entries(logits: Tensor, labels: Tensor, known: Tensor) -> list[float]:
    entries = []
    for x, y in zip(logits[known].tolist(), labels[known].tolist(), strict=True):
        p = 1 / (1 + math.exp(-x))
        entries.append(-math.log(p) if y == 1 else -math.log(1 - p))
    return entries


@given(seed=st.integers(0, 999), reduction=st.sampled_from(["sum", "mean"]))
@settings(max_examples=50)
def test_it_is_the_loss_of_independent_labels_over_the_known_entries(seed: int, reduction: Reduction) -> None:
    logits, labels, known = drawn(seed)
    everything = torch.ones_like(known)
    for mask, counted in ((known, known), (everything, everything), (None, everything)):
        entries = slow_entries(logits, labels, counted)
        expected = sum(entries) / (max(1, len(entries)) if reduction == "mean" else 1)
        measured = binary_cross_entropy(logits, labels, mask, reduction=reduction)
        assert measured.shape == ()
        assert measured.item() == pytest.approx(expected, rel=1e-9)


def test_by_default_it_is_the_mean() -> None:
    logits, labels, known = drawn()
    entries = slow_entries(logits, labels, known)
    assert binary_cross_entropy(logits, labels, known).item() == pytest.approx(sum(entries) / len(entries))


@pytest.mark.parametrize("rubbish", [0.0, 1.0, -1.0, math.nan, math.inf])
def test_a_label_that_is_not_known_changes_neither_value_nor_gradient(rubbish: float) -> None:
    logits, labels, known = drawn()
    logits.requires_grad_()
    expected = binary_cross_entropy(logits, labels, known)
    changed = binary_cross_entropy(logits, labels.where(known, rubbish), known)
    assert torch.equal(changed, expected)
    (gradient,) = torch.autograd.grad(changed, logits)
    assert torch.equal(gradient, torch.autograd.grad(expected, logits)[0])
    assert gradient[~known].abs().sum() == 0


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_where_nothing_is_known_the_loss_is_zero(reduction: Reduction) -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    value = binary_cross_entropy(logits, torch.full((2, 3), math.nan), nothing, reduction=reduction)
    assert value == 0
    assert torch.autograd.grad(value, logits)[0].abs().sum() == 0


def test_gradients_are_probability_minus_label() -> None:
    logits, labels, known = drawn()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: binary_cross_entropy(x, labels, known), logits)
    (gradient,) = torch.autograd.grad(binary_cross_entropy(logits, labels, known, reduction="sum"), logits)
    torch.testing.assert_close(gradient, (logits.sigmoid() - labels) * known)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_large_logits_in_half_precision_are_exact(half: torch.dtype) -> None:
    logits = torch.tensor([[1e4, 1e4, -1e4, -1e4]], dtype=half)
    labels = torch.tensor([[1, 0, 1, 0]], dtype=half)
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            measured = binary_cross_entropy(logits, labels, reduction="sum")
        assert measured.dtype == torch.float32
        assert measured == 2 * logits[0, 0].float()


def test_autocast_and_labels_in_another_precision_change_nothing() -> None:
    logits, labels, known = drawn()
    expected = binary_cross_entropy(logits.float(), labels.float(), known)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(binary_cross_entropy(logits.float(), labels.float(), known), expected)
        assert torch.equal(binary_cross_entropy(logits.float(), labels.half(), known), expected)


def test_one_image_with_one_class() -> None:
    assert binary_cross_entropy(torch.zeros(1, 1), torch.ones(1, 1)).item() == pytest.approx(math.log(2))
