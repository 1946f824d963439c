import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probmcl.losses import asymmetric, binary_cross_entropy
from probmcl.losses.reduction import Reduction

SETTINGS = [(4.0, 0.0, 0.05), (4.0, 1.0, 0.05), (2.5, 0.5, 0.2), (0.5, 3.0, 0.0), (0.0, 0.0, 0.05), (0.0, 0.0, 0.0)]
HALVES = [torch.float16, torch.bfloat16]


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(4, 5, generator=generator, dtype=torch.float64)
    labels, known = torch.rand(2, 4, 5, generator=generator, dtype=torch.float64)
    return logits, (labels < 0.4).double(), known < 0.7


def published(logit: float, label: float, gamma_negative: float, gamma_positive: float, clip: float) -> float:
    """One entry after the article and its code: the logarithms stop at 1e-8, and the focus is a power of 1 − p_t."""
    p = 1 / (1 + math.exp(-logit))
    not_p = min(1 - p + clip, 1)
    if label == 1:
        return -math.log(max(p, 1e-8)) * math.pow(1 - p, gamma_positive)
    return -math.log(max(not_p, 1e-8)) * math.pow(1 - not_p, gamma_negative)


@pytest.mark.parametrize(("gamma_negative", "gamma_positive", "clip"), SETTINGS)
@given(seed=st.integers(0, 999), reduction=st.sampled_from(["sum", "mean"]))
@settings(max_examples=30)
def test_it_is_the_published_loss_where_its_clamp_is_inactive(
    gamma_negative: float, gamma_positive: float, clip: float, seed: int, reduction: Reduction
) -> None:
    logits, labels, known = drawn(seed)  # |logit| below 18, where the clamp begins
    for mask in (known, None):
        chosen = known if mask is not None else torch.ones_like(known)
        entries = [
            published(x, y, gamma_negative, gamma_positive, clip)
            for x, y in zip(logits[chosen].tolist(), labels[chosen].tolist(), strict=True)
        ]
        measured = asymmetric(
            logits,
            labels,
            mask,
            gamma_negative=gamma_negative,
            gamma_positive=gamma_positive,
            clip=clip,
            reduction=reduction,
        )
        expected = sum(entries) / (max(1, len(entries)) if reduction == "mean" else 1)
        assert measured.shape == ()
        assert measured.item() == pytest.approx(expected, rel=1e-7, abs=1e-14)


def test_by_default_it_has_the_published_settings_and_sums() -> None:
    logits, labels, _ = drawn()
    expected = sum(
        published(x, y, 4, 0, 0.05) for x, y in zip(logits.flatten().tolist(), labels.flatten().tolist(), strict=True)
    )
    assert asymmetric(logits, labels).item() == pytest.approx(expected, rel=1e-9)


def test_float32_keeps_six_digits() -> None:
    logits, labels, known = drawn()
    measured = asymmetric(logits.float(), labels.float(), known)
    assert measured.item() == pytest.approx(asymmetric(logits.float().double(), labels, known).item(), rel=1e-6)


def test_without_focus_and_clip_it_is_the_binary_cross_entropy() -> None:
    logits, labels, known = drawn()
    measured = asymmetric(logits, labels, known, gamma_negative=0.0, gamma_positive=0.0, clip=0.0)
    torch.testing.assert_close(measured, binary_cross_entropy(logits, labels, known, reduction="sum"))


@pytest.mark.parametrize(("gamma_negative", "gamma_positive", "clip"), SETTINGS)
def test_gradients_with_the_focus_away_from_the_kink(gamma_negative: float, gamma_positive: float, clip: float) -> None:
    logits = torch.tensor([[-9.0, -4.5, -0.5, 0.0, 0.7, 2.0, 6.0]], dtype=torch.float64, requires_grad=True)
    assert (logits.sigmoid() - clip).abs().min() > 1e-4
    for label in (0.0, 1.0):
        labels = torch.full_like(logits, label)

        def loss(x: Tensor, labels: Tensor = labels) -> Tensor:
            return asymmetric(
                x,
                labels,
                gamma_negative=gamma_negative,
                gamma_positive=gamma_positive,
                clip=clip,
                focusing_gradient=True,
            )

        assert torch.autograd.gradcheck(loss, logits)


