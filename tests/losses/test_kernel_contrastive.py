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


def random_pairs(rows: int, columns: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return random similarities (rows, columns, classes) in float64 and the labels of rows and columns."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.rand(rows, columns or rows, CLASSES, generator=generator, dtype=torch.float64)
    present = torch.rand(rows, CLASSES, generator=generator) < 0.5
    return similarity, present, torch.rand(columns or rows, CLASSES, generator=generator) < 0.5


def select_present(similarity: Tensor, present: Tensor) -> Tensor:
    anchor, label = present.nonzero(as_tuple=True)
    return similarity[anchor, :, label]


def overlaps(present: Tensor, columns: Tensor) -> Tensor:
    return jaccard(present.double(), columns.double())


def reference_rows(
    similarity: Tensor,
    present: Tensor,
    columns: Tensor,
    temperature: float,
    offset: float = 0.0,
    self_column: list[int] | None = None,
) -> list[float]:
    """Compute the published formula in loops over anchors, columns and labels."""
    losses = []
    for i in range(len(present)):
        others = [j for j in range(len(columns)) if j != (self_column[i] if self_column else i)]
        total, positives = 0.0, 0
        for j in others:
            shared = [k for k in range(CLASSES) if present[i, k] and columns[j, k]]
            positives += bool(shared)
            for k in shared:
                union = sum(bool(present[i, c] or columns[j, c]) for c in range(CLASSES))
                numerator = math.exp(similarity[i, j, k].item() / temperature)
                denominator = sum(math.exp(similarity[i, other, k].item() / temperature) for other in others)
                total += math.log(len(shared) / union * numerator / denominator + offset)
        losses.append(-total / positives if positives else 0.0)
    return losses


@given(
    rows=st.integers(1, 6),
    seed=st.integers(0, 999),
    temperature=st.floats(0.05, 2),
    offset=st.sampled_from([0.0, 1e-7, 0.1]),
)
def test_matches_the_published_formula(rows: int, seed: int, temperature: float, offset: float) -> None:
    similarity, present, _ = random_pairs(rows, seed=seed)
    expected = reference_rows(similarity, present, present, temperature, offset)
    reductions: list[Reduction] = ["sum", "mean"]
    for reduction in reductions:
        measured = kernel_contrastive(
            select_present(similarity, present),
            overlaps(present, present),
            present,
            temperature=temperature,
            share_offset=offset,
            reduction=reduction,
        )
        assert measured.shape == ()
        total = sum(expected) / (rows if reduction == "mean" else 1)
        assert measured.item() == pytest.approx(total, rel=1e-9, abs=1e-12)


def test_defaults() -> None:
    similarity, present, _ = random_pairs(5)
    present[2] = False  # a row without positives is included in the mean
    measured = kernel_contrastive(select_present(similarity, present), overlaps(present, present), present)
    assert measured.item() == pytest.approx(sum(reference_rows(similarity, present, present, 0.17)) / 5, rel=1e-10)


def test_more_columns_than_rows() -> None:
    similarity, present, columns = random_pairs(3, 7)
    self_column = [2, 3, 4]
    columns[self_column] = present
    measured = kernel_contrastive(
        select_present(similarity, present),
        overlaps(present, columns),
        present,
        columns,
        self_column=torch.tensor(self_column),
        reduction="sum",
    )
    assert measured.item() == pytest.approx(
        sum(reference_rows(similarity, present, columns, 0.17, self_column=self_column)), rel=1e-10
    )


@pytest.mark.parametrize("offset", [0.0, 1e-7])
def test_overlap_affects_the_gradient_only_with_an_offset(offset: float) -> None:
    similarity, present, _ = random_pairs(6)
    selected = select_present(similarity, present).requires_grad_()
    gradients = []
    for factor in (1.0, 0.5):
        loss = kernel_contrastive(selected, factor * overlaps(present, present), present, share_offset=offset)
        gradients.append(torch.autograd.grad(loss, selected)[0])
    if offset == 0:
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-14)
    else:
        assert (gradients[0] - gradients[1]).abs().max() > 1e-9


