import inspect
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probmcl.losses import asymmetric, binary_cross_entropy, focal
from probmcl.losses.binary import Reduction, reduce_known, reduce_rows

LOSS = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
KNOWN = torch.tensor([[True, False, True], [False, False, True]])


def test_rows_are_summed_or_averaged() -> None:
    rows = torch.tensor([1.0, 2.0, 6.0])
    assert reduce_rows(rows, "sum") == 9
    assert reduce_rows(rows, "mean") == 3


def test_all_entries_are_reduced_without_mask() -> None:
    assert reduce_known(LOSS, None, "sum") == 63
    assert reduce_known(LOSS, None, "mean") == 63 / 6


def test_only_known_entries_are_reduced() -> None:
    assert reduce_known(LOSS, KNOWN, "sum") == 37
    assert reduce_known(LOSS, KNOWN, "mean").item() == pytest.approx(37 / 3)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("invalid", [math.nan, math.inf, -1e30])
def test_unknown_entries_are_ignored(reduction: Reduction, invalid: float) -> None:
    loss = LOSS.where(KNOWN, invalid).requires_grad_()
    value = reduce_known(loss, KNOWN, reduction)
    assert torch.equal(value, reduce_known(LOSS, KNOWN, reduction))
    (gradient,) = torch.autograd.grad(value, loss)
    torch.testing.assert_close(gradient, KNOWN.float() / (1 if reduction == "sum" else 3))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_reduction_without_known_entries_is_zero(reduction: Reduction) -> None:
    loss = LOSS.clone().requires_grad_()
    value = reduce_known(loss, torch.zeros_like(KNOWN), reduction)
    assert value == 0
    assert torch.equal(torch.autograd.grad(value, loss)[0], torch.zeros(2, 3))


@pytest.mark.parametrize("known", [None, KNOWN], ids=["all", "some"])
def test_unknown_reduction_is_an_error(known: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match=r"reduction.*'none'"):
        inspect.unwrap(reduce_known)(LOSS, known, "none")
    with pytest.raises(ValueError, match=r"reduction.*'none'"):
        inspect.unwrap(reduce_rows)(LOSS[0], "none")


Loss = Callable[..., Tensor]
LOSSES = [binary_cross_entropy, asymmetric, focal]


def random_entries(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(4, 5, generator=generator, dtype=torch.float64)
    labels, known = torch.rand(2, 4, 5, generator=generator, dtype=torch.float64)
    return logits, (labels < 0.4).double(), known < 0.7


def reference_entries(logits: Tensor, labels: Tensor, known: Tensor) -> list[float]:
    entries = []
    for x, y in zip(logits[known].tolist(), labels[known].tolist(), strict=True):
        p = 1 / (1 + math.exp(-x))
        entries.append(-math.log(p) if y == 1 else -math.log(1 - p))
    return entries


@given(seed=st.integers(0, 999), reduction=st.sampled_from(["sum", "mean"]))
@settings(max_examples=50)
def test_binary_cross_entropy_matches_loops(seed: int, reduction: Reduction) -> None:
    logits, labels, known = random_entries(seed)
    all_known = torch.ones_like(known)
    for mask, mask_known in ((known, known), (all_known, all_known), (None, all_known)):
        entries = reference_entries(logits, labels, mask_known)
        expected = sum(entries) / (max(1, len(entries)) if reduction == "mean" else 1)
        measured = binary_cross_entropy(logits, labels, mask, reduction=reduction)
        assert measured.shape == ()
        assert measured.item() == pytest.approx(expected, rel=1e-9)


def test_binary_cross_entropy_is_the_mean_by_default() -> None:
    logits, labels, known = random_entries()
    entries = reference_entries(logits, labels, known)
    assert binary_cross_entropy(logits, labels, known).item() == pytest.approx(sum(entries) / len(entries))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("invalid", [0.0, 1.0, -1.0, math.nan, math.inf])
def test_unknown_labels_are_ignored(loss: Loss, invalid: float) -> None:
    logits, labels, known = random_entries()
    logits.requires_grad_()
    expected = loss(logits, labels, known)
    changed = loss(logits, labels.where(known, invalid), known)
    assert torch.equal(changed, expected)
    (gradient,) = torch.autograd.grad(changed, logits)
    assert torch.equal(gradient, torch.autograd.grad(expected, logits)[0])
    assert gradient[~known].abs().sum() == 0


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_loss_without_known_labels_is_zero(loss: Loss, reduction: Reduction) -> None:
    logits = torch.randn(2, 3, requires_grad=True)
    none_known = torch.zeros(2, 3, dtype=torch.bool)
    value = loss(logits, torch.full((2, 3), math.nan), none_known, reduction=reduction)
    assert value == 0
    assert torch.autograd.grad(value, logits)[0].abs().sum() == 0


def test_gradient_of_binary_cross_entropy() -> None:
    logits, labels, known = random_entries()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: binary_cross_entropy(x, labels, known), logits)
    (gradient,) = torch.autograd.grad(binary_cross_entropy(logits, labels, known, reduction="sum"), logits)
    torch.testing.assert_close(gradient, (logits.sigmoid() - labels) * known)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_binary_cross_entropy_of_large_logits_in_half_precision(half: torch.dtype) -> None:
    logits = torch.tensor([[1e4, 1e4, -1e4, -1e4]], dtype=half)
    labels = torch.tensor([[1, 0, 1, 0]], dtype=half)
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            measured = binary_cross_entropy(logits, labels, reduction="sum")
        assert measured.dtype == torch.float32
        assert measured == 2 * logits[0, 0].float()