@pytest.mark.parametrize(("gamma_negative", "gamma_positive", "clip"), SETTINGS)
def test_gradients_without_the_focus_are_those_written_out(
    gamma_negative: float, gamma_positive: float, clip: float
) -> None:
    """With constant factors, d/dx of −log p is −(1−p), and of −log(1−q) is p(1−p)/(1−q) where q is not cut off."""
    logits, labels, known = drawn()
    logits.requires_grad_()
    value = asymmetric(logits, labels, known, gamma_negative=gamma_negative, gamma_positive=gamma_positive, clip=clip)
    (measured,) = torch.autograd.grad(value, logits)
    for i in range(4):
        for c in range(5):
            p = 1 / (1 + math.exp(-logits[i, c].item()))
            q = max(p - clip, 0)
            if not known[i, c]:
                expected = 0.0
            elif labels[i, c] == 1:
                expected = -((1 - p) ** gamma_positive) * (1 - p)
            else:
                expected = q**gamma_negative * p * (1 - p) / (1 - q) if p > clip else 0.0
            assert measured[i, c].item() == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_the_focus_changes_the_gradient_but_not_the_value() -> None:
    logits, labels, _ = drawn()
    logits.requires_grad_()
    detached, whole = (asymmetric(logits, labels, gamma_positive=1.0, focusing_gradient=f) for f in (False, True))
    assert torch.equal(detached, whole)
    gradients = [torch.autograd.grad(value, logits)[0] for value in (detached, whole)]
    assert not torch.allclose(gradients[0], gradients[1])


def test_a_negative_below_the_clip_is_worth_nothing() -> None:
    logits = torch.tensor([[math.log(0.049 / 0.951), -20.0]], requires_grad=True)
    value = asymmetric(logits, torch.zeros(1, 2), focusing_gradient=True)
    assert value == 0
    assert torch.equal(torch.autograd.grad(value, logits)[0], torch.zeros(1, 2))


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("focusing_gradient", [False, True])
def test_large_logits_are_exact_in_any_precision(dtype: torch.dtype, focusing_gradient: bool) -> None:
    logits = torch.tensor([[1e4, -1e4]], dtype=dtype, requires_grad=True)
    far = logits[0, 0].float().item()  # 9984 in bfloat16
    yes, no = torch.ones(1, 2, dtype=dtype), torch.zeros(1, 2, dtype=dtype)

    def loss(labels: Tensor, clip: float) -> tuple[float, list[float]]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = asymmetric(logits, labels, clip=clip, gamma_positive=1.0, focusing_gradient=focusing_gradient)
        assert value.dtype == torch.float32
        return value.item(), torch.autograd.grad(value, logits)[0].flatten().tolist()

    assert loss(yes, 0.05) == (far, [0.0, -1.0])
    assert loss(no, 0.0) == (far, [1.0, 0.0])
    value, gradient = loss(no, 0.05)
    assert value == pytest.approx(0.95**4 * -math.log(0.05), rel=1e-6)
    assert gradient == [0.0, 0.0]


@pytest.mark.parametrize("gamma", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("focusing_gradient", [False, True])
def test_small_exponents_have_finite_gradients_everywhere(gamma: float, focusing_gradient: bool) -> None:
    logits = torch.tensor([[-1e4, -100.0, -90.0, -3.0, 0.0, 3.0, 90.0, 100.0, 1e4]]).requires_grad_()
    for label in (0.0, 1.0):
        for clip in (0.0, 0.05):
            value = asymmetric(
                logits,
                torch.full_like(logits, label),
                gamma_negative=gamma,
                gamma_positive=gamma,
                clip=clip,
                focusing_gradient=focusing_gradient,
            )
            assert value.isfinite()
            assert torch.autograd.grad(value, logits)[0].isfinite().all()


@pytest.mark.parametrize("rubbish", [0.0, 1.0, -1.0, math.nan, math.inf])
def test_a_label_that_is_not_known_changes_neither_value_nor_gradient(rubbish: float) -> None:
    logits, labels, known = drawn()
    logits.requires_grad_()
    expected = asymmetric(logits, labels, known)
    changed = asymmetric(logits, labels.where(known, rubbish), known)
    assert torch.equal(changed, expected)
    (gradient,) = torch.autograd.grad(changed, logits)
    assert torch.equal(gradient, torch.autograd.grad(expected, logits)[0])
    assert gradient[~known].abs().sum() == 0


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_where_nothing_is_known_the_loss_is_zero(reduction: Reduction) -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    value = asymmetric(logits, torch.full((2, 3), math.nan), nothing, reduction=reduction)
    assert value == 0
    assert torch.autograd.grad(value, logits)[0].abs().sum() == 0


@pytest.mark.parametrize("half", HALVES)
def test_half_precision_labels_and_autocast_change_nothing(half: torch.dtype) -> None:
    logits, labels, known = drawn()
    expected = asymmetric(logits.float(), labels.float(), known)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(asymmetric(logits.float(), labels.to(half), known), expected)


def test_one_image_with_one_class() -> None:
    assert asymmetric(torch.zeros(1, 1), torch.ones(1, 1)).item() == pytest.approx(math.log(2))
    assert asymmetric(torch.zeros(1, 1), torch.zeros(1, 1)).item() == pytest.approx(0.45**4 * -math.log(0.55))


@given(seed=st.integers(0, 999), rows=st.permutations(range(4)), classes=st.permutations(range(5)))
@settings(max_examples=30)
def test_the_order_of_images_and_classes_does_not_matter(seed: int, rows: list[int], classes: list[int]) -> None:
    shuffled = [x[rows][:, classes] for x in drawn(seed)]
    torch.testing.assert_close(asymmetric(*shuffled), asymmetric(*drawn(seed)))