@pytest.mark.parametrize("case", ["no labels", "no partner", "one row", "no rows"])
def test_loss_and_gradient_without_positives_are_zero(case: str) -> None:
    present = {
        "no labels": torch.zeros(3, CLASSES),
        "no partner": torch.eye(4)[:3],
        "one row": torch.ones(1, CLASSES),
        "no rows": torch.zeros(0, CLASSES),
    }[case].bool()
    similarity = select_present(random_pairs(len(present))[0], present).requires_grad_()
    loss = kernel_contrastive(similarity, overlaps(present, present), present, reduction="sum")
    assert loss.item() == 0
    assert (torch.autograd.grad(loss, similarity)[0] == 0).all()


@pytest.mark.parametrize("offset", [0.0, 1e-3])
def test_gradients(offset: float) -> None:
    similarity, present, _ = random_pairs(4)
    selected = select_present(similarity, present).requires_grad_()
    shared = overlaps(present, present)
    assert torch.autograd.gradcheck(lambda s: kernel_contrastive(s, shared, present, share_offset=offset), selected)


def test_low_temperature_is_finite() -> None:
    similarity, present, _ = random_pairs(5)
    selected = select_present(similarity, present).float().requires_grad_()
    loss = kernel_contrastive(selected, overlaps(present, present).float(), present, temperature=1e-4)
    assert loss.isfinite()
    assert torch.autograd.grad(loss, selected)[0].isfinite().all()


def test_autocast_does_not_change_the_result() -> None:
    similarity, present, _ = random_pairs(5)
    inputs = (select_present(similarity, present).float(), overlaps(present, present).float(), present)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast_result = kernel_contrastive(*inputs)
    assert torch.equal(autocast_result, kernel_contrastive(*inputs))


def test_temperature_of_zero_is_an_error() -> None:
    similarity, present, _ = random_pairs(2)
    with pytest.raises(ValueError, match="temperature"):
        kernel_contrastive(select_present(similarity, present), overlaps(present, present), present, temperature=0.0)


ROWS, CLASSES = 6, 4