def test_autocast_and_label_precision_do_not_change_the_result() -> None:
    logits, labels, known = random_entries()
    expected = binary_cross_entropy(logits.float(), labels.float(), known)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(binary_cross_entropy(logits.float(), labels.float(), known), expected)
        assert torch.equal(binary_cross_entropy(logits.float(), labels.half(), known), expected)


def test_binary_cross_entropy_of_one_image_with_one_class() -> None:
    assert binary_cross_entropy(torch.zeros(1, 1), torch.ones(1, 1)).item() == pytest.approx(math.log(2))


ASYMMETRIC_SETTINGS = [
    (4.0, 0.0, 0.05),
    (4.0, 1.0, 0.05),
    (2.5, 0.5, 0.2),
    (0.5, 3.0, 0.0),
    (0.0, 0.0, 0.05),
    (0.0, 0.0, 0.0),
]
HALVES = [torch.float16, torch.bfloat16]


def published_asymmetric(
    logit: float, label: float, gamma_negative: float, gamma_positive: float, clip: float
) -> float:
    """Compute one entry as in the published code, which clamps probabilities at 1e-8."""
    p = 1 / (1 + math.exp(-logit))
    not_p = min(1 - p + clip, 1)
    if label == 1:
        return -math.log(max(p, 1e-8)) * math.pow(1 - p, gamma_positive)
    return -math.log(max(not_p, 1e-8)) * math.pow(1 - not_p, gamma_negative)


