import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probmcl.losses import asymmetric, binary_cross_entropy, focal
from probmcl.losses.reduction import Reduction

SETTINGS = [(2.0, 0.25), (2.0, None), (0.5, 0.9), (0.0, 0.5), (5.0, 0.0), (1.0, 1.0)]


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(4, 5, generator=generator, dtype=torch.float64)
    labels, known = torch.rand(2, 4, 5, generator=generator, dtype=torch.float64)
    return logits, (labels < 0.4).double(), known < 0.7


def published(logit: float, label: float, gamma: float, weight: float | None) -> float:
    """One entry, with p_t and α_t as the article defines them."""
    p = 1 / (1 + math.exp(-logit))
    p_t = p if label == 1 else 1 - p
    weight_t = 1.0 if weight is None else weight if label == 1 else 1 - weight
    return -weight_t * math.pow(1 - p_t, gamma) * math.log(p_t)


@pytest.mark.parametrize(("gamma", "weight"), SETTINGS)
@given(seed=st.integers(0, 999), reduction=st.sampled_from(["sum", "mean"]))
@settings(max_examples=30)
def test_it_is_the_published_loss_over_the_known_entries(
    gamma: float, weight: float | None, seed: int, reduction: Reduction
) -> None:
    logits, labels, known = drawn(seed)
    for mask in (known, None):
        chosen = known if mask is not None else torch.ones_like(known)
        entries = [
            published(x, y, gamma, weight)
            for x, y in zip(logits[chosen].tolist(), labels[chosen].tolist(), strict=True)
        ]
        expected = sum(entries) / (max(1, len(entries)) if reduction == "mean" else 1)
        measured = focal(logits, labels, mask, gamma=gamma, positive_weight=weight, reduction=reduction)
        assert measured.shape == ()
        assert measured.item() == pytest.approx(expected, rel=1e-7, abs=1e-14)


def test_by_default_it_has_the_published_settings_and_is_the_mean() -> None:
    logits, labels, _ = drawn()
    entries = [published(x, y, 2, 0.25) for x, y in zip(logits.flatten(), labels.flatten(), strict=True)]
    assert focal(logits, labels).item() == pytest.approx(float(sum(entries)) / len(entries), rel=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 4.0])
def test_unweighted_it_is_the_asymmetric_loss_without_asymmetry(gamma: float) -> None:
    logits, labels, known = drawn()
    logits.requires_grad_()
    measured = focal(logits, labels, known, gamma=gamma, positive_weight=None, reduction="sum")
    expected = asymmetric(
        logits, labels, known, gamma_negative=gamma, gamma_positive=gamma, clip=0.0, focusing_gradient=True
    )
    torch.testing.assert_close(measured, expected)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (measured, expected)]
    torch.testing.assert_close(*gradients)


def test_without_focus_and_weight_it_is_the_binary_cross_entropy() -> None:
    logits, labels, known = drawn()
    measured = focal(logits, labels, known, gamma=0.0, positive_weight=None)
    torch.testing.assert_close(measured, binary_cross_entropy(logits, labels, known))


@pytest.mark.parametrize(("gamma", "weight"), SETTINGS)
def test_gradients(gamma: float, weight: float | None) -> None:
    logits, labels, known = drawn()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: focal(x, labels, known, gamma=gamma, positive_weight=weight), logits)


@pytest.mark.parametrize("rubbish", [0.0, 1.0, math.nan, math.inf])
def test_a_label_that_is_not_known_changes_neither_value_nor_gradient(rubbish: float) -> None:
    logits, labels, known = drawn()
    logits.requires_grad_()
    expected = focal(logits, labels, known)
    changed = focal(logits, labels.where(known, rubbish), known)
    assert torch.equal(changed, expected)
    (gradient,) = torch.autograd.grad(changed, logits)
    assert torch.equal(gradient, torch.autograd.grad(expected, logits)[0])
    assert gradient[~known].abs().sum() == 0


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_both_ends_are_exact_and_have_a_slope(gamma: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, 1e4, -1e4, -1e4]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([[1, 0, 1, 0]], dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = focal(logits, labels, gamma=gamma, positive_weight=None, reduction="sum")
    assert value.dtype == torch.float32
    assert value == 2 * logits[0, 0].float()  # the two that are wrong count in full, the two that are right not at all
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient.flatten().tolist() == [0, 1, -1, 0]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_where_nothing_is_known_the_loss_is_zero(reduction: Reduction) -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    value = focal(logits, torch.full((2, 3), math.nan), torch.zeros(2, 3, dtype=torch.bool), reduction=reduction)
    assert value == 0
    assert torch.autograd.grad(value, logits)[0].abs().sum() == 0


@pytest.mark.parametrize(("gamma", "weight"), [(-1.0, 0.25), (2.0, 1.5), (2.0, -0.1)])
def test_settings_out_of_range_are_refused(gamma: float, weight: float) -> None:
    with pytest.raises(ValueError, match=f"gamma={gamma}" if gamma < 0 else f"positive_weight={weight}"):
        focal(torch.zeros(1, 1), torch.zeros(1, 1), gamma=gamma, positive_weight=weight)