def random_kernels() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log-weights and log-kernels in float64 and masks of labels, including rows with all or none of them."""
    generator = torch.Generator().manual_seed(0)
    log_weight, log_kernel = -3 * torch.rand(2, ROWS, CLASSES, generator=generator, dtype=torch.float64)
    present = torch.rand(ROWS, CLASSES, generator=generator) < 0.5
    known = torch.rand(ROWS, CLASSES, generator=generator) < 0.7
    present[0], known[1], present[2] = False, False, True
    return log_weight, log_kernel, present, known


def reference_reconstruction(
    log_weight: Tensor, log_kernel: Tensor, present: Tensor, known: Tensor | None
) -> list[float]:
    """Compute the published formula in loops; the loss is 0 if no label is present."""
    losses = []
    for i in range(ROWS):
        present_sum, known_sum = 0.0, 0.0
        for k in range(CLASSES):
            if known is not None and not known[i, k]:
                continue
            term = math.exp(log_weight[i, k].item()) * math.exp(log_kernel[i, k].item())
            known_sum += term
            present_sum += term if present[i, k] else 0.0
        losses.append(-math.log(present_sum / known_sum) if present_sum > 0 else 0.0)
    return losses


@pytest.mark.parametrize("some_unknown", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reconstruction_matches_the_published_formula(reduction: Reduction, some_unknown: bool) -> None:
    log_weight, log_kernel, present, known = random_kernels()
    selected = known if some_unknown else None
    expected = sum(reference_reconstruction(log_weight, log_kernel, present, selected)) / (
        ROWS if reduction == "mean" else 1
    )
    measured = reconstruction(log_weight, log_kernel, present, selected, reduction=reduction)
    assert measured.shape == ()
    assert measured.item() == pytest.approx(expected, rel=1e-12)
    assert expected > 0.1


def test_reconstruction_default_is_the_mean_over_all_rows() -> None:
    log_weight, log_kernel, present, _ = random_kernels()
    expected = sum(reference_reconstruction(log_weight, log_kernel, present, None)) / ROWS
    assert reconstruction(log_weight, log_kernel, present).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("case", ["nothing present", "nothing known", "everything present"])
def test_reconstruction_of_uninformative_labels_is_zero(case: str) -> None:
    log_weight, log_kernel, present, known = random_kernels()
    if case == "nothing known":
        known = torch.zeros_like(known)
    else:
        present, known = torch.full_like(present, case == "everything present"), torch.ones_like(known)
    inputs = [log_weight.requires_grad_(), log_kernel.requires_grad_()]
    loss = reconstruction(log_weight, log_kernel, present, known)
    assert loss.item() == 0
    for gradient in torch.autograd.grad(loss, inputs):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_unknown_labels_are_ignored() -> None:
    log_weight, log_kernel, present, known = random_kernels()
    loss = reconstruction(log_weight, log_kernel, present, known)
    assert torch.equal(reconstruction(log_weight, log_kernel, present ^ ~known, known), loss)
    moved = log_kernel.where(known, log_kernel + 5)
    assert torch.equal(reconstruction(log_weight, moved, present, known), loss)


def test_gradients_of_the_reconstruction() -> None:
    log_weight, log_kernel, present, known = random_kernels()
    inputs = (log_weight.requires_grad_(), log_kernel.requires_grad_())
    assert torch.autograd.gradcheck(lambda w, g: reconstruction(w, g, present, known), inputs)
    assert torch.autograd.gradcheck(
        lambda w, g: reconstruction(w, g, present, kernel_floor=0.2, ratio_floor=0.3), inputs
    )


def test_kernels_that_underflow_are_compared() -> None:
    log_kernel = torch.tensor([[-5000.0, -5001.0]], requires_grad=True)
    present = torch.tensor([[False, True]])
    loss = reconstruction(torch.zeros(1, 2), log_kernel, present)
    assert loss.item() == pytest.approx(1 + math.log(1 + math.exp(-1)), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, log_kernel)
    assert gradient[0, 1].item() == pytest.approx(1 / (1 + math.exp(-1)) * -1, rel=1e-5)


def test_kernels_below_the_floor_are_equal_and_have_no_gradient() -> None:
    log_kernel = torch.tensor([[-5000.0, -5001.0]], requires_grad=True)
    loss = reconstruction(torch.zeros(1, 2), log_kernel, torch.tensor([[False, True]]), kernel_floor=1.17549e-38)
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6)
    assert (torch.autograd.grad(loss, log_kernel)[0] == 0).all()


def test_ratio_floor_bounds_the_loss() -> None:
    log_weight = torch.tensor([[0.0, -50.0]], requires_grad=True)
    present = torch.tensor([[False, True]])
    assert reconstruction(log_weight, torch.zeros(1, 2), present).item() == pytest.approx(50, rel=1e-6)
    loss = reconstruction(log_weight, torch.zeros(1, 2), present, ratio_floor=1e-7)
    assert loss.item() == pytest.approx(-math.log(1e-7), rel=1e-6)
    assert (torch.autograd.grad(loss, log_weight)[0] == 0).all()


def test_reconstruction_dtype() -> None:
    log_weight, log_kernel, present, _ = random_kernels()
    assert reconstruction(log_weight.float(), log_kernel, present).dtype == torch.float32
    half = log_weight.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast_result = reconstruction(half, log_kernel, present)
    assert autocast_result.dtype == torch.float32
    torch.testing.assert_close(autocast_result, reconstruction(half.float(), log_kernel, present))