@pytest.mark.parametrize(("gamma_negative", "gamma_positive", "clip"), ASYMMETRIC_SETTINGS)
@given(seed=st.integers(0, 999), reduction=st.sampled_from(["sum", "mean"]))
@settings(max_examples=30)
def test_asymmetric_matches_the_published_loss(
    gamma_negative: float, gamma_positive: float, clip: float, seed: int, reduction: Reduction
) -> None:
    logits, labels, known = random_entries(seed)  # |logit| is below 18, so the clamp is inactive
    for mask in (known, None):
        entry_mask = known if mask is not None else torch.ones_like(known)
        entries = [
            published_asymmetric(x, y, gamma_negative, gamma_positive, clip)
            for x, y in zip(logits[entry_mask].tolist(), labels[entry_mask].tolist(), strict=True)
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


def test_asymmetric_defaults() -> None:
    logits, labels, _ = random_entries()
    expected = sum(
        published_asymmetric(x, y, 4, 0, 0.05)
        for x, y in zip(logits.flatten().tolist(), labels.flatten().tolist(), strict=True)
    )
    assert asymmetric(logits, labels).item() == pytest.approx(expected, rel=1e-9)


def test_float32_matches_float64_to_six_digits() -> None:
    logits, labels, known = random_entries()
    measured = asymmetric(logits.float(), labels.float(), known)
    assert measured.item() == pytest.approx(asymmetric(logits.float().double(), labels, known).item(), rel=1e-6)


def test_asymmetric_without_focusing_and_clip_is_binary_cross_entropy() -> None:
    logits, labels, known = random_entries()
    measured = asymmetric(logits, labels, known, gamma_negative=0.0, gamma_positive=0.0, clip=0.0)
    torch.testing.assert_close(measured, binary_cross_entropy(logits, labels, known, reduction="sum"))


@pytest.mark.parametrize(("gamma_negative", "gamma_positive", "clip"), ASYMMETRIC_SETTINGS)
def test_asymmetric_gradients_with_focusing_gradient(gamma_negative: float, gamma_positive: float, clip: float) -> None:
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


@pytest.mark.parametrize(("gamma_negative", "gamma_positive", "clip"), ASYMMETRIC_SETTINGS)
def test_asymmetric_gradients_without_focusing_gradient(
    gamma_negative: float, gamma_positive: float, clip: float
) -> None:
    """With constant factors, −log p has derivative −(1−p), and −log(1−q) has p(1−p)/(1−q) if p > clip."""
    logits, labels, known = random_entries()
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


def test_focusing_gradient_does_not_change_the_value() -> None:
    logits, labels, _ = random_entries()
    logits.requires_grad_()
    detached, differentiated = (
        asymmetric(logits, labels, gamma_positive=1.0, focusing_gradient=f) for f in (False, True)
    )
    assert torch.equal(detached, differentiated)
    gradients = [torch.autograd.grad(value, logits)[0] for value in (detached, differentiated)]
    assert not torch.allclose(gradients[0], gradients[1])


def test_negatives_below_the_clip_have_no_loss() -> None:
    logits = torch.tensor([[math.log(0.049 / 0.951), -20.0]], requires_grad=True)
    value = asymmetric(logits, torch.zeros(1, 2), focusing_gradient=True)
    assert value == 0
    assert torch.equal(torch.autograd.grad(value, logits)[0], torch.zeros(1, 2))


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("focusing_gradient", [False, True])
def test_asymmetric_of_large_logits_is_exact(dtype: torch.dtype, focusing_gradient: bool) -> None:
    logits = torch.tensor([[1e4, -1e4]], dtype=dtype, requires_grad=True)
    largest = logits[0, 0].float().item()  # 9984 in bfloat16
    positive, negative = torch.ones(1, 2, dtype=dtype), torch.zeros(1, 2, dtype=dtype)

    def loss(labels: Tensor, clip: float) -> tuple[float, list[float]]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = asymmetric(logits, labels, clip=clip, gamma_positive=1.0, focusing_gradient=focusing_gradient)
        assert value.dtype == torch.float32
        return value.item(), torch.autograd.grad(value, logits)[0].flatten().tolist()

    assert loss(positive, 0.05) == (largest, [0.0, -1.0])
    assert loss(negative, 0.0) == (largest, [1.0, 0.0])
    value, gradient = loss(negative, 0.05)
    assert value == pytest.approx(0.95**4 * -math.log(0.05), rel=1e-6)
    assert gradient == [0.0, 0.0]


@pytest.mark.parametrize("gamma", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("focusing_gradient", [False, True])
def test_small_exponents_have_finite_gradients(gamma: float, focusing_gradient: bool) -> None:
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


@pytest.mark.parametrize("half", HALVES)
def test_half_precision_labels_do_not_change_the_result(half: torch.dtype) -> None:
    logits, labels, known = random_entries()
    expected = asymmetric(logits.float(), labels.float(), known)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(asymmetric(logits.float(), labels.to(half), known), expected)


def test_asymmetric_loss_of_one_image_with_one_class() -> None:
    assert asymmetric(torch.zeros(1, 1), torch.ones(1, 1)).item() == pytest.approx(math.log(2))
    assert asymmetric(torch.zeros(1, 1), torch.zeros(1, 1)).item() == pytest.approx(0.45**4 * -math.log(0.55))


@given(seed=st.integers(0, 999), rows=st.permutations(range(4)), classes=st.permutations(range(5)))
@settings(max_examples=30)
def test_order_of_images_and_classes_does_not_matter(seed: int, rows: list[int], classes: list[int]) -> None:
    shuffled = [x[rows][:, classes] for x in random_entries(seed)]
    torch.testing.assert_close(asymmetric(*shuffled), asymmetric(*random_entries(seed)))


FOCAL_SETTINGS = [(2.0, 0.25), (2.0, None), (0.5, 0.9), (0.0, 0.5), (5.0, 0.0), (1.0, 1.0)]


def published_focal(logit: float, label: float, gamma: float, weight: float | None) -> float:
    """Compute one entry with p_t and α_t as defined in the paper."""
    p = 1 / (1 + math.exp(-logit))
    p_t = p if label == 1 else 1 - p
    weight_t = 1.0 if weight is None else weight if label == 1 else 1 - weight
    return -weight_t * math.pow(1 - p_t, gamma) * math.log(p_t)


@pytest.mark.parametrize(("gamma", "weight"), FOCAL_SETTINGS)
@given(seed=st.integers(0, 999), reduction=st.sampled_from(["sum", "mean"]))
@settings(max_examples=30)
def test_focal_matches_the_published_loss(gamma: float, weight: float | None, seed: int, reduction: Reduction) -> None:
    logits, labels, known = random_entries(seed)
    for mask in (known, None):
        entry_mask = known if mask is not None else torch.ones_like(known)
        entries = [
            published_focal(x, y, gamma, weight)
            for x, y in zip(logits[entry_mask].tolist(), labels[entry_mask].tolist(), strict=True)
        ]
        expected = sum(entries) / (max(1, len(entries)) if reduction == "mean" else 1)
        measured = focal(logits, labels, mask, gamma=gamma, positive_weight=weight, reduction=reduction)
        assert measured.shape == ()
        assert measured.item() == pytest.approx(expected, rel=1e-7, abs=1e-14)


def test_focal_defaults() -> None:
    logits, labels, _ = random_entries()
    entries = [published_focal(x, y, 2, 0.25) for x, y in zip(logits.flatten(), labels.flatten(), strict=True)]
    assert focal(logits, labels).item() == pytest.approx(float(sum(entries)) / len(entries), rel=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 4.0])
def test_unweighted_focal_is_symmetric_asymmetric_loss(gamma: float) -> None:
    logits, labels, known = random_entries()
    logits.requires_grad_()
    measured = focal(logits, labels, known, gamma=gamma, positive_weight=None, reduction="sum")
    expected = asymmetric(
        logits, labels, known, gamma_negative=gamma, gamma_positive=gamma, clip=0.0, focusing_gradient=True
    )
    torch.testing.assert_close(measured, expected)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (measured, expected)]
    torch.testing.assert_close(*gradients)


def test_focal_without_focusing_and_weight_is_binary_cross_entropy() -> None:
    logits, labels, known = random_entries()
    measured = focal(logits, labels, known, gamma=0.0, positive_weight=None)
    torch.testing.assert_close(measured, binary_cross_entropy(logits, labels, known))


@pytest.mark.parametrize(("gamma", "weight"), FOCAL_SETTINGS)
def test_gradients_of_the_focal_loss(gamma: float, weight: float | None) -> None:
    logits, labels, known = random_entries()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: focal(x, labels, known, gamma=gamma, positive_weight=weight), logits)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_focal_of_large_logits_is_exact(gamma: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, 1e4, -1e4, -1e4]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([[1, 0, 1, 0]], dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = focal(logits, labels, gamma=gamma, positive_weight=None, reduction="sum")
    assert value.dtype == torch.float32
    assert value == 2 * logits[0, 0].float()  # two entries are wrong by the full logit, two are right and have no loss
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient.flatten().tolist() == [0, 1, -1, 0]


@pytest.mark.parametrize(("gamma", "weight"), [(-1.0, 0.25), (2.0, 1.5), (2.0, -0.1)])
def test_focal_settings_out_of_range_are_an_error(gamma: float, weight: float) -> None:
    with pytest.raises(ValueError, match="gamma" if gamma < 0 else "positive_weight"):
        focal(torch.zeros(1, 1), torch.zeros(1, 1), gamma=gamma, positive_weight=weight)
